"""Writes the golden files: small random models with the logits that transformers gives for them in float32.

    python3 make.py crates/welte/tests/goldens          needs torch, transformers, gguf, numpy

Per architecture: a directory as transformers saves it (BF16), and GGUF files whose matrices are all in one format (every
format for the first three architectures, Q8_0 for the others, which add no arithmetic of their own to the matrices);
their logits are those of the decoded weights. Teacher-forced: the logits after each of the last positions of a
prompt. `index.json` lists them.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

import kquants

FORMATS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
PROMPT, KEPT, VOCAB, THETA = 24, 8, 251, 10000.0
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
# Odd numbers of rows and blocks on purpose; the K formats need rows of 256.
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate": "ffn_gate_inp", "mlp.gate_up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
# Where the feed-forward part has a norm of its own, `post_attention_layernorm` is what it says.
POST_NAMES = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
              "post_feedforward_layernorm": "post_ffw_norm"}
POST = ("gemma2", "gemma3", "olmo2")
EVERY_FORMAT = ("llama", "qwen2", "qwen3")
# GGUF keeps the rows of Q and K of these so that neighbouring elements form rope's pairs.
PAIRED = ("llama", "smollm3", "mixtral")
# Mixtral's GGUF files call themselves after the architecture that it adds experts to.
GGUF_ARCH = {"mixtral": "llama"}
ARCHITECTURES = [*EVERY_FORMAT, "gemma", "gemma2", "gemma3", "phi3", "olmo2", "smollm3", "qwen3moe", "mixtral"]
# Gemma 3 and SmolLM3 differ every few layers; Phi-3's heads are as wide as its stream allows, and two are wanted.
SHAPES = {"gemma3": {"num_hidden_layers": 6}, "smollm3": {"num_hidden_layers": 4}, "phi3": {"hidden_size": 128},
          "qwen3moe": {"intermediate_size": 64}, "mixtral": {"intermediate_size": 64}}
WINDOW, ORIGINAL, LOCAL_THETA = 8, 16, 1000.0


def rope_lists(pairs):
    return [1 + 0.05 * i for i in range(pairs)], [1 + 0.4 * i for i in range(pairs)]


def build_other(arch, common, rope):
    """The architectures beyond the first three."""
    t = transformers
    if arch == "gemma":
        return t.GemmaForCausalLM(t.GemmaConfig(**common, rope_parameters=rope))
    if arch == "gemma2":
        return t.Gemma2ForCausalLM(t.Gemma2Config(**common, rope_parameters=rope, sliding_window=WINDOW, query_pre_attn_scalar=64,
                                                  attn_logit_softcapping=5.0, final_logit_softcapping=6.0))
    if arch == "gemma3":
        kinds = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": THETA},
                 "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL_THETA}}
        return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**common, rope_parameters=kinds, sliding_window=WINDOW, query_pre_attn_scalar=64))
    if arch == "phi3":
        short, long = rope_lists(common["head_dim"] // 2)
        common.pop("head_dim")
        common |= {"num_attention_heads": common["hidden_size"] // 64, "num_key_value_heads": 1, "pad_token_id": 0}
        rope = {"rope_type": "longrope", "rope_theta": THETA, "short_factor": short, "long_factor": long,
                "original_max_position_embeddings": ORIGINAL}
        return t.Phi3ForCausalLM(t.Phi3Config(**common, rope_parameters=rope, original_max_position_embeddings=ORIGINAL,
                                              sliding_window=2 * WINDOW, tie_word_embeddings=False))
    if arch == "olmo2":
        common.pop("head_dim")
        return t.Olmo2ForCausalLM(t.Olmo2Config(**common, rope_parameters=rope, tie_word_embeddings=False))
    if arch == "qwen3moe":
        return t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**common, rope_parameters=rope, num_experts=8, num_experts_per_tok=3,
                                                      moe_intermediate_size=32, norm_topk_prob=True, experts_implementation="eager"))
    if arch == "mixtral":
        return t.MixtralForCausalLM(t.MixtralConfig(**common, rope_parameters=rope, num_local_experts=4, num_experts_per_tok=2,
                                                    experts_implementation="eager"))
    common.pop("head_dim")
    return t.SmolLM3ForCausalLM(t.SmolLM3Config(**common | {"pad_token_id": 0}, rope_parameters=rope, use_sliding_window=False))


def build(arch, shape, seed):
    """A random model, with weights that spread the logits over several units."""
    common = dict(shape, vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5, attn_implementation="eager",
                  bos_token_id=0, eos_token_id=1, pad_token_id=None)
    rope = {"rope_type": "default", "rope_theta": THETA}
    if arch == "llama":
        config = transformers.LlamaConfig(**common, tie_word_embeddings=False, rope_parameters=dict(LLAMA3, rope_theta=THETA))
        model = transformers.LlamaForCausalLM(config)
    elif arch == "qwen2":
        common.pop("head_dim")
        common["num_attention_heads"] = shape["hidden_size"] // 64
        common["num_key_value_heads"] = max(1, common["num_attention_heads"] // 2)
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common, tie_word_embeddings=True, rope_parameters=rope))
    elif arch not in EVERY_FORMAT:
        model = build_other(arch, common, rope)
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common, tie_word_embeddings=False, rope_parameters=rope))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            random = torch.randn(p.shape, generator=g)
            if "norm" in name:
                p.copy_((0 if arch.startswith("gemma") else 1) + 0.2 * random)
            elif name.endswith("bias"):
                p.copy_(0.5 * random)
            elif "embed" in name:
                tied = getattr(model.config, "tie_word_embeddings", False)
                p.copy_(random * (0.35 if arch == "qwen2" else 0.3 if tied else 1.0))
            elif "lm_head" in name:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


def logits(model, prompt):
    with torch.no_grad():
        out = model(torch.tensor([prompt])).logits[0, -KEPT:].float().numpy()
    assert np.isfinite(out).all() and out.std() > 0.8, out.std()
    return np.ascontiguousarray(out, np.float32)


def swap(w, heads, back=False):
    """Rows of a llama projection from halves to pairs, as GGUF keeps them, or back."""
    n, k = w.shape
    shape = (heads, n // heads // 2, 2, k) if back else (heads, 2, n // heads // 2, k)
    return np.ascontiguousarray(w.reshape(shape).swapaxes(1, 2).reshape(n, k))


def gguf_name(arch, name):
    names = NAMES | POST_NAMES if arch in POST else NAMES
    stem, _, kind = name.removeprefix("model.").rpartition(".")
    if stem in ("embed_tokens", "norm", "lm_head"):
        return {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[stem] + "." + kind
    _, layer, rest = stem.split(".", 2)
    return f"blk.{layer}.{names[rest]}.{kind}"


def stored(value, kind):
    """The bytes of a matrix in a format, and the values they stand for."""
    qtype = gguf.GGMLQuantizationType[kind]
    data = kquants.encode(value, kind) if kind in kquants.ENCODERS else gguf.quants.quantize(value, qtype)
    return data, np.asarray(gguf.quants.dequantize(data, qtype), np.float32).reshape(value.shape)


def rope_factors(config):
    """What each frequency is divided by under llama3 scaling: told apart by comparing with the plain ones."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = THETA ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    return (plain / scaled).numpy().astype(np.float32)


