#!/usr/bin/env python3
"""Makes a GGUF model that gives fixed answers, to test agents against the real server.

    tools/scripted-model.py OUT.gguf --answer TEXT [--answer TEXT ...] [--plain TEXT]

The model's answer to a conversation with tools depends on how often an assistant has called a tool in it: after n calls it is the
nth --answer, or the last one. Conversations without tools get --plain. Calls are written in the form of Hermes and Qwen:

    <tool_call>
    {"name": "Read", "arguments": {"file_path": "a.txt"}}
    </tool_call>

Nothing in the server knows of this. The chat template ends the prompt with a control token that stands for the turn, every piece of
an answer is a token of its own, and the weights make each token choose its successor: the layer adds nothing, so the state is the
embedding of the last token. The rest of the vocabulary is that of the bundled model.
"""

import argparse
import pathlib
import struct

DEMO = pathlib.Path(__file__).parent.parent / "models/demo.gguf"
TEMPLATE = """{%- set turns = namespace(count=0) -%}
{%- if tools %}<|im_start|>system
Call a tool by <tool_call>{"name": NAME, "arguments": {}}</tool_call>. Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{% set turns.count = turns.count + 1 %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if tools %}<|turn:{{ [turns.count, LAST] | min }}|>{% else %}<|turn:plain|>{% endif %}{% endif %}"""
F32, TEXT, LIST = 0, 8, 9
NORMAL, CONTROL = 1, 3
# The bytes of texts are written as printable characters in this kind of vocabulary.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
CHARACTER = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(OTHERS)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def metadata(path):
    """The metadata of a GGUF file."""
    with open(path, "rb") as file:
        def number(kind):
            return struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))[0]

        def value(kind):
            if kind == TEXT:
                return file.read(number("Q")).decode()
            if kind == LIST:
                inner, count = number("I"), number("Q")
                return [value(inner) for _ in range(count)]
            return number(SCALARS[kind])

        file.seek(16)
        return {value(TEXT): value(number("I")) for _ in range(number("Q"))}


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, value):
    """A pair of the metadata, whose kind follows from the value."""
    def typed(value):
        match value:
            case bool():
                return 7, struct.pack("<?", value)
            case int():
                return 4, struct.pack("<I", value)
            case float():
                return 6, struct.pack("<f", value)
            case str():
                return TEXT, text(value)
            case list():
                inner = [typed(one) for one in value]
                return LIST, struct.pack("<IQ", inner[0][0], len(inner)) + b"".join(data for _, data in inner)
    kind, data = typed(value)
    return text(key) + struct.pack("<I", kind) + data


def pieces(answer, taken):
    """Cuts an answer into pieces that no other token has, and takes them."""
    data = "".join(CHARACTER[byte] for byte in answer.encode())

    def cut(begin, own):
        if begin == len(data):
            return own
        for length in (12, 9, 15, 11, 13, 7, 17, 5):
            piece = data[begin:begin + length]
            if piece not in taken and piece not in own:
                found = cut(begin + len(piece), [*own, piece])
                if found:
                    return found
        return None

    found = cut(0, [])
    if not found:
        raise SystemExit(f"error: the answer {answer!r} cannot be cut into new tokens; change a word")
    taken.update(found)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--answer", action="append", required=True)
    parser.add_argument("--plain", default="A conversation about a file.")
    args = parser.parse_args()
    demo = metadata(DEMO)
    tokens, kinds = list(demo["tokenizer.ggml.tokens"]), list(demo["tokenizer.ggml.token_type"])
    end, taken = demo["tokenizer.ggml.eos_token_id"], set(tokens)
    # Pairs of a token and its successor.
    follows = []
    names = [str(i) for i in range(len(args.answer))] + ["plain"]
    for name, answer in zip(names, [*args.answer, args.plain]):
        last = len(tokens)
        tokens.append(f"<|turn:{name}|>")
        kinds.append(CONTROL)
        for piece in pieces(answer, taken):
            follows.append((last, len(tokens)))
            last = len(tokens)
            tokens.append(piece)
            kinds.append(NORMAL)
        follows.append((last, end))
    width, vocab, head, ffn = -(-(len(follows)) // 32) * 32, len(tokens), 32, 32
    embedding, output = bytearray(4 * width * vocab), bytearray(4 * width * vocab)
    for place, (last, successor) in enumerate(follows):
        struct.pack_into("<f", embedding, 4 * (last * width + place), 1.0)
        struct.pack_into("<f", output, 4 * (successor * width + place), 20.0)

    def ones(count):
        return struct.pack(f"<{count}f", *[1.0] * count)

    tensors = [("token_embd.weight", (width, vocab), bytes(embedding)), ("output.weight", (width, vocab), bytes(output)),
               ("output_norm.weight", (width,), ones(width))]
    for name, shape in [("attn_q", (width, head)), ("attn_k", (width, head)), ("attn_v", (width, head)),
                        ("attn_output", (head, width)), ("ffn_gate", (width, ffn)), ("ffn_up", (width, ffn)), ("ffn_down", (ffn, width))]:
        tensors.append((f"blk.0.{name}.weight", shape, bytes(4 * shape[0] * shape[1])))
    for name, size in [("attn_norm", width), ("ffn_norm", width), ("attn_q_norm", head), ("attn_k_norm", head)]:
        tensors.append((f"blk.0.{name}.weight", (size,), ones(size)))
    sizes = {"context_length": 1 << 17, "embedding_length": width, "block_count": 1, "feed_forward_length": ffn,
             "attention.head_count": 1, "attention.head_count_kv": 1, "attention.key_length": head, "attention.value_length": head,
             "rope.freq_base": 10000.0, "attention.layer_norm_rms_epsilon": 1e-6, "vocab_size": vocab}
    kept = {key: value for key, value in demo.items() if key.startswith("tokenizer.")}
    pairs = {"general.architecture": "qwen3", "general.name": "scripted", "general.alignment": 32, "general.file_type": 0,
             **{f"qwen3.{name}": value for name, value in sizes.items()}, **kept,
             "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
             "tokenizer.chat_template": TEMPLATE.replace("LAST", str(len(args.answer) - 1))}
    head_of_file = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head_of_file += b"".join(entry(key, value) for key, value in pairs.items())
    offset = 0
    for name, shape, data in tensors:
        head_of_file += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32, offset)
        offset += -(-len(data) // 32) * 32
    with open(args.out, "wb") as file:
        file.write(head_of_file + bytes(-len(head_of_file) % 32))
        for _, _, data in tensors:
            file.write(data + bytes(-len(data) % 32))


if __name__ == "__main__":
    main()
