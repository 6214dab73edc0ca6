"""Writes small DFlash drafters for goldens that exist, and the logits of the blocks that they guess.

    python3 tools/goldens/blocks.py crates/welte/tests/goldens          needs torch, transformers, gguf, numpy

Their layers are those of Qwen3. As their authors publish them (`dflash/model.py`), keys and values of a layer are those of the block's own
rows, after those that it makes of the model: `hidden_norm(fc(hidden states of some layers, side by side))`. Rows of a block see all of them,
or with a window: what lies within it and, as vLLM and SGLang run such layers, nothing after themselves. A block is the last token and masks.

`blocks.json` lists them with a text. A round begins at each of the last tokens of a text that `AHEAD` names, and keeps the logits of its
masks. Between two rounds several guesses were right, or none.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load, save_file
from seeded import Gguf, Goldens, Safetensors, expand

BLOCK, MASK, AHEAD, TEXT = 5, 7, (7, 4, 3, 1), 26
HEADS, KV, HEAD_DIM, FFN, EPS, THETA = 2, 1, 32, 96, 1e-6, 1e4
linear = torch.nn.functional.linear
SLIDING, FULL = "sliding_attention", "full_attention"


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotate(x, at):
    """The heads of rows at these positions."""
    angle = at[:, None] * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Drafter:
    """`w` are its weights by the names of directories, `windows` and `causal` those of its layers."""

    def __init__(self, w, windows, causal):
        self.w, self.windows, self.causal = w, windows, causal

    def heads(self, x, layer, name):
        return self.product(x, f"layers.{layer}.self_attn.{name}_proj").view(len(x), -1, HEAD_DIM)

    def product(self, x, name):
        return linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def keys(self, x, layer, at):
        k = norm(self.heads(x, layer, "k"), self.w[f"layers.{layer}.self_attn.k_norm.weight"])
        return rotate(k, at), self.heads(x, layer, "v")

    def block(self, features, embedded):
        """The hidden states of a block that follows positions with these features."""
        w, first = self.w, len(features)
        context = norm(linear(features, w["fc.weight"]), w["hidden_norm.weight"])
        x, before, own = embedded, torch.arange(first), torch.arange(first, first + len(embedded))
        for i, (window, causal) in enumerate(zip(self.windows, self.causal)):
            part = lambda name: w[f"layers.{i}.{name}.weight"]
            n = norm(x, part("input_layernorm"))
            (k, v), (k_own, v_own) = self.keys(context, i, before), self.keys(n, i, own)
            k, v = (torch.cat(pair).repeat_interleave(HEADS // KV, 1) for pair in ((k, k_own), (v, v_own)))
            q = rotate(norm(self.heads(n, i, "q"), part("self_attn.q_norm")), own)
            far = own[:, None] - torch.arange(first + len(x))
            hidden = torch.zeros_like(far, dtype=torch.bool)
            hidden |= (far >= window) if window else hidden
            hidden |= (far < 0) if causal else hidden
            scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
            scores = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            mixed = torch.einsum("hqk,khd->qhd", scores, v).flatten(1)
            x = x + self.product(mixed, f"layers.{i}.self_attn.o_proj")
            n = norm(x, part("post_attention_layernorm"))
            x = x + linear(torch.nn.functional.silu(linear(n, part("mlp.gate_proj"))) * linear(n, part("mlp.up_proj")), part("mlp.down_proj"))
        return norm(x, w["norm.weight"])


def weights(dim, layers, taps, seed):
    g = torch.Generator().manual_seed(seed)
    q, kv = HEADS * HEAD_DIM, KV * HEAD_DIM
    shapes = {"fc": (dim, taps * dim)}
    norms = {"hidden_norm": dim, "norm": dim}
    for i in range(layers):
        own = {"self_attn.q_proj": (q, dim), "self_attn.k_proj": (kv, dim), "self_attn.v_proj": (kv, dim), "self_attn.o_proj": (dim, q),
               "mlp.gate_proj": (FFN, dim), "mlp.up_proj": (FFN, dim), "mlp.down_proj": (dim, FFN)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
        norms |= {f"layers.{i}.{name}": dim for name in ("input_layernorm", "post_attention_layernorm")}
        norms |= {f"layers.{i}.self_attn.{name}": HEAD_DIM for name in ("q_norm", "k_norm")}
    all = {name: torch.randn(shape, generator=g) * 1.3 / shape[1] ** 0.5 for name, shape in shapes.items()}
    all |= {name: 1 + 0.2 * torch.randn(n, generator=g) for name, n in norms.items()}
    return {f"{name}.weight": value for name, value in all.items()}


def config(dim, types, taps, **more):
    return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": dim, "intermediate_size": FFN,
            "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD_DIM, "num_hidden_layers": len(types), "rms_norm_eps": EPS,
            "rope_theta": THETA, "vocab_size": 251, "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": False,
            "attention_bias": False, "layer_types": types, "block_size": BLOCK, **more}


def store(folder, seed, tensors, config, exact=()):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    Safetensors(folder / "model.safetensors", seed, exact=exact).cut()
    return {name: value.float() for name, value in load(expand(folder / "model.safetensors")).items()}


def directory(folder, dim, seed):
    """As its authors publish it, with biases."""
    types, taps = [SLIDING, FULL, SLIDING], [0, 1]
    own = weights(dim, 3, len(taps), seed)
    g = torch.Generator().manual_seed(seed + 100)
    for name in [name for name in own if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"))]:
        own[name.replace("weight", "bias")] = torch.randn(len(own[name]), generator=g) * 0.5
    own = {name: value.to(torch.bfloat16) for name, value in own.items()}
    more = {"attention_bias": True, "sliding_window": 6, "use_sliding_window": True, "num_target_layers": 2}
    w = store(folder, seed, own, config(dim, types, taps, dflash_config={"mask_token_id": MASK, "target_layer_ids": taps}, **more))
    return Drafter(w, [6, 0, 6], [True, False, True]), taps, None


def speculators(folder, dim, seed):
    """As Speculators write it: with a head for a part of the tokens, the inputs of layers, and a window that sees the whole block."""
    inputs, known = [3, 1, 2], 96
    g = torch.Generator().manual_seed(seed)
    own = weights(dim, 2, len(inputs), seed) | {"lm_head.weight": torch.randn(known, dim, generator=g) * 2.6 / dim**0.5}
    own = {name: value.to(torch.bfloat16) for name, value in own.items()}
    tokens = torch.randperm(251, generator=g)[:known].sort().values
    own |= {"d2t": tokens - torch.arange(known), "t2d": torch.isin(torch.arange(251), tokens)}
    plain = config(dim, [SLIDING, FULL], inputs, sliding_window=6, use_sliding_window=True)
    layers = {key: value for key, value in plain.items() if key not in ("architectures", "block_size")}
    plain = {"architectures": ["DFlashDraftModel"], "block_size": BLOCK, "aux_hidden_state_layer_ids": inputs, "draft_vocab_size": known,
             "mask_token_id": MASK, "sliding_window_non_causal": True, "speculators_model_type": "dflash", "target_hidden_size": None,
             "transformer_layer_config": layers}
    w = store(folder, seed, own, plain, ("d2t", "t2d"))
    return Drafter(w, [6, 0], [False, False]), [layer - 1 for layer in inputs], w["lm_head.weight"]


GGUF = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def file(path, dim, seed):
    """As llama.cpp's converter writes it."""
    taps, w = [4, 1], weights(dim, 2, 2, seed)
    made = Gguf(path, "dflash", seed)
    keys = made.keys
    keys.add_context_length(512)
    keys.add_embedding_length(dim)
    keys.add_block_count(2)
    keys.add_feed_forward_length(FFN)
    keys.add_head_count(HEADS)
    keys.add_head_count_kv(KV)
    keys.add_key_length(HEAD_DIM)
    keys.add_value_length(HEAD_DIM)
    keys.add_rope_freq_base(THETA)
    keys.add_layer_norm_rms_eps(EPS)
    keys.add_sliding_window(6)
    keys.add_sliding_window_pattern([True, False])
    keys.add_uint32("dflash.block_size", BLOCK)
    keys.add_array("dflash.target_layers", [layer + 1 for layer in taps])
    keys.add_mask_token_id(MASK)
    for name, value in w.items():
        to = {"fc.weight": "fc", "hidden_norm.weight": "enc.output_norm", "norm.weight": "output_norm"}.get(name)
        if to is None:
            layer, part = name.removeprefix("layers.").removesuffix(".weight").split(".", 1)
            to = f"blk.{layer}.{GGUF[part]}"
        w[name] = torch.from_numpy(made.put(f"{to}.weight", value.numpy(), "F32" if value.ndim == 1 else "F16"))
    made.finish()
    return Drafter(w, [6, 0], [True, False]), taps, None


