"""Welte, an LLM inference engine."""

from __future__ import annotations

import array
import asyncio
import contextvars
import functools
import json
import os
from pathlib import Path

from . import _welte
from ._errors import (
    ArgumentError,
    BusyError,
    CancelledError,
    InternalError,
    ModelError,
    OutOfMemoryError,
    RequestError,
    WelteError,
)

__version__ = _welte.__version__
__all__ = [
    "ArgumentError",
    "BusyError",
    "CancelledError",
    "Generation",
    "InternalError",
    "Model",
    "ModelError",
    "OutOfMemoryError",
    "RequestError",
    "Stream",
    "WelteError",
    "demo_model",
    "plan",
]


def demo_model():
    """The path of a small model that comes with the package."""
    return str(Path(__file__).with_name("demo.gguf"))


def plan(path, **load):
    """The memory that a model would take with these options, read from its headers."""
    return json.loads(_welte.plan(os.fspath(path), _text("load options", load)))


class Generation:
    """A finished text, with what is known about it."""

    def __init__(self, response):
        self.response = response
        choice = response["choices"][0]
        self.text = choice["text"]
        self.finish_reason = choice["finish_reason"]
        self.logprobs = choice.get("logprobs")
        self.usage = response.get("usage")

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"Generation({self.text!r}, finish_reason={self.finish_reason!r})"


# What ends the calls of this context.
_cancel = contextvars.ContextVar("welte-cancel", default=None)


async def _aside(call, *args, **options):
    """Calls in another thread. A task that is cancelled ends the call there, too."""
    cancel, context = _welte.Cancel(), contextvars.copy_context()
    context.run(_cancel.set, cancel)
    call = functools.partial(context.run, call, *args, **options)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, call)
    except asyncio.CancelledError:
        cancel.cancel()
        raise


