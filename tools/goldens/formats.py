"""Writes small models in the formats that came later, with transformers' logits.

    python3 tools/goldens/formats.py crates

Models go to welte/tests/goldens/formats, listed in welte/tests/goldens/formats.json as the other goldens are in index.json.
GGUF: one for each format in GGUF. F8_E4M3, as Hugging Face files have it: scales by squares of 128 (as `fp8` says it), by row and one for all (as `compressed-tensors` says it; with scales of activations,
which we do not use), and rows of 96, which are not a whole number of blocks. The logits are those of the weights times their
scales, in float32 (of the narrow one rounded to BF16, as it is read). A matrix of experts in MXFP4 as gpt-oss stores it goes to welte-formats/tests/fixtures/mxfp4, with the
values that transformers makes of it.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from make import PROMPT, SMALL, WIDE, add_to_config, build, logits, quantised, save, write_gguf
from safetensors.torch import load_file, save_file
from seeded import Goldens

SQUARE = 128
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 32}
NARROW = SHAPE | {"hidden_size": 96, "intermediate_size": 128}
# Name, architecture, shape, scales.
PLANS = [("blocks", "llama", SHAPE, "block"), ("rows", "qwen3", SHAPE, "channel"), ("whole", "qwen2", SHAPE, "tensor"), ("narrow", "llama", NARROW, "channel")]

GGUF = [("IQ4_NL", "llama", SMALL), ("IQ4_XS", "qwen3", WIDE), ("MXFP4", "qwen2", SMALL)]


# The deviation of random codes.
CODES = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().square().mean().sqrt()


def scale_of(w, scales, rng):
    """Scales that give random codes about the deviation of a matrix."""
    n, k = w.shape
    shape = {"block": (-(-n // SQUARE), -(-k // SQUARE)), "channel": (n, 1), "tensor": (1,)}[scales]
    s = torch.from_numpy(rng.uniform(0.8, 1.2, shape).astype(np.float32)) * w.float().std() / CODES
    return s if scales == "block" else s.to(torch.bfloat16)


def values_of(q, s, scales):
    n, k = q.shape
    s = s.float().repeat_interleave(SQUARE, 0)[:n].repeat_interleave(SQUARE, 1)[:, :k] if scales == "block" else s.float()
    values = q.float() * s
    return values.to(torch.bfloat16).float() if k % SQUARE else values


def configuration(scales):
    if scales == "block":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [SQUARE, SQUARE]}
    weights = {"num_bits": 8, "type": "float", "strategy": scales, "symmetric": True, "dynamic": False}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": weights | {"dynamic": scales == "channel"}}}}


def float8(path, arch, shape, scales, seed):
    model = build(arch, shape, seed).to(torch.bfloat16)
    save(model, path)
    tensors, fields, rng = {}, {}, np.random.default_rng(seed)
    suffix = "_scale_inv" if scales == "block" else "_scale"
    for key, w in load_file(path / "model.safetensors").items():
        tensors[key] = w
        if not key.endswith("_proj.weight"):
            continue
        tensors[key], tensors[key + suffix] = torch.zeros(w.shape).to(torch.float8_e4m3fn), scale_of(w, scales, rng)
        fields[key] = [[0, 1, "e4m3", 0, 0]]
        if scales == "tensor":
            tensors[key.replace(".weight", ".input_scale")] = torch.ones(1)
    add_to_config(path, quantization_config=configuration(scales))
    return quantised(model, path, seed, tensors, lambda stored, key: values_of(stored[key], stored[key + suffix], scales), fields)


def models(out):
    folder = out / "formats"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    goldens = Goldens(out, "formats.json", anew=True)

    def keep(model, name, path, kind):
        prompt = np.random.default_rng(300 + len(goldens.entries)).integers(2, model.config.vocab_size, PROMPT).tolist()
        goldens.keep(f"formats/{name}", f"formats/{path}", "formats", kind, prompt, logits(model, prompt), model.config.vocab_size)

    for i, (kind, arch, shape) in enumerate(GGUF):
        model, name = build(arch, shape, 50 + i), kind.lower()
        write_gguf(folder / f"{name}.gguf", arch, model, kind, 50 + i)
        keep(model, name, f"{name}.gguf", kind)
    for i, (name, arch, shape, scales) in enumerate(PLANS):
        model = float8(folder / name, arch, shape, scales, 60 + i)
        keep(model, name, name, "F8_E4M3" if shape is SHAPE else "BF16")


def mxfp4(out):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    rng = np.random.default_rng(7)
    blocks = torch.from_numpy(rng.integers(0, 256, (2, 3, 5, 16), dtype=np.uint8))
    scales = torch.from_numpy(rng.integers(100, 140, (2, 3, 5), dtype=np.uint8))
    save_file({"e.down_proj_blocks": blocks, "e.down_proj_scales": scales}, out / "model.safetensors")
    config = {"model_type": "none", "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    (out / "config.json").write_text(json.dumps(config) + "\n")
    # It gives experts with rows and columns exchanged.
    values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    values.contiguous().numpy().astype("<f4").tofile(out / "values.f32")


def main():
    crates = Path(sys.argv[1])
    models(crates / "welte/tests/goldens")
    mxfp4(crates / "welte-formats/tests/fixtures/mxfp4")


if __name__ == "__main__":
    main()
