"""The package on its own model."""

import ast
import asyncio
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy
import pydantic
import pytest
import welte
from welte.llama_cpp import Llama, LlamaGrammar

GREEDY = {"temperature": 0, "max_tokens": 12}
PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="module")
def model():
    seen = []
    with welte.Model(welte.demo_model(), context=512, device="cpu", slots=2, progress=lambda *at: seen.append(at)) as model:
        assert seen and seen[-1][0] == seen[-1][1]
        yield model


def test_generating(model):
    whole = model.generate(PROMPT, **GREEDY)
    assert whole.finish_reason == "length" and whole.usage["completion_tokens"] == 12
    assert "".join(model.generate(PROMPT, stream=True, **GREEDY)) == whole.text == str(whole)
    tokens = model.tokenize(PROMPT, special=True)
    assert model.generate(tokens, **GREEDY).text == whole.text
    assert model.generate(numpy.array(tokens), **GREEDY).text == whole.text
    logprobs = model.generate(PROMPT, logprobs=3, **GREEDY).logprobs
    assert len(logprobs["token_logprobs"]) == 12 and len(logprobs["top_logprobs"][0]) == 3


def test_chatting(model):
    whole = model.chat(MESSAGES, **GREEDY)
    message = whole["choices"][0]["message"]
    assert whole["object"] == "chat.completion" and message["role"] == "assistant"
    chunks = list(model.chat(MESSAGES, stream=True, **GREEDY))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert MESSAGES[0]["content"] in model.render(MESSAGES)


def test_answers_with_a_form(model):
    class Fox(pydantic.BaseModel):
        age: int
        hungry: bool

    answer = model.chat(MESSAGES, schema=Fox, max_tokens=60, temperature=0)
    assert isinstance(answer["choices"][0]["message"]["parsed"], Fox)
    text = model.generate(PROMPT, schema=Fox.model_json_schema(), max_tokens=60, temperature=0).text
    Fox.model_validate_json(text)
    assert model.generate(PROMPT, grammar='root ::= "fox" | "dog"', **GREEDY).text in ("fox", "dog")
    with pytest.raises(welte.ArgumentError, match="schema"):
        model.generate(PROMPT, schema="object")


def test_vectors(model):
    rows = model.embed(["A fox.", "A dog."])
    assert rows.shape == (2, model.info["embedding_size"]) and rows.dtype == numpy.float32
    assert numpy.allclose(numpy.linalg.norm(rows, axis=1), 1, atol=1e-4)
    assert not rows.flags.owndata
    assert numpy.array_equal(model.embed("A fox."), rows[0])
    assert model.embed([]).shape[0] == 0


def test_tokens(model):
    text = "A fox ran home."
    tokens = model.tokenize(text)
    assert model.detokenize(tokens) == text
    for kind in (numpy.uint32, numpy.int64):
        assert model.detokenize(numpy.array(tokens, dtype=kind)) == text
    for wrong in ([-1], ["a"], [1.5], [2**40]):
        with pytest.raises(welte.ArgumentError, match="token"):
            model.detokenize(wrong)


def test_asyncio(model):
    async def talk():
        one, two = await asyncio.gather(model.agenerate(PROMPT, **GREEDY), model.achat(MESSAGES, **GREEDY))
        pieces = [piece async for piece in await model.agenerate(PROMPT, stream=True, **GREEDY)]
        chunks = [chunk async for chunk in await model.achat(MESSAGES, stream=True, **GREEDY)]
        assert "".join(pieces) == one.text and chunks[0]["id"] != two["id"]
        return await model.aembed("A fox.")

    assert asyncio.run(talk()).ndim == 1


def test_a_cancelled_task_ends_its_request(model):
    def asks():
        return model.request("GET", "/slots")

    async def cancelled(call):
        # 64 answers take their turns, so that they cannot all end before the task is cancelled.
        task = asyncio.create_task(call)
        while not any(slot["is_processing"] for slot in asks()):
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while any(slot["is_processing"] for slot in asks()):
            await asyncio.sleep(0.01)

    endless = {"ignore_eos": True, "max_tokens": 100_000, "n": 64}
    asyncio.run(cancelled(model.achat(MESSAGES, **endless)))
    asyncio.run(cancelled(model.agenerate(PROMPT, **endless)))


def test_other_threads_go_on(model):
    """A thread that only counts gets further while another one waits for the model."""
    count, done = 0, threading.Event()

    def generate():
        model.generate(PROMPT, temperature=0, max_tokens=200, ignore_eos=True)
        done.set()

    worker = threading.Thread(target=generate)
    worker.start()
    while not done.is_set():
        count += 1
    worker.join()
    assert count > 1000


def test_streams_end_early(model):
    with model.generate(PROMPT, stream=True, temperature=0, ignore_eos=True) as stream:
        next(stream)
    assert list(stream) == []
    # The engine is free again.
    assert model.generate(PROMPT, **GREEDY).finish_reason == "length"


