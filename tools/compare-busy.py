#!/usr/bin/env python3
"""Measures how much decode speed Welte and llama.cpp keep while another process keeps one core busy.

    tools/compare-busy.py --llama-bench PATH --shape qwen3-0.6b --formats q4_0 --pairs 5

Undisturbed and disturbed runs alternate, so a slow minute of the machine affects both.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from compare import synth


def speed(command):
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(out)[0]["avg_ts"]


def beside_a_busy_core(command):
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return speed(command)
    finally:
        busy.kill()
        busy.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-bench")
    p.add_argument("--shape", default="qwen3-0.6b")
    p.add_argument("--formats", default="q4_0")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--threads", default="2")
    p.add_argument("--gen", default="64")
    a = p.parse_args()
    engines = [("welte", a.welte, ["bench"])]
    if a.llama_bench:
        engines.append(("llama.cpp", a.llama_bench, []))
    print("| format | engine | undisturbed t/s | one core busy t/s | kept |\n|---|---|---:|---:|---:|")
    for fmt in a.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            synth(a.welte, f"{a.shape}:{fmt}", path)
            common = ["-m", path, "-t", a.threads, "-p", "0", "-n", a.gen, "-r", "1", "-o", "json"]
            alone, beside = {}, {}
            for _ in range(a.pairs):
                for name, binary, words in engines:
                    command = [binary] + words + common
                    alone.setdefault(name, []).append(speed(command))
                    beside.setdefault(name, []).append(beside_a_busy_core(command))
            for name, _, _ in engines:
                x, y = statistics.median(alone[name]), statistics.median(beside[name])
                spread = [f"({min(v):.1f}-{max(v):.1f})" for v in (alone[name], beside[name])]
                print(f"| {fmt} | {name} | {x:.1f} {spread[0]} | {y:.1f} {spread[1]} | {100 * y / x:.0f} % |", flush=True)


main()
