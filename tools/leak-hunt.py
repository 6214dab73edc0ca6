#!/usr/bin/env python3
"""Looks for memory that `welte serve` does not give back: mixed load on the CPU, and the process's memory over time.

    tools/leak-hunt.py target/release/welte [--minutes 60]

The load: chats, completions, responses, embeddings, constraints, tools, broken requests, and streams that their clients leave.
Two models take turns and are unloaded when they are idle. The memory must be level once the first third of the time is over: the
last tenth may exceed the highest tenth of the second third by `--tolerance`.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

DEMO = pathlib.Path(__file__).parent.parent / "models/demo.gguf"
WORDS = "the fox ran home with a bear and two small birds over hills under trees until night came".split()
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


class Client:
    """Sends requests of all kinds, one after another."""

    def __init__(self, port, seed):
        self.port = port
        self.random = random.Random(seed)
        self.statuses = {}

    def words(self, count):
        return " ".join(self.random.choices(WORDS, k=count))

    def post(self, path, body, leave=None):
        """Sends a body. `leave` is how many bytes of the answer to read before the client leaves."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            response.read(leave) if leave else response.read()
            self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
        except (OSError, http.client.HTTPException) as error:
            self.statuses[type(error).__name__] = self.statuses.get(type(error).__name__, 0) + 1
        finally:
            connection.close()

    def one(self):
        pick = self.random
        model = pick.choice(["demo", "demo", "demo", "other"])
        ask = {"model": model, "max_tokens": pick.randint(1, 48), "seed": pick.randint(0, 10**6), "temperature": pick.choice([0, 1])}
        chat = ask | {"messages": [{"role": "user", "content": self.words(pick.randint(1, 200))}]}
        shape = {"type": "object", "properties": {pick.choice(WORDS): {"type": "integer"}, self.words(1) + str(pick.randint(0, 10**6)): {"type": "boolean"}}}
        requests = [
            lambda: self.post("/v1/chat/completions", chat),
            lambda: self.post("/v1/chat/completions", chat | {"stream": True, "logprobs": True, "top_logprobs": 3}),
            lambda: self.post("/v1/chat/completions", chat | {"stream": True, "max_tokens": 400, "ignore_eos": True}, leave=pick.randint(1, 2000)),
            lambda: self.post("/v1/chat/completions", chat | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": shape}}}),
            lambda: self.post("/v1/chat/completions", chat | {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"}),
            lambda: self.post("/v1/completions", ask | {"prompt": self.words(pick.randint(1, 100)), "stop": [pick.choice(WORDS)], "n": 2}),
            lambda: self.post("/v1/responses", {"model": model, "input": self.words(5), "store": False, "max_output_tokens": 16}),
            lambda: self.post("/v1/messages", chat),
            lambda: self.post("/api/generate", {"model": model, "prompt": self.words(8), "keep_alive": "1s", "options": {"num_predict": 8}}),
            lambda: self.post("/completion", {"model": model, "prompt": self.words(8), "n_predict": 8, "grammar": f'root ::= "{self.words(2)}"'}),
            lambda: self.post("/v1/embeddings", {"model": model, "input": [self.words(9), self.words(3)]}),
            lambda: self.post("/tokenize", {"model": model, "content": self.words(5000)}),
            lambda: self.post("/v1/chat/completions", chat | {"mood": self.words(2), "colour" + str(pick.randint(0, 10**6)): 1}),
            # Refused: an unknown model, a bad schema, a prompt that is too long, and no JSON.
            lambda: self.post("/v1/chat/completions", chat | {"model": self.words(3), "response_format": {"type": "x"}}),
            lambda: self.post("/v1/chat/completions", chat | {"json_schema": {"$ref": "#/nowhere"}}),
            lambda: self.post("/v1/completions", ask | {"prompt": self.words(60000)}),
            lambda: self.post("/v1/completions", bytes(pick.randrange(256) for _ in range(1000))),
        ]
        pick.choice(requests)()

    def run(self, end):
        while time.monotonic() < end:
            self.one()
            # Now and then the second model is left alone.
            if self.random.random() < 0.01:
                time.sleep(4)


def memory(pid):
    """The resident memory of a process in MiB: all, and what is not of files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return tuple(int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "RssAnon"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("welte", help="the binary")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--tolerance", type=float, default=0.03, help="growth that counts as level, as a share")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder) / "other.gguf"
        shutil.copy(DEMO, other)
        command = [args.welte, "serve", "-m", DEMO, "-m", other, "--device", "cpu", "--port", "0", "--keep-alive", "2s", "-c", "4096"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            port = next(int(found[1]) for line in server.stderr if (found := re.search(r"listening at http://\S+:(\d+)", line)))
            threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
            start = time.monotonic()
            seconds = args.minutes * 60
            clients = [Client(port, seed) for seed in range(args.clients)]
            threads = [threading.Thread(target=one.run, args=(start + seconds,)) for one in clients]
            [thread.start() for thread in threads]
            samples, shown = [], 0
            while any(thread.is_alive() for thread in threads):
                samples.append((time.monotonic() - start, *memory(server.pid)))
                if samples[-1][0] >= shown:
                    shown += max(seconds / 40, 5)
                    done = sum(sum(one.statuses.values()) for one in clients)
                    print("{:6.0f} s  {:7.1f} MiB  {:7.1f} MiB anonymous".format(*samples[-1]), f" {done} requests", flush=True)
                time.sleep(1)
        finally:
            server.terminate()
            code = server.wait(timeout=60)
    tenths = [[] for _ in range(10)]
    for at, _, anonymous in samples:
        tenths[min(int(at * 10 / seconds), 9)].append(anonymous)
    tenths = [statistics.median(tenth) for tenth in tenths if tenth]
    counts = {}
    for one in clients:
        for status, count in one.statuses.items():
            counts[status] = counts.get(status, 0) + count
    print(f"answers: {counts}")
    print("median of each tenth: " + ", ".join(f"{tenth:.1f}" for tenth in tenths) + " MiB")
    before = max(tenths[3:7])
    grown = tenths[-1] / before - 1
    print(f"the last tenth differs by {grown:+.1%} from the highest one of the middle")
    if code != 0 or grown > args.tolerance:
        sys.exit(f"error: the memory is not level, or the server ended with {code}")


if __name__ == "__main__":
    main()
