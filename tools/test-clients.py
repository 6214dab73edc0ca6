#!/usr/bin/env python3
"""Runs the official clients against `welte serve` with the bundled model, with a tiny one that takes images (tiny_vision.py), and with
a tiny one of speech (tiny_speech.py).

    pip install openai websockets anthropic ollama schemathesis && npm install openai
    cargo build --release
    NODE_PATH=node_modules tools/test-clients.py target/release/welte

A client that is not installed is an error. `--only NAME` (repeatable) runs some of them. tools/test-clients installs everything
and runs this script with every version that must work.
"""

import argparse
import base64
import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import tiny_speech
import tiny_vision

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
KEY = "test-key"


def check(condition, problem):
    if not condition:
        sys.exit(f"error: {problem}")


def test_openai(url):
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    models = [model.id for model in client.models.list()]
    check(models == ["demo"], f"models are {models}")
    ask = {"model": "demo", "messages": QUESTION, "max_tokens": 32, "temperature": 0, "seed": 1}
    whole = client.chat.completions.create(**ask)
    text = whole.choices[0].message.content
    check(len(text) > 20 and whole.choices[0].finish_reason == "length", f"the answer is {whole}")
    stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    check(streamed == text, f"streamed {streamed!r} in place of {text!r}")
    check(chunks[-1].usage == whole.usage or chunks[-1].usage.total_tokens == whole.usage.total_tokens, "usage differs")
    two = client.chat.completions.create(**{**ask, "temperature": 1.2}, n=2)
    check(len(two.choices) == 2, "two answers were asked for")
    completion = client.completions.create(model="demo", prompt=["Once", "The fox"], max_tokens=4)
    check(len(completion.choices) == 2, "two completions were asked for")
    probable = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    check("".join(one.token for one in probable) == text, f"the tokens are {probable}")
    schema = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 9}},
              "required": ["count"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "count", "schema": schema, "strict": True}}
    counted = client.chat.completions.create(**ask, response_format=form).choices[0].message.content
    check(1 <= json.loads(counted)["count"] <= 9, f"the answer is {counted}")
    vectors = client.embeddings.create(model="demo", input=["A fox.", "A bear."]).data
    floats = client.embeddings.create(model="demo", input="A bear.", encoding_format="float").data
    check(max(abs(a - b) for a, b in zip(vectors[1].embedding, floats[0].embedding)) < 1e-6, "the vectors differ")
    responses(client)
    for kind, call in [
        (openai.BadRequestError, lambda: client.chat.completions.create(**ask, extra_body={"colour": 1})),
        (openai.NotFoundError, lambda: client.chat.completions.create(**{**ask, "model": "other"})),
        (openai.AuthenticationError, lambda: client.with_options(api_key="wrong").models.list()),
    ]:
        try:
            call()
        except kind as error:
            check(error.body is not None, f"{kind.__name__} has no body")
        else:
            sys.exit(f"error: {kind.__name__} is missing")


