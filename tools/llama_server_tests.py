#!/usr/bin/env python3
"""Runs llama.cpp's own tests of its server against `welte serve`, and prints a table.

The tests are in a package on PyPI and are used from there: nothing of them is in this repository. Their models are on a hub;
here the bundled model and small models of random weights take their places. So three things change in the copy that runs:

- where a test looks for the words of such a model, any text will do (`utils.match_regex`);
- where it counts the tokens of such a model's vocabulary, any count will do (`COUNTS`);
- `llama-server` is this script, which maps flags (`serve`).

Everything else is compared as it is. A function passes if all of its cases do.

    tools/llama_server_tests.py [--welte PATH] [--work FOLDER] [-k WORDS] [--list]
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = "llama-cpp-python==0.3.36"

# Functions, or whole files, that test what Welte does not have, and why that is so.
NOT_APPLICABLE = {
    "test_lora.py": "adapters",
    "test_mcp_servers.py": "the server runs no tools",
    "test_tools_builtin.py": "the server runs no tools",
    "test_proxy.py": "the server fetches nothing for pages",
    "test_vision_api.py": "images",
    "test_router.py": "starts a process per model, with presets",
    "test_stream.py": "streams that go on without their client",
    "test_slot_save.py": "slots have no files: all share one prefix cache",
    "test_kv_keep_only_active.py": "slots have no caches of their own",
    "test_compat_gcp.py": "the API of Vertex AI",
    "test_sleep.py::test_server_sleep_read_only_endpoints": "figures while a model is unloaded are those of now",
    "test_sleep.py::test_server_sleep_metrics_buckets": "rates are averages since the start",
    "test_basic.py::test_load_split_model": "a model of the hub in parts",
    "test_completion.py::test_completion_stream_with_openai_library_stops": "the words of a model of the hub",
    "test_completion.py::test_cache_vs_nocache_prompt": "skipped by the suite",
    "test_ctx_shift.py::test_ctx_shift_enabled": "a full context ends the answer",
    "test_speculative.py::test_with_ctx_shift": "a full context ends the answer",
    "test_speculative.py::test_synth_is_deterministic": "made-up guesses are in `welte bench`",
    "test_speculative.py::test_synth_ignores_target_tokens": "made-up guesses are in `welte bench`",
    "test_speculative.py::test_with_and_without_draft": "made-up guesses are in `welte bench`",
    "test_infill.py::test_with_qwen_model": "the words of a model of the hub",
    "test_embedding.py::test_embedding_pooling_none": "vectors of single tokens",
    "test_embedding.py::test_embedding_pooling_none_oai": "vectors of single tokens",
    "test_security.py::test_cors_proxy_only_forwards_explicit_proxy_headers": "the server fetches nothing for pages",
    "test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled": "the server runs no tools",
    "test_security.py::test_local_media_file": "images",
    "test_security.py::test_access_static_assets_without_api_key": "files of llama.cpp's own page",
    "test_compat_anthropic.py::test_anthropic_vision_base64_with_multimodal_model": "images",
    "test_compat_anthropic.py::test_anthropic_thinking_with_reasoning_model": "the words of a model of the hub",
    "test_tool_call.py::test_completion_with_required_tool_real_model": "the words of a model of the hub",
    "test_tool_call.py::test_completion_without_tool_call_slow": "marked slow by the suite",
    "test_tool_call.py::test_weather": "the words of a model of the hub",
    "test_tool_call.py::test_calc_result": "the words of a model of the hub",
    "test_tool_call.py::test_thoughts": "the words of a model of the hub",
    "test_tool_call.py::test_hello_world": "the words of a model of the hub",
}

# Functions that fail, and how Welte differs.
DIFFERENT = {
    "test_server_model_aliases_and_tags": "the id is the first name of --alias, not the first of the alphabet",
    "test_server_multiple_addresses": "--host takes one address",
    "test_chat_template_assistant_prefill": "texts of a prefilled answer are joined without an empty line",
    "test_anthropic_empty_messages": "400, as Anthropic's own API",
    "test_anthropic_vision_format_accepted": "images for a model without an encoder get 400, not 500",
    "test_anthropic_tool_result_with_image": "images for a model without an encoder get 400, not 500",
    "test_responses_stream_with_llama_telemetry": "timings_per_token and return_progress are for chats and completions",
    "test_cors_options": "only pages of this machine and of --cors may call",
    "test_slot_ctx_not_exceeded": "100 words are more than 256 tokens of the bundled vocabulary",
    "test_reasoning": "9 of 27 cases: enable_thinking is not defined unless asked for, as with transformers",
}

# Functions whose answers are constrained: their words are compared.
EXACT_WORDS = {
    "test_completion_with_response_format",
    "test_completion_with_json_schema",
    "test_completion_with_grammar",
}

# Parameters that count tokens of another vocabulary.
COUNTS = {"n_prompt", "n_token_output", "batch_count"}

# Numbers in functions that count such tokens, or that tell which document is the best one.
NUMBERS = {
    "test_chat_completion_cached_tokens": {77, 76, 51, 47, 0},
    "test_rerank": {2, 3},
    "test_rerank_tei_format": {2, 3},
    "test_rerank_usage": {19, 26},
    "test_completion_prompt_cache": {5},
    "test_n_probs": {0},
    "test_n_probs_stream": {0},
}

# Texts that fill the context of a smaller vocabulary, and words whose number must shrink for a larger one.
REPLACED = {
    "test_ctx_shift.py": [("LONG_TEXT,", "LONG_TEXT * 3,")],
    "test_speculative.py": [("\"Hello \" * 248", "\"Hello \" * 100")],
}

# The text that begins a prompt of such a model, and of ours.
BEGIN, OURS = "<s> ", "<|im_start|>"

# The model that takes a preset's place, by a word of its name on the hub.
MODELS = {
    "bert-bge-small": "embed.gguf",
    "jina-reranker": "rerank.gguf",
    "infill": "infill.gguf",
    "": "stories.gguf",
}


class AnyCount:
    """Equal to every number of tokens."""

    def __eq__(self, other):
        return isinstance(other, int) and other >= 0

    def __hash__(self):
        return 0

    def __lt__(self, other):
        return other >= 0

    def __add__(self, other):
        return self

    __radd__ = __mul__ = __rmul__ = __add__

    def __repr__(self):
        return "any count"


# --- preparation


def run(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, **more)


def prepare(work, welte):
    """The interpreter that runs the suite, and the folder of its tests."""
    python = work / "venv/bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", work / "venv")
    source = work / "llama.cpp"
    tests = source / "tools/server/tests"
    if not tests.exists():
        pip = [python, "-m", "pip", "--quiet"]
        run(*pip, "install", "scikit-build-core", "cmake", "ninja")
        run(*pip, "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation", "-d", work, SUITE)
        unpack(next(work.glob("llama_cpp_python-*.tar.gz")), source)
        run(*pip, "install", "-r", tests / "requirements.txt", "gguf==0.19.0", "pytest-timeout")
    for file in (tests / "unit").glob("test_*.py"):
        adapt(file)
    models = work / "models"
    if not all((models / name).exists() for name in MODELS.values()):
        models.mkdir(exist_ok=True)
        run(python, __file__, "--make-models", models, source / "models")
    server = work / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{python}" "{__file__}" --serve "{welte}" "{models}" "$@"\n')
    server.chmod(0o755)
    return python, tests, server


def unpack(archive, folder):
    """The tests, the templates and the vocabularies that they need."""
    wanted = re.compile(r"[^/]+/vendor/llama\.cpp/((?:tools/server/tests|models)/.*)")
    with tarfile.open(archive) as tar:
        for member in tar:
            found = wanted.fullmatch(member.name)
            if found and member.isfile():
                member.name = found[1]
                tar.extract(member, folder, filter="data")


def adapt(file):
    """Replaces numbers of tokens in the functions of a file."""
    text = file.read_text()
    for old, new in REPLACED.get(file.name, []):
        text = text.replace(old, new)
    tree = ast.parse(text.replace(f'"{BEGIN}', f'"{OURS}'))
    changed = file.name in REPLACED or f'"{BEGIN}' in text
    for function in tree.body:
        numbers = NUMBERS.get(getattr(function, "name", None))
        if numbers:
            for node in ast.walk(function):
                for field, value in ast.iter_fields(node):
                    for at, item in enumerate(value if isinstance(value, list) else [value]):
                        if isinstance(item, ast.Constant) and type(item.value) is int and item.value in numbers:
                            count = ast.parse("__import__('llama_server_tests').AnyCount()", mode="eval").body
                            if isinstance(value, list):
                                value[at] = count
                            elif not isinstance(node, ast.Subscript):
                                setattr(node, field, count)
                            changed = True
    if changed:
        file.write_text(ast.unparse(ast.fix_missing_locations(tree)))


# --- models


def make_models(models, vocabularies):
    """Copies of the bundled model, and encoders of random weights."""
    import numpy as np
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    def metadata(reader, writer, skip=(), change={}):
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name in ("general.architecture", *skip):
                continue
            kind = field.types[0]
            sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, change.get(field.name, field.contents()), kind, sub_type=sub)

    demo = GGUFReader(ROOT / "models/demo.gguf")
    arch = demo.fields["general.architecture"].contents()
    tokens = demo.fields["tokenizer.ggml.tokens"].contents()
    # The suite's model begins prompts with token 1 and never ends its stories.
    change = {
        "tokenizer.ggml.token_type": [3, 3, 1, *demo.fields["tokenizer.ggml.token_type"].contents()[3:]],
        "tokenizer.ggml.tokens": ["<never>" if text == "<|im_end|>" else text for text in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }
    for name, more in [("stories.gguf", {}), ("infill.gguf", {"prefix": 0, "suffix": 1, "middle": 2})]:
        writer = GGUFWriter(models / name, arch)
        metadata(demo, writer, change=change)
        # Any three tokens will do: the weights know none of them.
        for mark, token in more.items():
            short = {"prefix": "pre", "suffix": "suf", "middle": "mid"}[mark]
            writer.add_uint32(f"tokenizer.ggml.fim_{short}_token_id", len(tokens) - 1 - token)
        for tensor in demo.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        write(writer)

    vocabulary = GGUFReader(vocabularies / "ggml-vocab-bert-bge.gguf")
    random = np.random.default_rng(1)
    width, inner, layers, heads = 64, 128, 2, 2
    count = len(vocabulary.fields["tokenizer.ggml.tokens"].contents())
    for name, scores in [("embed.gguf", False), ("rerank.gguf", True)]:
        writer = GGUFWriter(models / name, "bert")
        own = [f"bert.{key}" for key in ("block_count", "context_length", "embedding_length", "feed_forward_length",
                                         "attention.head_count", "attention.layer_norm_epsilon", "attention.causal",
                                         "pooling_type")]
        metadata(vocabulary, writer, skip=own)
        writer.add_block_count(layers)
        writer.add_context_length(512)
        writer.add_embedding_length(width)
        writer.add_feed_forward_length(inner)
        writer.add_head_count(heads)
        writer.add_layer_norm_eps(1e-12)
        writer.add_causal_attention(False)
        writer.add_uint32("bert.pooling_type", 4 if scores else 2)

        def weight(name, *shape, scale=0.2):
            writer.add_tensor(name, (random.standard_normal(shape) * scale).astype(np.float32))

        def norm(name):
            writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
            writer.add_tensor(f"{name}.bias", np.zeros(width, np.float32))

        def product(name, out, into):
            weight(f"{name}.weight", out, into)
            weight(f"{name}.bias", out, scale=0.02)

        weight("token_embd.weight", count, width)
        weight("position_embd.weight", 512, width)
        weight("token_types.weight", 2, width)
        norm("token_embd_norm")
        for layer in range(layers):
            for part in "qkv":
                product(f"blk.{layer}.attn_{part}", width, width)
            product(f"blk.{layer}.attn_output", width, width)
            norm(f"blk.{layer}.attn_output_norm")
            product(f"blk.{layer}.ffn_up", inner, width)
            product(f"blk.{layer}.ffn_down", width, inner)
            norm(f"blk.{layer}.layer_output_norm")
        if scores:
            product("cls", width, width)
            product("cls.output", 1, width)
        write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- llama-server's command line


def serve(welte, models, args):
    """Becomes `welte serve`. Its models and the meaning of the context size differ; all else is up to its own table of flags."""
    flags = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in ("--hf-repo", "--hf-file", "--model", "--model-url", "--models-dir"):
        flags.add_argument(name)
    flags.add_argument("--model-draft")
    flags.add_argument("--ctx-size", type=int, default=0)
    flags.add_argument("--parallel", type=int, default=1)
    flags.add_argument("--kv-unified", action="store_true")
    flags.add_argument("--api-key")
    known, rest = flags.parse_known_args(args)
    name = f"{known.hf_repo} {known.hf_file}"
    model = next(file for word, file in MODELS.items() if word in name)
    command = [welte, "serve", f"{models}/{model}", "--device", "cpu", "--parallel", str(known.parallel), *rest]
    if known.model_draft:
        command += ["--model-draft", f"{models}/stories.gguf"]
    if known.api_key:
        command += ["--api-key", known.api_key]
    if known.ctx_size:
        # llama.cpp's is for all slots together.
        each = known.ctx_size if known.kv_unified else known.ctx_size // known.parallel
        command += ["--ctx-size", str(each), "--cache-positions", str(known.ctx_size)]
    os.execv(welte, command)


# --- pytest's plugin


def pytest_configure(config):
    import utils

    from requests.structures import CaseInsensitiveDict

    class Kind(type):
        def __instancecheck__(cls, one):
            return isinstance(one, dict)

    class Dict(dict, metaclass=Kind):
        """`dict`, but that the case of a header's name means nothing. A class, for it stands in types too."""

        def __new__(cls, *of, **more):
            return of[0] if of and isinstance(of[0], CaseInsensitiveDict) else dict(*of, **more)

    utils.dict = Dict
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.download_file = lambda url, output_file_path=None: url
    match = utils.match_regex

    def match_words(regex, text):
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        exact = any(f"::{name}" in test for name in EXACT_WORDS)
        return match(regex, text) if exact else isinstance(text, str)

    utils.match_regex = match_words


