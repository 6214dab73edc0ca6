"""Writes the goldens of further families: a directory in BF16 and a GGUF file in Q8_0 each.

    python3 families.py crates/welte/tests/goldens [family ...]          needs torch, transformers, gguf, numpy

Families that transformers lacks are computed by one of its models with the same arithmetic, and stored under their own names: MiniCPM and
InternLM2 as Granite and Llama, Ling 1 as Granite with a shared expert, Ling 2 as Sarvam. Tensors in GGUF must be among those that the gguf
package lists for the family. `families.json` lists the files.
"""

import copy
import functools
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from choose import calmest, clearest
from make import LLAMA3, PROMPT, SMALL, THETA, VOCAB, WINDOW, directory, logits, rope_factors, save, swap
from plain import FEW, FOUR, GROUPS, MIXED, ROPE, TYPES, without
from seeded import Gguf, Goldens, Safetensors

YARN = {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": 16}
HALF = dict(ROPE, partial_rotary_factor=0.5)
QUARTER = dict(ROPE, partial_rotary_factor=0.25)
LAYER_NORM = {"layer_norm_eps": 1e-5}
FACTORS = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 0.8}
SOME = {"num_experts": 4, "num_experts_per_tok": 2}
SHARED = {"num_shared_experts": 2}


def like_llama(c):
    return without(c, "head_dim")


def layer_normed(c):
    return without(c, "head_dim", "rms_norm_eps") | LAYER_NORM


def olmoe(c):
    return t.OlmoeForCausalLM(t.OlmoeConfig(**like_llama(c) | MIXED | SOME | {"intermediate_size": 32}, rope_parameters=ROPE))


def qwen2moe(c):
    return t.Qwen2MoeForCausalLM(t.Qwen2MoeConfig(**like_llama(c) | MIXED | SOME, shared_expert_intermediate_size=64, rope_parameters=ROPE))


