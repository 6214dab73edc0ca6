"""Writes small adapters (LoRA) for models of other goldens, and the logits of the models with them.

    python3 tools/goldens/adapters.py crates/welte/tests/goldens          needs torch, transformers, peft, gguf, numpy

PEFT computes the logits. Of experts, whose matrices transformers joins, it has no pairs for each: there `scale * B A` is added to the
stored matrices here. `adapters.json` lists the files: an entry has its adapter beside its model.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from make import SMALL, VOCAB, build, gguf_name, logits, swap
from safetensors.torch import load, save_file
from seeded import Gguf, Goldens, Safetensors, expand

OTHERS = ("index.json", "hybrid.json", "plain.json")
DENSE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# By name: the golden of the model, and the settings.
PEFT = {
    "llama-all": ("llama/hf", dict(r=8, lora_alpha=8, target_modules=DENSE)),
    "llama-ends": ("llama/hf", dict(r=4, lora_alpha=2, use_rslora=True, rank_pattern={"down_proj": 6}, alpha_pattern={"q_proj": 3},
                                    target_modules=["embed_tokens", "lm_head", "q_proj", "down_proj"])),
    "qwen2": ("qwen2/hf", dict(r=5, lora_alpha=5, target_modules=["embed_tokens", "k_proj", "v_proj", "up_proj"])),
    "phi3": ("phi3/hf", dict(r=8, lora_alpha=4, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "gemma3": ("gemma3/hf", dict(r=4, lora_alpha=4, target_modules=[*DENSE, "embed_tokens"])),
    "qwen3next": ("qwen3next/hf", dict(r=4, lora_alpha=4, target_modules=["q_proj", "v_proj", "o_proj", "in_proj_qkvz", "in_proj_ba",
                                                                        "out_proj"])),
}
# Pairs of each expert, for `qwen3moe`.
EXPERTS = {"r": 4, "lora_alpha": 4}


def entry_of(out, name):
    for file in OTHERS:
        for entry in json.loads((out / file).read_text()):
            if entry["name"] == name:
                return entry
    raise SystemExit(f"no golden {name}")


def whole(out, path):
    """A directory with the bytes of a golden's weights."""
    folder = Path(tempfile.mkdtemp()) / "model"
    shutil.copytree(out / path, folder, ignore=shutil.ignore_patterns("*.head", "*.fill"))
    for fill in (out / path).rglob("*.fill"):
        (folder / fill.relative_to(out / path).with_suffix("")).write_bytes(expand(fill.with_suffix("")))
    return folder


def model_of(out, path):
    folder = whole(out, path)
    eager = {"attn_implementation": "eager"}
    config = transformers.AutoConfig.from_pretrained(folder)
    if getattr(config, "num_experts", None):
        eager["experts_implementation"] = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **eager)
    shutil.rmtree(folder.parent)
    return model.eval()


def scatter(tensors, seed):
    """Random pairs that change the outputs by about as much as they are."""
    g = torch.Generator().manual_seed(seed)
    for name, value in tensors.items():
        rank = min(value.shape)
        deviation = 1.0 if "embedding_A" in name else value.shape[1] ** -0.5 if "_A" in name else 0.6 * rank**-0.5
        tensors[name] = (torch.randn(value.shape, generator=g) * deviation).to(torch.bfloat16).contiguous()
    return tensors


def write(folder, tensors, settings, seed, base):
    """A directory as PEFT saves it, with values from a seed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(scatter(tensors, seed), folder / "adapter_model.safetensors", {"format": "pt"})
    Safetensors(folder / "adapter_model.safetensors", seed).cut()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "bias": "none"} | settings, indent=1) + "\n")


def adapted(out, model, name):
    """The model with a stored adapter, as PEFT computes it."""
    folder = whole(out, f"adapters/{name}")
    model = peft.PeftModel.from_pretrained(model, folder)
    shutil.rmtree(folder.parent)
    return model.eval()


def names_of(model, settings):
    """The tensors that PEFT would save."""
    made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    return peft.get_peft_model_state_dict(made, save_embedding_layers=False)


def keep(goldens, name, model_path, adapter, prompt, values, kind, arch):
    goldens.keep(f"adapters/{name}", model_path, arch, kind, prompt, values, VOCAB)
    goldens.entries[f"adapters/{name}"]["adapter"] = f"adapters/{adapter}"
    goldens.path.write_text(json.dumps(list(goldens.entries.values())).replace("}, {", "},\n{") + "\n")


def of_gguf(out, path, arch):
    """The model of a GGUF golden in F32."""
    import gguf

    whole = Path(tempfile.mkdtemp()) / "model.gguf"
    whole.write_bytes(expand(out / path))
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(whole).tensors}
    model = build(arch, SMALL, 0)
    c = model.config
    with torch.no_grad():
        for name, p in model.named_parameters():
            tensor = stored[gguf_name(arch, name)]
            value = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(p.shape)
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                value = swap(value, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads, back=True)
            p.copy_(torch.from_numpy(value.copy()))
    shutil.rmtree(whole.parent)
    return model


def gguf_adapter(out, arch, model, seed):
    """A file as llama.cpp's converter writes it, and what it adds to each matrix: B A by the name of the parameter."""
    made, rank, alpha = Gguf(out / "adapters/llama.gguf", arch, seed), 6, 3.0
    made.keys.add_type("adapter")
    made.keys.add_string("adapter.type", "lora")
    made.keys.add_float32("adapter.lora.alpha", alpha)
    g, c, deltas = torch.Generator().manual_seed(seed), model.config, {}
    for name, p in model.named_parameters():
        if p.ndim != 2 or "v_proj" in name:
            continue
        table, (n, k) = "embed" in name, p.shape
        shapes = ((n, rank), (k, rank)) if table else ((rank, k), (n, rank))
        a, b = (torch.randn(s, generator=g).numpy() for s in shapes)
        a, b = a * (1.0 if table else k**-0.5), b * (0.6 * rank**-0.5)
        stem = gguf_name(arch, name)
        a = made.put(f"{stem}.lora_a", a)
        b = made.put(f"{stem}.lora_b", b, "F16")
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            b = swap(b, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads, back=True)
        deltas[name] = alpha / rank * (a @ b.T if table else b @ a)
    made.finish()
    return deltas