def responses(client):
    """`/v1/responses` of OpenAI's client."""
    ask = {"model": "demo", "max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**ask, input="Tell me a story about a fox.")
    check(len(whole.output_text) > 20 and whole.status == "incomplete", f"the response is {whole}")
    events = list(client.responses.create(**ask, input="Tell me a story about a fox.", stream=True))
    streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    check(streamed == whole.output_text, f"streamed {streamed!r} in place of {whole.output_text!r}")
    check(events[-1].response.output_text == streamed, f"the last event is {events[-1]}")
    unknown = {event.type for event in events if type(event).__name__ == "BaseModel"}
    check(not unknown, f"the client does not know the events {unknown}")
    with client.responses.stream(**ask, input="Tell me a story about a fox.") as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    check(deltas == streamed, f"streamed {deltas!r} in place of {streamed!r}")
    second = client.responses.create(**ask, input="And a bear?", previous_response_id=whole.id)
    items = client.responses.input_items.list(second.id, order="asc")
    check([item.type for item in items] == ["message"] * 3, f"the items are {items}")
    check(client.responses.retrieve(second.id) == second, "the stored response differs")
    count = client.responses.input_tokens.count(model="demo", input="Tell me a story about a fox.")
    check(count.input_tokens == whole.usage.input_tokens, f"{count.input_tokens} tokens were counted")
    # Long enough to be cancelled while it runs.
    long = {**ask, "max_output_tokens": 400, "extra_body": {"ignore_eos": True}}
    background = client.responses.create(**long, input="Hello", background=True)
    cancelled = client.responses.cancel(background.id)
    check(cancelled.status in ("cancelled", "incomplete"), f"the cancelled response is {cancelled}")
    client.responses.delete(second.id)
    try:
        client.responses.retrieve(second.id)
    except Exception as error:
        check(getattr(error, "status_code", None) == 404, f"the error is {error}")
    else:
        sys.exit("error: a deleted response is still there")


def test_anthropic(url):
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    # Newer clients know no sampling fields.
    ask = {"model": "demo", "messages": QUESTION, "max_tokens": 24, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**ask)
    check(whole.stop_reason == "max_tokens", f"the answer is {whole}")
    with client.messages.stream(**ask) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    check(streamed == whole.content[0].text, f"streamed {streamed!r} in place of {whole.content[0].text!r}")
    check(final.usage.output_tokens == whole.usage.output_tokens, "usage differs")
    schema = {"type": "object", "properties": {"fox": {"type": "boolean"}}, "required": ["fox"], "additionalProperties": False}
    form = {"temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    formed = client.messages.create(**{**ask, "extra_body": form}).content[0].text
    check(json.loads(formed)["fox"] in (True, False), f"the answer is {formed}")
    count = client.messages.count_tokens(model="demo", messages=QUESTION).input_tokens
    check(count > 5, f"{count} tokens were counted")
    try:
        client.messages.create(**{**ask, "model": "other"})
    except anthropic.NotFoundError:
        pass
    else:
        sys.exit("error: NotFoundError is missing")


def test_ollama(url):
    import ollama

    client = ollama.Client(host=url, headers={"Authorization": f"Bearer {KEY}"})
    check(client.list().models[0].model == "demo", "the model is missing")
    ask = {"model": "demo", "messages": QUESTION, "options": {"num_predict": 24, "temperature": 0}}
    whole = client.chat(**ask)
    parts = list(client.chat(**ask, stream=True))
    streamed = "".join(part.message.content for part in parts)
    check(streamed == whole.message.content, f"streamed {streamed!r} in place of {whole.message.content!r}")
    check(parts[-1].done and parts[-1].done_reason == "length", f"the last part is {parts[-1]}")
    schema = {"type": "object", "properties": {"fox": {"type": "boolean"}}, "required": ["fox"], "additionalProperties": False}
    formed = client.chat(model="demo", messages=QUESTION, format=schema).message.content
    check(json.loads(formed)["fox"] in (True, False), f"the answer is {formed}")
    check(len(client.embed(model="demo", input=["A fox.", "A bear."]).embeddings) == 2, "two vectors were asked for")
    check(client.generate(model="demo", prompt="Once", options={"num_predict": 4}).response, "nothing was generated")
    try:
        client.chat(model="other", messages=QUESTION)
    except ollama.ResponseError as error:
        check(error.status_code == 404, f"the status is {error.status_code}")
    else:
        sys.exit("error: ResponseError is missing")


PICTURES = [tiny_vision.picture(colour) for colour in ((230, 20, 20), (20, 20, 230))]
PICTURES_64 = [base64.b64encode(one).decode() for one in PICTURES]


def seen(what, plain, own, again, other):
    """Checks what a client got: an answer and the tokens of its prompt, without a picture, with one, with it again, and with another."""
    check(own[1] > plain[1], f"{what}: a picture takes no tokens: {plain[1]} and {own[1]}")
    check(again == own, f"{what}: {again} in place of {own}")
    check(other[1] == own[1] and other[0] != own[0], f"{what}: another picture made no difference: {other}")


def see_openai(url):
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    image = lambda data: f"data:image/png;base64,{data}"
    ask = {"model": "seer", "temperature": 0}

    def chat(*pictures):
        parts = [{"type": "image_url", "image_url": {"url": image(data)}} for data in pictures]
        message = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}
        whole = client.chat.completions.create(**ask, messages=[message], max_tokens=16)
        return whole.choices[0].message.content, whole.usage.prompt_tokens

    def respond(*pictures):
        parts = [{"type": "input_image", "image_url": image(data), "detail": "auto"} for data in pictures]
        message = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}
        whole = client.responses.create(**ask, input=[message], max_output_tokens=16)
        return whole.output_text, whole.usage.input_tokens

    def watch(*pictures):
        part = {"type": "video", "video": [image(data) for data in pictures], "fps": 1}
        message = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, *[part][: len(pictures)]]}
        whole = client.chat.completions.create(**ask, messages=[message], max_tokens=16)
        return whole.choices[0].message.content, whole.usage.prompt_tokens

    first, second = PICTURES_64
    seen("openai, watch", watch(), watch(first, second), watch(first, second), watch(second, first))
    for what in (chat, respond):
        seen(f"openai, {what.__name__}", what(), what(first), what(first), what(second))


