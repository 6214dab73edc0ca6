#!/usr/bin/env python3
"""Compares the perplexity of a model in every recipe, computed by Welte and by llama.cpp on the same files.

    tools/compare-perplexity.py --llama-perplexity PATH
    tools/compare-perplexity.py --llama-perplexity PATH --files GOLDENS/*/*.gguf

With --files, which suits small random models (tools/goldens/seeded.py writes the goldens to a folder), every file gets a tokenizer
whose tokens are single bytes, and random text is scored (needs the Python package gguf).
"""
import argparse
import json
import os
import random
import re
import string
import subprocess
import tempfile

RECIPES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_M Q4_K_S Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS MXFP4_MOE".split()
CONTEXT = 512


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--welte-args", default="", help="for instance --device cuda")
    p.add_argument("--llama-perplexity", required=True)
    p.add_argument("--model", default="models/demo.gguf")
    p.add_argument("--text", default="models/demo-validation.txt")
    p.add_argument("--files", nargs="+", default=[], metavar="GGUF", help="these files in place of all recipes of --model")
    return p.parse_args()


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr.strip()[-400:]}")
    return done


def perplexities(a, model, text):
    """Welte's and llama.cpp's."""
    ours = run([a.welte, "perplexity", "-m", model, "-f", text, "-o", "json", *a.welte_args.split()])
    # A thread of its own writes the log, and the last line is sometimes lost at exit.
    for _ in range(4):
        log = run([a.llama_perplexity, "-m", model, "-f", text, "-c", str(CONTEXT), "--no-repack"])
        if found := re.search(r"Final estimate: PPL = ([\d.]+)", log.stdout + log.stderr):
            return json.loads(ours.stdout)["ppl"], float(found.group(1))
    raise RuntimeError(f"no estimate from llama.cpp for {model}: {log.stderr[-400:]}")


def with_single_bytes(path, copy):
    """Copies a model file and adds a tokenizer with a token for each of the first bytes that a byte-level vocabulary shows."""
    import gguf

    read = gguf.GGUFReader(path)
    architecture = read.fields[gguf.Keys.General.ARCHITECTURE].contents()
    write = gguf.GGUFWriter(copy, architecture)
    for key, field in read.fields.items():
        if key == gguf.Keys.General.ARCHITECTURE or key.startswith(("GGUF.", "tokenizer.")):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        write.add_key_value(key, field.contents(), kind, sub_type=inner)
    size = read.fields[f"{architecture}.vocab_size"].contents()
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    tokens = ([chr(byte) for byte in shown] + [chr(256 + n) for n in range(len(rest))])[: size - 1]
    tokens.append("!!")  # the result of the one merge, without which llama.cpp reads no file; the text has none
    write.add_tokenizer_model("gpt2")
    write.add_tokenizer_pre("gpt-2")
    write.add_token_list(tokens)
    write.add_token_types([gguf.TokenType.NORMAL] * size)
    write.add_token_merges(["! !"])
    write.add_add_bos_token(False)
    write.add_eos_token_id(0)
    for tensor in read.tensors:
        write.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    write.write_header_to_file()
    write.write_kv_data_to_file()
    write.write_tensors_to_file()
    write.close()


def row(name, ours, theirs):
    print(f"| {name} | {ours:.4f} | {theirs:.4f} | {100 * (ours / theirs - 1):+.3f} % |", flush=True)


def compare_recipes(a, folder):
    path = os.path.join(folder, "model.gguf")
    for recipe in RECIPES:
        run([a.welte, "quantize", a.model, path, recipe])
        row(recipe, *perplexities(a, path, a.text))


def compare_files(a, folder):
    path, text = os.path.join(folder, "model.gguf"), os.path.join(folder, "text.txt")
    letters = string.ascii_letters + string.digits
    with open(text, "w") as file:
        file.write("".join(random.Random(1).choices(letters, k=4 * CONTEXT)))
    refused = []
    for file in a.files:
        name = "/".join(file.split("/")[-2:])
        try:
            with_single_bytes(file, path)
            row(name, *perplexities(a, path, text))
        except RuntimeError as error:
            refused.append(f"{name}: {error}")
    print("\n" + "\n".join(refused))


def main():
    a = arguments()
    print("| model | Welte | llama.cpp | difference |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        (compare_files if a.files else compare_recipes)(a, folder)


main()