def key_of(item):
    return f"{Path(item.location[0]).name}::{item.originalname}"


def reason(key):
    return NOT_APPLICABLE.get(key) or NOT_APPLICABLE.get(key.split("::")[0])


def pytest_collection_modifyitems(config, items):
    import pytest

    for item in items:
        why = reason(key_of(item))
        if why:
            item.add_marker(pytest.mark.skip(reason=f"not applicable: {why}"))
        params = getattr(item, "callspec", None)
        for name in COUNTS & set(params.params if params else ()):
            params.params[name] = AnyCount()


RESULTS = {}


def pytest_runtest_logreport(report):
    key = "::".join([Path(report.location[0]).name, report.location[2].split("[")[0]])
    case = RESULTS.setdefault(key, [])
    if report.failed:
        text = str(report.longrepr)
        lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
        case.append(("fail", lines[0][:150] if lines else text[-150:]))
    elif report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        case.append(("skip", why.removeprefix("Skipped: ").removeprefix("not applicable: ")))
    elif report.when == "call":
        case.append(("pass", ""))


def pytest_sessionfinish(session):
    path = os.environ.get("LLAMA_SERVER_TESTS_RESULTS")
    if path:
        Path(path).write_text(json.dumps(RESULTS))


# --- the table


def table(results, known):
    """A row per function; the counts at the end."""
    counts = {"pass": 0, "fail": 0, "not applicable": 0}
    for key in sorted(known | set(results)):
        cases = results.get(key, [])
        kinds = [kind for kind, _ in cases]
        if reason(key) or kinds and set(kinds) == {"skip"}:
            kind, why = "not applicable", reason(key) or cases[0][1]
        elif "fail" in kinds or not kinds:
            kind = "fail"
            failed = [why for one, why in cases if one == "fail"]
            why = f"{len(failed)} of {len(cases)}: {failed[0]}" if failed else "did not run"
            known_why = DIFFERENT.get(key.split("::")[1])
            why += f" (known: {known_why})" if known_why else ""
        else:
            kind, why = "pass", f"{len(cases)} cases" if len(cases) > 1 else ""
        counts[kind] += 1
        print(f"{kind:>14}  {key:<75} {why}")
    applicable = counts["pass"] + counts["fail"]
    print(f"\n{counts['pass']} of {applicable} functions that apply pass; {counts['not applicable']} do not apply")
    return counts["fail"]


