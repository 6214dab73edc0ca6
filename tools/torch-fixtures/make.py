#!/usr/bin/env python3
"""Writes files with `torch.save` for the tests of their reader, and what is in them.

    tools/torch-fixtures/make.py crates/welte-formats/tests/fixtures/torch
"""

import collections
import json
import pathlib
import sys

import torch


class Runs:
    """A pickle may call anything. A reader that did would leave a folder behind."""

    def __reduce__(self):
        import os

        return os.mkdir, ("pickles-run-code",)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    random = lambda *shape: torch.randn(shape, generator=generator)
    linear = torch.nn.Linear(8, 1)
    with torch.no_grad():
        linear.weight.copy_(random(1, 8))
        linear.bias.copy_(random(1))
    shared = random(5, 4)
    many = {f"layers.{i}.weight": random(1 + i % 3, 2) for i in range(90)}
    dicts = {
        "linear": linear.state_dict(),
        "linear-half": {name: value.half() for name, value in linear.state_dict().items()},
        "linear-without-bias": torch.nn.Linear(8, 1, bias=False).state_dict(),
        # Types, an offset within a storage that two tensors share, and more names than one byte counts.
        "types": {"bf16": random(2, 3).bfloat16(), "rows": shared[2:4], "all": shared, "scalar": random()[None][0]},
        "many": collections.OrderedDict(many),
    }
    expected = {}
    for name, tensors in dicts.items():
        torch.save(tensors, out / f"{name}.pt")
        expected[name] = {
            key: {"shape": list(value.shape), "values": [float(v) for v in value.float().flatten()]} for key, value in tensors.items()
        }
    (out / "expected.json").write_text(json.dumps(expected) + "\n")
    torch.save({"weight": random(1, 8), "bias": Runs()}, out / "bad-code.pt")
    torch.save({"state": linear.state_dict(), "epoch": 3}, out / "bad-nested.pt")
    torch.save({"weight": random(8, 2).t()}, out / "bad-strides.pt")
    torch.save({"wide": random(2).double()}, out / "bad-double.pt")
    torch.save([random(2)], out / "bad-list.pt")
    torch.save(linear.state_dict(), out / "bad-legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(linear.state_dict(), out / "bad-protocol.pt", pickle_protocol=4)


main()
