"""Writes small models in the formats that came later, with transformers' logits.

    python3 tools/goldens/formats.py crates

Models go to welte/tests/goldens/formats, listed in welte/tests/goldens/formats.json as the other goldens are in index.json.
GGUF: one for each format in GGUF. F8_E4M3, as Hugging Face files have it: scales by squares of 128 (as `fp8` says it), by row and one for all (as `compressed-tensors` says it; with scales of activations,
which we do not use), and rows of 96, which are no whole number of blocks. The logits are those of the weights times their
scales, in float32 (of the narrow one rounded to BF16, as it is read). A matrix of experts in MXFP4 as gpt-oss stores it goes to welte-formats/tests/fixtures/mxfp4, with the
values that transformers makes of it.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from make import KEPT, PROMPT, SMALL, WIDE, build, logits, write_gguf
from safetensors.torch import load_file, save_file

LARGEST, SQUARE = 448.0, 128
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 32}
NARROW = SHAPE | {"hidden_size": 96, "intermediate_size": 128}
# Name, architecture, shape, scales.
PLANS = [("blocks", "llama", SHAPE, "block"), ("rows", "qwen3", SHAPE, "channel"), ("whole", "qwen2", SHAPE, "tensor"), ("narrow", "llama", NARROW, "channel")]

GGUF = [("IQ4_NL", "llama", SMALL), ("IQ4_XS", "qwen3", WIDE), ("MXFP4", "qwen2", SMALL)]


def eight(w, scales):
    """Bytes, scales and the values that they stand for."""
    n, k = w.shape
    if scales == "block":
        rows, columns = -(-n // SQUARE), -(-k // SQUARE)
        padded = torch.zeros(rows * SQUARE, columns * SQUARE)
        padded[:n, :k] = w.float()
        s = padded.reshape(rows, SQUARE, columns, SQUARE).abs().amax((1, 3)) / LARGEST
        wide = s.repeat_interleave(SQUARE, 0)[:n].repeat_interleave(SQUARE, 1)[:, :k]
    else:
        s = (w.float().abs().amax(1, keepdim=True) if scales == "channel" else w.float().abs().max().reshape(1)) / LARGEST
        s = s.to(torch.bfloat16)
        wide = s.float().expand(n, k) if scales == "channel" else s.float()
    q = (w.float() / wide).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return q, s, q.float() * wide


def configuration(scales):
    if scales == "block":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [SQUARE, SQUARE]}
    weights = {"num_bits": 8, "type": "float", "strategy": scales, "symmetric": True, "dynamic": False}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": weights | {"dynamic": scales == "channel"}}}}


def float8(path, arch, shape, scales, seed):
    model = build(arch, shape, seed).to(torch.bfloat16)
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    model, stored = model.float(), {}
    parameters = dict(model.named_parameters())
    for key, w in load_file(path / "model.safetensors").items():
        if "_proj" not in key or not key.endswith("weight"):
            stored[key] = w
            continue
        q, s, values = eight(w, scales)
        stored[key], stored[key + ("_scale_inv" if scales == "block" else "_scale")] = q, s
        if scales == "tensor":
            stored[key.replace(".weight", ".input_scale")] = torch.ones(1)
        if w.shape[1] % SQUARE:
            values = values.to(torch.bfloat16).float()
        with torch.no_grad():
            parameters[key].copy_(values)
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = configuration(scales)
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return model


def models(out):
    folder = out / "formats"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    index = []

    def keep(model, name, path, kind):
        prompt = np.random.default_rng(300 + len(index)).integers(2, model.config.vocab_size, PROMPT).tolist()
        values = logits(model, prompt)
        values.tofile(folder / f"{name}.f32")
        index.append({"name": f"formats/{name}", "path": f"formats/{path}", "logits": f"formats/{name}.f32", "architecture": "formats",
                      "format": kind, "prompt": prompt, "first": PROMPT - KEPT, "rows": KEPT, "vocabulary": model.config.vocab_size})
        print(index[-1]["name"], f"std {values.std():.2f} range {np.ptp(values):.1f}")

    for i, (kind, arch, shape) in enumerate(GGUF):
        model, name = build(arch, shape, 50 + i), kind.lower()
        write_gguf(folder / f"{name}.gguf", arch, model, kind)
        keep(model, name, f"{name}.gguf", kind)
    for i, (name, arch, shape, scales) in enumerate(PLANS):
        (folder / name).mkdir()
        model = float8(folder / name, arch, shape, scales, 60 + i)
        keep(model, name, name, "F8_E4M3" if shape is SHAPE else "BF16")
    (out / "formats.json").write_text(json.dumps(index).replace("}, {", "},\n{") + "\n")


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
