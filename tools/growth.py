#!/usr/bin/env python3
"""Measures decoding as depth, threads and model size grow, with the share of the measured floor.

    tools/growth.py --depths 0,1024,4096,16384 --sizes qwen3-0.6b,llama-1b,qwen3-4b,qwen3-8b
"""
import argparse
import json
import subprocess


def rows(welte, what, *more):
    command = [welte, "bench", "--synthetic", what, "-p", "0", "-o", "json"] + list(more)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def show(what, found):
    for r in found:
        share = "in cache" if r["in_cache"] else f"{100 * r['floor_share']:.0f} % of {r['floor_gb_s']:.1f}"
        print(f"| {what} | {r['n_threads']} | {r['n_depth']} | {r['avg_ts']:.1f} ± {r['stddev_ts']:.1f} | {r['gb_s']:.1f} | {share} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--shape", default="qwen3-0.6b")
    p.add_argument("--format", default="q4_0")
    p.add_argument("--depths", default="0,1024,4096,16384")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--sizes", default="qwen3-0.6b,llama-1b,qwen3-4b,qwen3-8b")
    p.add_argument("--gen", default="32")
    p.add_argument("--repetitions", default="3")
    p.add_argument("--random-depth", action="store_true", help="reach depths with random keys and values, not with a prompt")
    a = p.parse_args()
    common = ["-n", a.gen, "-r", a.repetitions]
    print("| model | threads | depth | t/s | GB/s | of the floor |\n|---|---:|---:|---:|---:|---:|")
    name = f"{a.shape}:{a.format}"
    show(name, rows(a.welte, name, "-t", a.threads, *common))
    common += ["--random-depth"] if a.random_depth else []
    for depth in (d for d in a.depths.split(",") if d != "0"):
        show(name, rows(a.welte, name, "-d", depth, *common))
        show(f"{name}, q8_0 cache", rows(a.welte, name, "-d", depth, "-ctk", "q8_0", *common))
    for shape in a.sizes.split(","):
        if shape != a.shape:
            show(f"{shape}:{a.format}", rows(a.welte, f"{shape}:{a.format}", *common))


main()
