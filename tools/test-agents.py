#!/usr/bin/env python3
"""Runs agents, client libraries and judges of APIs, unmodified, against `welte serve`.

    tools/test-agents.py target/release/welte --clients FOLDER [--only NAME] [--model FILE.gguf]

FOLDER is where tools/test-clients --all has installed them. Agents that edit a file talk to a scripted model (see
tools/scripted-model.py): its answers are fixed, everything else is the server. `--model FILE` runs them with a real model in its
place, which may fail at the task.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
KEY = "test-key"
TIME = 600


def check(condition, problem):
    if not condition:
        sys.exit(f"error: {problem}")


@contextlib.contextmanager
def serving(welte, model, *flags):
    """A server with one model, whose name is its file's. Yields its address."""
    command = [welte, "serve", "-m", model, "--port", "0", "--api-key", KEY, "-v", *flags]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=log, text=True)
        try:
            address = None
            for line in server.stderr:
                log.write(line)
                if found := re.search(r"listening at (http://\S+)", line):
                    address = found[1]
                    break
            check(address, "the server did not start")
            # The pipe must not fill up.
            drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=log)
            yield address
        except SystemExit:
            server.terminate()
            drain.wait(timeout=60)
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise
        finally:
            server.terminate()
            check(server.wait(timeout=60) == 0, "the server did not end well")


def call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripted(folder, *answers):
    """A model that gives these answers, one per turn."""
    model = folder / "scripted.gguf"
    flags = [flag for answer in answers for flag in ("--answer", answer)]
    subprocess.run([HERE / "scripted-model.py", model, *flags], check=True)
    return model


def start(command, folder, **environment):
    """Starts an agent in a folder, with a home of its own."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    kept |= {"HOME": str(home), **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder / "project", env=kept, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def run(command, folder, **environment):
    """Runs an agent. Returns what it says."""
    process = start(command, folder, **environment)
    out, errors = process.communicate(timeout=TIME)
    check(process.returncode == 0, f"{command[0]} ended with {process.returncode}:\n{out[-3000:]}\n{errors[-3000:]}")
    return out


@contextlib.contextmanager
def project():
    """A folder with a project whose file says hello."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "project").mkdir()
        file = folder / "project" / "greeting.txt"
        file.write_text("hello world\n")
        yield folder, file


TASK = "In the file greeting.txt, replace the word hello by goodbye."
DONE = "The file greeting.txt says goodbye now."


def check_edited(file, said):
    check(file.read_text() == "goodbye world\n", f"the file says {file.read_text()!r}, and the agent {said!r}")


