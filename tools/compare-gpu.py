#!/usr/bin/env python3
"""Measures Welte and llama.cpp in turns on the same GPU and the same files, and prints a Markdown table.

    tools/compare-gpu.py --llama-bench PATH --shapes qwen3-4b,llama-8b --formats bf16,q4_k --folder /dev/shm

Each file is written by `welte synth` while the one before is measured, and removed afterwards. Who goes first changes
from file to file. Depths are measured for --deep-formats only: they take longest. No new file is begun after --seconds.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
import time


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-bench", help="without it only welte is measured")
    p.add_argument("--shapes", default="qwen3-0.6b,llama-1b,qwen3-4b,llama-8b")
    p.add_argument("--formats", default="bf16,q8_0,q4_0,q4_k,q6_k")
    p.add_argument("--deep-formats", default="bf16,q4_k")
    p.add_argument("--prompt", default="512,4096")
    p.add_argument("--gen", default="128")
    p.add_argument("--depth", default="4096,32768")
    p.add_argument("--repetitions", type=int, default=3)
    p.add_argument("--folder", default="/dev/shm", help="where the files are written, one or two at a time")
    p.add_argument("--seconds", type=float, default=480)
    p.add_argument("--welte-args", default="--device cuda")
    p.add_argument("--llama-args", default="-ngl 99 -fa 1")
    p.add_argument("--json", help="every row as JSON lines")
    return p.parse_args()


def run(command, seconds):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=max(seconds, 30), text=True)
    except subprocess.TimeoutExpired:
        print(f"note: out of time: {' '.join(command)}", file=sys.stderr)
        return []
    if done.returncode != 0:
        print(f"note: {' '.join(command)}: {done.returncode}: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return []
    return json.loads(done.stdout)


def label(row):
    kind = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    depth = row.get("n_depth", 0)
    return kind + (f" @ d{depth}" if depth else "")


def figure(row):
    return f"{row['avg_ts']:.1f} ± {row['stddev_ts']:.1f}" if row else ""


class Synth(threading.Thread):
    """Writes a file in the background."""

    def __init__(self, a, shape, form):
        super().__init__()
        self.shape, self.form = shape, form
        self.path = os.path.join(a.folder, f"{shape}-{form}.gguf")
        self.command = [a.welte, "synth", f"{shape}:{form}", self.path]
        self.start()

    def run(self):
        self.done = subprocess.run(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def tests(a, deep):
    """One invocation per engine for prompts and decoding from nothing, one for depths."""
    shallow = ["-p", a.prompt, "-n", a.gen, "-d", "0"]
    return [shallow] + ([["-p", "0", "-n", a.gen, "-d", a.depth]] if deep else [])


def main():
    a = arguments()
    begin = time.monotonic()
    left = lambda: a.seconds - (time.monotonic() - begin)
    cells = [(s, f) for s in a.shapes.split(",") for f in a.formats.split(",")]
    log = open(a.json, "w") if a.json else None
    print("| shape | format | test | welte t/s | llama.cpp t/s | ratio | GB/s | of the floor |")
    print("|---|---|---|---:|---:|---:|---:|---:|", flush=True)
    ready = Synth(a, *cells[0])
    for number, (shape, form) in enumerate(cells):
        file = ready
        file.join()
        if left() <= 0:
            print(f"note: no time for {shape} {form} and what follows", file=sys.stderr)
            break
        ready = Synth(a, *cells[number + 1]) if number + 1 < len(cells) else None
        if file.done.returncode != 0:
            print(f"note: {shape} {form}: {file.done.stderr.strip()[-300:]}", file=sys.stderr)
            continue
        common = ["-m", file.path, "-r", str(a.repetitions), "-o", "json"]
        for test in tests(a, form in a.deep_formats.split(",")):
            engines = [("welte", [a.welte, "bench"] + common + test + a.welte_args.split())]
            if a.llama_bench:
                engines.append(("llama", [a.llama_bench] + common + test + a.llama_args.split()))
            found = {}
            for name, command in engines if number % 2 == 0 else engines[::-1]:
                found[name] = {label(row): row for row in run(command, left())}
                for row in found[name].values():
                    if log:
                        print(json.dumps({"engine": name, "shape": shape, "format": form, **row}), file=log, flush=True)
            for kind, row in found["welte"].items():
                other = found.get("llama", {}).get(kind)
                ratio = f"{row['avg_ts'] / other['avg_ts']:.2f}" if other else ""
                speed = f"{row['gb_s']:.0f}" if row.get("gb_s") else ""
                share = f"{100 * row['floor_share']:.0f} % of {row['floor_gb_s']:.0f}" if row.get("floor_share") else ""
                print(f"| {shape} | {form} | {kind} | {figure(row)} | {figure(other)} | {ratio} | {speed} | {share} |", flush=True)
        os.remove(file.path)
    if ready:
        ready.join()
        if os.path.exists(ready.path):
            os.remove(ready.path)
    print(f"note: {time.monotonic() - begin:.0f} s", file=sys.stderr)


main()