def test_errors(model):
    with pytest.raises(welte.RequestError, match="temprature"):
        model.generate(PROMPT, temprature=1)
    with pytest.raises(welte.RequestError, match="temperature"):
        model.chat(MESSAGES, temperature=-1)
    with pytest.raises(welte.ArgumentError, match="contxt"):
        welte.Model(welte.demo_model(), contxt=1)
    with pytest.raises(welte.ModelError, match="nowhere"):
        welte.Model("/nowhere.gguf")
    with pytest.raises(welte.ArgumentError, match="not JSON serializable"):
        model.chat(MESSAGES, seed=object())
    for kind in (welte.RequestError, welte.ArgumentError, welte.ModelError):
        assert issubclass(kind, welte.WelteError)
    closed = welte.Model(welte.demo_model(), context=64, device="cpu")
    closed.close()
    with pytest.raises(welte.ArgumentError, match="closed"):
        closed.generate(PROMPT)


def test_the_plan():
    plan = welte.plan(welte.demo_model(), context=512, device="cpu")
    assert plan["context"] == 512 and 0 < plan["total"] == sum(plan["memory"].values())


def test_a_load_ends_with_an_exception_of_its_progress():
    seen = []

    def stop(*at):
        seen.append(at)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        welte.Model(welte.demo_model(), context=64, device="cpu", progress=stop)
    assert len(seen) == 1


GENERATES = """
model = welte.Model(welte.demo_model(), context=512, device='cpu')
print('ready', flush=True)
while True: model.generate('A', ignore_eos=True, max_tokens=500)
"""
# Its weights are computed, which takes long.
LOADS = """
def progress(done, total):
    if done == 0: print('ready', flush=True)
    if done == total: print('loaded', flush=True)
welte.Model('synthetic:qwen3-4b:q4_0', context=64, device='cpu', progress=progress)
"""
LOADS_WITHOUT_PROGRESS = "print('ready', flush=True)\nwelte.Model('synthetic:qwen3-4b:q4_0', context=64, device='cpu')"


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("work", [GENERATES, LOADS, LOADS_WITHOUT_PROGRESS])
def test_an_interrupt_ends_a_call(work):
    program = (
        "import signal, welte\n"
        # Where these tests run in the background the signal is ignored, and programs inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n" + "\n".join("    " + line for line in work.splitlines()) + "\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=60)[0] == "interrupted\n"
        assert running.returncode == 0
    finally:
        running.kill()


def test_the_command():
    def command(*args):
        return subprocess.run([sys.executable, "-m", "welte", *args], capture_output=True, text=True, check=False)

    assert command("--version").stdout.split()[1] == welte.__version__
    story = command("run", "-n", "24", "--device", "cpu", "Tell me a story about a fox.")
    assert "fox" in story.stdout and story.returncode == 0
    assert command("run", "--no-such-flag").returncode == 2
    assert command("inspect", "-m", "/nowhere.gguf").returncode == 1


@pytest.mark.skipif(os.name != "posix", reason="a script stands for the agent")
def test_the_command_starts_itself_as_a_server(tmp_path):
    agent = tmp_path / "aider"
    agent.write_text('#!/bin/sh\necho "$2 at $OPENAI_API_BASE"\n')
    agent.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    launch = [sys.executable, "-m", "welte", "launch", "aider", "-m", welte.demo_model(), "-c", "512", "--port", port]
    said = subprocess.run(launch, capture_output=True, text=True, check=False, env=environment)
    assert said.stdout == f"openai/demo at http://127.0.0.1:{port}/v1\n", said.stderr


def test_the_class_of_llama_cpp():
    llama = Llama(model_path=welte.demo_model(), n_ctx=512, verbose=False, seed=1)
    done = llama(PROMPT, max_tokens=8, temperature=0.0, stop=["\n\n"], echo=True)
    assert done["object"] == "text_completion" and done["choices"][0]["text"].startswith(PROMPT)
    chunks = llama.create_completion(PROMPT, max_tokens=8, temperature=0.0, stream=True)
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert PROMPT + text == done["choices"][0]["text"]
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    form = {"type": "json_object", "schema": schema}
    answer = llama.create_chat_completion(MESSAGES, response_format=form, max_tokens=40)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"])["age"], int)
    grammar = LlamaGrammar.from_string('root ::= "yes"')
    assert llama(PROMPT, grammar=grammar)["choices"][0]["text"] == "yes"
    assert len(llama.embed("A fox.")) == llama.n_embd()
    assert llama.detokenize(llama.tokenize(b"A fox.", add_bos=False)) == b"A fox."
    assert llama.create_embedding("A fox.")["data"][0]["index"] == 0
    with pytest.raises(welte.ArgumentError, match="lora_path"):
        Llama(model_path=welte.demo_model(), lora_path="x")


def test_the_stubs_name_what_there_is():
    folder = pathlib.Path(welte.__file__).parent
    for stub, module in [("__init__.pyi", welte), ("_welte.pyi", welte._welte)]:
        for one in ast.parse((folder / stub).read_text()).body:
            if isinstance(one, ast.ClassDef):
                methods = {at.name for at in one.body if isinstance(at, (ast.FunctionDef, ast.AsyncFunctionDef))}
                assert methods <= set(dir(getattr(module, one.name))), one.name
            elif isinstance(one, ast.FunctionDef):
                assert callable(getattr(module, one.name))
    model = next(one for one in ast.parse((folder / "__init__.pyi").read_text()).body if getattr(one, "name", "") == "Model")
    options = {arg.arg for arg in model.body[0].args.kwonlyargs} - {"progress"}
    with pytest.raises(welte.ArgumentError) as error:
        welte.plan(welte.demo_model(), no_such_option=1)
    assert options == set(str(error.value).split("the options are ")[1].split(", "))