def write_gguf(path, arch, model, kind):
    """Stores the model's matrices in a format, and puts what was stored back into the model."""
    c = model.config
    heads, kv = c.num_attention_heads, c.num_key_value_heads
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // heads
    w = gguf.GGUFWriter(path, GGUF_ARCH.get(arch, arch))
    w.add_name(f"golden {arch} {kind}")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(THETA)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(VOCAB)
    if arch == "llama":
        w.add_tensor("rope_freqs.weight", rope_factors(c))
    if arch in ("gemma2", "gemma3"):
        w.add_sliding_window(WINDOW)
    if arch == "gemma2":
        w.add_attn_logit_softcapping(c.attn_logit_softcapping)
        w.add_final_logit_softcapping(c.final_logit_softcapping)
    if arch == "gemma3":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(8.0)
        w.add_float32("gemma3.rope.freq_base_swa", LOCAL_THETA)
    if arch in ("qwen3moe", "mixtral"):
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
    if arch == "qwen3moe":
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    if arch == "phi3":
        w.add_sliding_window(c.sliding_window)
        w.add_rope_scaling_orig_ctx_len(ORIGINAL)
        for which, factors in zip(("short", "long"), rope_lists(head_dim // 2)):
            w.add_tensor(f"rope_factors_{which}.weight", np.array(factors, np.float32))
    for name, p in model.named_parameters():
        value, paired = p.detach().numpy().copy(), None
        if ".experts." in name:
            stem = f"blk.{name.split('.')[2]}.ffn"
            half = value.shape[1] // 2
            parts = {"gate": value[:, :half], "up": value[:, half:]} if "gate_up" in name else {"down": value}
            for part, rows in parts.items():
                data, decoded = stored(np.ascontiguousarray(rows), kind)
                w.add_tensor(f"{stem}_{part}_exps.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
                rows[...] = decoded
            with torch.no_grad():
                p.copy_(torch.from_numpy(value))
            continue
        if arch in PAIRED and name.endswith(("q_proj.weight", "k_proj.weight")):
            paired = heads if "q_proj" in name else kv
            value = swap(value, paired)
        if value.ndim == 1:
            if arch.startswith("gemma"):
                value += 1
            w.add_tensor(gguf_name(arch, name), value)
            continue
        data, decoded = stored(value, kind)
        w.add_tensor(gguf_name(arch, name), data, raw_dtype=gguf.GGMLQuantizationType[kind])
        with torch.no_grad():
            p.copy_(torch.from_numpy(swap(decoded, paired, back=True) if paired else decoded))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    out = Path(sys.argv[1])
    index = []
    for a, arch in enumerate(ARCHITECTURES):
        folder = out / arch
        folder.mkdir(parents=True, exist_ok=True)
        prompt = np.random.default_rng(100 + a).integers(2, VOCAB, PROMPT).tolist()

        def keep(model, name, path, kind):
            values = logits(model, prompt)
            values.tofile(folder / f"{name}.f32")
            index.append({"name": f"{arch}/{name}", "path": f"{arch}/{path}", "logits": f"{arch}/{name}.f32", "architecture": arch,
                          "format": kind, "prompt": prompt, "first": PROMPT - KEPT, "rows": KEPT, "vocabulary": VOCAB})
            print(index[-1]["name"], f"std {values.std():.2f} range {np.ptp(values):.1f}")

        model = build(arch, SMALL | SHAPES.get(arch, {}), 10 + a).to(torch.bfloat16)
        model.save_pretrained(folder / "hf")
        (folder / "hf" / "generation_config.json").unlink(missing_ok=True)
        if arch == "llama":  # the way most published checkpoints still say it
            config = json.loads((folder / "hf" / "config.json").read_text())
            config["rope_scaling"] = {k: v for k, v in config.pop("rope_parameters").items() if k != "rope_theta"}
            config["rope_theta"], config["torch_dtype"] = THETA, config.pop("dtype")
            (folder / "hf" / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        keep(model.float(), "hf", "hf", "BF16")
        for kind in FORMATS if arch in EVERY_FORMAT else ["Q8_0"]:
            shape = WIDE if kind.endswith("_K") else SMALL | SHAPES.get(arch, {})
            model = build(arch, shape, 20 + a)
            path = f"{kind.lower()}.gguf"
            write_gguf(folder / path, arch, model, kind)
            keep(model, kind.lower(), path, kind)
    (out / "index.json").write_text(json.dumps(index).replace('}, {', '},\n{') + "\n")


if __name__ == "__main__":
    main()
