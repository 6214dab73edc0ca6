"""Writes small hybrid models with transformers' logits.

    python3 tools/goldens/hybrid.py crates/welte/tests/goldens [architecture ...]

They go to a folder per architecture, listed in hybrid.json as the other goldens are in index.json: a directory as transformers
saves it (BF16; the one with experts as published, in a multimodal checkpoint), and a GGUF file in Q8_0 with tensors as llama.cpp's converter names and orders them. Value heads outnumber key
heads, so their order shows.
"""

import functools
import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as t
from choose import calmest, clearest
from make import PROMPT, VOCAB, directory, logits, save, swap
from safetensors.torch import load_file, save_file
from seeded import Gguf, Goldens, Safetensors

ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
COMMON = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
          "head_dim": 64, "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "attn_implementation": "eager",
          "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "tie_word_embeddings": False}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
         "rope_parameters": ROPE}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
           "experts_implementation": "eager"}
# Later models are smaller: the files travel with the repository.
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
ARCHITECTURES = ["qwen3next", "qwen35", "qwen35moe", "lfm2", "granitehybrid", "lfm2moe", "nemotronh", "nemotron3"]
GGUF_NAMES = {"nemotronh": "nemotron_h", "nemotron3": "nemotron_h_moe"}
MIXTURES = ("qwen3next", "qwen35moe", "lfm2moe", "nemotron3")


def vocabulary(arch):
    return 123 if arch == "nemotron3" else VOCAB


def build(arch, seed, experts=0):
    """A random model, with weights that spread the logits over several units."""
    if arch == "qwen3next":
        model = t.Qwen3NextForCausalLM(t.Qwen3NextConfig(**COMMON | DELTA | EXPERTS))
    elif arch == "qwen35":
        model = t.Qwen3_5ForCausalLM(t.Qwen3_5TextConfig(**COMMON | DELTA))
    elif arch == "granitehybrid":
        common = {k: v for k, v in COMMON.items() if k != "head_dim"}
        kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
        model = t.GraniteMoeHybridForCausalLM(t.GraniteMoeHybridConfig(**common | {
            "layer_types": kinds, "num_local_experts": experts, "num_experts_per_tok": 2, "shared_intermediate_size": 96,
            "intermediate_size": 32, "mamba_n_heads": 4, "mamba_d_state": 48, "mamba_d_head": 32, "embedding_multiplier": 2.0,
            "logits_scaling": 0.5, "residual_multiplier": 0.4, "attention_multiplier": 0.1, "experts_implementation": "eager",
            "pad_token_id": 0}))
    elif arch == "nemotronh":
        common = {k: v for k, v in COMMON.items() if k != "rms_norm_eps"} | TINY
        del common["num_hidden_layers"]
        kinds = ["linear_attention", "mlp", "full_attention", "linear_attention"]
        model = t.NemotronHForCausalLM(t.NemotronHConfig(**common | {
            "layers_block_type": kinds, "head_dim": 32, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 24,
            "layer_norm_epsilon": 1e-5, "pad_token_id": 0}))
    elif arch == "nemotron3":
        common = {k: v for k, v in COMMON.items() if k != "rms_norm_eps"} | TINY
        del common["num_hidden_layers"]
        # The directory's experts compute in a narrower width.
        model = t.NemotronHForCausalLM(t.NemotronHConfig(**common | {
            "layers_block_type": ["linear_attention", "moe", "full_attention"], "head_dim": 16, "mamba_num_heads": 2, "mamba_head_dim": 16,
            "n_groups": 2, "ssm_state_size": 16, "layer_norm_epsilon": 1e-5, "pad_token_id": 0, "vocab_size": vocabulary(arch),
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
            "moe_latent_size": 16 if experts else None, "routed_scaling_factor": 1.5, "n_group": 2, "topk_group": 1,
            "experts_implementation": "eager"}))
    elif arch == "lfm2moe":
        common = {k: v for k, v in COMMON.items() if k not in ("rms_norm_eps", "head_dim")} | TINY
        kinds = ["conv", "full_attention", "conv"]
        model = t.Lfm2MoeForCausalLM(t.Lfm2MoeConfig(**common | {
            "tie_word_embeddings": True, "layer_types": kinds, "norm_eps": 1e-5, "pad_token_id": 0, "num_dense_layers": 1,
            "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "routed_scaling_factor": 1.0,
            "experts_implementation": "eager"}))
    elif arch == "lfm2":
        common = {k: v for k, v in COMMON.items() if k not in ("rms_norm_eps", "head_dim")}
        kinds = ["conv", "conv", "full_attention", "conv"]
        model = t.Lfm2ForCausalLM(t.Lfm2Config(**common | {"tie_word_embeddings": True, "layer_types": kinds, "norm_eps": 1e-5,
                                                           "pad_token_id": 0, "block_multiple_of": 32}))
    else:
        common = {k: v for k, v in COMMON.items() if k != "intermediate_size"}
        model = t.Qwen3_5MoeForCausalLM(t.Qwen3_5MoeTextConfig(**common | DELTA | EXPERTS))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *choice_biases(model)]:
            random = torch.randn(p.shape, generator=g)
            if "norm" in name:
                p.copy_((1 if "linear_attn" in name or arch in ("lfm2", "lfm2moe", "granitehybrid", "nemotronh", "nemotron3") else 0) + 0.2 * random)
            elif name.endswith("bias") and "conv1d" not in name and "dt_bias" not in name:
                p.copy_(0.1 * random)
            elif name.endswith("A_log"):
                p.copy_(0.7 * random)
            elif name.endswith("dt_bias"):
                p.copy_(-1 + random)
            elif name.endswith((".D", "conv1d.bias")):
                p.copy_(0.5 * random)
            elif "conv1d" in name or "conv.conv" in name:
                p.copy_(0.6 * random)
            elif "embed" in name:
                p.copy_(random * (0.3 if arch.startswith("lfm2") or arch == "nemotron3" else 1))
            elif "lm_head" in name:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


