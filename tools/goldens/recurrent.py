"""Writes the goldens of further recurrent families: a directory in BF16 as published, and a GGUF file in Q8_0 each.

    python3 recurrent.py crates/welte/tests/goldens [family ...]          needs torch, transformers, gguf, numpy

Tensors in GGUF must be among those that the gguf package lists for the family. `recurrent.json` lists the files.
"""

import functools
import json
import re
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as t
from choose import calmest, clearest
from make import PROMPT, VOCAB, directory, logits
from safetensors.torch import load_file, save_file
from seeded import Gguf, Goldens

COMMON = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
          "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 1,
          "pad_token_id": None, "tie_word_embeddings": False, "experts_implementation": "eager"}
# Layers are counted from 1.
KDA = {"kda_layers": [1, 2, 4], "full_attn_layers": [3], "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4}


def kimi_linear():
    return t.KimiLinearForCausalLM(t.KimiLinearConfig(**COMMON, linear_attn_config=KDA, max_position_embeddings=512, kv_lora_rank=32,
        q_lora_rank=None, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, moe_intermediate_size=32, num_local_experts=4,
        num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
        first_k_dense_replace=1))


STATES = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": VOCAB, "time_step_rank": 32, "bos_token_id": 0, "eos_token_id": 1,
          "pad_token_id": None}


def mamba():
    return t.MambaForCausalLM(t.MambaConfig(**STATES, state_size=16, tie_word_embeddings=True))


def falcon_mamba():
    return t.FalconMambaForCausalLM(t.FalconMambaConfig(**STATES, state_size=24, tie_word_embeddings=False))


def jamba():
    return t.JambaForCausalLM(t.JambaConfig(**COMMON, num_experts=4, num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1,
        attn_layer_period=3, attn_layer_offset=1, mamba_d_state=16, mamba_expand=3, mamba_dt_rank=32, max_position_embeddings=512))


FAMILIES = {"kimi_linear": (kimi_linear, "KIMI_LINEAR"), "mamba": (mamba, "MAMBA"), "falcon_mamba": (falcon_mamba, "MAMBA"),
            "jamba": (jamba, "JAMBA")}


def tensors_of(model):
    """The parameters, and the biases of the experts' choice, which do not count as such."""
    biases = [(name, b) for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return [*model.named_parameters(), *biases]


def build(name, seed):
    """A random model, with weights that spread the logits over several units."""
    model = FAMILIES[name][0]()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in tensors_of(model):
            random = torch.randn(p.shape, generator=g)
            if key.endswith("correction_bias"):
                p.copy_(0.1 * random)
            elif "norm" in key:
                p.copy_(1 + 0.2 * random)
            elif key.endswith("A_log"):
                p.copy_((0.7 if name == "kimi_linear" else 0.2) * random)
            elif key.endswith(("dt_bias", "dt_proj.bias")):
                p.copy_(-1 + random)
            elif key.endswith((".D", "conv1d.bias")):
                p.copy_(0.5 * random)
            elif "conv1d" in key:
                p.copy_(0.6 * random)
            elif "embed" in key:
                p.copy_(random * (0.3 if name == "mamba" else 1))
            elif "lm_head" in key:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(random * (1.3 if name == "kimi_linear" else 0.9) / p.shape[-1] ** 0.5)
    return model.float().eval()


def published_kimi(folder):
    """The configuration and the names of Moonshot."""
    path = folder / "config.json"
    own = json.loads(path.read_text())
    for key in ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "rope_parameters",
                "attention_bias", "attention_dropout", "output_router_logits", "pretraining_tp"):
        own.pop(key, None)
    own |= {"linear_attn_config": KDA, "first_k_dense_replace": 1, "mla_use_nope": True, "moe_router_activation_func": "sigmoid",
            "moe_layer_freq": 1, "use_grouped_topk": True, "num_nextn_predict_layers": 0, "rope_scaling": None, "rope_theta": 10000.0}
    path.write_text(json.dumps(own, indent=1) + "\n")
    # Transformers calls the dense part like the others.
    file = folder / "model.safetensors"
    tensors = {key.replace(".0.block_sparse_moe.", ".0.mlp."): value for key, value in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})


