#!/usr/bin/env python3
"""Compares the perplexity of a small model quantised by MLX, computed by Welte and by MLX on the same directory.

    tools/compare-perplexity-mlx.py TRAINED [--welte PATH] [--text FILE]

TRAINED is the output folder of tools/demo-model/train.py. The script needs mlx and mlx-lm; CPU builds suffice. Both engines
get the same tokens: chunks of 512, of which the second half is scored.
"""
import argparse
import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx_lm

CHUNK = 512


def directory(trained, folder):
    """The folder as transformers would have saved it."""
    c = json.loads((trained / "config.json").read_text())
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": c["dim"], "num_hidden_layers": c["layers"],
        "num_attention_heads": c["heads"], "num_key_value_heads": c["kv_heads"], "head_dim": c["head_dim"],
        "intermediate_size": c["ffn"], "vocab_size": c["vocab"], "rope_theta": c["rope_theta"], "rms_norm_eps": c["eps"],
        "max_position_embeddings": c["context"], "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    shutil.copy(trained / "tokenizer.json", folder)
    weights = mx.load(str(trained / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), {name: w.astype(mx.bfloat16) for name, w in weights.items()}, {"format": "mlx"})


def by_mlx(folder, tokens, chunks):
    model, _ = mlx_lm.load(str(folder))
    total = count = 0
    for start in range(0, min(len(tokens) // CHUNK, chunks) * CHUNK, CHUNK):
        chunk = tokens[start:start + CHUNK]
        logits = model(mx.array([chunk]))[0].astype(mx.float32)
        first = CHUNK // 2
        scored = logits[first:CHUNK - 1]
        wanted = mx.array(chunk[first + 1:])
        chosen = mx.take_along_axis(scored, wanted[:, None], axis=1)[:, 0]
        total += (mx.logsumexp(scored, axis=1) - chosen).sum().item()
        count += CHUNK - 1 - first
    return math.exp(total / count)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trained", type=Path)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--chunks", type=int, default=4, help="the most that are scored; MLX is slow without a GPU")
    p.add_argument("--text", default="models/demo-validation.txt")
    a = p.parse_args()
    run = lambda *command: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print("| bits | group | welte | MLX | difference |\n|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as base:
        plain = Path(base) / "plain"
        directory(a.trained, plain)
        for bits, group in [(2, 32), (3, 64), (4, 32), (4, 64), (5, 64), (6, 64), (8, 64)]:
            folder = Path(base) / f"mlx-{bits}-{group}"
            mlx_lm.convert(str(plain), str(folder), quantize=True, q_bits=bits, q_group_size=group)
            tokens = json.loads(run(a.welte, "tokenize", "-m", str(folder), "-f", a.text, "--ids"))
            ours = json.loads(run(a.welte, "perplexity", "-m", str(folder), "--device", "cpu", "-f", a.text, "--chunks", str(a.chunks), "-o", "json"))["ppl"]
            theirs = by_mlx(folder, tokens, a.chunks)
            print(f"| {bits} | {group} | {ours:.4f} | {theirs:.4f} | {100 * (ours / theirs - 1):+.3f} % |", flush=True)


main()