def choice_biases(model):
    """The biases of the experts' choice, which do not count as parameters."""
    return [(name, b) for name, b in model.named_buffers() if name.endswith(("expert_bias", "e_score_correction_bias"))]


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "linear_attn.in_proj_qkv": "attn_qkv",
         "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_b": "ssm_beta",
         "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
         "linear_attn.out_proj": "ssm_out", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate": "ffn_gate_inp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}


def value_rows(arch, c, name):
    """The order of rows and of columns that the converter gives a tensor, or None."""
    keys, heads, dim = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_value_head_dim
    order = np.arange(heads).reshape(keys, -1).T.ravel()
    wide = (order[:, None] * dim + np.arange(dim)).ravel()
    before = np.arange(2 * keys * c.linear_key_head_dim)
    if arch == "qwen3next" or "linear_attn" not in name:
        return None, None
    part = name.split("linear_attn.")[1]
    if part.startswith(("in_proj_qkv", "conv1d")):
        return np.concatenate([before, len(before) + wide]), None
    if part.startswith("in_proj_z"):
        return wide, None
    if part.startswith("out_proj"):
        return None, wide
    return (None, None) if part.startswith("norm") else (order, None)


def write_gguf(path, arch, model, seed):
    """Stores the model with matrices in Q8_0 and weights from a seed, and puts what was stored back into the model."""
    c = model.config
    made = Gguf(path, arch, seed)
    w = made.keys
    w.add_name(f"golden {arch} Q8_0")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_head_count(c.num_attention_heads)
    w.add_vocab_size(c.vocab_size)
    if arch == "granitehybrid":
        granite_keys(w, c)
    elif arch.startswith("nemotron_h"):
        nemotron_keys(w, c)
    elif arch.startswith("lfm2"):
        w.add_feed_forward_length(model.model.layers[0].feed_forward.w1.weight.shape[0])
        if arch == "lfm2moe":
            w.add_expert_count(c.num_experts)
            w.add_expert_used_count(c.num_experts_per_tok)
            w.add_expert_feed_forward_length(c.moe_intermediate_size)
            w.add_leading_dense_block_count(c.num_dense_layers)
            w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_head_count_kv([0 if kind == "conv" else c.num_key_value_heads for kind in c.layer_types])
        w.add_rope_freq_base(c.rope_parameters["rope_theta"])
        w.add_layer_norm_rms_eps(c.norm_eps)
        w.add_shortconv_l_cache(c.conv_L_cache)
    else:
        qwen_keys(w, arch, c)

    def put(name, value, kind="Q8_0"):
        if name.endswith("ssm_a"):  # must be below 0
            made.exact(name, value)
            return value
        return made.put(name, value, kind)

    for name, p in [*model.named_parameters(), *choice_biases(model)]:
        value = p.detach().numpy().copy()
        if arch == "granitehybrid":
            value = granite_tensor(name.removeprefix("model."), value, put)
        elif arch.startswith("nemotron_h"):
            nemotron_tensor(name.removeprefix("model."), value, put)
        elif arch.startswith("lfm2"):
            value = lfm2_tensor(name.removeprefix("model."), value, put)
        else:
            value = qwen_tensor(arch, c, name.removeprefix("model."), value, put)
        with torch.no_grad():
            p.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    made.finish()


