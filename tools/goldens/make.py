"""Writes the golden files: small models with random weights, and the logits that transformers gives for them in float32.

    python3 make.py crates/welte/tests/goldens          needs torch, transformers, gguf, numpy

Per architecture: a directory as transformers saves it (BF16), and GGUF files whose matrices are all in one format (every
format for the first three architectures, Q8_0 for the others, which add no arithmetic of their own to the matrices);
their logits are those of the decoded weights. Teacher-forced: the logits after each of the last positions of a
prompt. `index.json` lists them.
"""

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from choose import calmest, clearest
from safetensors.torch import load_file, save_file
from seeded import Gguf, Goldens, Safetensors

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
MIXTURES = ("qwen3moe", "mixtral")
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
        return model(torch.tensor([prompt])).logits[0, -KEPT:].float().numpy()


def save(model, folder, edit=lambda folder: None):
    """Writes a directory as transformers does. `edit` changes it."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    edit(folder)


def directory(model, folder, seed, edit=lambda folder: None):
    """Writes a directory whose weights are made from a seed, and gives the model as transformers reads it, in float32."""
    save(model, folder, edit)
    weights = Safetensors(folder / "model.safetensors", seed)
    experts = {"experts_implementation": "eager"} if getattr(model.config, "_experts_implementation", None) else {}
    read = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **experts)
    weights.cut()
    return read.eval()


def quantised(model, folder, seed, tensors, values, fields, exact=()):
    """Replaces the tensors of a saved directory. What is stored goes into the model: `values` decodes the matrices of layers."""
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    weights = Safetensors(folder / "model.safetensors", seed, fields, exact)
    stored = load_file(folder / "model.safetensors")
    model.float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(values(stored, key) if key.endswith("_proj.weight") else stored[key].float())
    weights.cut()
    return model


def add_to_config(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys, indent=1) + "\n")


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


def rope_factors(config):
    """What each frequency is divided by under llama3 scaling: told apart by comparing with the plain ones."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = THETA ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    return (plain / scaled).numpy().astype(np.float32)


def write_gguf(path, arch, model, kind, seed, more=None):
    """Stores the model with matrices in a format and weights from a seed, and puts what was stored back into the model."""
    c = model.config
    heads, kv = c.num_attention_heads, c.num_key_value_heads
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // heads
    made = Gguf(path, GGUF_ARCH.get(arch, arch), seed)
    w = made.keys
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
        made.exact("rope_freqs.weight", rope_factors(c))
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
            made.exact(f"rope_factors_{which}.weight", factors)
    for name, p in model.named_parameters():
        value = p.detach().numpy().copy()
        if ".experts." in name:
            stem = f"blk.{name.split('.')[2]}.ffn"
            half = value.shape[1] // 2
            parts = {"gate": value[:, :half], "up": value[:, half:]} if "gate_up" in name else {"down": value}
            for part, rows in parts.items():
                rows[...] = made.put(f"{stem}_{part}_exps.weight", rows, kind)
        elif value.ndim == 1:
            one = 1 if arch.startswith("gemma") else 0
            value = made.put(gguf_name(arch, name), value + one) - one
        else:
            value = made.put(gguf_name(arch, name), value, kind)
            if arch in PAIRED and name.endswith(("q_proj.weight", "k_proj.weight")):
                value = swap(value, heads if "q_proj" in name else kv, back=True)
        with torch.no_grad():
            p.copy_(torch.from_numpy(value))
    if more:
        more(made, model)
    made.finish()


def published(folder):
    """The way most published checkpoints of Llama still say it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_scaling"] = {k: v for k, v in config.pop("rope_parameters").items() if k != "rope_theta"}
    config["rope_theta"], config["torch_dtype"] = THETA, config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    goldens = Goldens(out, "index.json", anew=True)
    for a, arch in enumerate(ARCHITECTURES):
        folder = out / arch
        folder.mkdir(parents=True, exist_ok=True)
        prompt = np.random.default_rng(100 + a).integers(2, VOCAB, PROMPT).tolist()

        def keep(model, name, path, kind):
            goldens.keep(f"{arch}/{name}", f"{arch}/{path}", arch, kind, prompt, logits(model, prompt), VOCAB)

        def folder_of(seed):
            model = build(arch, SMALL | SHAPES.get(arch, {}), seed).to(torch.bfloat16)
            return directory(model, folder / "hf", seed, published if arch == "llama" else lambda folder: None)

        def file(seed, kind):
            model = build(arch, WIDE if kind.endswith("_K") else SMALL | SHAPES.get(arch, {}), seed)
            write_gguf(folder / f"{kind.lower()}.gguf", arch, model, kind, seed)
            return model

        select = clearest if arch in MIXTURES else calmest
        keep(select(folder_of, prompt, 10 + 100 * a, "BF16"), "hf", "hf", "BF16")
        for kind in FORMATS if arch in EVERY_FORMAT else ["Q8_0"]:
            keep(select(lambda seed: file(seed, kind), prompt, 50 + 100 * a, kind), kind.lower(), f"{kind.lower()}.gguf", kind)


if __name__ == "__main__":
    main()