def granitemoe(c):
    return t.GraniteMoeSharedForCausalLM(t.GraniteMoeSharedConfig(**like_llama(c) | MIXED | FACTORS | {
        "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 64}, rope_parameters=ROPE))


def bailingmoe(c):
    plain = {"attention_multiplier": 32**-0.5}
    return t.GraniteMoeSharedForCausalLM(t.GraniteMoeSharedConfig(**like_llama(c) | MIXED | plain | {
        "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 64}, rope_parameters=ROPE))


def arcee(c):
    return t.ArceeForCausalLM(t.ArceeConfig(**c, rope_parameters=ROPE))


def nemotron(c):
    return t.NemotronForCausalLM(t.NemotronConfig(**without(c, "rms_norm_eps"), norm_eps=1e-5, rope_parameters=HALF))


def minimax_m2(c):
    return t.MiniMaxM2ForCausalLM(t.MiniMaxM2Config(**c | MIXED | {"intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
                                                    rope_parameters=HALF))


def bailingmoe2(c):
    config = t.SarvamMoEConfig(**c | MIXED | GROUPS | FEW | {"n_group": 2, "topk_group": 1}, rope_parameters=HALF, first_k_dense_replace=1,
                               routed_scaling_factor=2.5)
    return t.AutoModelForCausalLM.from_config(config)


def dots1(c):
    return t.Dots1ForCausalLM(t.Dots1Config(**c | MIXED | GROUPS | FEW, rope_parameters=ROPE, first_k_dense_replace=1, norm_topk_prob=True,
                                            routed_scaling_factor=1.5))


def hunyuan_moe(c):
    rope = {"rope_type": "dynamic", "rope_theta": THETA, "alpha": 50.0, "factor": 1.0}
    return t.HunYuanMoEV1ForCausalLM(t.HunYuanMoEV1Config(**without(c | MIXED, "num_experts_per_tok", "moe_intermediate_size") | {
        "intermediate_size": 32, "num_experts": 4, "moe_topk": 2}, rope_parameters=rope))


def solar_open(c):
    return t.SolarOpenForCausalLM(t.SolarOpenConfig(**without(c | MIXED, "intermediate_size") | GROUPS | FEW, rope_parameters=ROPE,
                                                    routed_scaling_factor=1.5))


def exaone_moe(c):
    return t.ExaoneMoeForCausalLM(t.ExaoneMoeConfig(**c | MIXED | FOUR | SOME | SHARED, rope_parameters=ROPE, sliding_window=WINDOW,
                                                    layer_types=TYPES, first_k_dense_replace=2))


def afmoe(c):
    return t.AfmoeForCausalLM(t.AfmoeConfig(**c | MIXED | FOUR | SOME | SHARED, rope_parameters=ROPE, sliding_window=WINDOW, layer_types=TYPES,
                                            num_dense_layers=2, route_scale=1.5, mup_enabled=True))


def stablelm(c):
    return t.StableLmForCausalLM(t.StableLmConfig(**layer_normed(c), rope_parameters=QUARTER, use_qkv_bias=True))


def stablelm_parallel(c):
    return t.StableLmForCausalLM(t.StableLmConfig(**layer_normed(c), rope_parameters=QUARTER, use_parallel_residual=True,
                                                        qk_layernorm=True))


def phi2(c):
    return t.PhiForCausalLM(t.PhiConfig(**layer_normed(c), rope_parameters=HALF))


def cohere2moe(c):
    shape = without(layer_normed(c) | MIXED | FOUR | SOME | SHARED, "moe_intermediate_size") | {"intermediate_size": 32, "head_dim": 64}
    return t.Cohere2MoeForCausalLM(t.Cohere2MoeConfig(
        **shape, prefix_dense_intermediate_size=96, rope_parameters=ROPE, sliding_window=WINDOW, logit_scale=0.5, expert_selection_fn="sigmoid",
        layer_types=TYPES[::-1], mlp_layer_types=["dense"] + ["sparse"] * 3))


def command_r(c):
    return t.CohereForCausalLM(t.CohereConfig(**layer_normed(c), rope_parameters=ROPE, logit_scale=0.5))


def exaone(c):
    return t.AutoModelForCausalLM.from_config(t.ExaoneConfig(**like_llama(c), rope_parameters=dict(LLAMA3, rope_theta=THETA)))


def glm(c):
    return t.GlmForCausalLM(t.GlmConfig(**c, rope_parameters=HALF))


def command_r_plus(c):
    return t.CohereForCausalLM(t.CohereConfig(**layer_normed(c), rope_parameters=ROPE, logit_scale=0.5, use_qk_norm=True))


# One of all factors each, none of them 1.
FALCON = {"embedding_multiplier": 1.5, "lm_head_multiplier": 0.8, "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.9,
          "key_multiplier": 0.7, "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.6, "mlp_multipliers": [0.8, 1.3],
          "ssm_multipliers": [0.9, 1.2, 0.7, 1.3, 0.8]}


def falcon_h1(c, factors=FALCON):
    mamba = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 24}
    return t.FalconH1ForCausalLM(t.FalconH1Config(**c | mamba | factors, rope_parameters=ROPE))


# Queries of layers without rope grow from position 3 on.
def llama4(c):
    rope = dict(LLAMA3, rope_theta=THETA, low_freq_factor=1.0, high_freq_factor=1.0)
    return t.Llama4ForCausalLM(t.Llama4TextConfig(**c | FOUR | {"intermediate_size": 32, "intermediate_size_mlp": 96}, rope_parameters=rope,
                                                  num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
                                                  attention_chunk_size=WINDOW, floor_scale=4, attn_scale=0.5))


def gptneox(c, parallel=True):
    return t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**without(layer_normed(c), "num_key_value_heads"), use_parallel_residual=parallel,
                                                rope_parameters=QUARTER))


def gptneox_serial(c):
    return gptneox(c, parallel=False)


# Layers with a window have more heads, and rotate whole heads with another base.
def laguna(c):
    ropes = {"full_attention": dict(YARN, partial_rotary_factor=0.5),
             "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0}}
    return t.LagunaForCausalLM(t.LagunaConfig(**c | MIXED | FOUR | SOME, rope_parameters=ropes, sliding_window=WINDOW, layer_types=TYPES[::-1],
                                              num_attention_heads_per_layer=[2, 3, 3, 3], shared_expert_intermediate_size=64,
                                              moe_routed_scaling_factor=1.5))


def laguna_full(c):
    ropes = {"full_attention": dict(ROPE, partial_rotary_factor=1.0)}
    return t.LagunaForCausalLM(t.LagunaConfig(**c | MIXED | SOME, rope_parameters=ropes, gating="per-element",
                                              shared_expert_intermediate_size=64, moe_routed_scaling_factor=1.5))


class WithHead(torch.nn.Module):
    """A language model that transformers has without a head."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = getattr(t, f"{type(self).__name__}TextModel")(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        return SimpleNamespace(logits=self.lm_head(self.model(tokens).last_hidden_state))

    def save_pretrained(self, folder):
        folder.mkdir()
        save_file(self.state_dict(), folder / "model.safetensors", {"format": "pt"})
        self.config.save_pretrained(folder)


class Step3p7(WithHead):
    """Step 3.5 is the language model of Step 3.7."""


class DeepseekOcr2(WithHead):
    """DeepSeek-MoE has the arithmetic of DeepSeek-OCR 2's language model."""


def deepseek(c):
    shape = without(c, "head_dim") | MIXED | {"num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    return DeepseekOcr2(t.DeepseekOcr2TextConfig(**shape, n_routed_experts=4, n_shared_experts=2, rope_parameters=ROPE,
                                                 mlp_layer_types=["dense", "sparse"]))


# Layers with a window have more heads of both kinds, and the last ones limits that many values exceed.
STEP_LIMITS = {"swiglu_limits": [None, None, 0.3, 0.2], "swiglu_limits_shared": [0.0, 0.0, 0.4, 0.25]}


def step35(c):
    ropes = {"full_attention": dict(LLAMA3, rope_theta=THETA, partial_rotary_factor=0.5),
             "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0}}
    shape = without(c, "num_key_value_heads") | MIXED | FOUR | STEP_LIMITS | {"num_experts_per_tok": 2}
    return Step3p7(t.Step3p7TextConfig(**shape, num_key_value_heads=2, n_routed_experts=4, num_sliding_attention_heads=4,
                                       rope_parameters=ropes, sliding_window=WINDOW, layer_types=TYPES[::-1], share_expert_dim=64,
                                       mlp_layer_types=["dense"] + ["sparse"] * 3, moe_router_scaling_factor=1.5))


# Layers with a window have twice the heads of keys and values.
def mimo2(c):
    part = {"rope_type": "default", "partial_rotary_factor": 0.334}
    ropes = {"full_attention": dict(part, rope_theta=THETA), "sliding_attention": dict(part, rope_theta=1000.0)}
    return t.MiMoV2FlashForCausalLM(t.MiMoV2FlashConfig(**c | MIXED | FOUR | {"num_experts_per_tok": 2, "head_dim": 96}, v_head_dim=64,
                                                        n_routed_experts=4, rope_parameters=ropes, sliding_window=WINDOW,
                                                        layer_types=TYPES[::-1], n_group=1, topk_group=1))


def mamba2(c):
    shape = {"num_hidden_layers": 3, "num_heads": 4, "head_dim": 32, "state_size": 24, "n_groups": MAMBA_GROUPS}
    names = ("rms_norm_eps", "intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "attn_implementation")
    return t.Mamba2ForCausalLM(t.Mamba2Config(**without(c, *names) | shape, layer_norm_epsilon=1e-5))


def hy_v3(c):
    return t.HYV3ForCausalLM(t.HYV3Config(**c | MIXED | SOME | {"num_hidden_layers": 3}, num_shared_experts=1, rope_parameters=ROPE,
                                          router_scaling_factor=1.5))


def mellum(c):
    ropes = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}
    return t.MellumForCausalLM(t.MellumConfig(**c | MIXED | FOUR | SOME, rope_parameters=ropes, sliding_window=WINDOW, layer_types=TYPES))


class Nothing(torch.nn.Module):
    """In place of attention, of a feed-forward part, or of the norm before it."""

    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, x=None, hidden_states=None, **_):
        return self.result(x if hidden_states is None else hidden_states)


# Heads of keys and values, and factors of the feed-forward part.
BLOCKS = [(2, 4.0), (None, 8.0), (1, None), (1, 4.0)]


def deci(c):
    """Llama whose layers have other widths, or lack a part."""
    shape = like_llama(c) | FOUR | {"num_key_value_heads": 2, "head_dim": 32}
    model = t.LlamaForCausalLM(t.LlamaConfig(**shape, rope_parameters=dict(LLAMA3, rope_theta=THETA)))
    for index, (layer, (kv_heads, factor)) in enumerate(zip(model.model.layers, BLOCKS)):
        own = copy.deepcopy(model.config)
        if kv_heads:
            own.num_key_value_heads = kv_heads
            layer.self_attn = t.models.llama.modeling_llama.LlamaAttention(own, index)
        else:
            layer.input_layernorm = Nothing(lambda x: x)
            layer.self_attn = Nothing(lambda x: (torch.zeros_like(x), None))
        if factor:
            own.intermediate_size = -int(2 * factor * c["hidden_size"] / 3) // 256 * -256
            layer.mlp = t.models.llama.modeling_llama.LlamaMLP(own)
        else:
            layer.post_attention_layernorm = Nothing(lambda x: x)
            layer.mlp = Nothing(torch.zeros_like)
    return model


def olmo(c):
    return t.OlmoForCausalLM(t.OlmoConfig(**without(c, "head_dim", "rms_norm_eps"), rope_parameters=ROPE))


def internlm2(c):
    return t.LlamaForCausalLM(t.LlamaConfig(**like_llama(c) | {"num_attention_heads": 4, "num_key_value_heads": 2}, rope_parameters=ROPE))


SCALE_DEPTH, BASE = 1.4, 16


def minicpm(c):
    factors = {"embedding_multiplier": 3.0, "attention_multiplier": 32**-0.5, "residual_multiplier": SCALE_DEPTH / c["num_hidden_layers"] ** 0.5,
               "logits_scaling": c["hidden_size"] / BASE}
    return t.GraniteForCausalLM(t.GraniteConfig(**like_llama(c) | factors, rope_parameters=ROPE))


# How each is made, its architecture in GGUF, and whether GGUF keeps the rows of Q and K in pairs.
FAMILIES = {
    "olmoe": (olmoe, "OLMOE", False),
    "qwen2moe": (qwen2moe, "QWEN2MOE", False),
    "granitemoe": (granitemoe, "GRANITE_MOE", True),
    "arcee": (arcee, "ARCEE", True),
    "nemotron": (nemotron, "NEMOTRON", False),
    "minimax_m2": (minimax_m2, "MINIMAXM2", False),
    "bailingmoe": (bailingmoe, "BAILINGMOE", True),
    "bailingmoe2": (bailingmoe2, "BAILINGMOE2", False),
    "dots1": (dots1, "DOTS1", False),
    "hunyuan_moe": (hunyuan_moe, "HUNYUAN_MOE", False),
    "exaone_moe": (exaone_moe, "EXAONE_MOE", False),
    "afmoe": (afmoe, "AFMOE", False),
    "stablelm": (stablelm, "STABLELM", False),
    "stablelm_parallel": (stablelm_parallel, "STABLELM", False),
    "phi2": (phi2, "PHI2", False),
    "command_r": (command_r, "COMMAND_R", False),
    "olmo": (olmo, "OLMO", True),
    "internlm2": (internlm2, "INTERNLM2", True),
    "minicpm": (minicpm, "MINICPM", True),
    "exaone": (exaone, "EXAONE", False),
    "glm": (glm, "CHATGLM", False),
    "command_r_plus": (command_r_plus, "COMMAND_R", False),
    "solar_open": (solar_open, "GLM4_MOE", False),
    "falcon_h1": (falcon_h1, "FALCON_H1", False),
    "llama4": (llama4, "LLAMA4", False),
    "gptneox": (gptneox, "GPTNEOX", False),
    "gptneox_serial": (gptneox_serial, "GPTNEOX", False),
    # The gguf package of these goldens lacks them (`NEWER`). These have their tensors.
    "laguna": (laguna, "AFMOE", False),
    "laguna_full": (laguna_full, "AFMOE", False),
    "step35": (step35, "STEP35", False),
    "mimo2": (mimo2, "MIMO2", False),
    "mamba2": (mamba2, "MAMBA2", False),
    "deepseek": (deepseek, "DEEPSEEK", True),
    "hy_v3": (hy_v3, "DOTS1", False),
    "mellum": (mellum, "QWEN3MOE", False),
    "deci": (deci, "DECI", True),
    "cohere2moe": (cohere2moe, "DOTS1", False),
}


NEWER = {"laguna": "laguna", "laguna_full": "laguna", "hy_v3": "hy_v3", "mellum": "mellum", "cohere2moe": "cohere2moe"}
# Norms add 1 to their weights. GGUF contains the sum.
ADDS_ONE = ("nemotron", "step35")


def build(name, seed, make=None):
    common = dict(SMALL, vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5, attn_implementation="eager",
                  bos_token_id=0, eos_token_id=1, pad_token_id=0)
    torch.manual_seed(seed)
    model = (make or FAMILIES[name][0])(common)
    g = torch.Generator().manual_seed(seed)
    tied = getattr(model.config, "tie_word_embeddings", False)
    # Large embeddings make what layers add vanish.
    embeddings = {"afmoe": 0.125, "minicpm": 0.3, "granitemoe": 0.3}.get(name, 0.3 if tied else 1.0)
    with torch.no_grad():
        for key, p in [*model.named_parameters(), *model.named_buffers()]:
            random = torch.randn(p.shape, generator=g)
            if "correction_bias" in key or "expert_bias" in key:
                p.copy_(0.1 * random)
            elif not isinstance(p, torch.nn.Parameter):
                continue
            elif key.endswith("A_log"):
                p.copy_(0.7 * random)
            elif key.endswith("dt_bias"):
                p.copy_(-1 + random)
            elif "conv1d" in key or key.endswith(".D"):
                p.copy_(0.5 * random)
            elif "norm" in key:
                p.copy_((0 if key.endswith("bias") or name in ADDS_ONE else 1) + 0.2 * random)
            elif key.endswith("bias"):
                p.copy_(0.5 * random)
            elif "embed" in key:
                p.copy_(random * embeddings)
            elif "lm_head" in key or "embed_out" in key:
                p.copy_(random * (10.0 if name == "minicpm" else 2.5) / p.shape[1] ** 0.5)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


# The parts of names after a layer's number, and the names of what GGUF has.
STEMS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.g_proj": "attn_gate", "self_attn.dense": "attn_output", "self_attn.gate_proj": "attn_gate", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "mlp.router.gate": "ffn_gate_inp",
    "mlp.gate.wg": "ffn_gate_inp", "feed_forward.router": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
STEMS |= {f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
STEMS |= {"norm": "attn_norm", "mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out", "mamba.conv1d": "ssm_conv1d"}
STEMS |= {f"{shared}.{part}_proj": f"ffn_{part}_shexp"
          for shared in ("mlp.shared_expert", "mlp.shared_experts", "mlp.shared_mlp", "feed_forward.shared_expert") for part in ("gate", "up", "down")}
OWN_STEMS = {
    "afmoe": {"post_attention_layernorm": "post_attention_norm", "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm"},
    "solar_open": {"post_attention_layernorm": "post_attention_norm"},
}
MAMBA_GROUPS = 2
# In GGUF A is not a logarithm, and these are columns.
MAMBA = {"mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.dt_bias": "ssm_dt.bias"}
STEMS |= {"attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
OUTER = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm", "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
         "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.final_layernorm": "output_norm", "lm_head": "output"}


def parts_of(name, key, value):
    """The tensors of GGUF that a parameter becomes, as views of its values."""
    stem, _, kind = key.rpartition(".")
    if stem in OUTER:
        return [(f"{OUTER[stem]}.{kind}", value)]
    layer, rest = re.fullmatch(r"\w+\.layers\.(\d+)\.(.*)", key).groups()
    rest = rest.replace("mixer.", "mamba.")
    block = f"blk.{layer}."
    if rest == "self_attn.sinks":
        return [(block + "attn_sinks.weight", value)]
    if rest == "pre_ff_layernorm.weight":
        return [(block + "ffn_norm", value)]
    if rest == "mamba.norm.weight":
        return [(block + "ssm_norm.weight", value.reshape(MAMBA_GROUPS, -1))]
    if rest in MAMBA:
        return [(block + MAMBA[rest], value if rest.endswith("bias") else value[:, None])]
    if rest == "mamba.conv1d.weight":
        return [(block + "ssm_conv1d.weight", value[:, 0])]
    if "correction_bias" in rest or "expert_bias" in rest:
        return [(block + ("exp_probs_b" if name == "hy_v3" else "exp_probs_b.bias"), value)]
    if ".experts." in rest or rest.endswith("shared_mlp.input_linear.weight"):
        ends = "_shexp" if "shared" in rest else "_exps"
        if name == "llama4":
            value = value.swapaxes(1, 2)
        half = value.shape[-2] // 2
        if "down" in rest:
            return [(f"{block}ffn_down{ends}.weight", value)]
        return [(f"{block}ffn_gate{ends}.weight", value[..., :half, :]), (f"{block}ffn_up{ends}.weight", value[..., half:, :])]
    stem, _, kind = rest.rpartition(".")
    stems = STEMS | OWN_STEMS.get(name, {})
    return [(f"{block}{stems[stem]}.{kind}", value)]


def step35_metadata(made, model):
    c, w = model.config, made.keys
    windowed = [kind == "sliding_attention" for kind in c.layer_types]
    w.add_head_count([c.num_sliding_attention_heads if window else c.per_layer_config[0].num_attention_heads for window in windowed])
    w.add_head_count_kv([c.num_key_value_heads] * len(windowed))
    w.add_sliding_window_pattern(windowed)
    w.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
    w.add_expert_shared_feed_forward_length(c.share_expert_dim)
    w.add_expert_weights_scale(c.moe_router_scaling_factor)
    w.add_expert_weights_norm(True)
    w.add_leading_dense_block_count(1)
    w.add_moe_every_n_layers(1)
    w.add_swiglu_clamp_exp([limit or 0.0 for limit in c.swiglu_limits])
    w.add_swiglu_clamp_shexp([limit or 0.0 for limit in c.swiglu_limits_shared])
    scaled = model.model.rotary_emb.full_attention_inv_freq
    plain = THETA ** (-torch.arange(len(scaled)) / len(scaled))
    made.exact("rope_freqs.weight", torch.cat([plain / scaled, torch.ones(c.head_dim // 2 - len(scaled))]).numpy())


def mimo2_metadata(made, c):
    w = made.keys
    windowed = [int(kind == "sliding_attention") for kind in c.layer_types]
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv([c.num_key_value_heads * (1 + window) for window in windowed])
    w.add_sliding_window_pattern(windowed)
    w.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
    w.add_float32("mimo2.attention.value_scale", c.attention_value_scale)
    w.add_expert_group_count(c.n_group)
    w.add_expert_group_used_count(c.topk_group)


def mamba2_metadata(w, c):
    w.add_context_length(2**20)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(c.conv_kernel)
    w.add_ssm_inner_size(c.expand * c.hidden_size)
    w.add_ssm_state_size(c.state_size)
    w.add_ssm_time_step_rank(c.num_heads)
    w.add_ssm_group_count(c.n_groups)
    w.add_layer_norm_rms_eps(c.layer_norm_epsilon)
    w.add_vocab_size(VOCAB)


def metadata(made, name, model):
    """What a converter writes about the model."""
    c, w = model.config, made.keys
    of = lambda *keys: next((v for v in (getattr(c, key, None) for key in keys) if v is not None), None)
    head_dim = of("head_dim") or c.hidden_size // c.num_attention_heads
    w.add_name(f"golden {name}")
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    if name == "mamba2":
        return mamba2_metadata(w, c)
    w.add_context_length(512)
    widths = [getattr(layer.mlp, "intermediate_size", 0) for layer in model.model.layers] if name == "deci" else None
    w.add_feed_forward_length(widths or of("prefix_dense_intermediate_size", "intermediate_size_mlp", "intermediate_size", "moe_intermediate_size"))
    if name == "step35":
        step35_metadata(made, model)
    elif name == "mimo2":
        mimo2_metadata(made, c)
    elif name == "deci":
        w.add_head_count([c.num_attention_heads if kv_heads else 0 for kv_heads, _ in BLOCKS])
        w.add_head_count_kv([kv_heads or 0 for kv_heads, _ in BLOCKS])
    else:
        w.add_head_count(of("num_attention_heads_per_layer") or c.num_attention_heads)
        w.add_head_count_kv(of("num_key_value_heads", "num_attention_heads"))
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    part = rope.get("partial_rotary_factor", 1.0)
    if of("head_dim"):
        w.add_key_length(head_dim)
        w.add_value_length(of("v_head_dim") or head_dim)
    if name != "step35":
        w.add_rope_dimension_count(int(head_dim * part))
    w.add_rope_freq_base(THETA * 50.0 ** (head_dim / (head_dim - 2)) if name == "hunyuan_moe" else THETA)
    if of("rms_norm_eps"):
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
    else:
        w.add_layer_norm_eps(of("layer_norm_eps", "norm_eps") or 1e-5)
    w.add_vocab_size(VOCAB)
    if of("sliding_window") and "layer_types" in c.to_dict() and "sliding_attention" in c.layer_types:
        w.add_sliding_window(c.sliding_window)
    if name == "falcon_h1":
        w.add_ssm_conv_kernel(c.mamba_d_conv)
        w.add_ssm_state_size(c.mamba_d_state)
        w.add_ssm_group_count(c.mamba_n_groups)
        w.add_ssm_inner_size(c.mamba_d_ssm)
        w.add_ssm_time_step_rank(c.mamba_n_heads)
    if name == "laguna":
        w.add_rope_dimension_count_swa(head_dim)
        w.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if name == "mellum":
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])
        w.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if name == "llama4":
        w.add_sliding_window(c.attention_chunk_size)
        w.add_attn_temperature_length(c.floor_scale)
        w.add_attn_temperature_scale(c.attn_scale)
        w.add_interleave_moe_layer_step(c.interleave_moe_layer_step)
    if name.startswith(("command_r", "cohere2moe")):
        w.add_logit_scale(c.logit_scale)
    if name.startswith(("stablelm", "gptneox")):
        w.add_parallel_residual(c.use_parallel_residual)
    if name in ("granitemoe", "minicpm"):
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_logit_scale(c.logits_scaling)
    if name in ("exaone", "llama4", "deci"):
        c.head_dim = head_dim
        made.exact("rope_freqs.weight", rope_factors(c))
    if name == "granitemoe":
        w.add_attention_scale(c.attention_multiplier)
    count = of("num_experts", "num_local_experts", "n_routed_experts")
    if not count:
        return
    w.add_expert_count(count)
    w.add_expert_used_count(c.num_experts_per_tok)
    if name not in ("olmoe", "granitemoe"):
        w.add_expert_feed_forward_length(of("moe_intermediate_size") or c.intermediate_size)
    if name == "qwen2moe":
        w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    if name == "granitemoe":
        w.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    if name == "hunyuan_moe":
        w.add_expert_shared_feed_forward_length(c.intermediate_size)
        w.add_expert_shared_count(1)
    if name == "cohere2moe":
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])
        w.add_leading_dense_block_count(1)
        w.add_expert_shared_count(c.num_shared_experts)
        w.add_expert_shared_feed_forward_length(c.intermediate_size * c.num_shared_experts)
        w.add_expert_weights_norm(c.norm_topk_prob)
    if name == "hy_v3":
        w.add_expert_shared_feed_forward_length(c.moe_intermediate_size * c.num_shared_experts)
        w.add_expert_weights_scale(c.router_scaling_factor)
        w.add_expert_weights_norm(True)
    if name == "deepseek":
        w.add_leading_dense_block_count(1)
        w.add_expert_shared_count(c.n_shared_experts)
        w.add_expert_weights_scale(1.0)
    if name == "bailingmoe":
        w.add_leading_dense_block_count(0)
        w.add_expert_shared_count(2)
        w.add_expert_weights_scale(1.0)
        w.add_expert_weights_norm(True)
    if name in ("bailingmoe2", "dots1", "exaone_moe", "afmoe", "solar_open"):
        w.add_leading_dense_block_count(of("first_k_dense_replace", "num_dense_layers") or 0)
        w.add_expert_shared_count(of("n_shared_experts", "num_shared_experts"))
        w.add_expert_weights_scale(of("routed_scaling_factor", "route_scale"))
        w.add_expert_weights_norm(True)
    if name.startswith("laguna"):
        w.add_leading_dense_block_count(1)
        w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
        w.add_expert_weights_scale(c.moe_routed_scaling_factor)
        w.add_expert_weights_norm(True)
    if name in ("bailingmoe2", "minimax_m2", "exaone_moe", "solar_open", "laguna", "laguna_full", "step35", "mimo2", "hy_v3", "cohere2moe"):
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if name == "bailingmoe2":
        w.add_expert_group_count(c.n_group)
        w.add_expert_group_used_count(c.topk_group)


def joined_qkv(made, model):
    """Stores queries, keys and values of each layer as one matrix."""
    for number, layer in enumerate(model.model.layers):
        parts = [getattr(layer.self_attn, f"{part}_proj").weight for part in "qkv"]
        rows = torch.cat([part.detach() for part in parts]).float().numpy()
        stored = torch.from_numpy(made.put(f"blk.{number}.attn_qkv.weight", rows, "Q8_0"))
        with torch.no_grad():
            for part, own in zip(parts, stored.split([len(part) for part in parts])):
                part.copy_(own)


def ungrouped_qkv(made, model):
    """Stores queries, keys and values of all heads, which follow each other head by head."""
    for number, layer in enumerate(model.gpt_neox.layers):
        matrix = layer.attention.query_key_value
        for kind, part, stored_as in (("weight", matrix.weight, "Q8_0"), ("bias", matrix.bias, "F32")):
            heads = part.detach().float().numpy().reshape(model.config.num_attention_heads, 3, -1, *part.shape[1:])
            rows = heads.swapaxes(0, 1)
            stored = made.put(f"blk.{number}.attn_qkv.{kind}", rows.reshape(part.shape), stored_as).reshape(rows.shape)
            with torch.no_grad():
                part.copy_(torch.from_numpy(stored.swapaxes(0, 1).reshape(part.shape).copy()))


def norms_of_heads(made, model):
    """Stores the weights of all heads' norms as rows of a matrix."""
    for number, layer in enumerate(model.model.layers):
        for part in "qk":
            norms = getattr(layer.self_attn, f"{part}_layernorm").norms
            rows = torch.stack([norm.weight.detach() for norm in norms]).float().numpy()
            stored = made.put(f"blk.{number}.attn_{part}_norm.weight", rows)
            with torch.no_grad():
                for norm, own in zip(norms, torch.from_numpy(stored.reshape(len(norms), -1))):
                    norm.weight.copy_(own)


def write_gguf(path, name, model, seed, more=None):
    """Stores the model in Q8_0 with weights from a seed, and puts what was stored back into the model."""
    _, arch, paired = FAMILIES[name]
    arch, c = gguf.MODEL_ARCH[arch], model.config
    made = Gguf(path, NEWER.get(name) or gguf.MODEL_ARCH_NAMES[arch], seed)
    metadata(made, name, model)
    listed = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    one = 1 if name in ADDS_ONE else 0
    if name == "stablelm_parallel":
        norms_of_heads(made, model)
    if name == "bailingmoe2":
        joined_qkv(made, model)
    if name.startswith("gptneox"):
        ungrouped_qkv(made, model)
    for key, p in [*model.named_buffers(), *model.named_parameters()]:
        value = p.detach().float().numpy().copy()
        done = name == "bailingmoe2" and key.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
        tied = key == "lm_head.weight" and getattr(c, "tie_word_embeddings", False)
        if done or tied or any(part in key for part in ("layernorm.norms", "inv_freq", "mup_vector", "query_key_value")):
            continue
        for own, rows in parts_of(name, key, value):
            assert re.sub(r"(\.weight|\.bias)$", "", re.sub(r"^blk\.\d+", "blk.{bid}", own)) in listed, own
            if own.endswith("ssm_a"):
                made.exact(own, -np.exp(rows))
            elif own.endswith(("ssm_d", "conv1d.weight")):
                rows[...] = made.put(own, rows)
            elif rows.ndim == 1 or rows.shape[0] == 1 or "_norm." in own:
                add = one if "norm" in own and own.endswith("weight") else 0
                rows[...] = made.put(own, (rows if "_norm." in own else rows.reshape(-1)) + add).reshape(rows.shape) - add
            else:
                rows[...] = made.put(own, rows, "Q8_0")
        own = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(key.split(".")[-2]) if paired else None
        if own:
            heads = len(value) // c.head_dim if name == "deci" else getattr(c, own)
            value = swap(value, heads, back=True)
        with torch.no_grad():
            p.copy_(torch.from_numpy(value))
    if more:
        more(made)
    made.finish()


def dressed(model, folder, seed, config, to, back, whole=False):
    """Writes a directory under the names of a family that transformers lacks. `to` gives its tensors for the model's, `back` the model's.
    `whole`: the configuration is all of it."""
    save(model, folder)
    path, own = folder / "config.json", {} if whole else dict(json.loads((folder / "config.json").read_text()))
    for key in ("architectures", "model_type", *(key for key in own if key.endswith(("_multiplier", "scaling", "num_local_experts", "_linear")))):
        own.pop(key, None)
    path.write_text(json.dumps(own | config, indent=1) + "\n")
    save_file({key: value.contiguous() for key, value in to(load_file(folder / "model.safetensors")).items()},
              folder / "model.safetensors", {"format": "pt"})
    weights = Safetensors(folder / "model.safetensors", seed)
    stored = {key: value.float() for key, value in load_file(folder / "model.safetensors").items()}
    model.float().load_state_dict(back(stored), strict=True)
    weights.cut()
    return model.eval()


def renamed(tensors, pairs):
    out = {}
    for key, value in tensors.items():
        for old, new in pairs:
            key = key.replace(old, new)
        out[key] = value
    return out


def inverse(pairs):
    return [(new, old) for old, new in pairs]


LAYERS = re.compile(r"model\.layers\.(\d+)\.")


def layers_of(tensors):
    return sorted({match.group() for match in map(LAYERS.match, tensors) if match})


def as_internlm2(model, folder, seed):
    c = model.config
    groups, head = c.num_key_value_heads, c.hidden_size // c.num_attention_heads
    each = c.num_attention_heads // groups
    pairs = [("embed_tokens", "tok_embeddings"), ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"),
             ("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"),
             ("mlp.down_proj", "feed_forward.w2"), ("lm_head", "output")]
    names = ["q_proj", "k_proj", "v_proj"]

    def to(tensors):
        for layer in layers_of(tensors):
            parts = [tensors.pop(f"{layer}self_attn.{name}.weight").reshape(groups, -1, head, c.hidden_size) for name in names]
            tensors[f"{layer}attention.wqkv.weight"] = torch.cat(parts, 1).reshape(-1, c.hidden_size)
        return renamed(tensors, pairs)

    def back(tensors):
        for layer in layers_of(tensors):
            joined = tensors.pop(f"{layer}attention.wqkv.weight").reshape(groups, each + 2, head, c.hidden_size)
            for name, part in zip(names, (joined[:, :each], joined[:, each], joined[:, each + 1])):
                tensors[f"{layer}self_attn.{name}.weight"] = part.reshape(-1, c.hidden_size)
        return renamed(tensors, inverse(pairs))

    return dressed(model, folder, seed, {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"]}, to, back)


def as_minicpm(model, folder, seed):
    config = {"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "scale_emb": 3.0, "scale_depth": SCALE_DEPTH, "dim_model_base": BASE}
    return dressed(model, folder, seed, config, lambda tensors: tensors, lambda tensors: tensors)


LING = [("embed_tokens", "word_embeddings"), ("self_attn.o_proj", "attention.dense"), ("block_sparse_moe.router.layer", "mlp.gate"),
        ("shared_mlp.output_linear", "mlp.shared_experts.down_proj")]


def as_bailingmoe(model, folder, seed):
    c = model.config
    q, kv, ffn = c.hidden_size, c.num_key_value_heads * c.hidden_size // c.num_attention_heads, c.intermediate_size
    config = {"model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"], "num_experts": c.num_local_experts,
              "num_shared_experts": 2, "moe_intermediate_size": ffn, "intermediate_size": 96, "first_k_dense_replace": 0,
              "norm_topk_prob": True, "norm_head": False}
    names = ["q_proj", "k_proj", "v_proj"]

    def to(tensors):
        for layer in layers_of(tensors):
            tensors[f"{layer}attention.query_key_value.weight"] = torch.cat([tensors.pop(f"{layer}self_attn.{name}.weight") for name in names])
            pair, down = (tensors.pop(f"{layer}block_sparse_moe.{part}_linear.weight") for part in ("input", "output"))
            for expert in range(c.num_local_experts):
                own = (pair[expert, :ffn], pair[expert, ffn:], down[expert])
                for part, value in zip(("gate", "up", "down"), own):
                    tensors[f"{layer}mlp.experts.{expert}.{part}_proj.weight"] = value.clone()
            shared = tensors.pop(f"{layer}shared_mlp.input_linear.weight")
            for part, value in zip(("gate", "up"), shared.chunk(2)):
                tensors[f"{layer}mlp.shared_experts.{part}_proj.weight"] = value.clone()
        return renamed(tensors, LING)

    def back(tensors):
        for layer in layers_of(tensors):
            joined = tensors.pop(f"{layer}attention.query_key_value.weight").split([q, kv, kv])
            tensors |= {f"{layer}self_attn.{name}.weight": value for name, value in zip(names, joined)}
            part = lambda name: torch.stack([tensors.pop(f"{layer}mlp.experts.{e}.{name}_proj.weight") for e in range(c.num_local_experts)])
            gate, up, down = map(part, ("gate", "up", "down"))
            tensors[f"{layer}block_sparse_moe.experts.gate_up_proj"] = torch.cat([gate, up], 1)
            tensors[f"{layer}block_sparse_moe.experts.down_proj"] = down
            pair = [tensors.pop(f"{layer}mlp.shared_experts.{name}_proj.weight") for name in ("gate", "up")]
            tensors[f"{layer}shared_mlp.input_linear.weight"] = torch.cat(pair)
        return renamed(tensors, inverse(LING[:2] + [("block_sparse_moe.router", "mlp.gate")] + LING[3:]))

    return dressed(model, folder, seed, config, to, back)


STEP = [("mlp.shared_experts.", "share_expert."), ("mlp.gate.weight", "moe.gate.weight"), ("mlp.gate.e_score_correction_bias", "moe.router_bias"),
        ("mlp.experts.down_proj", "moe.down_proj.weight")]


def as_step35(model, folder, seed):
    """With the names and keys of the published checkpoint. Its lists have an entry for a layer that guesses ahead."""
    c = model.config
    rope = c.rope_parameters
    windowed = [kind == "sliding_attention" for kind in c.layer_types] + [True]
    scaling = {key: value for key, value in rope["full_attention"].items() if key not in ("rope_theta", "partial_rotary_factor")}
    each = lambda full, other: [other if window else full for window in windowed]
    heads = c.per_layer_config[0].num_attention_heads
    config = {
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": [1],
        "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size, "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": heads, "num_attention_groups": c.num_key_value_heads, "head_dim": c.head_dim, "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_position_embeddings, "rms_norm_eps": c.rms_norm_eps, "tie_word_embeddings": False,
        "num_nextn_predict_layers": 1, "sliding_window": c.sliding_window,
        "layer_types": c.layer_types + ["sliding_attention"], "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": c.num_sliding_attention_heads,
            "num_attention_groups": c.num_key_value_heads, "head_dim": c.head_dim, "true_head_dim": c.head_dim},
        "use_head_wise_attn_gate": True, "moe_layers_enum": "1,2,3", "moe_num_experts": c.n_routed_experts,
        "moe_top_k": c.num_experts_per_tok, "moe_intermediate_size": c.moe_intermediate_size, "share_expert_dim": c.share_expert_dim,
        "use_moe_router_bias": True, "moe_router_activation": "sigmoid", "moe_router_scaling_factor": c.moe_router_scaling_factor,
        "norm_expert_weight": True, "swiglu_limits": c.swiglu_limits + [None], "swiglu_limits_shared": c.swiglu_limits_shared + [0.0],
        "rope_theta": each(THETA, rope["sliding_attention"]["rope_theta"]), "partial_rotary_factors": each(0.5, 1.0),
        "rope_scaling": scaling, "yarn_only_types": ["full_attention"], "zero_centered": True}

    def to(tensors):
        for layer in layers_of(tensors):
            pair = tensors.pop(f"{layer}mlp.experts.gate_up_proj", None)
            if pair is not None:
                halves = pair.split(c.moe_intermediate_size, 1)
                tensors |= {f"{layer}moe.{part}_proj.weight": half for part, half in zip(("gate", "up"), halves)}
        return renamed(tensors, STEP)

    def back(tensors):
        for layer in layers_of(tensors):
            if f"{layer}moe.gate.weight" in tensors:
                pair = [tensors.pop(f"{layer}moe.{part}_proj.weight") for part in ("gate", "up")]
                tensors[f"{layer}mlp.experts.gate_up_proj"] = torch.cat(pair, 1)
        return renamed(tensors, inverse(STEP))

    return dressed(model, folder, seed, config, to, back, whole=True)


def as_deepseek(model, folder, seed):
    c = model.config
    rope = c.rope_parameters
    config = {key: getattr(c, key) for key in (
        "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act")}
    config |= {"architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "first_k_dense_replace": 1, "moe_layer_freq": 1,
               "norm_topk_prob": False, "scoring_func": "softmax", "rope_theta": rope["rope_theta"], "rope_scaling": None, "bos_token_id": 0,
               "eos_token_id": 1, "tie_word_embeddings": False, "dtype": "bfloat16"}
    ffn = c.moe_intermediate_size
    experts = [f"model.layers.{layer}.mlp.experts." for layer, kind in enumerate(c.mlp_layer_types) if kind == "sparse"]

    def to(tensors):
        for prefix in experts:
            pair, down = tensors.pop(prefix + "gate_up_proj"), tensors.pop(prefix + "down_proj")
            for expert, own in enumerate(zip(pair[:, :ffn], pair[:, ffn:], down)):
                tensors |= {f"{prefix}{expert}.{part}_proj.weight": value.clone() for part, value in zip(("gate", "up", "down"), own)}
        return tensors

    def back(tensors):
        for prefix in experts:
            part = lambda name: torch.stack([tensors.pop(f"{prefix}{expert}.{name}_proj.weight") for expert in range(c.n_routed_experts)])
            gate, up, down = map(part, ("gate", "up", "down"))
            tensors |= {prefix + "gate_up_proj": torch.cat([gate, up], 1), prefix + "down_proj": down}
        return tensors

    return dressed(model, folder, seed, config, to, back, whole=True)


def as_deci(model, folder, seed):
    c = model.config
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act")
    block = lambda kv_heads, factor: {
        "attention": {"n_heads_in_group": kv_heads and c.num_attention_heads // kv_heads, "no_op": not kv_heads, "num_sink_tokens": None,
                      "replace_with_linear": False},
        "ffn": {"ffn_mult": factor, "no_op": not factor, "replace_with_linear": False}}
    scaling = {key: value for key, value in c.rope_parameters.items() if key != "rope_theta"}
    config = {key: getattr(c, key) for key in keys} | {
        "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "block_configs": [block(*own) for own in BLOCKS],
        "intermediate_size": None, "num_key_value_heads": None, "rope_theta": THETA, "rope_scaling": scaling, "bos_token_id": 0,
        "eos_token_id": 1, "tie_word_embeddings": False, "dtype": "bfloat16"}
    return dressed(model, folder, seed, config, lambda tensors: tensors, lambda tensors: tensors, whole=True)


def published_exaone(folder):
    path = folder / "config.json"
    own = json.loads(path.read_text())
    for key, name in (("num_hidden_layers", "num_layers"), ("rms_norm_eps", "layer_norm_epsilon"), ("hidden_act", "activation_function")):
        own[name] = own.pop(key)
    path.write_text(json.dumps(own, indent=1) + "\n")


def published_mimo2(folder):
    path = folder / "config.json"
    own = json.loads(path.read_text())
    rope, windowed = own.pop("rope_parameters"), [int(kind == "sliding_attention") for kind in own.pop("layer_types")]
    own |= {"hybrid_layer_pattern": windowed, "moe_layer_freq": [int(kind == "sparse") for kind in own.pop("mlp_layer_types")],
            "rope_theta": rope["full_attention"]["rope_theta"], "swa_rope_theta": rope["sliding_attention"]["rope_theta"],
            "partial_rotary_factor": rope["full_attention"]["partial_rotary_factor"], "layernorm_epsilon": own.pop("rms_norm_eps"),
            "sliding_window": WINDOW - 1, "sliding_window_size": WINDOW - 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
            "swa_num_key_value_heads": 2 * own["num_key_value_heads"], "swa_num_attention_heads": own["num_attention_heads"],
            "swa_head_dim": own["head_dim"], "swa_v_head_dim": own["v_head_dim"], "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False, "routed_scaling_factor": None}
    path.write_text(json.dumps(own, indent=1) + "\n")


def as_ling2(folder):
    """Sarvam's directory with the configuration of Ling 2."""
    path = folder / "config.json"
    own = json.loads(path.read_text())
    rope = own.pop("rope_parameters")
    for key, name in (("n_routed_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")):
        own[name] = own.pop(key)
    own |= {"model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"], "rope_theta": rope["rope_theta"],
            "partial_rotary_factor": rope["partial_rotary_factor"], "use_qk_norm": True, "score_function": "sigmoid"}
    path.write_text(json.dumps(own, indent=1) + "\n")


DRESSED = {"internlm2": as_internlm2, "minicpm": as_minicpm, "bailingmoe": as_bailingmoe, "step35": as_step35, "deepseek": as_deepseek, "deci": as_deci}


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(FAMILIES)
    torch.set_num_threads(1)
    goldens = Goldens(out, "families.json")
    for name in wanted:
        number = list(FAMILIES).index(name)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        prompt = np.random.default_rng(800 + number).integers(2, VOCAB, PROMPT).tolist()

        def keep(model, kind, path):
            stem = path.removesuffix(".gguf")
            goldens.keep(f"{name}/{stem}", f"{name}/{path}", name, kind, prompt, logits(model, prompt), VOCAB)

        def file(seed):
            # Files contain the factors in the matrices.
            model = build(name, seed, functools.partial(falcon_h1, factors={}) if name == "falcon_h1" else None)
            write_gguf(folder / "q8_0.gguf", name, model, seed)
            return model

        def write(seed):
            model = build(name, seed).to(torch.bfloat16)
            if name in DRESSED:
                return DRESSED[name](model, folder / "hf", seed)
            return directory(model, folder / "hf", seed)

        mixed = any("experts" in key for key, _ in build(name, 0).named_parameters())
        select = functools.partial(clearest, tries=400 if name == "laguna" else 40, among=2 if name == "laguna" else None) if mixed else functools.partial(calmest, tries=24 if name == "falcon_h1" else 8)
        keep(select(write, prompt, 2000 + 100 * number, "BF16"), "BF16", "hf")
        edit = {"bailingmoe2": as_ling2, "exaone": published_exaone, "mimo2": published_mimo2}.get(name)
        if edit:
            edit(folder / "hf")
        keep(select(file, prompt, 2050 + 100 * number, "Q8_0"), "Q8_0", "q8_0.gguf")


if __name__ == "__main__":
    main()