LFM2_NAMES = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
              "self_attn.k_layernorm": "attn_k_norm", "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv",
              "conv.out_proj": "shortconv.out_proj", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
              "feed_forward.w2": "ffn_down", "feed_forward.gate": "ffn_gate_inp"}


def lfm2_tensor(name, value, put):
    """Stores a tensor, and gives what is stored."""
    stem, _, kind = name.rpartition(".")
    if stem in ("embed_tokens", "embedding_norm"):
        return put({"embed_tokens": "token_embd", "embedding_norm": "token_embd_norm"}[stem] + ".weight", value,
                   "F32" if value.ndim == 1 else "Q8_0")
    _, i, rest = stem.split(".", 2)
    if kind == "expert_bias":
        return put(f"blk.{i}.exp_probs_b.bias", value, "F32")
    if rest == "feed_forward.experts":
        half = value.shape[1] // 2
        parts = {"gate": value[:, :half], "up": value[:, half:]} if kind == "gate_up_proj" else {"down": value}
        for part, rows in parts.items():
            rows[...] = put(f"blk.{i}.ffn_{part}_exps.weight", rows)
        return value
    name = f"blk.{i}.{LFM2_NAMES[rest]}.{kind}"
    if rest == "feed_forward.gate":
        return put(name, value, "F32")
    if rest == "conv.conv":
        return put(name, value[:, 0], "F32")[:, None]
    return put(name, value, "F32" if value.ndim == 1 else "Q8_0")


GRANITE_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
                 "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
                 "mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out", "mamba.norm": "ssm_norm",
                 "shared_mlp.output_linear": "ffn_down"}


def granite_keys(w, c):
    """Keys of a model without experts."""
    w.add_feed_forward_length(c.shared_intermediate_size)
    w.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    w.add_head_count_kv([0 if kind == "linear_attention" else c.num_key_value_heads for kind in c.layer_types])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(10000.0)
    w.add_embedding_scale(c.embedding_multiplier)
    w.add_residual_scale(c.residual_multiplier)
    w.add_attention_scale(c.attention_multiplier)
    w.add_logit_scale(c.logits_scaling)
    w.add_ssm_conv_kernel(c.mamba_d_conv)
    w.add_ssm_state_size(c.mamba_d_state)
    w.add_ssm_group_count(c.mamba_n_groups)
    w.add_ssm_inner_size(c.mamba_n_heads * c.mamba_d_head)
    w.add_ssm_time_step_rank(c.mamba_n_heads)


