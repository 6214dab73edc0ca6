"""Writes the fixtures of AWQ, GPTQ, compressed-tensors and NVFP4 in safetensors.

Needs numpy, torch, safetensors and compressed-tensors==0.20.0. Run from the repository's root:

    python3 tools/quant-fixtures/packed.py

For each case, in crates/welte-formats/tests/fixtures/packed/CASE/: a directory as the tool writes it, with one module `x`, and
values.f32, the values that its weights stand for. Those of compressed-tensors come from its package. AWQ and GPTQ have no
package that runs without a GPU; their values are those from before packing.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

OUT = Path("crates/welte-formats/tests/fixtures/packed")
N, K = 24, 256


def keep(name, config, tensors, values):
    folder = OUT / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "none", "quantization_config": config}) + "\n")
    save_file({f"x.{key}": tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")
    assert values.shape == (N, K)
    values.float().numpy().astype("<f4").tofile(folder / "values.f32")


def i32(words):
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


def packed(numbers, bits, places=None):
    """Packs along the last dimension."""
    per = 32 // bits
    numbers = numbers.reshape(*numbers.shape[:-1], -1, per)[..., places or list(range(per))]
    return i32((numbers.astype(np.uint64) << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1))


def made(rng, bits, group, dtype):
    """Integers [n, k], zero points and scales [n, groups]."""
    groups = K // group
    q = rng.integers(0, 2**bits, (N, K))
    zero = rng.integers(1, 2**bits, (N, groups))
    scale = torch.from_numpy(rng.uniform(1e-3, 2e-2, (N, groups)).astype(np.float32)).to(dtype)
    return q, zero, scale


def gptq(rng, name, bits, group, version, order):
    q, zero, scale = made(rng, bits, group, torch.float16)
    member = np.arange(K) // group
    if order:
        rng.shuffle(member)
    values = scale.float()[:, member] * torch.from_numpy(q - zero[:, member]).float()
    below = 0 if version == "gptq_v2" else 1
    tensors = {"qweight": packed(q, bits).T, "qzeros": packed((zero - below).T, bits), "scales": scale.T,
               "g_idx": torch.from_numpy(member.astype(np.int32)), "bias": torch.zeros(N, dtype=torch.float16)}
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": False}
    if version:
        config["checkpoint_format"] = version
    keep(name, config, tensors, values.half() if order else values)


def awq(rng):
    q, zero, scale = made(rng, 4, 64, torch.float16)
    values = scale.float().repeat_interleave(64, 1) * torch.from_numpy(q - zero.repeat(64, 1)).float()
    places = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {"qweight": packed(q.T, 4, places), "qzeros": packed(zero.T, 4, places), "scales": scale.T}
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
    keep("awq", config, tensors, values)


def compressed(rng, name, dtype, **args):
    """Rounds Gaussian values, and lets the package pack them."""
    order = args.pop("order", False)
    args = QuantizationArgs(type="int", **args)
    group = args.group_size or K
    w = torch.from_numpy(rng.standard_normal((N, K)).astype(np.float32) * 0.02)
    parts = w.reshape(N, -1, group)
    bits = args.num_bits
    if args.symmetric:
        scale = (parts.abs().amax(2) / (2 ** (bits - 1) - 0.5)).to(dtype)
        zero = torch.zeros_like(scale, dtype=torch.int8)
    else:
        least, most = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
        scale = ((most - least) / (2**bits - 1)).to(dtype)
        zero = (-(2 ** (bits - 1)) - least / scale.float()).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
    member = torch.arange(K) // group
    if order:
        member = member[torch.from_numpy(rng.permutation(K))]
    wide, zeros = scale.float()[:, member], zero.float()[:, member]
    q = (w / wide + zeros).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    state = {"weight": wide * (q - zeros), "weight_scale": scale}
    if not args.symmetric:
        state["weight_zero_point"] = zero
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    if bits == 8 and args.strategy == "channel":
        stored, form = {"weight": q.to(torch.int8), "weight_scale": scale}, "int-quantized"
        values = dequantize(stored["weight"], scale.float(), args=args, dtype=torch.float32)
    elif order:
        # The package no longer writes groups whose inputs are not neighbours; older files have them.
        stored, form = {"weight_packed": packed(q.numpy().astype(np.int64) + 8, 4), "weight_scale": scale,
                        "weight_shape": torch.tensor([N, K]), "weight_g_idx": member.to(torch.int32)}, "pack-quantized"
        values = state["weight"].to(dtype)
    else:
        stored, form = PackedQuantizationCompressor.compress(dict(state), scheme), "pack-quantized"
        opened = {key: value.float() if key == "weight_scale" else value for key, value in stored.items()}
        values = PackedQuantizationCompressor.decompress(opened, scheme)["weight"].float()
    weights = {"num_bits": bits, "type": "int", "strategy": str(args.strategy), "symmetric": args.symmetric, "group_size": args.group_size}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    keep(name, config, {k: v for k, v in stored.items() if v is not None}, values)


def nvfp4(rng):
    four = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    q = rng.integers(0, 16, (N, K))
    bytes_ = torch.from_numpy((q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8))
    scale = torch.from_numpy(rng.uniform(0.01, 440, (N, K // 16)).astype(np.float32)).to(torch.float8_e4m3fn)
    for name, factor, key, inverse, config in [
        ("nvfp4", 3.1e-5, "weight_scale_2", False, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
        ("nvfp4_compressed", 8192.0, "weight_global_scale", True, {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
    ]:
        factor = torch.tensor([factor] if inverse else factor, dtype=torch.float32)
        each = scale.float() / factor if inverse else scale.float() * factor
        values = four[torch.from_numpy(q)] * each.repeat_interleave(16, 1)
        weight = "weight_packed" if inverse else "weight"
        other = "input_global_scale" if inverse else "input_scale"
        keep(name, config, {weight: bytes_, "weight_scale": scale, key: factor, other: torch.ones(1)}, values)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    rng = np.random.default_rng(20261123)
    awq(rng)
    gptq(rng, "gptq", 4, 128, None, False)
    gptq(rng, "gptq_v2", 8, 32, "gptq_v2", False)
    gptq(rng, "gptq_order", 4, 64, "gptq", True)
    compressed(rng, "pack", torch.bfloat16, num_bits=4, strategy="group", group_size=128, symmetric=True)
    compressed(rng, "pack_zeros", torch.bfloat16, num_bits=4, strategy="group", group_size=32, symmetric=False)
    compressed(rng, "pack_rows", torch.float16, num_bits=8, strategy="group", group_size=256, symmetric=True)
    compressed(rng, "pack_order", torch.bfloat16, num_bits=4, strategy="group", group_size=64, symmetric=True, order=True)
    compressed(rng, "int8", torch.float32, num_bits=8, strategy="channel", symmetric=True)
    nvfp4(rng)


if __name__ == "__main__":
    main()
