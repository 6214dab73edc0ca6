from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Generic, Literal, TypeVar, overload

from ._errors import (
    ArgumentError as ArgumentError,
    BusyError as BusyError,
    CancelledError as CancelledError,
    InternalError as InternalError,
    ModelError as ModelError,
    OutOfMemoryError as OutOfMemoryError,
    RequestError as RequestError,
    WelteError as WelteError,
)

__version__: str
_T = TypeVar("_T")

def demo_model() -> str: ...
def plan(path: str | PathLike[str], **load: Any) -> dict[str, Any]: ...

class Generation:
    response: dict[str, Any]
    text: str
    finish_reason: str
    logprobs: dict[str, Any] | None
    usage: dict[str, Any] | None

class Stream(Generic[_T]):
    def __iter__(self) -> Iterator[_T]: ...
    def __next__(self) -> _T: ...
    def __aiter__(self) -> AsyncIterator[_T]: ...
    async def __anext__(self) -> _T: ...
    def close(self) -> None: ...
    def __enter__(self) -> Stream[_T]: ...
    def __exit__(self, *_: object) -> None: ...
    async def __aenter__(self) -> Stream[_T]: ...
    async def __aexit__(self, *_: object) -> None: ...

class Model:
    def __init__(
        self,
        path: str | PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
        activations: Literal["wide", "fp8"] | None = None,
        cache_host: int | None = None,
        cache_positions: int | None = None,
        chat_template: str | None = None,
        checkpoints: int | None = None,
        context: int | None = None,
        cpu_experts: int | Literal["all"] | None = None,
        cpus: str | None = None,
        device: str | None = None,
        embeddings: bool | None = None,
        ignore_memory: bool | None = None,
        instructions: str | None = None,
        kv_format: Literal["f16", "q8_0"] | None = None,
        lora: list[str] | None = None,
        lora_updates: bool | None = None,
        max_adapters: int | None = None,
        max_rank: int | None = None,
        mmproj: str | PathLike[str] | Literal[False] | None = None,
        pooling: Literal["last", "mean", "cls"] | None = None,
        prefix_cache: str | PathLike[str] | None = None,
        prefix_cache_bytes: int | None = None,
        prompt_rows: int | None = None,
        replay: str | None = None,
        reranking: bool | None = None,
        slots: int | None = None,
        speculation: Literal["auto", "ngram", "mtp", "off"] | None = None,
        steps: Literal["alike", "fast"] | None = None,
        threads: int | None = None,
    ) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Model: ...
    def __exit__(self, *_: object) -> None: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = False, schema: Any = None, **options: Any
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[True], schema: Any = None, **options: Any
    ) -> Stream[str]: ...
    @overload
    async def agenerate(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = False, **options: Any
    ) -> Generation: ...
    @overload
    async def agenerate(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Any
    ) -> Stream[str]: ...
    @overload
    def chat(
        self, messages: Iterable[Any], *, stream: Literal[False] = False, schema: Any = None, **options: Any
    ) -> dict[str, Any]: ...
    @overload
    def chat(
        self, messages: Iterable[Any], *, stream: Literal[True], schema: Any = None, **options: Any
    ) -> Stream[dict[str, Any]]: ...
    @overload
    async def achat(
        self, messages: Iterable[Any], *, stream: Literal[False] = False, **options: Any
    ) -> dict[str, Any]: ...
    @overload
    async def achat(
        self, messages: Iterable[Any], *, stream: Literal[True], **options: Any
    ) -> Stream[dict[str, Any]]: ...
    def render(self, messages: Iterable[Any]) -> str: ...
    # A numpy array, or lists without numpy.
    def embed(self, texts: str | Iterable[str], **options: Any) -> Any: ...
    async def aembed(self, texts: str | Iterable[str], **options: Any) -> Any: ...
    def rerank(self, query: str, documents: Iterable[str], **options: Any) -> dict[str, Any]: ...
    def tokenize(self, text: str, *, special: bool = False) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int]) -> str: ...
    def request(self, method: str, path: str, body: Any = None) -> Any: ...