def granite_tensor(name, value, put):
    """Stores a tensor, and gives what is stored."""
    stem, _, kind = name.rpartition(".")
    if stem in ("embed_tokens", "norm", "lm_head"):
        gg = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[stem]
        return put(f"{gg}.weight", value, "F32" if value.ndim == 1 else "Q8_0")
    _, i, rest = name.split(".", 2)
    block, half = f"blk.{i}.", len(value) // 2
    if rest == "mamba.A_log":
        put(block + "ssm_a", -np.exp(value)[:, None], "F32")
    elif rest == "mamba.D":
        value = put(block + "ssm_d", value[:, None], "F32")[:, 0]
    elif rest == "mamba.dt_bias":
        value = put(block + "ssm_dt.bias", value, "F32")
    elif rest == "mamba.conv1d.weight":
        value = put(block + "ssm_conv1d.weight", value[:, 0], "F32")[:, None]
    elif rest == "mamba.conv1d.bias":
        value = put(block + "ssm_conv1d.bias", value, "F32")
    elif rest == "mamba.norm.weight":
        value = put(block + "ssm_norm.weight", value[None], "F32")[0]
    elif rest == "shared_mlp.input_linear.weight":
        return np.concatenate([put(f"{block}ffn_{part}.weight", rows) for part, rows in (("gate", value[:half]), ("up", value[half:]))])
    else:
        part = rest.removesuffix("." + kind)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = COMMON["num_attention_heads"] if "q_proj" in part else COMMON["num_key_value_heads"]
            return swap(put(f"{block}{GRANITE_NAMES[part]}.{kind}", value), heads, back=True)
        return put(f"{block}{GRANITE_NAMES[part]}.{kind}", value, "F32" if value.ndim == 1 else "Q8_0")
    return value


def nemotron_keys(w, c):
    """Each layer's kind is told by its heads of keys and its width."""
    kinds = c.layers_block_type
    width = {"mlp": c.intermediate_size, "moe": c.moe_intermediate_size}
    w.add_feed_forward_length([width.get(kind, 0) for kind in kinds])
    if "moe" in kinds:
        w.add_expert_count(c.n_routed_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
        w.add_expert_shared_feed_forward_length(c.moe_shared_expert_intermediate_size)
        w.add_expert_weights_norm(c.norm_topk_prob)
        w.add_expert_weights_scale(c.routed_scaling_factor)
        w.add_expert_group_count(c.n_group)
        w.add_expert_group_used_count(c.topk_group)
    w.add_head_count_kv([c.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds])
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.layer_norm_epsilon)
    w.add_ssm_conv_kernel(c.conv_kernel)
    w.add_ssm_state_size(c.ssm_state_size)
    w.add_ssm_group_count(c.n_groups)
    w.add_ssm_inner_size(c.mamba_num_heads * c.mamba_head_dim)
    w.add_ssm_time_step_rank(c.mamba_num_heads)


NEMOTRON_NAMES = {"norm": "attn_norm", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v",
                  "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down", "mixer.in_proj": "ssm_in",
                  "mixer.out_proj": "ssm_out", "mixer.gate": "ffn_gate_inp", "mixer.shared_experts.up_proj": "ffn_up_shexp",
                  "mixer.shared_experts.down_proj": "ffn_down_shexp"}