def see_anthropic(url):
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)

    def chat(*pictures):
        source = {"type": "base64", "media_type": "image/png"}
        parts = [{"type": "image", "source": source | {"data": data}} for data in pictures]
        message = {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}
        whole = client.messages.create(model="seer", messages=[message], max_tokens=16, extra_body={"temperature": 0})
        usage = whole.usage
        tokens = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        return "".join(block.text for block in whole.content), tokens

    first, second = PICTURES_64
    seen("anthropic", chat(), chat(first), chat(first), chat(second))


def see_ollama(url):
    import ollama

    client = ollama.Client(host=url, headers={"Authorization": f"Bearer {KEY}"})
    check("vision" in (client.show("seer").capabilities or []), "the model does not say that it takes images")

    def chat(*pictures):
        message = {"role": "user", "content": "What is it?", "images": list(pictures)}
        whole = client.chat(model="seer", messages=[message], options={"num_predict": 16, "temperature": 0})
        return whole.message.content, whole.prompt_eval_count

    first, second = PICTURES
    seen("ollama", chat(), chat(first), chat(first), chat(second))


SEEING = {"openai": see_openai, "anthropic": see_anthropic, "ollama": see_ollama}


def hear_openai(url, folder):
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    path = tiny_speech.sound(folder / "tone.wav")
    ask = lambda **more: client.audio.transcriptions.create(file=path, model="whisper-1", **{"language": "en"} | more)
    plain = ask(include=["logprobs"])
    check(plain.text and len(plain.logprobs) > 3, f"nothing was written: {plain}")
    verbose = ask(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    check(verbose.text == plain.text and verbose.duration == 2.0, f"{verbose} in place of {plain}")
    check(verbose.words and verbose.segments[0].avg_logprob < 0, f"words or segments are missing: {verbose}")
    check("00:00:0" in ask(response_format="srt"), "subtitles have no times")
    events = list(ask(stream=True))
    deltas = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    check(events[-1].text == deltas.strip(" ") == plain.text, f"{events} in place of {plain.text}")
    check(ask(chunking_strategy="auto").text, "nothing was written in chunks")
    english = client.audio.translations.create(file=path, model="tiny-whisper")
    check(isinstance(english.text, str), f"no text: {english}")
    hear_live(client)
    for what in ({"language": "klingon"}, {"file": ("a.wav", b"no sound")}):
        try:
            ask(**what) if "file" not in what else client.audio.transcriptions.create(model="whisper-1", **what)
        except openai.BadRequestError:
            continue
        sys.exit(f"error: {what} was taken")


def hear_live(client):
    """A session of the realtime API: sound comes in pieces, and its text while it is written."""
    tone = b"".join(struct.pack("<h", int(8000 * math.sin(i / 12))) for i in range(2 * 24000))
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        check(connection.recv().type == "session.created", "there is no session")
        transcription = {"model": "whisper-1", "language": "en"}
        connection.session.update(session={"type": "transcription", "audio": {"input": {"turn_detection": None, "transcription": transcription}}})
        session = connection.recv().session
        check(session.audio.input.transcription.language == "en", f"the session was not changed: {session}")
        for at in range(0, len(tone), 9600):
            connection.input_audio_buffer.append(audio=base64.b64encode(tone[at : at + 9600]).decode())
        connection.input_audio_buffer.commit()
        text, item = "", None
        for event in connection:
            if event.type == "input_audio_buffer.committed":
                item = event.item_id
            elif event.type == "conversation.item.input_audio_transcription.delta":
                text += event.delta
            elif event.type == "conversation.item.input_audio_transcription.completed":
                check(event.transcript == text.strip(" \n") and event.item_id == item, f"{event} in place of {text}")
                check(event.usage.seconds == 2, f"two seconds were {event.usage}")
                break
            else:
                check(event.type.startswith("conversation.item."), f"{event}")
        connection.send({"type": "response.create"})
        check(connection.recv().error.param == "type", "a response was promised")


HEARING = {"openai": hear_openai}


def test_npm(url):
    script = pathlib.Path(__file__).with_name("test-clients.mjs")
    subprocess.run(["node", script, url, KEY], check=True)


def test_schemathesis(url):
    """Requests that schemathesis derives from /openapi.json. Its coverage phase passes with all checks: what the description allows
    is answered, what it forbids is refused, and so are other methods. Then random ones for up to 60 seconds: no 5xx."""
    program = pathlib.Path(sys.executable).with_name("schemathesis")
    command = [program, "run", url + "/openapi.json", "-H", f"authorization: Bearer {KEY}", "--seed", "1", "--request-timeout", "60",
               "--suppress-health-check", "all", "--warnings", "off", "--continue-on-failure"]
    # Two change the hub's cache of this machine, and one becomes a websocket.
    for path in ["/api/pull", "/api/delete", "/v1/realtime"]:
        command += ["--exclude-path", path]
    # It writes a cache into its folder.
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--phases", "coverage"], check=True, cwd=folder)
        fuzzing = ["--phases", "fuzzing", "--checks", "not_a_server_error", "--max-time", "60", "--max-examples", "30"]
        subprocess.run([*command, *fuzzing], check=True, cwd=folder)


TESTS = {"openai": test_openai, "anthropic": test_anthropic, "ollama": test_ollama, "npm": test_npm,
         "schemathesis": test_schemathesis}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("welte", help="the binary")
    parser.add_argument("--only", choices=TESTS, action="append")
    args = parser.parse_args()
    run(args, "models/demo.gguf", TESTS)
    with tempfile.TemporaryDirectory() as folder:
        run(args, tiny_vision.write(folder), SEEING)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tests = {name: lambda url, test=test: test(url, folder) for name, test in HEARING.items()}
        run(args, "models/demo.gguf", tests, "--speech", str(tiny_speech.write(folder)))


def run(args, model, tests, *more):
    """Runs tests against a server with a model and further arguments."""
    tests = {name: test for name, test in tests.items() if not args.only or name in args.only}
    if not tests:
        return
    command = [args.welte, "serve", "-m", str(model), "--strict", "--port", "0", "--api-key", KEY, "--timeout", "30", *more]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = None
        for line in server.stderr:
            if found := re.search(r"listening at (http://\S+)", line):
                url = found[1]
                break
        check(url, "the server did not start")
        for name, test in tests.items():
            test(url)
            print(f"{name}, {pathlib.Path(more[-1] if more else model).stem}: ok")
    finally:
        server.terminate()
        code = server.wait(timeout=60)
    check(code == 0, f"the server ended with {code}")


if __name__ == "__main__":
    main()
