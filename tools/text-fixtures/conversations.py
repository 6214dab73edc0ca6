"""Renders conversations with tools by transformers, for the test `templates_of_models` of welte-text.

    pip install transformers jinja2
    python tools/text-fixtures/conversations.py FOLDER_OF_TEMPLATES > conversations.json
    WELTE_CONVERSATIONS=conversations.json cargo test -p welte-text --test conversation -- --ignored

Templates differ in the form of messages that they read, so each conversation is rendered in every form that a client of
transformers could choose. Welte chooses one by itself; its prompt must be one of these.
"""

import copy
import itertools
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Says the {name} of a \"place\".",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Where."},
                    "days": {"type": "integer", "description": "How many."},
                },
                "required": ["place"],
            },
        },
    }
    for name in ["weather", "time"]
]


def call(number, name, **arguments):
    arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"callno00{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(number, name, content):
    return {"role": "tool", "content": content, "tool_call_id": f"callno00{number}", "name": name}


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Rain in Łódź?"}
ONE = {"role": "assistant", "content": "", "tool_calls": [call(1, "weather", place="Łódź", days=2)]}
TWO = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call(1, "weather", place="a \"b\""), call(2, "time", place="狐")],
}
CONVERSATIONS = [
    [SYSTEM, USER],
    [USER, ONE, result(1, "weather", '{"rain": 0.2}')],
    [SYSTEM, USER, ONE, result(1, "weather", "Rain."), {"role": "assistant", "content": "Yes."}, USER],
    [USER, {**ONE, "reasoning": "I need the weather."}, result(1, "weather", "Rain.")],
    [USER, TWO, result(1, "weather", "Rain."), result(2, "time", "Noon.")],
]


def forms(messages):
    """The conversation in every form."""
    choices = [
        ["object", "text"],
        ["empty", "null"],
        ["together", "split"],
        ["reasoning_content", "thinking"],
        ["text", "parts"],
    ]
    for arguments, content, calls, reasoning, parts in itertools.product(*choices):
        form = []
        rest = copy.deepcopy(messages)
        while rest:
            message = rest.pop(0)
            if "reasoning" in message:
                message[reasoning] = message.pop("reasoning")
            single = message.get("tool_calls", [])
            if calls == "split" and len(single) > 1:
                results = [rest.pop(0) for _ in single]
                for one, answer in zip(single, results):
                    form += [{**message, "tool_calls": [one]}, answer]
            else:
                form.append(message)
        for message in form:
            for one in message.get("tool_calls", []):
                function = one["function"]
                if arguments == "object" and isinstance(function["arguments"], str):
                    function["arguments"] = json.loads(function["arguments"])
            if content == "null" and message.get("tool_calls"):
                message["content"] = None
            elif parts == "parts":
                message["content"] = [{"type": "text", "text": message["content"]}]
        yield form


def main():
    cases = []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        source = path.read_text()
        for messages in CONVERSATIONS:
            prompts = set()
            for form in forms(messages):
                try:
                    prompts.update(
                        render_jinja_template(
                            conversations=[form],
                            tools=TOOLS,
                            chat_template=source,
                            add_generation_prompt=True,
                            bos_token="<s>",
                            eos_token="</s>",
                        )[0]
                    )
                except Exception as error:
                    print(f"{path.name}: {error}", file=sys.stderr)
            cases.append(
                {"name": path.name, "template": source, "messages": messages, "tools": TOOLS, "prompts": sorted(prompts)}
            )
    json.dump(cases, sys.stdout, ensure_ascii=False)


main()
