"""Writes small models in formats that are unpacked before use, with transformers' logits.

    python3 tools/goldens/packed.py crates

Models go to welte/tests/goldens/packed, listed in welte/tests/goldens/packed.json as the other goldens are in index.json. The
matrices are random blocks, with scales that give them the spread of the model's own: no package encodes these formats. The logits
are those of the decoded weights in float32. GGUF: a model for each format with a table of entries, for the ternary ones and for
NVFP4, without and with factors beside the matrices. Hugging Face directories: AWQ, GPTQ, GPTQ with shuffled groups,
compressed-tensors in 4 and 8 bits, and NVFP4 as modelopt writes it.
"""

import json
import shutil
import sys
from pathlib import Path

import gguf
import kquants
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from make import KEPT, PROMPT, WIDE, build, logits, write_gguf
from safetensors.torch import load_file, save_file

# Format, and where a block has its F16 scale.
TABLES = [("IQ1_S", 0), ("IQ1_M", None), ("IQ2_XXS", 0), ("IQ2_XS", 0), ("IQ2_S", 0), ("IQ3_XXS", 0), ("IQ3_S", 0), ("TQ1_0", 52), ("TQ2_0", 64),
          ("NVFP4", None)]
DIRECTORIES = [("awq", "llama"), ("gptq", "qwen2"), ("gptq_order", "llama"), ("pack", "qwen3"), ("int8", "llama"), ("nvfp4", "qwen3")]
FORMATS = {"awq": "UINT4_64_F16", "gptq": "UINT4_128_F16", "gptq_order": "F16", "pack": "INT4_128", "int8": "INT8_128", "nvfp4": "NVFP4_F32"}
FOUR = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def random_blocks(rng, kind, at):
    """An encoder that keeps only the spread of its values."""
    qtype = T[kind]
    size, width = gguf.GGML_QUANT_SIZES[qtype]

    def with_scale(blocks, d):
        if kind == "NVFP4":
            # Scales from d / 2 to 2 d, as E4M3.
            wanted = torch.from_numpy((d * np.exp2(rng.uniform(-1, 1, (len(blocks), 4)))).astype(np.float32))
            blocks[:, :4] = wanted.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        elif kind == "IQ1_M":
            bits = int(np.float16(d).view(np.uint16))
            words = blocks[:, 48:56].copy().view("<u2") & 0x0FFF
            for j in range(4):
                words[:, j] |= (bits >> 4 * j & 15) << 12
            blocks[:, 48:56] = words.view(np.uint8)
        else:
            blocks[:, at:at + 2] = np.float16(d).reshape(1, 1).view(np.uint8)
        return blocks

    def encode(rows):
        n, k = rows.shape
        blocks = rng.integers(0, 256, (n * k // size, width), dtype=np.uint8)
        unit = gguf.quants.dequantize(with_scale(blocks.copy(), 1.0).reshape(n, -1), qtype)
        return with_scale(blocks, np.std(rows) / np.std(unit)).reshape(n, -1)

    return encode


def i32(words):
    return torch.from_numpy(words.astype(np.uint32).view(np.int32)).contiguous()


def packed(numbers, places=range(8)):
    """Eight numbers of 4 bits in an I32, along the last dimension."""
    numbers = numbers.reshape(*numbers.shape[:-1], -1, 8)[..., list(places)]
    return i32((numbers.astype(np.uint64) << np.arange(0, 32, 4, dtype=np.uint64)).sum(-1))


def module(rng, case, w):
    """A matrix's tensors in a directory, and the values that they stand for."""
    n, k = w.shape
    spread = float(w.std())
    if case == "nvfp4":
        q = rng.integers(0, 16, (n, k))
        factor = torch.tensor(spread / 2.9 / 200, dtype=torch.float32)
        scale = torch.from_numpy(rng.uniform(100, 300, (n, k // 16)).astype(np.float32)).to(torch.float8_e4m3fn)
        values = torch.from_numpy(FOUR[q]) * (scale.float() * factor).repeat_interleave(16, 1)
        bytes_ = torch.from_numpy((q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8))
        return {"weight": bytes_, "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.ones(())}, values
    if case == "int8":
        q = torch.from_numpy(rng.integers(-127, 128, (n, k)).astype(np.int8))
        scale = torch.from_numpy((spread / 73 * rng.uniform(0.8, 1.2, (n, 1))).astype(np.float32)).to(torch.bfloat16)
        return {"weight": q, "weight_scale": scale}, q.float() * scale.float()
    group = 128 if case in ("gptq", "pack") else 64
    q, zero = rng.integers(0, 16, (n, k)), rng.integers(6, 11, (n, k // group))
    if case == "pack":
        zero = np.full_like(zero, 8)
    scale = torch.from_numpy((spread / 4.8 * rng.uniform(0.8, 1.2, (n, k // group))).astype(np.float32))
    scale = scale.to(torch.bfloat16 if case == "pack" else torch.float16)
    member = np.arange(k) // group
    if case == "gptq_order":
        rng.shuffle(member)
    values = scale.float()[:, member] * torch.from_numpy(q - zero[:, member]).float()
    if case == "pack":
        return {"weight_packed": packed(q), "weight_scale": scale, "weight_shape": torch.tensor([n, k])}, values
    if case == "awq":
        places = [0, 2, 4, 6, 1, 3, 5, 7]
        return {"qweight": packed(q.T, places), "qzeros": packed(zero.T, places), "scales": scale.T.contiguous()}, values
    tensors = {"qweight": packed(q).T.contiguous(), "qzeros": packed(zero.T - 1), "scales": scale.T.contiguous()}
    tensors["g_idx"] = torch.from_numpy(member.astype(np.int32))
    return tensors, values.half().float() if case == "gptq_order" else values


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
    path.mkdir()
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    model, stored, rng = model.float(), {}, np.random.default_rng(seed)
    parameters = dict(model.named_parameters())
    for key, w in load_file(path / "model.safetensors").items():
        if "_proj" not in key or not key.endswith("weight"):
            stored[key] = w
            continue
        tensors, values = module(rng, case, w.float())
        stored |= {f"{key.removesuffix('weight')}{name}": tensor for name, tensor in tensors.items()}
        with torch.no_grad():
            parameters[key].copy_(values)
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = configuration(case)
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return model


def with_factors(path, model):
    """Adds factors to the matrices of an NVFP4 file, and multiplies the model's by them."""
    reader, names = gguf.GGUFReader(path), {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    writer = gguf.GGUFWriter(path.with_suffix(".tmp"), reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for i, (key, parameter) in enumerate((k, p) for k, p in model.named_parameters() if "_proj.weight" in k):
        factor = np.float32(0.7 + 0.1 * i)
        layer, name = key.split(".")[2], key.split(".")[-2].removesuffix("_proj")
        writer.add_tensor(f"blk.{layer}.{names[name]}.scale", np.array([factor], np.float32))
        writer.add_tensor(f"blk.{layer}.{names[name]}.input_scale", np.array([1], np.float32))
        with torch.no_grad():
            parameter.mul_(float(factor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".tmp").rename(path)


def main():
    out = Path(sys.argv[1]) / "welte/tests/goldens"
    folder = out / "packed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    index = []

    def keep(model, name, path, kind):
        prompt = np.random.default_rng(700 + len(index)).integers(2, model.config.vocab_size, PROMPT).tolist()
        values = logits(model, prompt)
        values.tofile(folder / f"{name}.f32")
        index.append({"name": f"packed/{name}", "path": f"packed/{path}", "logits": f"packed/{name}.f32", "architecture": "packed", "format": kind,
                      "prompt": prompt, "first": PROMPT - KEPT, "rows": KEPT, "vocabulary": model.config.vocab_size})
        print(index[-1]["name"], f"std {values.std():.2f} range {np.ptp(values):.1f}")

    for i, (kind, at) in enumerate(TABLES + [("NVFP4", None)]):
        # The architecture's rows of Q and K need no reordering.
        model, name = build("qwen3", WIDE, 90 + i), kind.lower() + ("_factors" if i == len(TABLES) else "")
        kquants.ENCODERS[kind] = random_blocks(np.random.default_rng(800 + i), kind, at)
        write_gguf(folder / f"{name}.gguf", "qwen3", model, kind)
        if i == len(TABLES):
            with_factors(folder / f"{name}.gguf", model)
            kind = "NVFP4_F32"
        keep(model, name, f"{name}.gguf", kind)
    for i, (case, arch) in enumerate(DIRECTORIES):
        name = "modelopt" if case == "nvfp4" else case
        keep(directory(folder / name, case, arch, 110 + i), name, name, FORMATS[case])
    (out / "packed.json").write_text(json.dumps(index).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main()
