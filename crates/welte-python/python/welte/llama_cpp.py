"""A class in place of `llama_cpp.Llama`, for what both libraries have. Whatever has no counterpart is refused by name."""

from __future__ import annotations

from . import ArgumentError, Model


class LlamaGrammar:
    """A grammar in GBNF."""

    def __init__(self, text):
        self.text = text

    @classmethod
    def from_string(cls, grammar, verbose=False):
        return cls(grammar)

    @classmethod
    def from_file(cls, file, verbose=False):
        with open(file, encoding="utf-8") as opened:
            return cls(opened.read())


class Llama:
    """A model with the methods of llama-cpp-python's class."""

    def __init__(
        self,
        model_path,
        *,
        n_ctx=512,
        n_gpu_layers=0,
        n_threads=None,
        n_batch=512,
        seed=None,
        embedding=False,
        use_mmap=True,
        verbose=True,
        **unknown,
    ):
        _refuse(unknown)
        self._seed = seed if seed is not None and seed != 0xFFFFFFFF else None
        # A model is on one device as a whole.
        device = "cpu" if n_gpu_layers == 0 else None
        self._model = Model(
            model_path, context=n_ctx, device=device, threads=n_threads, prompt_rows=n_batch
        )
        self.model_path = model_path

    def n_ctx(self):
        return self._model.info["context"]

    def n_vocab(self):
        return self._model.info["vocabulary"]

    def n_embd(self):
        return self._model.info["embedding_size"]

    def token_eos(self):
        return self._model.info["end_tokens"][0]

    def tokenize(self, text, add_bos=True, special=False):
        fields = {"content": text.decode(), "add_special": add_bos, "parse_special": special}
        return self._model.request("POST", "/tokenize", fields)["tokens"]

    def detokenize(self, tokens):
        return self._model.detokenize(tokens).encode()

    def reset(self):
        """Nothing to do: prompts that share a beginning share its computation by themselves."""

    def close(self):
        self._model.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __call__(self, prompt, **options):
        return self.create_completion(prompt, **options)

    def create_completion(self, prompt, *, stream=False, max_tokens=16, **options):
        options = self._options(options, max_tokens, 0.8)
        if stream:
            model, body = self._model, {**options, "prompt": prompt}
            return _chunks(model, "/v1/completions", body)
        return self._model.generate(prompt, **options).response

    def create_chat_completion(self, messages, *, stream=False, max_tokens=None, **options):
        options = self._options(options, max_tokens, 0.2)
        form = options.get("response_format") or {}
        if "schema" in form:
            schema = {"name": "answer", "schema": form["schema"]}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        return self._model.chat(messages, stream=stream, **options)

    def create_embedding(self, input, model=None):
        return self._model.request("POST", "/v1/embeddings", {"input": input})

    def embed(self, input, normalize=False, truncate=True):
        texts = [input] if isinstance(input, str) else list(input)
        body = {"content": texts, "embd_normalize": 2 if normalize else -1}
        rows = [row["embedding"][0] for row in self._model.request("POST", "/embeddings", body)]
        return rows[0] if isinstance(input, str) else rows

    def _options(self, options, max_tokens, temperature):
        options = dict(options)
        options.setdefault("temperature", temperature)
        options.setdefault("seed", self._seed)
        # No limit: up to the end of the context.
        no_limit = max_tokens is None or max_tokens <= 0
        options["max_tokens"] = 2**31 - 1 if no_limit else max_tokens
        grammar = options.get("grammar")
        if isinstance(grammar, LlamaGrammar):
            options["grammar"] = grammar.text
        for mine, theirs in [("repeat_penalty", 1.0), ("typical_p", 1.0), ("tfs_z", 1.0)]:
            # These values change nothing.
            if options.get(mine) == theirs:
                del options[mine]
        return options


def _chunks(model, path, body):
    import json

    from . import _text

    for event in model._loaded().stream(path, _text("options", body)):
        yield json.loads(event)


def _refuse(unknown):
    if unknown:
        name = next(iter(unknown))
        raise ArgumentError(f"{name}: has no counterpart here; leave it out")
