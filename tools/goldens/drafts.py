"""Writes small models with a draft layer of their own (multi-token prediction), or an EAGLE-3 head, and the logits of their guesses.

    python3 tools/goldens/drafts.py crates/welte/tests/goldens [architecture ...]          needs torch, transformers, gguf, numpy

transformers ignores these layers, so they are computed here from the published definition (DeepSeek-V3, section 2.2): a layer of the
model's own kind reads `eh_proj(enorm(embedding of the next token), hnorm(hidden state))`, where the hidden state is that after the model's
last norm, or the draft layer's own one for guesses further ahead. A model of transformers with one layer more has the layer's weights.
That of K-EXAONE has a window and no experts, as vLLM computes it.

An EAGLE-3 head drafts for the golden `llama/hf`. Its layer is that of the EAGLE-3 paper: queries, keys and values of the normed embedding
and hidden state side by side, added to the hidden state; it knows a part of the tokens.

A prompt in `drafts.json` is that of the model, then the token after it, then guesses. `rows` logits are kept: those of the first pass at
the last positions of the prompt, then one for each guess.
"""

import functools
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import families
import hybrid
import numpy as np
import torch
import transformers
from choose import calmest, clearest
from make import PROMPT, VOCAB, WINDOW, add_to_config, directory
from plain import MIXED, TYPES, build, write_gguf
from safetensors.torch import load, load_file, save_file
from seeded import Goldens, Safetensors, expand

GUESSES, KEPT = 2, 4
# The last one drafts.
MIXED["num_hidden_layers"] = 3
OWN = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
GGUF = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}


class Drafted(torch.nn.Module):
    """The draft logits of a model whose last layer is the draft layer."""

    def __init__(self, model, own):
        super().__init__()
        self.model, self.own, self.config = model, own, model.config

    def hidden(self, tokens):
        layers = self.model.model.layers
        try:
            self.model.model.layers = layers[:-1]
            return self.model.model(tokens).last_hidden_state
        finally:
            self.model.model.layers = layers

    def norm(self, x, name):
        eps = self.config.rms_norm_eps
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.own[name]

    def draft(self, tokens, hidden):
        embedded = self.model.get_input_embeddings()(tokens)
        x = torch.cat([self.norm(embedded, "enorm"), self.norm(hidden, "hnorm")], -1)
        x = torch.nn.functional.linear(x, self.own["eh_proj"])
        count = x.shape[1]
        at = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)
        if "sliding_attention" in (getattr(self.config, "layer_types", None) or []):
            mask += torch.full((count, count), float("-inf")).tril(-WINDOW)
        mask = mask[None, None]
        x = self.model.model.layers[-1](x, attention_mask=mask, position_ids=at, position_embeddings=self.model.model.rotary_emb(x, at))
        x = x[0] if isinstance(x, tuple) else x
        return self.norm(x, "shared_head.norm")

    def forward(self, tokens):
        prompt = tokens.shape[1] - 1 - GUESSES
        hidden, rows = self.hidden(tokens[:, :prompt]), []
        for count in range(GUESSES + 1):
            out = self.draft(tokens[:, 1 : 1 + prompt + count], hidden)
            rows.append(out if count == 0 else out[:, -1:])
            hidden = torch.cat([hidden, out[:, -1:]], 1)
        return SimpleNamespace(logits=self.model.lm_head(torch.cat(rows, 1)))


def drafted(model, own):
    """`choose` asks how experts are scored by the name of the model's class."""
    return type(type(model).__name__, (Drafted,), {})(model, own)


def random_own(dim, seed):
    g = torch.Generator().manual_seed(seed)
    norm = lambda: 1 + 0.2 * torch.randn(dim, generator=g)
    return {"eh_proj": torch.randn(dim, 2 * dim, generator=g) * 1.3 / (2 * dim) ** 0.5, "enorm": norm(), "hnorm": norm(),
            "shared_head.norm": norm()}


def write_directory(name, folder, seed):
    model = build(name, seed).to(torch.bfloat16)
    own = random_own(model.config.hidden_size, seed)

    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        tensors |= {f"model.layers.2.{key}.weight": value.to(torch.bfloat16).contiguous() for key, value in own.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    model = directory(model, folder, seed, edit)
    stored = load(expand(folder / "model.safetensors"))
    kinds = getattr(model.config, "mlp_layer_types", None)
    kinds = {"mlp_layer_types": kinds[:2]} if kinds else {}
    add_to_config(folder, num_hidden_layers=2, num_nextn_predict_layers=1, **kinds)
    return drafted(model, {key: stored[f"model.layers.2.{key}.weight"].float() for key in OWN})


# Names of Qwen's checkpoints, whose norms multiply by 1 + w.
QWEN = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}


