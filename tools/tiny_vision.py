"""Writes a tiny model that takes images: random weights, a vocabulary of bytes, a chat template, an encoder (SmolVLM's kind) beside it.

`write(folder)` makes `seer.gguf` and `mmproj-seer.gguf` there and gives the model's path; `picture(colour)` is a PNG of one colour. Needs
nothing but Python. Its answers mean nothing; what counts is that images take part in them.
"""

import array
import pathlib
import random
import struct
import zlib

DIM, FFN, HEADS = 32, 64, 2
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, one):
    if kind == STRING:
        return text(one)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], one)


def entry(key, one):
    if isinstance(one, list):
        kind = {str: STRING, float: F32}.get(type(one[0]) if one else str, U32)
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(one)) + b"".join(value(kind, each) for each in one)
    kind = {str: STRING, float: F32, bool: BOOL}.get(type(one), U32)
    return text(key) + struct.pack("<I", kind) + value(kind, one)


def gguf(path, keys, shapes, numbers):
    """A GGUF file whose tensors, named with their shapes, are random; those of norms are near 1."""
    infos, data = [], bytearray()
    for name, shape in shapes.items():
        count = 1
        for side in shape:
            count *= side
        is_norm, scale = len(shape) == 1 and name.endswith("weight"), 1.5 / shape[-1] ** 0.5
        values = array.array("f", (1.0 if is_norm else numbers.gauss(0, scale) for _ in range(count)))
        infos.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(data)))
        data += values.tobytes()
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys)) + b"".join(entry(*pair) for pair in keys.items()) + b"".join(infos)
    path.write_bytes(head + bytes(-len(head) % 32) + data)


def vocabulary():
    """The bytes as byte-level tokenizers write them, and the control tokens."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(byte if byte in plain else next(moved)) for byte in range(256)] + ["<end>", "<image>"]


def write(folder, seed=7):
    folder, numbers, tokens = pathlib.Path(folder), random.Random(seed), vocabulary()
    of = {"context_length": 512, "embedding_length": DIM, "block_count": 1, "feed_forward_length": FFN, "attention.head_count": HEADS,
          "attention.head_count_kv": HEADS, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0, "vocab_size": len(tokens)}
    keys = {"general.architecture": "llama", "general.name": "seer"} | {f"llama.{key}": one for key, one in of.items()} | {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3], "tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE}
    layer = {"attn_norm": [DIM], "attn_q": [DIM, DIM], "attn_k": [DIM, DIM], "attn_v": [DIM, DIM], "attn_output": [DIM, DIM],
             "ffn_norm": [DIM], "ffn_gate": [FFN, DIM], "ffn_up": [FFN, DIM], "ffn_down": [DIM, FFN]}
    shapes = {"token_embd.weight": [len(tokens), DIM], "output_norm.weight": [DIM]}
    gguf(folder / "seer.gguf", keys, shapes | {f"blk.0.{name}.weight": shape for name, shape in layer.items()}, numbers)
    sizes = {"block_count": 1, "embedding_length": DIM, "feed_forward_length": FFN, "attention.head_count": HEADS, "patch_size": 8,
             "image_size": 64, "projection_dim": DIM, "projector.scale_factor": 1, "preproc_image_size": 64,
             "attention.layer_norm_epsilon": 1e-6, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    keys = {"general.architecture": "clip", "clip.has_vision_encoder": True, "clip.projector_type": "idefics3", "clip.use_gelu": True}
    layer = {"ln1": [DIM], "ln2": [DIM], "attn_q": [DIM, DIM], "attn_k": [DIM, DIM], "attn_v": [DIM, DIM], "attn_out": [DIM, DIM],
             "ffn_up": [FFN, DIM], "ffn_down": [DIM, FFN]}
    shapes = {"v.patch_embd.weight": [DIM, 3, 8, 8], "v.patch_embd.bias": [DIM], "v.position_embd.weight": [64, DIM], "v.post_ln.weight": [DIM],
              "v.post_ln.bias": [DIM], "mm.model.fc.weight": [DIM, DIM]}
    for name, shape in layer.items():
        shapes |= {f"v.blk.0.{name}.weight": shape, f"v.blk.0.{name}.bias": shape[:1]}
    gguf(folder / "mmproj-seer.gguf", keys | {f"clip.vision.{key}": one for key, one in sizes.items()}, shapes, numbers)
    return folder / "seer.gguf"


def picture(colour, side=16):
    """A PNG of one colour."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    lines = (b"\0" + bytes(colour) * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
