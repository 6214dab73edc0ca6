#!/usr/bin/env python3
"""compare-wheel.py WELTE PYTHON MODEL: generates with the binary and with the module of the wheel that the environment of PYTHON has, by
turns, and compares their tokens per second. Both must be built alike (the profile dist)."""

import argparse
import re
import statistics
import subprocess
import sys

PROMPT = "Write a long story about a fox who learns to sail."
MODULE = """
import sys, welte
path, tokens, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with welte.Model(path, device="cpu", threads=threads, context=1024, speculation="off") as model:
    whole = model.generate(sys.argv[4], max_tokens=tokens, temperature=0, ignore_eos=True)
    print(f"generation {whole.response['welte']['tokens_per_second']:.3f} t/s")
"""


def measured(command):
    """Tokens per second."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.findall(r"generation .*?([0-9.]+) t/s", done.stdout)
    if done.returncode or not found:
        sys.exit(f"error: {command[0]}: {done.stdout}")
    return float(found[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("welte")
    parser.add_argument("python")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    tokens, threads = str(args.tokens), str(args.threads)
    binary = [args.welte, "run", "-m", args.model, "-p", PROMPT, "-n", tokens, "-t", threads, "-c", "1024", "--temp", "0", "--ignore-eos"]
    # The prompts differ by the chat template, so the texts do, and what could be guessed of them.
    binary += ["--device", "cpu", "--spec", "off"]
    module = [args.python, "-c", MODULE, args.model, tokens, threads, PROMPT]
    ratios = []
    for turn in range(args.rounds):
        pair = [("binary", binary), ("wheel", module)]
        speeds = {name: measured(command) for name, command in (pair if turn % 2 else reversed(pair))}
        ratios.append(speeds["wheel"] / speeds["binary"])
        print(f"binary {speeds['binary']:.2f} tok/s, wheel {speeds['wheel']:.2f} tok/s", flush=True)
    middle = statistics.median(ratios)
    print(f"wheel/binary {middle:.3f} (median of {args.rounds}; {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