def write_hybrid(folder, seed):
    """Qwen3.5, whose draft layer has attention."""
    hybrid.COMMON["num_hidden_layers"] = 5
    hybrid.COMMON["layer_types"] = ["linear_attention"] * 3 + ["full_attention"] * 2
    model = hybrid.build("qwen35", seed).to(torch.bfloat16)
    own = random_own(model.config.hidden_size, seed)

    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        tensors = {name.replace("model.layers.4.", "mtp.layers.0."): value for name, value in tensors.items()}
        for key, value in own.items():
            value = value if value.ndim == 2 else value - 1
            tensors[f"mtp.{QWEN[key]}.weight"] = value.to(torch.bfloat16).contiguous()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    model = directory(model, folder, seed, edit)
    stored = load(expand(folder / "model.safetensors"))
    prefix = "mtp.layers.0."
    model.model.layers[4].load_state_dict({name.removeprefix(prefix): value.float() for name, value in stored.items() if name.startswith(prefix)})
    add_to_config(folder, num_hidden_layers=4, mtp_num_hidden_layers=1, layer_types=hybrid.COMMON["layer_types"][:4])
    own = {key: stored[f"mtp.{QWEN[key]}.weight"].float() for key in OWN}
    return drafted(model, {key: value if value.ndim == 2 else 1 + value for key, value in own.items()})


# Where directories have the draft layer and the tensors around it, and how many layers are before it.
PLACES = {"exaone_moe": (4, "mtp.layers.0.", {key: f"mtp.{name}" for key, name in QWEN.items()}),
          "bailingmoe2": (2, "model.layers.2.", {key: f"model.layers.2.{key}" for key in OWN} | {"shared_head.norm": "model.layers.2.final_layernorm"})}