EDITS = {"kimi_linear": published_kimi}

OUTER = {"embed_tokens": "token_embd", "embeddings": "token_embd", "norm": "output_norm", "norm_f": "output_norm",
         "final_layernorm": "output_norm", "lm_head": "output"}
STEMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.forget_gate.f_a_proj": "ssm_f_a",
         "self_attn.forget_gate.f_b_proj": "ssm_f_b", "self_attn.b_proj": "ssm_beta", "self_attn.g_a_proj": "ssm_g_a",
         "self_attn.g_b_proj": "ssm_g_b", "self_attn.o_norm": "ssm_norm", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate": "ffn_gate_inp", "pre_ff_layernorm": "ffn_norm", "norm": "attn_norm",
         "feed_forward.router": "ffn_gate_inp"}
STEMS |= {f"{mixer}.{part}": own for mixer in ("mixer", "mamba") for part, own in (
    ("in_proj", "ssm_in"), ("conv1d", "ssm_conv1d"), ("x_proj", "ssm_x"), ("dt_proj", "ssm_dt"), ("out_proj", "ssm_out"),
    ("dt_layernorm", "ssm_dt_norm"), ("b_layernorm", "ssm_b_norm"), ("c_layernorm", "ssm_c_norm"))}
STEMS |= {f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
STEMS |= {f"mlp.{kind}{part}_proj": f"ffn_{part}{end}" for kind, end in (("", ""), ("shared_experts.", "_shexp")) for part in ("gate", "up", "down")}


def parts_of(c, key, value):
    """The tensors of GGUF that a parameter becomes, as views of its values, and those that are stored as they are."""
    key = key.removeprefix("model.").removeprefix("backbone.")
    stem, _, kind = key.rpartition(".")
    if stem in OUTER:
        return [(f"{OUTER[stem]}.{kind}", value)]
    _, layer, rest = key.split(".", 2)
    block = f"blk.{layer}."
    if rest.endswith("A_log"):
        return [(block + "ssm_a", value.reshape(1, 1, -1, 1) if rest.startswith("self_attn") else value)]
    if rest.endswith(".D"):
        return [(block + "ssm_d", value)]
    if rest in ("mixer.conv1d.weight", "mamba.conv1d.weight"):
        return [(block + "ssm_conv1d.weight", value[:, 0])]
    if rest.endswith("dt_bias"):
        return [(block + "ssm_dt.bias", value)]
    if rest.endswith("correction_bias"):
        return [(block + "exp_probs_b.bias", value)]
    if rest == "self_attn.conv1d.weight":
        return [(f"{block}ssm_conv1d_{part}.weight", rows.reshape(1, -1, 1, rows.shape[-1]))
                for part, rows in zip("qkv", np.split(value, 3))]
    if rest == "self_attn.kv_b_proj.weight":
        heads = value.reshape(c.num_attention_heads, -1, value.shape[-1])
        keys, values = heads[:, : c.qk_nope_head_dim], heads[:, c.qk_nope_head_dim :]
        return [(block + "attn_k_b.weight", keys.swapaxes(1, 2)), (block + "attn_v_b.weight", values)]
    if ".experts." in rest:
        half = value.shape[1] // 2
        if "down" in rest:
            return [(block + "ffn_down_exps.weight", value)]
        return [(block + "ffn_gate_exps.weight", value[:, :half]), (block + "ffn_up_exps.weight", value[:, half:])]
    stem, _, kind = rest.rpartition(".")
    return [(f"{block}{STEMS[stem]}.{kind}", value)]


def kimi_keys(w, c):
    w.add_context_length(512)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv([int(kind == "full_attention") for kind in c.layer_types])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(10000.0)
    w.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    w.add_kda_head_dim(c.linear_head_dim)
    w.add_kv_lora_rank(c.kv_lora_rank)
    w.add_rope_dimension_count(c.qk_rope_head_dim)
    w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
    w.add_value_length(c.kv_lora_rank)
    w.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim)
    w.add_value_length_mla(c.v_head_dim)
    w.add_expert_count(c.num_local_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_leading_dense_block_count(1)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def mamba_keys(w, c):
    w.add_context_length(512)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(c.conv_kernel)
    w.add_ssm_inner_size(c.intermediate_size)
    w.add_ssm_state_size(c.state_size)
    w.add_ssm_time_step_rank(c.time_step_rank)
    w.add_layer_norm_rms_eps(c.layer_norm_epsilon)
    w.add_ssm_dt_b_c_rms(c.model_type == "falcon_mamba")


def jamba_keys(w, c):
    w.add_context_length(512)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv([c.num_key_value_heads if kind == "attention" else 0 for kind in c.layers_block_type])
    w.add_ssm_conv_kernel(c.mamba_d_conv)
    w.add_ssm_inner_size(c.mamba_expand * c.hidden_size)
    w.add_ssm_state_size(c.mamba_d_state)
    w.add_ssm_time_step_rank(c.mamba_dt_rank)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)


