#!/usr/bin/env python3
"""Measures the accuracy of every recipe on every instruction set.

It prints the mean Kullback-Leibler divergence from the F32 weights, in nats, and the share of positions with the same most
likely token. The first row compares the F32 kernels with the plain reference.

    tools/divergence.py
"""
import argparse
import json
import os
import subprocess
import tempfile

RECIPES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_M Q4_K_M Q5_K_M Q6_K".split()


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--model", default="models/demo.gguf")
    p.add_argument("--text", default="models/demo-validation.txt")
    p.add_argument("--isas", default="scalar,avx2,avx512-vnni,avx512-bf16")
    p.add_argument("--chunks", default="4")
    a = p.parse_args()
    isas = a.isas.split(",")
    print(f"| recipe | {' | '.join(isas)} |\n|---|{'---:|' * len(isas)}")
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.join(folder, "f32.gguf")
        run([a.welte, "quantize", a.model, base, "F32"])

        def cell(path, how):
            common = ["-f", a.text, "--kl-to", base, "--chunks", a.chunks, "-c", "256", "-o", "json"]
            found = json.loads(run([a.welte, "perplexity", "-m", path] + common + how))
            return f"{found['kl']:.1e} ({100 * found['same_top']:.1f} %)"

        against = [cell(base, ["--isa", isa, "--kl-reference"]) for isa in isas]
        print(f"| F32, from the reference | {' | '.join(against)} |", flush=True)
        for recipe in RECIPES:
            path = os.path.join(folder, "model.gguf")
            run([a.welte, "quantize", base, path, recipe])
            print(f"| {recipe} | {' | '.join(cell(path, ['--isa', isa]) for isa in isas)} |", flush=True)
            os.remove(path)


main()