def nemotron_tensor(name, value, put):
    """Stores a tensor, and makes the value what is stored."""
    stem, _, kind = name.rpartition(".")
    if stem in ("embeddings", "norm_f", "lm_head"):
        gg = {"embeddings": "token_embd", "norm_f": "output_norm", "lm_head": "output"}[stem]
        value[...] = put(f"{gg}.weight", value, "F32" if value.ndim == 1 else "Q8_0")
        return
    _, i, rest = name.split(".", 2)
    block = f"blk.{i}."
    if rest == "mixer.A_log":
        put(block + "ssm_a", -np.exp(value)[:, None], "F32")
    elif rest == "mixer.D":
        value[...] = put(block + "ssm_d", value[:, None], "F32")[:, 0]
    elif rest == "mixer.dt_bias":
        value[...] = put(block + "ssm_dt.bias", value, "F32")
    elif rest == "mixer.conv1d.weight":
        value[...] = put(block + "ssm_conv1d.weight", value[:, 0], "F32")[:, None]
    elif rest == "mixer.conv1d.bias":
        value[...] = put(block + "ssm_conv1d.bias", value, "F32")
    elif rest == "mixer.norm.weight":
        value[...] = put(block + "ssm_norm.weight", value.reshape(2, -1), "F32").reshape(-1)
    elif rest == "mixer.gate.e_score_correction_bias":
        value[...] = put(block + "exp_probs_b.bias", value, "F32")
    elif rest == "mixer.gate.weight":
        value[...] = put(block + "ffn_gate_inp.weight", value, "F32")
    elif rest.startswith("mixer.experts."):
        part = rest.removeprefix("mixer.experts.").removesuffix("_proj")
        value[...] = put(f"{block}ffn_{part}_exps.weight", value)
    else:
        value[...] = put(f"{block}{NEMOTRON_NAMES[rest.removesuffix('.' + kind)]}.{kind}", value, "F32" if value.ndim == 1 else "Q8_0")


