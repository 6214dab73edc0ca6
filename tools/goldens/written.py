#!/usr/bin/env python3
"""Loads in transformers what `welte quantize FILE.gguf DIR/` writes of each golden's GGUF file, and compares logits with the golden's.

    python3 tools/goldens/written.py crates/welte/tests/goldens WELTE

Architectures without a directory form are listed as refused. Exits with 1 if any logit is off by more than 1e-5 of their range.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

LISTS = ["index", "families", "plain", "hybrid", "recurrent"]
# Files with the least rounding come first.
FORMATS = ["F32", "BF16", "F16", "Q8_0"]


def files(goldens):
    """A golden with a GGUF file for each folder."""
    chosen = {}
    for name in LISTS:
        for golden in json.loads((goldens / f"{name}.json").read_text()):
            known = golden["format"] in FORMATS and golden["path"].endswith(".gguf")
            folder = golden["path"].split("/")[0]
            before = chosen.get(folder)
            if known and (not before or FORMATS.index(golden["format"]) < FORMATS.index(before["format"])):
                chosen[folder] = golden
    return sorted(chosen.items())


def check(golden, whole, goldens, welte, out):
    written = subprocess.run([welte, "quantize", whole / golden["path"], f"{out}/", "F32"], capture_output=True, text=True)
    if written.returncode:
        return None, f"refused: {written.stderr.strip().splitlines()[-1]}"
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        got = model(torch.tensor([golden["prompt"]])).logits[0, golden["first"] :, : golden["vocabulary"]].numpy()
    want = np.fromfile(goldens / golden["logits"], dtype=np.float32).reshape(golden["rows"], -1)
    off = abs(got[: golden["rows"]] - want).max() / (want.max() - want.min())
    return off, f"{type(model).__name__}, off by {off:.1e} of the range"


def main():
    goldens, welte = pathlib.Path(sys.argv[1]), sys.argv[2]
    transformers.logging.set_verbosity_error()
    worst = 0
    with tempfile.TemporaryDirectory() as work:
        whole = pathlib.Path(work) / "whole"
        subprocess.run([sys.executable, pathlib.Path(__file__).with_name("seeded.py"), goldens, whole], check=True)
        for folder, golden in files(goldens):
            off, line = check(golden, whole, goldens, welte, pathlib.Path(work) / folder)
            worst = max(worst, off or 0)
            print(f"{folder:20} {line}", flush=True)
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    main()
