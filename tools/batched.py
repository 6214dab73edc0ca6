#!/usr/bin/env python3
"""Measures batches with `welte bench --batched` and writes the results file that tools/charts.py reads.

    tools/batched.py --name cpu-avx512-batched --title "Batches on a CPU" --machine "2 cores of ..." \\
        --model qwen3-0.6b:q4_0 --batches 1,2,4,8,16 -- --device cpu -t 2 -p 512 -n 128 -r 3
"""
import argparse
import datetime
import json
import pathlib
import subprocess

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results"

# Key here, key in the output of the benchmark, title, unit, digits.
COLUMNS = [
    ("sequences", "pl", "sequences", None, 0),
    ("pp", "speed_pp", "prompts", "tok/s", 1),
    ("tg", "speed_tg", "decoding", "tok/s", 1),
    ("step", None, "step", "ms", 1),
    ("ratio", None, "times one sequence", None, 2),
    ("gb_s", "gb_s", "read rate", "GB/s", 1),
    ("floor_share", "floor_percent", "share of floor", "%", 0),
]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--name", required=True, help="name of the results file")
    p.add_argument("--title", required=True)
    p.add_argument("--machine", required=True)
    p.add_argument("--note", action="append", default=[])
    p.add_argument("--model", default="qwen3-0.6b:q4_0", help="shape and format of random weights")
    p.add_argument("--batches", default="1,2,4,8,16")
    p.add_argument("more", nargs="*", help="further arguments of the benchmark, after --")
    a = p.parse_args()
    arguments = ["bench", "--synthetic", a.model, "--batched", a.batches, *a.more]
    output = subprocess.run([a.welte, *arguments, "-o", "json"], check=True, stdout=subprocess.PIPE).stdout
    rows = json.loads(output)
    one = next((r["speed_tg"] for r in rows if r["pl"] == 1), None)
    found = []
    for r in rows:
        r["step"] = 1e3 * r["t_tg"] / r["tg"]
        r["ratio"] = r["speed_tg"] / one if one else None
        cells = {key: r[source or key] for key, source, *_ in COLUMNS}
        digits = {key: digits for key, _, _, _, digits in COLUMNS}
        found.append({k: round(v, digits[k]) if digits[k] else round(v) for k, v in cells.items() if v is not None})
    columns = [
        {"key": key, "title": title, **({"unit": unit} if unit else {}), "digits": digits}
        for key, _, title, unit, digits in COLUMNS
    ]
    result = {
        "title": a.title,
        "date": datetime.date.today().isoformat(),
        "machine": a.machine,
        "commands": [" ".join(["welte", *arguments])],
        **({"notes": a.note} if a.note else {}),
        "columns": columns,
        "rows": found,
    }
    lists = ("columns", "rows")
    body = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in result.items() if k not in lists]
    for key in lists:
        lines = ",\n".join(f"    {json.dumps(row)}" for row in result[key])
        body.append(f'  "{key}": [\n{lines}\n  ]')
    path = RESULTS / f"{a.name}.json"
    path.write_text("{\n" + ",\n".join(body) + "\n}\n")
    print(f"wrote {path}; now show it in a page of docs and run tools/charts.py")


main()
