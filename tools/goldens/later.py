"""Writes the goldens of the latest families: a directory in BF16 as published, and a GGUF file in Q8_0 each.

    python3 later.py crates/welte/tests/goldens [family ...]          needs torch, transformers, gguf, numpy

The gguf package of these goldens lacks most of the families. Tensors must be among those that it lists for others that have them.
`later.json` lists the files.
"""

import functools
import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import gguf
import numpy as np
import torch
import transformers as t
from choose import calmest, clearest
from families import dressed, inverse, like_llama, renamed
from make import LLAMA3, PROMPT, SMALL, THETA, VOCAB, WINDOW, directory, logits, rope_factors
from plain import ROPE
from seeded import Gguf, Goldens

COMMON = dict(SMALL, vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5, attn_implementation="eager", bos_token_id=0,
              eos_token_id=1, pad_token_id=0, tie_word_embeddings=False)


def without(c, *keys):
    return {key: value for key, value in c.items() if key not in keys}


@dataclass
class Family:
    """How a model is made, its name in GGUF, the architectures whose tensors it has, and its keys and names there."""

    make: Callable
    gguf: str
    like: tuple
    keys: Callable
    stems: dict = field(default_factory=dict)
    outer: dict = field(default_factory=dict)
    # What norms add to their weights. GGUF contains the sum.
    norm_add: float = 0.0
    # How much matrices of layers spread. Deep models with convolutions carry rounding on.
    gain: float = 1.3
    # Of how many seeds, if there are experts, and among how many with the clearest choices the calmest is taken.
    tries: int = 80
    among: int = 16
    # How a directory is written, if not as transformers does.
    write: Callable = directory
    # Tensors that the package lists for no architecture.
    more: str = "^$"
    # What a directory has beside a language model.
    beside: str = "^$"
    # Tokens of the head.
    vocabulary: int = VOCAB


LOCAL = 1000.0


def lfm3():
    kinds = ["conv", "full_attention", "sliding_attention", "conv", "full_attention"]
    rope = {"full_attention": {"rope_type": "proportional", "rope_theta": THETA, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL}}
    c = without(COMMON, "rms_norm_eps", "num_hidden_layers")
    return t.Lfm3ForCausalLM(t.Lfm3Config(**c | {"tie_word_embeddings": True}, num_hidden_layers=5, layer_types=kinds, norm_eps=1e-5,
                                          rope_parameters=rope, sliding_window=WINDOW, conv_L_cache=5))


