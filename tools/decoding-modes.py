#!/usr/bin/env python3
"""Measures one stream in every decoding mode, the modes in turn on one server, and prints medians as JSON. `share` is the speed
divided by that of plain decoding in the same round.

    tools/decoding-modes.py target/release/welte -m models/demo.gguf --device cpu
    tools/decoding-modes.py welte -m synthetic:qwen3-4b:q4_0 --device cuda -n 512 -r 3

The speeds are the engine's own. Nothing is guessed ahead unless --spec says so.
"""

import argparse
import json
import re
import statistics
import subprocess
import urllib.request

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "count": {"type": "integer", "minimum": 0, "maximum": 100000},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}

# What a request of each mode adds. The constraints hold for the whole answer, however long it becomes.
MODES = {
    "plain": {"ignore_eos": True},
    "regex": {"grammar": "start: /[a-z0-9 ]{4000,}/"},
    "schema": {"json_schema": {"type": "array", "items": ITEM, "minItems": 400}},
    "json": {"json_schema": {"type": "object"}},
    "logprobs-1": {"ignore_eos": True, "n_probs": 1},
    "logprobs-5": {"ignore_eos": True, "n_probs": 5},
}


def speed(port, mode, tokens, seed):
    body = {"prompt": [1, 2, 3], "n_predict": tokens, "temperature": 0.8, "seed": seed, "cache_prompt": False} | MODES[mode]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        timings = json.load(answer)["timings"]
    return timings["predicted_per_second"], timings["predicted_n"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("welte", help="the binary")
    parser.add_argument("-m", "--model", default="models/demo.gguf")
    parser.add_argument("--device", default="auto")
    parser.add_argument("-n", "--tokens", type=int, default=512)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--spec", default="off")
    parser.add_argument("--modes", default=",".join(MODES))
    args = parser.parse_args()
    modes = args.modes.split(",")
    command = [args.welte, "serve", "-m", args.model, "--device", args.device, "--port", "0", "-np", "1", "--spec", args.spec]
    server = subprocess.Popen([*command, "-c", str(args.tokens + 64)], stderr=subprocess.PIPE, text=True)
    speeds = {mode: [] for mode in modes}
    counts = {mode: [] for mode in modes}
    try:
        port = next(int(found[1]) for line in server.stderr if (found := re.search(r"listening at http://\S+:(\d+)", line)))
        # The first round is the warm-up.
        for turn in range(args.rounds + 1):
            for mode in modes:
                per_second, count = speed(port, mode, args.tokens, turn)
                if turn:
                    speeds[mode].append(per_second)
                    counts[mode].append(count)
    finally:
        server.terminate()
        server.wait()
    result = {"model": args.model, "device": args.device, "spec": args.spec, "rounds": args.rounds}
    for mode in modes:
        row = {"tokens_per_second": round(statistics.median(speeds[mode]), 1), "tokens": counts[mode]}
        if "plain" in modes:
            row["share"] = round(statistics.median(a / b for a, b in zip(speeds[mode], speeds["plain"])), 3)
        result[mode] = row
    print(json.dumps(result))


if __name__ == "__main__":
    main()
