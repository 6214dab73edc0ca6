"""Writes small models in formats that are unpacked before use, with transformers' logits.

    python3 tools/goldens/packed.py crates

Models go to welte/tests/goldens/packed, listed in welte/tests/goldens/packed.json as the other goldens are in index.json. The
matrices are random blocks, with scales that give them the spread of the model's own: no package encodes these formats. The logits
are those of the decoded weights in float32. GGUF: a model for each format with a table of entries, for those of three values and of
one bit, and for NVFP4, without and with factors beside the matrices. Hugging Face directories: AWQ, GPTQ, GPTQ with shuffled groups,
compressed-tensors in 4 and 8 bits, and NVFP4 as modelopt writes it.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from make import PROMPT, WIDE, add_to_config, build, logits, quantised, save, write_gguf
from safetensors.torch import load_file
from seeded import Goldens, e4m3

TABLES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4"]
DIRECTORIES = [("awq", "llama"), ("gptq", "qwen2"), ("gptq_order", "llama"), ("pack", "qwen3"), ("int8", "llama"), ("nvfp4", "qwen3")]
ONES = ["Q1_0"]
FORMATS = {"awq": "UINT4_64_F16", "gptq": "UINT4_128_F16", "gptq_order": "F16", "pack": "INT4_128", "int8": "INT8_128", "nvfp4": "NVFP4_F32"}
FOUR = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


# The places of eight neighbours in an I32.
PLACES = {"awq": [0, 2, 4, 6, 1, 3, 5, 7]}


def unpacked(words, places=range(8)):
    """Numbers of 4 bits from the I32s of the last dimension."""
    four = words.numpy().view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    numbers = np.empty_like(four)
    numbers[..., list(places)] = four
    return torch.from_numpy(numbers.reshape(*words.shape[:-1], -1).astype(np.float32))


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def module(rng, case, w):
    """A matrix's tensors: those that are random bits are 0, with the fields that they need, and the names of those that are stored."""
    n, k = w.shape
    spread = float(w.std())
    if case == "nvfp4":
        factor = torch.tensor(spread / 2.9 / 200, dtype=torch.float32)
        tensors = {"weight": torch.zeros(n, k // 2, dtype=torch.uint8), "weight_scale": torch.zeros(n, k // 16).to(torch.float8_e4m3fn),
                   "weight_scale_2": factor, "input_scale": torch.ones(())}
        return tensors, {"weight_scale": [[0, 1, "byte", e4m3(100), e4m3(300)]]}, []
    if case == "int8":
        scale = torch.from_numpy((spread / 73 * rng.uniform(0.8, 1.2, (n, 1))).astype(np.float32)).to(torch.bfloat16)
        return {"weight": torch.zeros(n, k, dtype=torch.int8), "weight_scale": scale}, {"weight": [[0, 1, "byte", -127, 127]]}, []
    group = 128 if case in ("gptq", "pack") else 64
    scale = torch.from_numpy((spread / 4.8 * rng.uniform(0.8, 1.2, (n, k // group))).astype(np.float32))
    if case == "pack":
        return {"weight_packed": zeros(n, k // 8), "weight_scale": scale.to(torch.bfloat16), "weight_shape": torch.tensor([n, k])}, {}, ["weight_shape"]
    tensors = {"qweight": zeros(k, n // 8), "qzeros": zeros(k // group, n // 8), "scales": scale.half().T.contiguous()}
    if case == "awq":
        return tensors, {"qzeros": [[0, 1, "nibbles", 6, 10]]}, []
    member = np.arange(k) // group
    if case == "gptq_order":
        rng.shuffle(member)
    tensors |= {"qweight": zeros(k // 8, n), "g_idx": torch.from_numpy(member.astype(np.int32))}
    # One less than the zero points.
    return tensors, {"qzeros": [[0, 1, "nibbles", 5, 9]]}, ["g_idx"]


def values(stored, key, case):
    """The values that a matrix's tensors stand for."""
    own = {name.removeprefix(key.removesuffix("weight")): tensor for name, tensor in stored.items()}
    if case == "nvfp4":
        q = torch.stack([own["weight"] & 15, own["weight"] >> 4], -1).flatten(1)
        return torch.from_numpy(FOUR)[q.int()] * (own["weight_scale"].float() * own["weight_scale_2"]).repeat_interleave(16, 1)
    if case == "int8":
        return own["weight"].float() * own["weight_scale"].float()
    if case == "pack":
        return own["weight_scale"].float().repeat_interleave(128, 1) * (unpacked(own["weight_packed"]) - 8)
    places = PLACES.get(case, range(8))
    scale, zero = own["scales"].float().T, unpacked(own["qzeros"], places).T
    if case == "awq":
        return scale.repeat_interleave(64, 1) * (unpacked(own["qweight"], places).T - zero.repeat_interleave(64, 1))
    q, member = unpacked(own["qweight"].T.contiguous()), own["g_idx"].long()
    decoded = scale[:, member] * (q - (zero + 1)[:, member])
    return decoded.half().float() if case == "gptq_order" else decoded


def configuration(case):
    if case == "nvfp4":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    if case == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
    if case.startswith("gptq"):
        return {"quant_method": "gptq", "bits": 4, "group_size": 128 if case == "gptq" else 64, "desc_act": case == "gptq_order"}
    weights = {"num_bits": 4 if case == "pack" else 8, "type": "int", "strategy": "group" if case == "pack" else "channel", "symmetric": True}
    return {"quant_method": "compressed-tensors", "format": f"{case}-quantized" if case == "pack" else "int-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def directory(path, case, arch, seed):
    model = build(arch, WIDE, seed).to(torch.bfloat16)
    save(model, path)
    tensors, fields, exact, rng = {}, {}, [], np.random.default_rng(seed)
    for key, w in load_file(path / "model.safetensors").items():
        if not key.endswith("_proj.weight"):
            tensors[key] = w
            continue
        stem = key.removesuffix("weight")
        own, how, stay = module(rng, case, w.float())
        tensors |= {stem + name: tensor for name, tensor in own.items()}
        fields |= {stem + name: field for name, field in how.items()}
        exact += [stem + name for name in stay]
    add_to_config(path, quantization_config=configuration(case))
    return quantised(model, path, seed, tensors, lambda stored, key: values(stored, key, case), fields, exact)


def add_factors(made, model):
    """Adds factors to the matrices of an NVFP4 file, and multiplies the model's by them."""
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    for i, (key, parameter) in enumerate((k, p) for k, p in model.named_parameters() if "_proj.weight" in k):
        factor = np.float32(0.7 + 0.1 * i)
        layer, name = key.split(".")[2], key.split(".")[-2].removesuffix("_proj")
        made.exact(f"blk.{layer}.{names[name]}.scale", [factor])
        made.exact(f"blk.{layer}.{names[name]}.input_scale", [1])
        with torch.no_grad():
            parameter.mul_(float(factor))


def main():
    out = Path(sys.argv[1]) / "welte/tests/goldens"
    folder = out / "packed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    goldens = Goldens(out, "packed.json", anew=True)

    def keep(model, name, path, kind):
        prompt = np.random.default_rng(700 + len(goldens.entries)).integers(2, model.config.vocab_size, PROMPT).tolist()
        goldens.keep(f"packed/{name}", f"packed/{path}", "packed", kind, prompt, logits(model, prompt), model.config.vocab_size)

    for i, kind in enumerate([*TABLES, "NVFP4"]):
        factors = i == len(TABLES)
        # The architecture's rows of Q and K need no reordering.
        model, name = build("qwen3", WIDE, 90 + i), kind.lower() + ("_factors" if factors else "")
        write_gguf(folder / f"{name}.gguf", "qwen3", model, kind, 90 + i, add_factors if factors else None)
        keep(model, name, f"{name}.gguf", "NVFP4_F32" if factors else kind)
    for i, (case, arch) in enumerate(DIRECTORIES):
        name = "modelopt" if case == "nvfp4" else case
        keep(directory(folder / name, case, arch, 110 + i), name, name, FORMATS[case])
    for i, kind in enumerate(ONES):
        model = build("qwen3", WIDE, 120 + i)
        write_gguf(folder / f"{kind.lower()}.gguf", "qwen3", model, kind, 120 + i)
        keep(model, kind.lower(), f"{kind.lower()}.gguf", kind)


if __name__ == "__main__":
    main()