def added(model, deltas):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in deltas:
                p += torch.from_numpy(np.ascontiguousarray(deltas[name]))
    return model


def experts(out, goldens):
    entry, name, rank = entry_of(out, "qwen3moe/hf"), "qwen3moe", EXPERTS["r"]
    model = model_of(out, entry["path"])
    c, tensors = model.config, {}
    start = "base_model.model.model.layers"
    for layer in range(c.num_hidden_layers):
        pairs = {f"{layer}.mlp.experts.{e}.{part}": shape for e in range(c.num_experts) for part, shape in (
            ("gate_proj", (c.moe_intermediate_size, c.hidden_size)), ("up_proj", (c.moe_intermediate_size, c.hidden_size)),
            ("down_proj", (c.hidden_size, c.moe_intermediate_size)))}
        pairs[f"{layer}.self_attn.q_proj"] = tuple(model.model.layers[layer].self_attn.q_proj.weight.shape)
        for module, (n, k) in pairs.items():
            # An expert without a pair stays as it is.
            if ".experts.2." in module or ".experts.1.up" in module:
                continue
            tensors |= {f"{start}.{module}.lora_A.weight": torch.zeros(rank, k), f"{start}.{module}.lora_B.weight": torch.zeros(n, rank)}
    write(out / f"adapters/{name}", tensors, EXPERTS, 900, entry["path"])
    stored = load(expand(out / f"adapters/{name}/adapter_model.safetensors"))
    stored = {key: value.float() for key, value in stored.items()}
    with torch.no_grad():
        for key, a in stored.items():
            if "lora_A" not in key:
                continue
            delta = EXPERTS["lora_alpha"] / rank * stored[key.replace("lora_A", "lora_B")] @ a
            layer, rest = key.removeprefix(f"{start}.").removesuffix(".lora_A.weight").split(".", 1)
            block = model.model.layers[int(layer)]
            if "experts" in rest:
                _, _, expert, part = rest.split(".")
                half = c.moe_intermediate_size
                matrix = (block.mlp.experts.down_proj if part == "down_proj" else block.mlp.experts.gate_up_proj)[int(expert)]
                {"gate_proj": matrix[:half], "up_proj": matrix[half:], "down_proj": matrix}[part] += delta
            else:
                block.self_attn.q_proj.weight += delta
    keep(goldens, name, entry["path"], name, entry["prompt"], logits(model, entry["prompt"]), "BF16", "qwen3moe")


def control(out):
    """Control vectors of llama.cpp's form after the layers of a model, added twice as strong after layers 2 to 4."""
    import gguf

    entry, path = entry_of(out, "gemma3/hf"), out / "adapters/control.gguf"
    model = model_of(out, entry["path"])
    g = torch.Generator().manual_seed(870)
    vectors = {layer: torch.randn(model.config.hidden_size, generator=g) for layer in range(1, model.config.num_hidden_layers)}
    file = gguf.GGUFWriter(path, "controlvector")
    file.add_string("controlvector.model_hint", "gemma3")
    for layer, vector in vectors.items():
        file.add_tensor(f"direction.{layer}", vector.numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    for layer in range(2, 5):
        add = lambda module, inputs, made, layer=layer: (made[0] + 2 * vectors[layer], *made[1:]) if isinstance(made, tuple) else made + 2 * vectors[layer]
        model.model.layers[layer].register_forward_hook(add)
    goldens = Goldens(out, "control.json", anew=True)
    goldens.keep("adapters/control", entry["path"], "gemma3", "BF16", entry["prompt"], logits(model, entry["prompt"]), VOCAB)


def main():
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    (out / "adapters").mkdir(exist_ok=True)
    goldens = Goldens(out, "adapters.json", anew=True)
    for number, (name, (base, settings)) in enumerate(PEFT.items()):
        entry = entry_of(out, base)
        write(out / f"adapters/{name}", names_of(model_of(out, entry["path"]), settings), settings, 800 + number, entry["path"])
        model = adapted(out, model_of(out, entry["path"]), name)
        keep(goldens, name, entry["path"], name, entry["prompt"], logits(model, entry["prompt"]), "BF16", entry["architecture"])
    experts(out, goldens)
    control(out)
    # A GGUF file as the model, and as the adapter.
    entry = entry_of(out, "llama/f32")
    model = adapted(out, of_gguf(out, entry["path"], "llama"), "llama-all")
    keep(goldens, "llama-gguf-peft", entry["path"], "llama-all", entry["prompt"], logits(model, entry["prompt"]), "F32", "llama")
    deltas = gguf_adapter(out, "llama", of_gguf(out, entry["path"], "llama"), 850)
    model = added(of_gguf(out, entry["path"], "llama"), deltas)
    keep(goldens, "llama-gguf", entry["path"], "llama.gguf", entry["prompt"], logits(model, entry["prompt"]), "F32", "llama")
    entry = entry_of(out, "llama/hf")
    model = added(model_of(out, entry["path"]), deltas)
    keep(goldens, "llama-hf-gguf", entry["path"], "llama.gguf", entry["prompt"], logits(model, entry["prompt"]), "BF16", "llama")


if __name__ == "__main__":
    main()