def qwen_keys(w, arch, c):
    if arch != "qwen35moe":
        w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_dimension_count(c.head_dim // 4)
    w.add_rope_freq_base(ROPE["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    if arch != "qwen3next":
        w.add_rope_dimension_sections([3, 3, 2, 0])
    w.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    w.add_ssm_state_size(c.linear_key_head_dim)
    w.add_ssm_group_count(c.linear_num_key_heads)
    w.add_ssm_time_step_rank(c.linear_num_value_heads)
    w.add_ssm_inner_size(c.linear_value_head_dim * c.linear_num_value_heads)
    w.add_full_attention_interval(4)
    if arch != "qwen35":
        w.add_expert_count(c.num_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
        w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def qwen_tensor(arch, c, name, value, put):
    """Stores a tensor, and gives what is stored."""
    def layer(i, rest, value):
        block = f"blk.{i}."
        if rest == "linear_attn.A_log":
            put(block + "ssm_a", -np.exp(value), "F32")
        elif rest == "linear_attn.dt_bias":
            value = put(block + "ssm_dt.bias", value, "F32")
        elif rest.startswith("linear_attn.conv1d"):
            value = put(block + "ssm_conv1d.weight", value[:, 0], "F32")[:, None]
        elif rest.startswith("linear_attn.in_proj_qkvz"):
            groups = c.linear_num_key_heads
            each = c.linear_num_value_heads // groups * c.linear_value_head_dim
            cut = np.cumsum([c.linear_key_head_dim, c.linear_key_head_dim, each])
            parts = np.split(value.reshape(groups, -1, value.shape[1]), cut, axis=1)
            flat = [p.reshape(-1, value.shape[1]) for p in parts]
            qkv, gate = put(block + "attn_qkv.weight", np.concatenate(flat[:3])), put(block + "attn_gate.weight", flat[3])
            back = [p.reshape(q.shape) for p, q in zip(np.split(qkv, np.cumsum([len(f) for f in flat[:2]])), parts)]
            return np.concatenate([*back, gate.reshape(parts[3].shape)], axis=1).reshape(value.shape)
        elif ".experts." in rest:
            half = value.shape[1] // 2
            parts = {"gate": value[:, :half], "up": value[:, half:]} if "gate_up" in rest else {"down": value}
            for part, rows in parts.items():
                rows[...] = put(f"{block}ffn_{part}_exps.weight", rows)
        else:
            stem, _, kind = rest.rpartition(".")
            gg = f"{block}{NAMES[stem]}.{kind}"
            if stem.endswith("norm"):
                one = 0 if stem == "linear_attn.norm" else 1
                value = put(gg, value + one, "F32") - one
            elif stem == "mlp.shared_expert_gate":
                value = put(gg, value[0], "F32")[None]
            else:
                value = put(gg, value, "F32" if stem == "mlp.gate" else "Q8_0")
        return value

    stem, _, _ = name.rpartition(".")
    if stem in ("embed_tokens", "lm_head"):
        return put({"embed_tokens": "token_embd.weight", "lm_head": "output.weight"}[stem], value)
    if stem == "norm":
        return put("output_norm.weight", value + 1, "F32") - 1
    _, i, rest = name.split(".", 2)
    rows, columns = value_rows(arch, c, name)
    if rows is not None:
        value[...] = value[rows]
    if columns is not None:
        value[...] = value[:, columns]
    value = layer(i, rest, value)
    if rows is not None:
        value = value[np.argsort(rows)]
    if columns is not None:
        value = value[:, np.argsort(columns)]
    return value


LANGUAGE = "model.language_model."


def publish(path):
    """Renames and stacks tensors as the published multimodal checkpoints have them, and adds tensors of other parts."""
    stored, made = load_file(path / "model.safetensors"), {}
    for name, value in stored.items():
        name = name.replace("model.", LANGUAGE, 1) if name.startswith("model.") else name
        if ".experts." not in name:
            made[name] = value
    for i in range(COMMON["num_hidden_layers"]):
        experts = [[stored[f"model.layers.{i}.mlp.experts.{e}.{part}_proj.weight"] for part in ("gate", "up", "down")]
                   for e in range(EXPERTS["num_experts"])]
        stem = f"{LANGUAGE}layers.{i}.mlp.experts."
        made[stem + "gate_up_proj"] = torch.stack([torch.cat(e[:2]) for e in experts])
        made[stem + "down_proj"] = torch.stack([e[2] for e in experts])
    made |= {"model.visual.merger.norm.weight": torch.ones(8), "mtp.norm.weight": torch.ones(64)}
    save_file(made, path / "model.safetensors", {"format": "pt"})
    text = json.loads((path / "config.json").read_text())
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
              "text_config": text | {"mtp_num_hidden_layers": 1}}
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def multimodal(model, folder, seed):
    """The directory of a published multimodal checkpoint, whose language model alone is computed."""
    save(model, folder, publish)
    weights = Safetensors(folder / "model.safetensors", seed)
    own = {name.replace(LANGUAGE, "model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    model.float().load_state_dict({name: tensor.float() for name, tensor in own.items() if "visual" not in name and "mtp" not in name})
    weights.cut()
    return model


def main():
    torch.set_num_threads(1)
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or ARCHITECTURES
    goldens = Goldens(out, "hybrid.json")
    for arch in wanted:
        a = ARCHITECTURES.index(arch)
        folder = out / arch
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        prompt = np.random.default_rng(700 + a).integers(2, vocabulary(arch), PROMPT).tolist()

        def keep(model, name, path, kind):
            goldens.keep(f"{arch}/{name}", f"{arch}/{path}", arch, kind, prompt, logits(model, prompt), vocabulary(arch))

        def file(seed):
            model = build(arch, seed)
            write_gguf(folder / "q8_0.gguf", GGUF_NAMES.get(arch, arch), model, seed)
            return model

        write = multimodal if arch == "qwen35moe" else directory
        # State carries rounding on, so few seeds are calm.
        select = functools.partial(clearest, tries=80) if arch in MIXTURES else functools.partial(calmest, tries=24)
        keep(select(lambda seed: write(build(arch, seed, experts=4).to(torch.bfloat16), folder / "hf", seed), prompt, 90 + a, "BF16"), "hf", "hf", "BF16")
        keep(select(file, prompt, 95 + a, "Q8_0"), "q8_0", "q8_0.gguf", "Q8_0")


if __name__ == "__main__":
    main()