class Stream:
    """A response in pieces: an iterator, also an asynchronous one. Leaving it early ends the request with `close`."""

    def __init__(self, open_stream, convert):
        self._open, self._convert, self._stream = open_stream, convert, None
        self._closed = False

    def __iter__(self):
        return self

    def __next__(self):
        if self._closed:
            raise StopIteration
        if self._stream is None:
            self._stream = self._open()
            # It may have been closed while it was opened.
            if self._closed:
                self.close()
                raise StopIteration
        while True:
            piece = self._convert(json.loads(next(self._stream)))
            if piece is not None:
                return piece

    def __aiter__(self):
        return self

    async def __anext__(self):
        over = object()
        try:
            piece = await asyncio.to_thread(next, self, over)
        except asyncio.CancelledError:
            self.close()
            raise
        if piece is over:
            raise StopAsyncIteration
        return piece

    def close(self):
        """Ends the request."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()


class Model:
    """A loaded model. Several threads may use it at the same time."""

    def __init__(self, path, *, progress=None, **load):
        self._model = _welte.Model(os.fspath(path), _text("load options", load), progress)

    def _loaded(self):
        if self._model is None:
            raise ArgumentError("the model is closed")
        return self._model

    def close(self):
        """Frees the model once its streams have ended."""
        self._model = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return "Model(closed)" if self._model is None else f"Model({self.info['origin']!r})"

    @property
    def info(self):
        """Facts: name, device, context, vocabulary, memory and more."""
        return json.loads(self._loaded().info())

    # Text

    def generate(self, prompt, *, stream=False, schema=None, **options):
        """Continues a text or tokens. With `stream` the result is an iterator of texts."""
        prompt = prompt if isinstance(prompt, str) else _tokens(prompt)
        options.update(_constraint("json_schema", schema))
        if stream:
            if "max_tokens" not in options and "n_predict" not in options:
                options["max_tokens"] = 2**31 - 1
            body = _text("options", {**options, "prompt": prompt})
            model = self._loaded()
            return Stream(lambda: model.stream("/v1/completions", body), _completion_text)
        options = _text("options", options)
        answer = self._loaded().generate(json.dumps(prompt), options, _cancel.get())
        return Generation(json.loads(answer))

    async def agenerate(self, prompt, *, stream=False, **options):
        """As `generate`, without blocking the event loop. With `stream` the result is an asynchronous iterator."""
        if stream:
            return self.generate(prompt, stream=True, **options)
        return await _aside(self.generate, prompt, **options)

    # Chats

    def chat(self, messages, *, stream=False, schema=None, **options):
        """Answers a conversation, with the fields and the dictionaries of OpenAI's chat completions. A message of an answer
        with a pydantic model as its `schema` has the object as "parsed"."""
        if schema is not None:
            schema_text = _schema(schema)
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema_text},
            }
        body = _text("options", {**options, "messages": _plain(messages)})
        model = self._loaded()
        if stream:
            return Stream(lambda: model.stream("/v1/chat/completions", body), lambda chunk: chunk)
        answer = json.loads(model.chat(body, _cancel.get()))
        if hasattr(schema, "model_validate_json"):
            for choice in answer["choices"]:
                message = choice["message"]
                whole = choice["finish_reason"] == "stop"
                message["parsed"] = (
                    schema.model_validate_json(message["content"]) if whole else None
                )
        return answer

    async def achat(self, messages, *, stream=False, **options):
        """As `chat`, without blocking the event loop. With `stream` the result is an asynchronous iterator."""
        if stream:
            return self.chat(messages, stream=True, **options)
        return await _aside(self.chat, messages, **options)

    def render(self, messages):
        """The text that the model's chat template makes of messages."""
        return self._loaded().render(json.dumps(_plain(messages)))

    # Vectors

    def embed(self, texts, **options):
        """The vectors of texts: a numpy array of a row each, or lists without numpy. One text has one vector."""
        one = isinstance(texts, str)
        texts = [texts] if one else list(texts)
        values, size = self._loaded().embed(texts, _text("options", options), _cancel.get())
        try:
            import numpy
        except ImportError:
            values = array.array("f", values).tolist()
            rows = [values[at : at + size] for at in range(0, len(values), size or 1)]
        else:
            # The array reads the bytes where they are.
            rows = numpy.frombuffer(values, dtype=numpy.float32).reshape(len(texts), size)
        return rows[0] if one else rows

    async def aembed(self, texts, **options):
        """As `embed`, without blocking the event loop."""
        return await _aside(self.embed, texts, **options)

    def rerank(self, query, documents, **options):
        """Scores documents for a query, with the fields and the dictionaries of /v1/rerank."""
        body = {**options, "query": query, "documents": list(documents)}
        return self.request("POST", "/v1/rerank", body)

    # Tokens

    def tokenize(self, text, *, special=False):
        """The tokens of a text. `special`: with those that the model expects around it, and with control tokens recognised."""
        return self._loaded().encode(text, special)

    def detokenize(self, tokens):
        """The text of tokens: a sequence of numbers, or a numpy array."""
        return self._loaded().decode(_tokens(tokens))

    # Everything else

    def request(self, method, path, body=None):
        """Sends a request to any endpoint of `welte serve`, without a network."""
        text = "" if body is None else _text("body", body)
        return json.loads(self._loaded().request(method, path, text, _cancel.get()))


def _completion_text(chunk):
    choices = chunk.get("choices") or []
    return (choices[0].get("text") if choices else None) or None


def _tokens(tokens):
    tokens = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    for token in tokens:
        if not isinstance(token, int) or not 0 <= token < 2**32:
            raise ArgumentError(f"{token!r} is not a token; tokens are whole numbers from 0 on")
    return tokens


def _schema(schema):
    if hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    if isinstance(schema, dict):
        return schema
    raise ArgumentError(f"schema: {schema!r} is neither a dictionary nor a pydantic model")


def _constraint(name, schema):
    return {} if schema is None else {name: _schema(schema)}


def _plain(messages):
    """Messages as dictionaries, also those that are pydantic objects of a client library."""
    dump = lambda one: one.model_dump(exclude_none=True) if hasattr(one, "model_dump") else one
    return [dump(one) for one in messages]


def _text(what, fields):
    fields = {name: value for name, value in fields.items() if value is not None}
    fields = {n: os.fspath(v) if isinstance(v, os.PathLike) else v for n, v in fields.items()}
    try:
        return json.dumps(fields)
    except TypeError as error:
        raise ArgumentError(f"{what}: {error}") from error
