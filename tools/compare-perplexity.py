#!/usr/bin/env python3
"""Compares the perplexity of a model in every recipe, computed by Welte and by llama.cpp on the same files.

    tools/compare-perplexity.py --llama-perplexity PATH
"""
import argparse
import json
import os
import re
import subprocess
import tempfile

RECIPES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_M Q4_K_S Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS MXFP4_MOE".split()


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-perplexity", required=True)
    p.add_argument("--model", default="models/demo.gguf")
    p.add_argument("--text", default="models/demo-validation.txt")
    a = p.parse_args()
    print("| recipe | welte | llama.cpp | difference |\n|---|---:|---:|---:|")
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            run([a.welte, "quantize", a.model, path, recipe])
            ours = json.loads(run([a.welte, "perplexity", "-m", path, "-f", a.text, "-o", "json"]).stdout)["ppl"]
            # A thread of its own writes the log, and the last line is sometimes lost at exit.
            for _ in range(4):
                log = run([a.llama_perplexity, "-m", path, "-f", a.text, "-c", "512"])
                found = re.search(r"Final estimate: PPL = ([\d.]+)", log.stdout + log.stderr)
                if found:
                    break
            else:
                raise SystemExit(f"no estimate from llama.cpp for {recipe}: {log.stderr[-500:]}")
            theirs = float(found.group(1))
        print(f"| {recipe} | {ours:.4f} | {theirs:.4f} | {100 * (ours / theirs - 1):+.3f} % |", flush=True)


main()