def family(name, seed):
    if name == "bailingmoe2":
        return families.build(name, seed)
    types = {"layer_types": [*TYPES, "sliding_attention"], "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2 + ["dense"]}
    config = lambda c: transformers.ExaoneMoeConfig(
        **c | MIXED | families.SOME | families.SHARED | types | {"num_hidden_layers": 5}, rope_parameters=families.ROPE, sliding_window=WINDOW,
        first_k_dense_replace=2)
    return families.build(name, seed, lambda c: transformers.ExaoneMoeForCausalLM(config(c)))


def write_family(name, folder, seed):
    layers, prefix, names = PLACES[name]
    model = family(name, seed).to(torch.bfloat16)
    own, counted = random_own(model.config.hidden_size, seed), f"model.layers.{layers}."

    def edit(folder):
        tensors = {key.replace(counted, prefix): value for key, value in load_file(folder / "model.safetensors").items()}
        tensors |= {f"{names[key]}.weight": value.to(torch.bfloat16).contiguous() for key, value in own.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    model = directory(model, folder, seed, edit)
    stored = load(expand(folder / "model.safetensors"))
    if prefix != counted:
        layer = {key.removeprefix(prefix): value.float() for key, value in stored.items() if key.startswith(prefix)}
        model.model.layers[layers].load_state_dict(layer)
    own = {key: stored[f"{names[key]}.weight"].float() for key in OWN}
    kinds = {key: value[:layers] for key, value in model.config.to_dict().items() if key in ("layer_types", "mlp_layer_types") and value}
    if name == "bailingmoe2":
        families.as_ling2(folder)
    add_to_config(folder, num_hidden_layers=layers, num_nextn_predict_layers=1, **kinds)
    return drafted(model, own)


def write_family_file(name, path, seed):
    layers, _, _ = PLACES[name]
    model = family(name, seed)
    own = random_own(model.config.hidden_size, seed)

    def more(made):
        made.keys.add_nextn_predict_layers(1)
        for key, value in own.items():
            kind = "F32" if value.ndim == 1 else "Q8_0"
            last = "layer_output_norm" if name == "bailingmoe2" and key == "shared_head.norm" else f"nextn.{GGUF[key]}"
            own[key] = torch.from_numpy(made.put(f"blk.{layers}.{last}.weight", value.numpy(), kind))

    families.write_gguf(path, name, model, seed, more)
    return drafted(model, own)


def write_file(name, path, seed):
    model = build(name, seed)
    own = random_own(model.config.hidden_size, seed)

    def more(made):
        made.keys.add_nextn_predict_layers(1)
        for key, value in own.items():
            kind = "F32" if value.ndim == 1 else "Q8_0"
            own[key] = torch.from_numpy(made.put(f"blk.2.nextn.{GGUF[key]}.weight", value.numpy(), kind))

    write_gguf(path, name, model, seed, more=more)
    return drafted(model, own)


def eagle(out, folder, seed):
    """A head as SGLang's directories have it."""
    target = transformers.LlamaForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    c, g = target.config, torch.Generator().manual_seed(seed)
    dim, heads, head_dim, ffn, known = c.hidden_size, 4, 32, 96, 96
    taps, width = [1, 0, 2], 2 * dim
    shapes = {"fc": (dim, 3 * dim), "midlayer.self_attn.q_proj": (heads * head_dim, width), "midlayer.self_attn.k_proj": (2 * head_dim, width),
              "midlayer.self_attn.v_proj": (2 * head_dim, width), "midlayer.self_attn.o_proj": (dim, heads * head_dim),
              "midlayer.mlp.gate_proj": (ffn, dim), "midlayer.mlp.up_proj": (ffn, dim), "midlayer.mlp.down_proj": (dim, ffn), "lm_head": (known, dim)}
    tensors = {f"{name}.weight": torch.randn(shape, generator=g) * 1.3 / shape[1] ** 0.5 for name, shape in shapes.items()}
    tensors["lm_head.weight"] *= 2
    for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = 1 + 0.2 * torch.randn(dim, generator=g)
    tokens = torch.randperm(c.vocab_size, generator=g)[:known].sort().values
    tensors = {name: value.to(torch.bfloat16) for name, value in tensors.items()}
    tensors |= {"d2t": tokens - torch.arange(known), "t2d": torch.isin(torch.arange(c.vocab_size), tokens)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": dim, "intermediate_size": ffn,
              "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": head_dim, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "vocab_size": c.vocab_size, "draft_vocab_size": known, "max_position_embeddings": 512, "hidden_act": "silu",
              "tie_word_embeddings": False, "eagle_aux_hidden_state_layer_ids": taps}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    Safetensors(folder / "model.safetensors", seed, exact=("d2t", "t2d")).cut()
    w = {name: value.float() for name, value in load(expand(folder / "model.safetensors")).items()}
    linear, norm = torch.nn.functional.linear, lambda x, name: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[f"{name}.weight"]

    def rotate(x):
        angle = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def draft(tokens, hidden):
        own = lambda name: w[f"midlayer.{name}.weight"]
        x = torch.cat([norm(target.model.embed_tokens(tokens), "midlayer.input_layernorm"), norm(hidden, "midlayer.hidden_norm")], -1)
        q, k, v = (linear(x, own(f"self_attn.{name}_proj")).view(1, x.shape[1], -1, head_dim) for name in "qkv")
        q, k, v = (part.transpose(1, 2) for part in (rotate(q), rotate(k).repeat_interleave(2, 2), v.repeat_interleave(2, 2)))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, x.shape[1], -1)
        x = hidden + linear(y, own("self_attn.o_proj"))
        n = norm(x, "midlayer.post_attention_layernorm")
        gated = torch.nn.functional.silu(linear(n, own("mlp.gate_proj"))) * linear(n, own("mlp.up_proj"))
        return x + linear(gated, own("mlp.down_proj"))

    def logits(prompt):
        tokens, inputs = torch.tensor([prompt]), {}
        hooks = [layer.register_forward_pre_hook(lambda m, args, kwargs, at=at: inputs.__setitem__(at, args[0]), with_kwargs=True)
                 for at, layer in enumerate(target.model.layers)]
        hooks.append(target.model.norm.register_forward_pre_hook(lambda m, args: inputs.__setitem__(len(target.model.layers), args[0])))
        count = len(prompt) - 1 - GUESSES
        with torch.no_grad():
            target.model(tokens[:, :count])
            for hook in hooks:
                hook.remove()
            hidden, rows = linear(torch.cat([inputs[tap] for tap in taps], -1), w["fc.weight"]), []
            for more in range(GUESSES + 1):
                x = draft(tokens[:, 1 : 1 + count + more], hidden)
                rows.append(x if more == 0 else x[:, -1:])
                hidden = torch.cat([hidden, x[:, -1:]], 1)
            return linear(norm(torch.cat(rows, 1), "norm"), w["lm_head.weight"])[0, -KEPT - GUESSES :].numpy()

    return logits, known


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or ["glm4_moe", "glm4_moe_lite", "qwen35", "eagle3", *PLACES]
    torch.set_num_threads(1)
    goldens = Goldens(out, "drafts.json")
    for name in wanted:
        folder = out / "drafts" / name
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(name.encode())
        prompt = np.random.default_rng(number).integers(2, VOCAB, PROMPT + 1 + GUESSES).tolist()

        def keep(model, kind, path):
            with torch.no_grad():
                logits = model(torch.tensor([prompt])).logits[0, -KEPT - GUESSES :].float().numpy()
            stem = path.removesuffix(".gguf")
            goldens.keep(f"drafts/{name}/{stem}", f"drafts/{name}/{path}", name, kind, prompt, logits, VOCAB)

        if name == "eagle3":
            with tempfile.TemporaryDirectory() as target:
                shutil.copytree(out / "llama/hf", target, dirs_exist_ok=True)
                (Path(target) / "model.safetensors").write_bytes(expand(out / "llama/hf/model.safetensors"))
                logits, known = eagle(Path(target), folder / "hf", 3)
            goldens.keep("drafts/eagle3/hf", "llama/hf", name, "BF16", prompt, logits(prompt), known)
            continue
        if name == "qwen35":
            keep(calmest(lambda seed: write_hybrid(folder / "hf", seed), prompt, 10 * number, "BF16"), "BF16", "hf")
            continue
        select = functools.partial(clearest, tries=40)
        writes = (write_family, write_family_file) if name in PLACES else (write_directory, write_file)
        keep(select(lambda seed: writes[0](name, folder / "hf", seed), prompt, 10 * number, "BF16"), "BF16", "hf")
        keep(select(lambda seed: writes[1](name, folder / "q8_0.gguf", seed), prompt, 10 * number + 50, "Q8_0"), "Q8_0", "q8_0.gguf")


if __name__ == "__main__":
    main()