KEYS = {"kimi_linear": kimi_keys, "mamba": mamba_keys, "falcon_mamba": mamba_keys, "jamba": jamba_keys}


def write_gguf(path, name, model, seed):
    """Stores the model in Q8_0 with weights from a seed, and puts what was stored back into the model."""
    arch, c = gguf.MODEL_ARCH[FAMILIES[name][1]], model.config
    made = Gguf(path, gguf.MODEL_ARCH_NAMES[arch], seed)
    w = made.keys
    w.add_name(f"golden {name}")
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_vocab_size(c.vocab_size)
    KEYS[name](w, c)
    listed = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    tied = getattr(c, "tie_word_embeddings", False)
    for key, p in tensors_of(model):
        if tied and key == "lm_head.weight":
            continue
        value = p.detach().float().numpy().copy()
        for own, rows in parts_of(c, key, value):
            # The package lists no norms of keys and queries, which converters write.
            own_norm = re.search(r"ssm_[bc]_norm", own)
            assert own_norm or re.sub(r"(\.weight|\.bias)$", "", re.sub(r"^blk\.\d+", "blk.{bid}", own)) in listed, own
            if own.endswith("ssm_a") and rows.size < 64:  # must be below 0
                made.exact(own, -np.exp(rows))
            elif own.endswith("ssm_a"):  # 5 deviations from 0
                rows[...] = np.log(-made.put(own, -np.exp(rows)))
            elif rows.ndim == 1 or re.search(r"conv1d|ffn_gate_inp", own):
                rows[...] = made.put(own, rows)
            else:
                rows[...] = made.put(own, rows, "Q8_0")
        with torch.no_grad():
            p.copy_(torch.from_numpy(value))
    made.finish()


def main():
    torch.set_num_threads(1)
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(FAMILIES)
    goldens = Goldens(out, "recurrent.json")
    for name in wanted:
        number = list(FAMILIES).index(name)
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        prompt = np.random.default_rng(850 + number).integers(2, VOCAB, PROMPT).tolist()

        def keep(model, kind, path):
            stem = path.removesuffix(".gguf")
            goldens.keep(f"{name}/{stem}", f"{name}/{path}", name, kind, prompt, logits(model, prompt), VOCAB)

        def file(seed):
            model = build(name, seed)
            write_gguf(folder / "q8_0.gguf", name, model, seed)
            return model

        def write(seed):
            edit = EDITS.get(name, lambda folder: None)
            return directory(build(name, seed).to(torch.bfloat16), folder / "hf", seed, edit)

        mixed = any("experts" in key for key, _ in build(name, 0).named_parameters())
        # State carries rounding on, so few seeds are calm.
        select = functools.partial(clearest, tries=80) if mixed else functools.partial(calmest, tries=24)
        keep(select(write, prompt, 4000 + 100 * number, "BF16"), "BF16", "hf")
        keep(select(file, prompt, 4050 + 100 * number, "Q8_0"), "Q8_0", "q8_0.gguf")


if __name__ == "__main__":
    main()