def features(target, tokens, taps):
    """The outputs of layers, side by side."""
    outputs = {}
    keep = lambda at: lambda module, args, out: outputs.__setitem__(at, out[0] if isinstance(out, tuple) else out)
    hooks = [layer.register_forward_hook(keep(at)) for at, layer in enumerate(target.model.layers)]
    target(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.cat([outputs[tap][0] for tap in taps], -1)


def logits(target, drafter, taps, head, text):
    rows = []
    with torch.no_grad():
        for ahead in AHEAD:
            at = len(text) - ahead
            embedded = target.get_input_embeddings()(torch.tensor([text[at]] + [MASK] * (BLOCK - 1)))
            x = drafter.block(features(target, text[:at], taps), embedded)[1:]
            out = linear(x, head) if head is not None else target.lm_head(x)
            cap = getattr(target.config, "final_logit_softcapping", None)
            rows.append(torch.tanh(out / cap) * cap if cap and head is None else out)
    return torch.cat(rows).numpy()


def opened(out, name):
    with tempfile.TemporaryDirectory() as place:
        for config in (out / name).glob("*.json"):
            (Path(place) / config.name).write_bytes(config.read_bytes())
        (Path(place) / "model.safetensors").write_bytes(expand(out / name / "model.safetensors"))
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, attn_implementation="eager")
        return model.eval()


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    goldens = Goldens(out, "blocks.json", anew=True)
    (out / "drafts/dflash").mkdir(parents=True, exist_ok=True)
    made = (("hf", directory, "qwen3/hf", "BF16"), ("f16.gguf", file, "gemma4/effective", "BF16"), ("speculators", speculators, "qwen35/hf", "BF16"))
    for seed, (path, make, of, kind) in enumerate(made, 11):
        target = opened(out, of)
        text = np.random.default_rng(seed).integers(8, 251, TEXT).tolist()
        drafter, taps, head = make(out / "drafts/dflash" / path, target.config.hidden_size, seed)
        got = logits(target, drafter, taps, head, text)
        goldens.keep(f"drafts/dflash/{path}", of, "dflash", kind, text, got, got.shape[1])


if __name__ == "__main__":
    main()
