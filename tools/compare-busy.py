#!/usr/bin/env python3
"""Measures how much decode speed Welte and llama.cpp keep while other processes keep some cores busy.

    tools/compare-busy.py --llama-bench PATH --shape qwen3-0.6b --formats q4_0 --pairs 5
    tools/compare-busy.py --llama-bench PATH --threads 16 --busy 1,8

Undisturbed and disturbed runs alternate, so a slow minute of the machine affects both.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from compare import spread, synth


def speed(command):
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(out)[0]["avg_ts"]


def beside_busy_cores(command, busy):
    """The speed while `busy` processes compute without a pause. The system chooses their cores."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        return speed(command)
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def compare(a, model, engines, threads):
    """Speeds of each engine: undisturbed, then for each number of busy cores."""
    found = {name: {busy: [] for busy in [0, *a.busy]} for name, _, _ in engines}
    for _ in range(a.pairs):
        for name, binary, words in engines:
            command = [binary, *words, "-m", model, "-t", str(threads), "-p", "0", "-n", a.gen, "-r", "1", "-o", "json"]
            for busy, speeds in found[name].items():
                speeds.append(beside_busy_cores(command, busy))
    return found


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-bench")
    p.add_argument("--isa", help="Welte's instruction set")
    p.add_argument("--shape", default="qwen3-0.6b")
    p.add_argument("--formats", default="q4_0")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--threads", type=numbers, default=[os.cpu_count()], help="numbers of threads [default: one for each core]")
    p.add_argument("--busy", type=numbers, default=[1], help="numbers of busy cores [default: 1]")
    p.add_argument("--gen", default="64")
    p.add_argument("--output", help="also write the rows to this file, as JSON")
    a = p.parse_args()
    welte = ["bench", "--device", "cpu"] + (["--isa", a.isa] if a.isa else [])
    engines = [("welte", a.welte, welte)]
    if a.llama_bench:
        engines.append(("llama.cpp", a.llama_bench, []))
    table = []
    print("| format | threads | engine | busy cores | t/s (min-max) | kept |\n|---|---:|---|---:|---:|---:|")
    for fmt in a.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            synth(a.welte, f"{a.shape}:{fmt}", path)
            for threads in a.threads:
                for engine, speeds in compare(a, path, engines, threads).items():
                    undisturbed = statistics.median(speeds[0])
                    for busy, found in speeds.items():
                        row = {"format": fmt, "threads": threads, "engine": engine, "busy": busy, "tps": spread(found, 1)}
                        row["kept"] = round(100 * statistics.median(found) / undisturbed)
                        table.append(row)
                        median, least, most = row["tps"].values()
                        print(f"| {fmt} | {threads} | {engine} | {busy} | {median:.1f} ({least:.1f}-{most:.1f}) | {row['kept']} % |", flush=True)
    if a.output:
        with open(a.output, "w") as file:
            json.dump(table, file, indent=1)


main()
