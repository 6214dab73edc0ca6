"""Writes the goldens of the plain architectures that came later: a directory in BF16 and a GGUF file in Q8_0 each.

    python3 plain.py crates/welte/tests/goldens [architecture ...]          needs torch, transformers, gguf, numpy

The names of tensors in GGUF are those of the gguf package. `plain.json` lists the files.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as t

from make import KEPT, LLAMA3, ORIGINAL, PROMPT, SMALL, THETA, VOCAB, WINDOW, logits, stored, swap

ROPE = {"rope_type": "default", "rope_theta": THETA}
YARN = {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
FOUR = {"num_hidden_layers": 4}
TYPES = ["sliding_attention"] * 3 + ["full_attention"]


def without(common, *names):
    return {k: v for k, v in common.items() if k not in names}


def ministral3(c):
    return t.Ministral3ForCausalLM(t.Ministral3Config(**c, rope_parameters=dict(YARN)))


def cohere2(c):
    c = without(c, "rms_norm_eps", "head_dim")
    return t.Cohere2ForCausalLM(t.Cohere2Config(**c | FOUR, rope_parameters=ROPE, sliding_window=WINDOW, layer_norm_eps=1e-5, logit_scale=0.5))


def starcoder2(c):
    c = without(c, "rms_norm_eps", "head_dim")
    return t.Starcoder2ForCausalLM(t.Starcoder2Config(**c, rope_parameters=ROPE, norm_epsilon=1e-5, sliding_window=2 * WINDOW))


def olmo3(c):
    scaled = {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
    kinds = {"full_attention": scaled, "sliding_attention": ROPE}
    return t.Olmo3ForCausalLM(t.Olmo3Config(**without(c, "head_dim") | FOUR, rope_parameters=kinds, sliding_window=WINDOW, layer_types=TYPES))


def exaone4(c):
    return t.Exaone4ForCausalLM(t.Exaone4Config(**c | FOUR, rope_parameters=ROPE, sliding_window=WINDOW, layer_types=TYPES))


def seed_oss(c):
    return t.SeedOssForCausalLM(t.SeedOssConfig(**c, rope_parameters=ROPE, attention_bias=True, attention_out_bias=False))


def ernie4_5(c):
    return t.Ernie4_5ForCausalLM(t.Ernie4_5Config(**c, rope_parameters=ROPE, use_bias=False))


def hunyuan(c):
    rope = {"rope_type": "dynamic", "rope_theta": THETA, "alpha": 50.0, "factor": 1.0}
    return t.HunYuanDenseV1ForCausalLM(t.HunYuanDenseV1Config(**c, rope_parameters=rope))


def apertus(c):
    return t.ApertusForCausalLM(t.ApertusConfig(**without(c, "head_dim"), rope_parameters=dict(LLAMA3, rope_theta=THETA)))


def granite(c):
    return t.GraniteForCausalLM(t.GraniteConfig(**without(c, "head_dim"), rope_parameters=ROPE, embedding_multiplier=3.0,
                                                attention_multiplier=0.2, residual_multiplier=0.5, logits_scaling=0.8))


# How each is made, the name of its architecture in GGUF, and whether GGUF keeps the rows of Q and K in pairs.
MODELS = {
    "ministral3": (ministral3, "MISTRAL3", True),
    "cohere2": (cohere2, "COHERE2", False),
    "starcoder2": (starcoder2, "STARCODER2", False),
    "olmo3": (olmo3, "OLMO2", False),
    "exaone4": (exaone4, "EXAONE4", False),
    "seed_oss": (seed_oss, "SEED_OSS", False),
    "ernie4_5": (ernie4_5, "ERNIE4_5", False),
    "hunyuan": (hunyuan, "HUNYUAN_DENSE", False),
    "apertus": (apertus, "APERTUS", False),
    "granite": (granite, "GRANITE", True),
}


def build(name, seed):
    common = dict(SMALL, vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5, attn_implementation="eager",
                  bos_token_id=0, eos_token_id=1, pad_token_id=0)
    torch.manual_seed(seed)
    model = MODELS[name][0](common)
    g = torch.Generator().manual_seed(seed)
    tied = getattr(model.config, "tie_word_embeddings", False)
    with torch.no_grad():
        for key, p in model.named_parameters():
            random = torch.randn(p.shape, generator=g)
            if "norm" in key:
                p.copy_((0 if key.endswith("bias") else 1) + 0.2 * random)
            elif "act_fn" in key:
                p.copy_(0.5 * random)
            elif key.endswith("bias"):
                p.copy_(0.5 * random)
            elif "embed" in key:
                p.copy_(random * (0.3 if tied else 1.0))
            elif "lm_head" in key:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


def metadata(w, name, model):
    """What a converter writes about the model."""
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_name(f"golden {name}")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(THETA * 50.0 ** (head_dim / (head_dim - 2)) if name == "hunyuan" else THETA)
    if name in ("cohere2", "starcoder2"):
        w.add_layer_norm_eps(1e-5)
    else:
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(VOCAB)
    if getattr(c, "sliding_window", None):
        w.add_sliding_window(c.sliding_window)
    if name == "ministral3":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(YARN["factor"])
        w.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(YARN["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(YARN["beta_slow"])
        w.add_rope_scaling_yarn_log_mul(YARN["mscale_all_dim"])
        w.add_attn_temperature_scale(YARN["llama_4_scaling_beta"])
    if name == "olmo3":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(4.0)
        w.add_rope_scaling_orig_ctx_len(ORIGINAL)
    if name == "cohere2":
        w.add_logit_scale(c.logit_scale)
    if name == "granite":
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_attention_scale(c.attention_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_logit_scale(c.logits_scaling)
    if name == "apertus":
        parts = [layer.mlp.act_fn for layer in model.model.layers]
        w.add_xielu_alpha_p([p.alpha_p.item() for p in parts])
        w.add_xielu_alpha_n([p.alpha_n.item() for p in parts])
        w.add_xielu_beta([p.beta.item() for p in parts])
        w.add_xielu_eps([p.eps.item() for p in parts])
        from make import rope_factors
        c.head_dim = head_dim
        w.add_tensor("rope_freqs.weight", rope_factors(c))


def write_gguf(path, name, model, kind="Q8_0"):
    """Stores the model's matrices in a format, and puts what was stored back into the model."""
    _, arch, paired = MODELS[name]
    arch, c = gguf.MODEL_ARCH[arch], model.config
    names = gguf.get_tensor_name_map(arch, c.num_hidden_layers)
    w = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    metadata(w, name, model)
    for key, p in model.named_parameters():
        if "act_fn" in key or key == "lm_head.weight" and getattr(c, "tie_word_embeddings", False):
            continue
        value = p.detach().numpy().copy()
        own = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert own, key
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(key.split(".")[-2])
        if value.ndim == 1:
            w.add_tensor(own, value)
            continue
        if paired and heads:
            value = swap(value, heads)
        data, decoded = stored(value, kind)
        w.add_tensor(own, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        with torch.no_grad():
            p.copy_(torch.from_numpy(swap(decoded, heads, back=True) if paired and heads else decoded))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    path = out / "plain.json"
    known = json.loads(path.read_text()) if path.exists() else []
    index = {entry["name"]: entry for entry in known}
    for name in wanted:
        seed = list(MODELS).index(name)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        prompt = np.random.default_rng(300 + seed).integers(2, VOCAB, PROMPT).tolist()

        def keep(model, kind, path):
            values = logits(model, prompt)
            stem = path.removesuffix(".gguf")
            values.tofile(folder / f"{stem}.f32")
            index[f"{name}/{stem}"] = {"name": f"{name}/{stem}", "path": f"{name}/{path}", "logits": f"{name}/{stem}.f32",
                                       "architecture": name, "format": kind, "prompt": prompt, "first": PROMPT - KEPT, "rows": KEPT, "vocabulary": VOCAB}
            print(name, stem, f"std {values.std():.2f} range {np.ptp(values):.1f}")

        model = build(name, 400 + seed).to(torch.bfloat16)
        model.save_pretrained(folder / "hf")
        (folder / "hf" / "generation_config.json").unlink(missing_ok=True)
        keep(model.float(), "BF16", "hf")
        model = build(name, 500 + seed)
        write_gguf(folder / "q8_0.gguf", name, model)
        keep(model, "Q8_0", "q8_0.gguf")
    path.write_text(json.dumps(list(index.values())).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main()