def claude(clients, folder, address, model, task, *flags, run=run):
    program = clients / "npm/node_modules/.bin/claude"
    return run([program, "-p", task, "--permission-mode", "acceptEdits", *flags], folder, ANTHROPIC_BASE_URL=address,
               ANTHROPIC_AUTH_TOKEN=KEY, ANTHROPIC_MODEL=model.stem, ANTHROPIC_SMALL_FAST_MODEL=model.stem,
               CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", CLAUDE_CODE_MAX_OUTPUT_TOKENS="256", DISABLE_AUTOUPDATER="1")


def test_claude_code(args):
    with project() as (folder, file):
        edit = {"file_path": str(file), "old_string": "hello", "new_string": "goodbye"}
        model = args.model or scripted(folder, call("Read", {"file_path": str(file)}), call("Edit", edit), DONE)
        with serving(args.welte, model, "-c", str(args.context), "-np", "2") as address:
            check_edited(file, claude(args.clients, folder, address, model, TASK, *(["--tools", "Read,Edit"] if args.model else [])))
        # The bundled model only tells stories.
        with serving(args.welte, args.demo, "-c", "32768", "-np", "1") as address:
            said = claude(args.clients, folder, address, args.demo, "Tell me a story about a fox.", "--tools", "Read")
            check(said.strip(), "the bundled model said nothing")


def codex(clients, folder, address, model, task, *flags, run=run):
    settings = f'''model = "{model.stem}"
model_provider = "welte"
[model_providers.welte]
name = "Welte"
base_url = "{address}/v1"
env_key = "WELTE_KEY"
wire_api = "responses"
'''
    (folder / "home" / ".codex").mkdir(parents=True, exist_ok=True)
    (folder / "home" / ".codex" / "config.toml").write_text(settings)
    # The sandbox needs rights that a container may not give, and the folder is a temporary one.
    program = [clients / "npm/node_modules/.bin/codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return run([*program, *flags, task], folder, WELTE_KEY=KEY)


def test_codex(args):
    with project() as (folder, file):
        model = args.model or scripted(folder, call("exec_command", {"cmd": "sed -i s/hello/goodbye/ greeting.txt"}), DONE)
        with serving(args.welte, model, "-c", str(args.context), "-np", "2") as address:
            check_edited(file, codex(args.clients, folder, address, model, TASK))
        with serving(args.welte, args.demo, "-c", "32768", "-np", "1", "-n", "64") as address:
            check(codex(args.clients, folder, address, args.demo, "Tell me a story about a fox.").strip(), "the bundled model said nothing")


WEATHER = (call("get_weather", {"city": "Paris"}), "It is sunny in Paris.")


def test_ai_sdk(args):
    """The AI SDK's providers for Anthropic and OpenAI, with streamed tools."""
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or scripted(pathlib.Path(folder), *WEATHER)
        with serving(args.welte, model, "-c", "16384") as address:
            environment = {**os.environ, "NODE_PATH": str(args.clients.resolve() / "npm/node_modules")}
            subprocess.run(["node", HERE / "test-ai-sdk.mjs", address, KEY, model.stem], check=True, env=environment, timeout=TIME)


RUNNER = '''
import sys, anthropic
from anthropic import beta_tool

@beta_tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    asked.append(city)
    return "sunny"

asked = []
client = anthropic.Anthropic(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
messages = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
for stream in (False, True):
    asked.clear()
    runner = client.beta.messages.tool_runner(model=sys.argv[3], max_tokens=200, tools=[get_weather], messages=messages, stream=stream)
    if stream:
        last = [one.get_final_message() for one in runner][-1]
    else:
        last = runner.until_done()
    text = "".join(block.text for block in last.content if block.type == "text")
    assert asked == ["Paris"], asked
    assert text, last
'''


def test_tool_runner(args):
    """Anthropic's client calls functions by itself, whole and streamed."""
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or scripted(pathlib.Path(folder), *WEATHER)
        with serving(args.welte, model, "-c", "16384") as address:
            subprocess.run([args.clients / "openai-2/bin/python", "-c", RUNNER, address, KEY, model.stem], check=True, timeout=TIME)


def test_guidellm(args):
    with tempfile.TemporaryDirectory() as folder, serving(args.welte, args.demo) as address:
        data = pathlib.Path(folder) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"prompt": f"Tell me story {i}.", "output_tokens_count": 16}) + "\n" for i in range(4)))
        out = pathlib.Path(folder) / "report.json"
        command = [args.clients / "guidellm/bin/guidellm", "run", "--backend", f"kind=openai_http,target={address},model={args.demo.stem},api_key={KEY}",
                   "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4", "--data", f"kind=json_file,path={data}",
                   "--output", f"kind=json,path={out}", "--disable-console"]
        subprocess.run(command, check=True, cwd=folder, timeout=TIME)
        benchmark = json.loads(out.read_text())["benchmarks"][0]
        totals = benchmark["metrics"]["request_totals"]
        check(totals["successful"] == 4 and totals["errored"] == 0, f"the requests are {totals}")


def test_llm_comply(args):
    """Everything but images. Requests without the model's name are refused by a strict server only, which in turn refuses tools to
    models whose template has none, as that of the bundled one."""
    strict = {"compact-missing-model", "error-handling", "chat-error-handling"}
    model = args.model or args.demo
    passed = {}
    for flags in [(), ("--strict",)]:
        with serving(args.welte, model, "--temp", "0", "-c", "4096", *flags) as address:
            for kind in ["open-responses", "openai-chat", "anthropic"]:
                command = [args.clients / "judge/bin/llm-comply", "-u", address + "/v1", "-k", KEY, "-m", model.stem, "--format", kind, "--json"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIME)
                results = [one for one in json.loads(done.stdout)["results"] if (one["id"] in strict) == bool(flags)]
                failed = [one for one in results if one["status"] == "failed" and "image" not in one["id"]]
                check(not failed, f"{kind}: {json.dumps(failed, indent=1)}")
                counts = passed.setdefault(kind, [0, 0])
                counts[0] += sum(one["status"] == "passed" for one in results)
                counts[1] += len(results)
    for kind, (good, all) in passed.items():
        print(f"llm-comply {kind}: {good} of {all} passed, {all - good} with images or for other models")


TESTS = {"claude-code": test_claude_code, "codex": test_codex, "ai-sdk": test_ai_sdk, "tool-runner": test_tool_runner,
         "guidellm": test_guidellm, "llm-comply": test_llm_comply}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("welte", help="the binary")
    parser.add_argument("--clients", type=pathlib.Path, required=True)
    parser.add_argument("--only", choices=TESTS, action="append")
    parser.add_argument("--model", type=pathlib.Path, help="a real model in place of the scripted one")
    parser.add_argument("--context", type=int, default=65536)
    args = parser.parse_args()
    args.clients = args.clients.resolve()
    args.demo = HERE.parent / "models/demo.gguf"
    for name, test in TESTS.items():
        if not args.only or name in args.only:
            test(args)
            print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    main()