def functions(tests):
    """All test functions of the suite."""
    found = set()
    for file in (tests / "unit").glob("test_*.py"):
        names = (getattr(node, "name", "") for node in ast.parse(file.read_text()).body)
        found |= {f"{file.name}::{name}" for name in names if name.startswith("test_")}
    return found


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], sys.argv[4:])
    if sys.argv[1:2] == ["--make-models"]:
        return make_models(Path(sys.argv[2]), Path(sys.argv[3]))
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--welte", type=Path, default=ROOT / "target/release/welte", help="the binary")
    flags.add_argument("--work", type=Path, default=ROOT / "target/llama-server-tests", help="folder for what it needs")
    flags.add_argument("-k", default="", help="only functions whose names contain these words")
    flags.add_argument("--port", type=int, default=18080, help="where the server listens")
    flags.add_argument("--show", action="store_true", help="pytest's own output too")
    args = flags.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    python, tests, server = prepare(work, args.welte.resolve())
    results = work / "results.json"
    results.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{Path(__file__).parent}:{tests}",
        "PORT": str(args.port),
        "LLAMA_SERVER_BIN_PATH": str(server),
        "LLAMA_SERVER_TESTS_RESULTS": str(results),
    }
    command = [python, "-m", "pytest", "-p", "llama_server_tests", "-q", "--timeout", "180", "unit"]
    command += ["-k", args.k] if args.k else []
    shown = None if args.show else subprocess.DEVNULL
    subprocess.run([str(word) for word in command], cwd=tests, env=environment, stdout=shown)
    done = json.loads(results.read_text())
    return 1 if table(done, set(done) if args.k else functions(tests)) else 0


if __name__ == "__main__":
    sys.exit(main())
