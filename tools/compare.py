#!/usr/bin/env python3
"""Measures Welte and llama.cpp in turns on identical files. Prints medians, their ratio and the spread.

    tools/compare.py --llama-bench PATH --shape qwen3-0.6b --formats q4_0,q8_0 --pairs 5 --threads 2

`welte synth` writes each file, so both engines read the same weights. --folder keeps the files. One engine runs at a time:
A B A B. A test's name ends with its threads (--threads may name several, separated by commas).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def rows(command):
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(out)


def synth(welte, model, path):
    made = subprocess.run([welte, "synth", model, path], capture_output=True, text=True)
    if made.returncode:
        sys.exit(made.stderr)


def spread(values, digits):
    """The median, least and most of repeated figures."""
    return {name: round(of(values), digits) for name, of in (("median", statistics.median), ("min", min), ("max", max))}


def label(row):
    depth = row.get("n_depth", 0)
    kind = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    return f"{kind} x {row['n_threads']}" + (f" @ d{depth}" if depth else "")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--shape", default="qwen3-0.6b")
    p.add_argument("--formats", default="q4_0,q8_0,q4_k,q6_k,bf16")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--threads", default="2")
    p.add_argument("--prompt", default="512")
    p.add_argument("--gen", default="64")
    p.add_argument("--depth", default="0")
    p.add_argument("--folder")
    a = p.parse_args()
    print("| shape | format | test | welte t/s (min-max) | llama.cpp t/s (min-max) | ratio |")
    print("|---|---|---|---:|---:|---:|")
    for fmt in a.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(a.folder or folder, f"{a.shape}-{fmt}.gguf")
            if not os.path.exists(path):
                synth(a.welte, f"{a.shape}:{fmt}", path)
            common = ["-m", path, "-t", a.threads, "-p", a.prompt, "-n", a.gen, "-d", a.depth, "-r", "1", "-o", "json"]
            ours, theirs = {}, {}
            for _ in range(a.pairs):
                welte = [a.welte, "bench", "--device", "cpu"]
                for command, into in ((welte + common, ours), ([a.llama_bench] + common, theirs)):
                    for row in rows(command):
                        into.setdefault(label(row), []).append(row["avg_ts"])
            for test in ours:
                if test in theirs:
                    x, y = ours[test], theirs[test]
                    mx, my = statistics.median(x), statistics.median(y)
                    print(f"| {a.shape} | {fmt} | {test} | {mx:.1f} ({min(x):.1f}-{max(x):.1f}) | {my:.1f} ({min(y):.1f}-{max(y):.1f}) | {mx / my:.2f} |", flush=True)


if __name__ == "__main__":
    main()