def lfm3_keys(made, c):
    w = made.keys
    kinds, half = c.layer_types, c.head_dim // 2
    w.add_head_count_kv([0 if kind == "conv" else c.num_key_value_heads for kind in kinds])
    w.add_layer_norm_rms_eps(c.norm_eps)
    w.add_rope_dimension_count(c.head_dim)
    w.add_float32("lfm3.rope.freq_base_swa", LOCAL)
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    w.add_shortconv_l_cache(c.conv_L_cache)
    made.exact("rope_freqs.weight", [1.0] * (half // 2) + [1e30] * (half - half // 2))


def flex_olmo():
    return t.FlexOlmoForCausalLM(t.FlexOlmoConfig(**without(COMMON, "head_dim"), rope_parameters=ROPE, num_experts=4, num_experts_per_tok=2,
                                                  experts_implementation="eager"))


def flex_olmo_keys(made, c):
    w = made.keys
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.intermediate_size)


# Tokens beyond these have no row in the head.
KNOWN = 200


def apertus1p5():
    return t.Apertus1p5TextForCausalLM(t.Apertus1p5TextConfig(**without(COMMON, "head_dim"), rope_parameters=dict(LLAMA3, rope_theta=THETA),
                                                              output_vocab_size=KNOWN))


def as_apertus1p5(model, folder, seed):
    """In the sections of the published checkpoint, without what encodes pictures and sounds."""
    pairs = [("model.", "model.language_model.")]
    config = {"architectures": ["Apertus1p5ForConditionalGeneration"], "model_type": "apertus1p5", "dtype": "bfloat16",
              "tie_word_embeddings": False, "text_config": json.loads(model.config.to_json_string(use_diff=False))}
    to, back = (lambda tensors, pairs=own: renamed(tensors, pairs) for own in (pairs, inverse(pairs)))
    stored = dressed(model, folder, seed, config, to, back, whole=True)
    # Its rope was rounded.
    model = build("apertus1p5", seed)
    model.load_state_dict(stored.state_dict())
    return model


def apertus_keys(made, c, model):
    w = made.keys
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    parts = [layer.mlp.act_fn for layer in model.model.layers]
    w.add_xielu_alpha_p([p.alpha_p.item() for p in parts])
    w.add_xielu_alpha_n([p.alpha_n.item() for p in parts])
    w.add_xielu_beta([p.beta.item() for p in parts])
    w.add_xielu_eps([p.eps.item() for p in parts])
    c.head_dim = head_dim(c)
    made.exact("rope_freqs.weight", rope_factors(c))


def minimax_m3():
    text = without(COMMON, "attn_implementation", "tie_word_embeddings", "pad_token_id") | {
        "intermediate_size": 32, "num_hidden_layers": 3, "dense_intermediate_size": 96, "shared_intermediate_size": 32, "num_local_experts": 4,
        "num_experts_per_tok": 2, "rotary_dim": 32, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
        "mlp_layer_types": ["dense", "sparse", "sparse"], "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_n_heads": 1, "index_head_dim": 32, "index_block_size": 16, "index_topk_blocks": 8}
    pictures = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    return t.MiniMaxM3SparseForConditionalGeneration(t.MiniMaxM3VLConfig(
        text_config=text, vision_config=pictures, projector_hidden_size=24, attn_implementation="eager", experts_implementation="eager"))


def minimax_m3_keys(made, c):
    w = made.keys
    w.add_feed_forward_length(c.dense_intermediate_size)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_dimension_count(c.rotary_dim)
    w.add_expert_count(c.num_local_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.intermediate_size)
    w.add_expert_shared_count(1)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(True)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_leading_dense_block_count(1)
    for key, value in (("head_count", c.index_n_heads), ("key_length", c.index_head_dim), ("top_k", c.index_topk_blocks),
                       ("block_size", c.index_block_size), ("local_blocks", c.index_local_blocks)):
        w.add_uint32(f"minimax-m3.attention.indexer.{key}", value)


def hy_v4():
    c = without(COMMON, "head_dim", "tie_word_embeddings") | {"num_key_value_heads": 2, "num_hidden_layers": 3}
    return t.HYV4ForCausalLM(t.HYV4Config(
        **c, rope_parameters=ROPE, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=64, kv_lora_rank=32,
        qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, index_topk=128, index_head_dim=32, index_n_heads=2, hc_mult=3, hc_magnitude=1.5,
        swiglu_limit=0.7, indexer_types=["full", "full", "shared"], experts_implementation="eager"))


# From the names in transformers to those of the published checkpoint, which its own saving mixes up.
HY_V4 = [("self_attn.gate_proj", "self_attn.linear_gate"), ("self_attn.sinks", "self_attn.learnable_sink_param"),
         ("attn_hc.", "hc_attn_layer.hc_pre.hc_"), ("ffn_hc.", "hc_mlp_layer.hc_pre.hc_"), ("hc_head.hc_", "hc_head.hc_head_")]


def as_hy_v4(model, folder, seed):
    own = model.state_dict()
    to = lambda _: renamed(own, HY_V4)
    return dressed(model, folder, seed, {"architectures": ["HYV4ForCausalLM"], "model_type": "hy_v4"}, to,
                   lambda tensors: renamed(tensors, inverse(HY_V4)))


def hy_v4_keys(made, c):
    w = made.keys
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_dimension_count(c.qk_rope_head_dim)
    w.add_q_lora_rank(c.q_lora_rank)
    w.add_kv_lora_rank(c.kv_lora_rank)
    w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
    w.add_value_length(c.kv_lora_rank)
    w.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim)
    w.add_value_length_mla(c.v_head_dim)
    w.add_expert_count(c.n_routed_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(True)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_leading_dense_block_count(1)
    own = "hy_v4."
    w.add_array(own + "swiglu_clamp_exp", [c.swiglu_limit] * c.num_hidden_layers)
    w.add_uint32(own + "hyper_connection.count", c.hc_mult)
    w.add_float32(own + "hyper_connection.epsilon", c.hc_eps)
    w.add_float32(own + "hyper_connection.magnitude", c.hc_magnitude)
    w.add_uint32(own + "attention.indexer.head_count", c.index_n_heads)
    w.add_uint32(own + "attention.indexer.key_length", c.index_head_dim)
    w.add_uint32(own + "attention.indexer.top_k", c.index_topk)
    w.add_array(own + "attention.indexer.types", [kind == "full" for kind in c.indexer_types])


def hy_v4_parts(block, rest, value, c):
    """What only Hunyuan 4 has. Its files turn neighbours, where transformers turns halves."""
    if rest == "self_attn.kv_b_proj.weight":
        heads = value.reshape(c.num_attention_heads, -1, value.shape[-1])
        keys, values = heads[:, : c.qk_nope_head_dim], heads[:, c.qk_nope_head_dim :]
        return [(block + "attn_k_b.weight", keys.swapaxes(1, 2)), (block + "attn_v_b.weight", values)]
    part = re.fullmatch(r"(attn|ffn)_hc\.(fn|base|scale)", rest)
    if part:
        return [(f"{block}hc_{part[1]}_{part[2]}.weight", value)]
    return None


def neighbours(rest, c):
    """The order of rows in which those that are turned together are neighbours; None if a tensor has none."""
    rope, before = c.qk_rope_head_dim, {"self_attn.q_b_proj.weight": (c.num_attention_heads, c.qk_nope_head_dim),
                                        "self_attn.kv_a_proj_with_mqa.weight": (1, c.kv_lora_rank)}.get(rest, (0, 0))
    heads, plain = before
    pairs = [i + half for i in range(rope // 2) for half in (0, rope // 2)]
    one = [*range(plain), *(plain + i for i in pairs)]
    return [head * (plain + rope) + i for head in range(heads) for i in one] or None


def jais2():
    return t.Jais2ForCausalLM(t.Jais2Config(**without(COMMON, "rms_norm_eps"), rope_parameters=ROPE, layer_norm_eps=1e-5))


def jais2_keys(made, c):
    made.keys.add_head_count_kv(c.num_key_value_heads)
    made.keys.add_layer_norm_eps(c.layer_norm_eps)


def hyperclovax():
    return t.HyperCLOVAXForCausalLM(t.HyperCLOVAXConfig(**like_llama(COMMON), rope_parameters=ROPE, embedding_multiplier=2.0,
                                                        logits_scaling=0.5, attention_multiplier=0.2))


def hyperclovax_keys(made, c):
    w = made.keys
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_embedding_scale(c.embedding_multiplier)
    w.add_attention_scale(c.attention_multiplier)
    w.add_residual_scale(c.residual_multiplier)
    w.add_logit_scale(c.logits_scaling)


def vaultgemma():
    return t.VaultGemmaForCausalLM(t.VaultGemmaConfig(**COMMON | {"tie_word_embeddings": True}, rope_parameters=ROPE, sliding_window=WINDOW,
                                                      query_pre_attn_scalar=64, attn_logit_softcapping=5.0, final_logit_softcapping=6.0))


def vaultgemma_keys(made, c):
    w = made.keys
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_sliding_window(c.sliding_window)
    w.add_attn_logit_softcapping(c.attn_logit_softcapping)
    w.add_final_logit_softcapping(c.final_logit_softcapping)


def flint():
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    return t.FlintForCausalLM(t.FlintConfig(
        **COMMON | {"num_hidden_layers": 4}, rope_parameters=ROPE, sliding_window=WINDOW, layer_types=kinds, mlp_only_layers=[0], num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64, experts_implementation="eager"))


def flint_keys(made, c):
    w = made.keys
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    w.add_expert_weights_norm(True)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_leading_dense_block_count(1)


ATTENTION = {f"self_attn.{part}_proj": f"attn_{name}" for part, name in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"), ("g", "gate"))}
ATTENTION |= {f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"}
ATTENTION |= {f"self_attn.indexer.{part}": f"indexer.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")}
DENSE = {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")} | {"mlp.gate": "ffn_gate_inp"}
DENSE |= {f"mlp.{kind}.{part}_proj": f"ffn_{part}_shexp" for kind in ("shared_experts", "shared_expert") for part in ("gate", "up", "down")}
LATENTS = {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
           "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.gate_proj": "attn_gate"}
LATENTS |= {f"self_attn.indexer.{part}": f"indexer.{own}" for part, own in (("wq_b", "attn_q_b"), ("wk", "attn_k"), ("weights_proj", "proj"))}
AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
BEFORE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}

FAMILIES = {
    "lfm3": Family(lfm3, "lfm3", ("LFM2", "AFMOE"), lfm3_keys, ATTENTION | {
        "operator_norm": "attn_norm", "post_operator_norm": "post_attention_norm", "post_ffn_norm": "post_ffw_norm",
        "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
        "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down", "ffn_norm": "ffn_norm"},
        {"embedding_norm": "token_embd_norm"}, gain=0.8),
    "flex_olmo": Family(flex_olmo, "flex_olmo", ("OLMOE", "OLMO2"), flex_olmo_keys, ATTENTION | DENSE | AFTER),
    "apertus1p5": Family(apertus1p5, "apertus", ("APERTUS",), apertus_keys, ATTENTION | DENSE | {
        "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}, beside=r"\.act_fn\.", write=as_apertus1p5, vocabulary=KNOWN),
    "minimax_m3": Family(minimax_m3, "minimax-m3", ("MINIMAXM2", "DEEPSEEK2"), minimax_m3_keys, ATTENTION | DENSE | BEFORE, norm_add=1.0,
                         more=r"\.indexer\.", beside="vision_tower|multi_modal_projector"),
    "hy_v4": Family(hy_v4, "hy_v4", ("DEEPSEEK2", "GPT_OSS", "AFMOE"), hy_v4_keys, ATTENTION | DENSE | BEFORE | LATENTS,
                    more="indexer|hc_", write=as_hy_v4),
    "jais2": Family(jais2, "jais2", ("JAIS2",), jais2_keys, ATTENTION | DENSE | BEFORE),
    "hyperclovax": Family(hyperclovax, "hyperclovax", ("GRANITE", "GEMMA2"), hyperclovax_keys, ATTENTION | DENSE | BEFORE | {
        "post_norm1": "post_attention_norm", "post_norm2": "post_ffw_norm"}),
    "vaultgemma": Family(vaultgemma, "vaultgemma", ("GEMMA2",), vaultgemma_keys, ATTENTION | DENSE | BEFORE | {
        "pre_feedforward_layernorm": "ffn_norm"}, norm_add=1.0),
    "flint": Family(flint, "flint", ("AFMOE", "GPT_OSS"), flint_keys, ATTENTION | DENSE | BEFORE, tries=300, among=3),
}


def head_dim(c):
    return getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads


def tensors_of(model):
    """The parameters, and the biases of the experts' choice, which do not count as such."""
    biases = [(name, b) for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return [*model.named_parameters(), *biases]


def build(name, seed):
    """A random model, with weights that spread the logits over several units."""
    family = FAMILIES[name]
    model = family.make()
    g = torch.Generator().manual_seed(seed)
    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for key, p in tensors_of(model):
            random = torch.randn(p.shape, generator=g)
            if "norm" in key:
                p.copy_(1 - family.norm_add + 0.2 * random)
            elif key.endswith(("_hc.scale", "hc_head.hc_scale")):
                p.copy_(1 + 0.3 * random)
            elif key.endswith(("_hc.base", "hc_head.hc_base", "sinks")):
                p.copy_(0.5 * random)
            elif key.endswith("bias"):
                p.copy_(0.1 * random)
            elif "conv.conv" in key:
                p.copy_(0.6 * random)
            elif "embed" in key:
                p.copy_(random * (0.3 if tied else 1))
            elif "lm_head" in key:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(random * family.gain / p.shape[-1] ** 0.5)
    return model.float().eval()


def parts_of(name, key, value, c):
    """The tensors of GGUF that a parameter becomes, as views of its values."""
    family = FAMILIES[name]
    key = key.removeprefix("model.").removeprefix("language_model.")
    stem, _, kind = key.rpartition(".")
    outer = OUTER | family.outer
    if stem == "hc_head":
        return [(f"output_{kind}.weight", value)]
    if stem in outer:
        return [(f"{outer[stem]}.{kind}", value)]
    _, layer, rest = key.split(".", 2)
    block = f"blk.{layer}."
    own = name == "hy_v4" and hy_v4_parts(block, rest, value, c)
    if own:
        return own
    if rest.endswith("correction_bias"):
        return [(block + "exp_probs_b.bias", value)]
    if "gate_up_proj" in rest and ".experts." not in rest:
        half, end = len(value) // 2, "_shexp" if "shared" in rest else ""
        return [(f"{block}ffn_gate{end}.weight", value[:half]), (f"{block}ffn_up{end}.weight", value[half:])]
    if ".experts." in rest:
        if "down" in rest:
            return [(block + "ffn_down_exps.weight", value)]
        half = value.shape[1] // 2
        return [(block + "ffn_gate_exps.weight", value[:, :half]), (block + "ffn_up_exps.weight", value[:, half:])]
    if rest == "self_attn.sinks":
        return [(block + "attn_sinks.weight", value)]
    stem, _, kind = rest.rpartition(".")
    if stem == "conv.conv":
        value = value[:, 0]
    return [(f"{block}{family.stems[stem]}.{kind}", value)]


def write_gguf(path, name, model, seed):
    """Stores the model in Q8_0 with weights from a seed, and puts what was stored back into the model."""
    family, c = FAMILIES[name], model.config.get_text_config()
    made = Gguf(path, family.gguf, seed)
    w = made.keys
    w.add_name(f"golden {name}")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    if name != "minimax_m3":
        w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    if name != "hy_v4":
        w.add_key_length(head_dim(c))
        w.add_value_length(head_dim(c))
    w.add_rope_freq_base(THETA)
    w.add_vocab_size(VOCAB)
    family.keys(*(made, c, model)[: family.keys.__code__.co_argcount])
    listed = {gguf.TENSOR_NAMES[tensor] for arch in family.like for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH[arch]]}
    for key, p in tensors_of(model):
        if c.tie_word_embeddings and key == "lm_head.weight" or re.search(family.beside, key):
            continue
        value, add = p.detach().float().numpy().copy(), family.norm_add if "norm" in key else 0
        order = neighbours(key.split(".", 3)[-1], c) if name == "hy_v4" else None
        if order:
            value = value[order]
        for own, rows in parts_of(name, key, value, c):
            known = re.sub(r"(\.weight|\.bias)$", "", re.sub(r"^blk\.\d+", "blk.{bid}", own)) in listed
            assert known or re.search(family.more, own), own
            plain = rows.ndim == 1 or re.search(r"shortconv\.conv|ffn_gate_inp|hc_", own)
            rows[...] = made.put(own, rows + add, "F32" if plain else "Q8_0") - add
        if order:
            value = value[np.argsort(order)]
        with torch.no_grad():
            p.copy_(torch.from_numpy(value))
    made.finish()


def main():
    torch.set_num_threads(1)
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(FAMILIES)
    goldens = Goldens(out, "later.json")
    for name in wanted:
        number = list(FAMILIES).index(name)
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        vocabulary = FAMILIES[name].vocabulary
        prompt = np.random.default_rng(890 + number).integers(2, vocabulary, PROMPT).tolist()

        def keep(model, kind, path):
            stem = path.removesuffix(".gguf")
            goldens.keep(f"{name}/{stem}", f"{name}/{path}", name, kind, prompt, logits(model, prompt), vocabulary)

        def file(seed):
            model = build(name, seed)
            write_gguf(folder / "q8_0.gguf", name, model, seed)
            return model

        def write(seed):
            return FAMILIES[name].write(build(name, seed).to(torch.bfloat16), folder / "hf", seed)

        mixed = any("experts" in key for key, _ in build(name, 0).named_parameters())
        select = functools.partial(clearest, tries=FAMILIES[name].tries, among=FAMILIES[name].among) if mixed else functools.partial(calmest, tries=24)
        keep(select(write, prompt, 7000 + 100 * number, "BF16"), "BF16", "hf")
        keep(select(file, prompt, 7050 + 100 * number, "Q8_0"), "Q8_0", "q8_0.gguf")


if __name__ == "__main__":
    main()
