#!/usr/bin/env python3
"""Sends pictures through the back end of Open WebUI to `welte serve` with the bundled model and its encoder.

    python3 -m venv ENV && ENV/bin/pip install open-webui==0.12.4
    ENV/bin/python tools/test-open-webui.py target/release/welte

Open WebUI comes with more than 2 GB of packages, so tools/test-clients leaves it out. It needs no account, no network and no browser: the
script signs in as its page does, lists the models, and asks about two pictures, at once and as a stream.
"""

import base64
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

KEY = "test-key"
MODELS = pathlib.Path(__file__).parent.parent / "models"
PICTURES = [pathlib.Path(__file__).parent.parent / f"docs/pictures/{name}.png" for name in ("red-ball", "umbrella")]


def check(condition, problem):
    if not condition:
        sys.exit(f"error: {problem}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(url, body=None, token=None):
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def ask(url, token, model, picture, stream):
    image = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    parts = [{"type": "text", "text": "What is in the picture?"}, {"type": "image_url", "image_url": {"url": image}}]
    body = {"model": model, "messages": [{"role": "user", "content": parts}], "stream": stream, "temperature": 0, "max_tokens": 24}
    answer = call(url + "/api/chat/completions", body, token)
    if not stream:
        return json.loads(answer)["choices"][0]["message"]["content"]
    events = [line[6:] for line in answer.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def main():
    command = [sys.argv[1], "serve", "-m", MODELS / "demo.gguf", "--mmproj", MODELS / "demo-eyes.gguf", "--port", "0", "--api-key", KEY]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    found = next(filter(None, (re.search(r"listening at (http://\S+)", line) for line in server.stderr)), None)
    check(found, "the server did not start")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"OPENAI_API_BASE_URLS": found[1] + "/v1", "OPENAI_API_KEYS": KEY, "ENABLE_OLLAMA_API": "false", "WEBUI_AUTH": "false",
                    "DATA_DIR": folder, "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "RAG_EMBEDDING_ENGINE": "openai",
                    "WEBUI_SECRET_KEY": "secret", "ENABLE_VERSION_UPDATE_CHECK": "false", "SCARF_NO_ANALYTICS": "true"}
        program = [pathlib.Path(sys.executable).with_name("open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
        log = open(pathlib.Path(folder) / "log", "w+")
        page = subprocess.Popen(program, env=os.environ | settings, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                check(page.poll() is None, "Open WebUI ended:\n" + pathlib.Path(log.name).read_text()[-4000:])
                try:
                    call(url + "/health")
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.5)
            token = json.loads(call(url + "/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
            models = [model["id"] for model in json.loads(call(url + "/api/models", token=token))["data"]]
            check("demo" in models, f"models are {models}")
            answers = [ask(url, token, "demo", picture, stream) for picture in PICTURES[:2] for stream in (False, True)]
            check(answers[0] == answers[1] and answers[2] == answers[3], f"a stream differs: {answers}")
            check(answers[0] != answers[2], f"another picture made no difference: {answers}")
            print(f"open-webui: {answers[0]!r}, {answers[2]!r}: ok")
        finally:
            page.terminate()
            page.wait(timeout=60)
            server.terminate()
    check(server.wait(timeout=60) == 0, "the server did not end well")


if __name__ == "__main__":
    main()
