#!/usr/bin/env python3
"""Measures decoding by number of threads and writes docs/results/cpu-*-threads.json (charts: tools/charts.py).

    tools/scaling.py --llama-bench PATH --models qwen3-0.6b:q4_0,qwen3-4b:q4_k --threads 1,2,4,8,16 --output FILE

Engines take turns on identical files (`welte synth` writes them). Each figure is the median of the rounds. Welte measures in
the same run what as many threads read: the floor. Without --llama-bench only Welte is measured.
"""
import argparse
import datetime
import json
import os
import statistics
import tempfile
from compare import rows, spread, synth

PEER = "llama.cpp as packaged in llama-cpp-python 0.3.36"


def processor():
    """The number of processors and their name."""
    name = "an unknown processor"
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        name = names[0] if names else name
    return f"{os.cpu_count()} processors: {name}"


def measure(a, path):
    """Welte's runs and llama.cpp's speeds by number of threads."""
    common = ["-m", path, "-t", a.threads, "-p", "0", "-n", a.gen, "-r", "1", "-o", "json"]
    isa = ["--isa", a.isa] if a.isa else []
    ours, theirs = {}, {}
    for _ in range(a.rounds):
        for run in rows([a.welte, "bench", "--device", "cpu", *isa, *common]):
            ours.setdefault(run["n_threads"], []).append(run)
        if a.llama_bench:
            for run in rows([a.llama_bench, *common]):
                theirs.setdefault(run["n_threads"], []).append(run["avg_ts"])
    return ours, theirs


def table(model, ours, theirs):
    shape, _, fmt = model.partition(":")
    for threads, runs in ours.items():
        row = {"shape": shape, "format": fmt, "threads": threads, "welte": spread([run["avg_ts"] for run in runs], 2)}
        if threads in theirs:
            row["llama_cpp"] = spread(theirs[threads], 2)
            row["ratio"] = round(row["welte"]["median"] / row["llama_cpp"]["median"], 2)
        row["gb_s"] = round(statistics.median(run["gb_s"] for run in runs), 1)
        if not any(run["in_cache"] for run in runs):
            row["floor"] = round(statistics.median(run["floor_gb_s"] for run in runs), 1)
            row["floor_share"] = round(100 * statistics.median(run["floor_share"] for run in runs))
        yield row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-bench")
    p.add_argument("--models", default="qwen3-0.6b:q4_0,qwen3-0.6b:q4_k,qwen3-0.6b:q8_0,qwen3-0.6b:bf16")
    p.add_argument("--threads", default="1,2,4,8,16")
    p.add_argument("--isa", help="Welte's instruction set")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--gen", default="48")
    p.add_argument("--machine", default=processor(), help="the machine, in words")
    p.add_argument("--output", required=True)
    a = p.parse_args()
    found = []
    for model in a.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            synth(a.welte, model, path)
            for row in table(model, *measure(a, path)):
                found.append(row)
                print(json.dumps(row), flush=True)
    peer = "--llama-bench PATH " if a.llama_bench else ""
    isa = f"--isa {a.isa} " if a.isa else ""
    command = f"tools/scaling.py {peer}{isa}--models {a.models} --threads {a.threads} --rounds {a.rounds} --gen {a.gen} --output FILE"
    columns = [
        {"key": "shape", "title": "shape"},
        {"key": "format", "title": "format"},
        {"key": "threads", "title": "threads"},
        {"key": "welte", "title": "Welte", "unit": "tok/s"},
        {"key": "llama_cpp", "title": "llama.cpp", "unit": "tok/s"},
        {"key": "ratio", "title": "ratio"},
        {"key": "gb_s", "title": "read rate", "unit": "GB/s"},
        {"key": "floor", "title": "floor", "unit": "GB/s"},
        {"key": "floor_share", "title": "share of floor", "unit": "%"},
    ]
    used = set().union(*found)
    result = {
        "title": "CPU: decoding by number of threads",
        "date": datetime.date.today().isoformat(),
        "machine": a.machine,
        **({"peer": PEER} if a.llama_bench else {}),
        "commands": [command],
        "notes": [f"{a.gen} tokens, empty context, medians of {a.rounds} rounds in turns. The floor is what as many threads read in the same run."],
        "columns": [column for column in columns if column["key"] in used],
        "rows": found,
    }
    with open(a.output, "w") as file:
        json.dump(result, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main()
