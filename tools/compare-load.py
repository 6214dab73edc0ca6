#!/usr/bin/env python3
"""Measures the time from process start to the first token, and peak memory, of Welte and llama.cpp on a file in the page cache.

    tools/compare-load.py --llama-bench PATH --shape llama-1b --formats q8_0,q4_0 --pairs 5

Each run loads the file, generates one token and exits; the whole process is timed. Memory is peak resident memory, which
includes the mapped file. `plan` is the plan that `welte inspect` prints before loading. The last row is `welte run` on the
bundled model.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from compare import synth


def process(command):
    """Seconds and peak bytes of a process."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {child.returncode}")
    return time.monotonic() - start, usage.ru_maxrss * 1024


def planned(welte, path, context):
    out = subprocess.run([welte, "inspect", "-m", path, "-c", context, "-o", "json"], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(out)["memory"]["total"]


def row(what, runs, extra=""):
    seconds, peak = [r[0] for r in runs], max(r[1] for r in runs)
    print(f"| {what} | {statistics.median(seconds):.3f} ({min(seconds):.3f}-{max(seconds):.3f}) | {peak / 2**20:.0f} |{extra}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-bench")
    p.add_argument("--shape", default="llama-1b")
    p.add_argument("--formats", default="q8_0,q4_0")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--threads", default="2")
    p.add_argument("--context", default="512")
    a = p.parse_args()
    print("| file | engine | seconds to the first token (min-max) | peak MiB | planned MiB |\n|---|---|---:|---:|---:|")
    for fmt in a.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            synth(a.welte, f"{a.shape}:{fmt}", path)
            file = f"{a.shape} {fmt}, {os.path.getsize(path) / 2**20:.0f} MiB"
            ours = [a.welte, "run", "-m", path, "--no-chat", "-p", "a", "-n", "1", "--temp", "0", "-t", a.threads, "-c", a.context]
            theirs = [a.llama_bench, "-m", path, "-t", a.threads, "-p", "0", "-n", "1", "-r", "1", "--no-warmup"]
            process(ours)
            runs = {"welte": [], "llama.cpp": []}
            for _ in range(a.pairs):
                runs["welte"].append(process(ours))
                if a.llama_bench:
                    runs["llama.cpp"].append(process(theirs))
            row(f"{file} | welte", runs["welte"], f" {planned(a.welte, path, a.context) / 2**20:.0f} |")
            if a.llama_bench:
                row(f"{file} | llama.cpp", runs["llama.cpp"], " |")
    demo = [a.welte, "run", "Tell me a story about a fox.", "-n", "1", "--temp", "0"]
    row("the bundled model | welte", [process(demo) for _ in range(2 * a.pairs)], f" {planned(a.welte, 'models/demo.gguf', '0') / 2**20:.0f} |")


main()
