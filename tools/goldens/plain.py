"""Writes the goldens of the plain architectures that came later: a directory in BF16 and a GGUF file in Q8_0 each.

    python3 plain.py crates/welte/tests/goldens [architecture ...]          needs torch, transformers, gguf, numpy

The names of tensors in GGUF are those of the gguf package. `plain.json` lists the files.
"""

import functools
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as t

from choose import calmest, clearest
from make import LLAMA3, ORIGINAL, PROMPT, SMALL, THETA, VOCAB, WINDOW, directory, logits, rope_factors, swap
from seeded import Gguf, Goldens

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


MIXED = {"num_hidden_layers": 2, "moe_intermediate_size": 32, "intermediate_size": 64, "num_experts_per_tok": 4,
         "experts_implementation": "eager"}
LATENT = {"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
# All experts of the used groups are used, so that few choices are close.
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "n_shared_experts": 2}
FEW = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}


def glm4_moe(c):
    rope = dict(ROPE, partial_rotary_factor=0.5)
    return t.Glm4MoeForCausalLM(t.Glm4MoeConfig(**c | MIXED | GROUPS | FEW, rope_parameters=rope, first_k_dense_replace=1,
                                                use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5, num_mtp_layers=0))


def ernie4_5_moe(c):
    shape = {k: v for k, v in MIXED.items() if k != "num_experts_per_tok"}
    return t.Ernie4_5_MoeForCausalLM(t.Ernie4_5_MoeConfig(**without(c, "head_dim") | shape, rope_parameters=ROPE, moe_k=2, moe_num_experts=4,
                                                          moe_num_shared_experts=2, moe_layer_start_index=1))


def latent_yarn(scale):
    return {"rope_type": "yarn", "rope_theta": THETA, "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": scale, "mscale_all_dim": scale}


def deepseek_v2(c):
    return t.DeepseekV2ForCausalLM(t.DeepseekV2Config(**without(c, "head_dim") | MIXED | LATENT | GROUPS, q_lora_rank=None, first_k_dense_replace=1,
                                                      topk_method="group_limited_greedy", rope_parameters=latent_yarn(0.707),
                                                      routed_scaling_factor=2.0))


def deepseek_v3(c):
    return t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**without(c, "head_dim") | MIXED | LATENT | GROUPS, q_lora_rank=32, first_k_dense_replace=1,
                                                      rope_parameters=latent_yarn(1.0), routed_scaling_factor=2.5))


def glm4_moe_lite(c):
    return t.Glm4MoeLiteForCausalLM(t.Glm4MoeLiteConfig(**without(c, "head_dim") | MIXED | LATENT | GROUPS | FEW,
                                                        q_lora_rank=32, rope_parameters=ROPE, routed_scaling_factor=1.8))


def mistral4(c):
    rope = dict(latent_yarn(1.0), original_max_position_embeddings=8, llama_4_scaling_beta=0.1,
                partial_rotary_factor=LATENT["qk_rope_head_dim"] / (LATENT["qk_rope_head_dim"] + LATENT["qk_nope_head_dim"]))
    return t.Mistral4ForCausalLM(t.Mistral4Config(**without(c, "head_dim") | MIXED | LATENT | GROUPS | FEW | {"n_shared_experts": 1},
                                                  q_lora_rank=32, rope_parameters=rope, first_k_dense_replace=0))


def youtu(c):
    return t.YoutuForCausalLM(t.YoutuConfig(**without(c, "head_dim") | LATENT, q_lora_rank=32, rope_parameters=ROPE, tie_word_embeddings=False))


# The context of the tests is within what the indexer chooses (`sparse.py`: beyond).
INDEXED = {"index_topk": 64, "index_head_dim": 32, "index_n_heads": 2}


def deepseek_v32(c):
    return t.DeepseekV32ForCausalLM(t.DeepseekV32Config(**without(c, "head_dim") | MIXED | LATENT | GROUPS | FEW | INDEXED, q_lora_rank=32,
                                                        first_k_dense_replace=1, rope_parameters=latent_yarn(1.0), routed_scaling_factor=2.5))


# The second layer's indexer is that of the first.
def glm_moe_dsa(c):
    return t.GlmMoeDsaForCausalLM(t.GlmMoeDsaConfig(**without(c, "head_dim") | MIXED | LATENT | GROUPS | FEW | INDEXED, q_lora_rank=32,
                                                    first_k_dense_replace=1, rope_parameters=ROPE, routed_scaling_factor=1.8,
                                                    indexer_types=["full", "shared"]))


def glm4(c):
    return t.Glm4ForCausalLM(t.Glm4Config(**c, rope_parameters=dict(ROPE, partial_rotary_factor=0.5)))


# Files do not contain the factors of MiniCPM3, which are those of its one published model, nor the size of a value.
LISTS = [[1 + 0.1 * i for i in range(8)], [2 + 0.1 * i for i in range(8)]]


def minicpm3(c):
    rope = {"rope_type": "longrope", "rope_theta": THETA, "short_factor": LISTS[0], "long_factor": LISTS[1],
            "original_max_position_embeddings": 512}
    return t.MiniCPM3ForCausalLM(t.MiniCPM3Config(**without(c, "head_dim") | LATENT | {"v_head_dim": 16}, q_lora_rank=32, rope_parameters=rope))


# transformers always takes the short list of factors, so both are the same. Magnitudes differ.
FACTORS, MAGNITUDE = [1 + 0.1 * i for i in range(8)], 1.3


def phimoe(c):
    rope = {"rope_type": "longrope", "rope_theta": THETA, "short_factor": FACTORS, "long_factor": FACTORS, "short_mscale": 1.1,
            "long_mscale": MAGNITUDE, "original_max_position_embeddings": ORIGINAL}
    return t.PhimoeForCausalLM(t.PhimoeConfig(**without(c, "head_dim") | {"hidden_size": 32, "intermediate_size": 32}, rope_parameters=rope,
                                              attention_bias=True, lm_head_bias=True, num_local_experts=4, experts_implementation="eager"))


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
    "glm4_moe": (glm4_moe, "GLM4_MOE", False),
    "ernie4_5_moe": (ernie4_5_moe, "ERNIE4_5_MOE", False),
    "deepseek_v2": (deepseek_v2, "DEEPSEEK2", False),
    "deepseek_v3": (deepseek_v3, "DEEPSEEK2", False),
    "glm4_moe_lite": (glm4_moe_lite, "DEEPSEEK2", False),
    "mistral4": (mistral4, "MISTRAL4", False),
    "phimoe": (phimoe, "PHIMOE", False),
    "youtu": (youtu, "DEEPSEEK2", False),
    "deepseek_v32": (deepseek_v32, "DEEPSEEK2", False),
    "glm_moe_dsa": (glm_moe_dsa, "GLM_DSA", False),
    "glm4": (glm4, "GLM4", False),
    "minicpm3": (minicpm3, "MINICPM3", False),
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
            if name == "phimoe" and "post_attention_layernorm.bias" in key:
                p.copy_(2 * random)  # steadies the choice of experts
            elif "norm" in key:
                p.copy_((0 if key.endswith("bias") else 1) + 0.2 * random)
            elif "e_score_correction_bias" in key:
                p.copy_(0.1 * random)
            elif "act_fn" in key:
                p.copy_(0.5 * random)
            elif key.endswith("bias"):
                p.copy_(0.5 * random)
            elif "embed" in key:
                p.copy_(random * (0.06 if name == "minicpm3" else 0.3 if tied else 1.0))
            elif "lm_head" in key:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
        for key, b in model.named_buffers():
            if "e_score_correction_bias" in key:
                b.copy_(0.1 * torch.randn(b.shape, generator=g))
    return model.float().eval()


def metadata(made, name, model):
    """What a converter writes about the model."""
    c, w = model.config, made.keys
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_name(f"golden {name}")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    if name == "minicpm3":
        w.add_head_count_kv(c.num_key_value_heads)
        w.add_q_lora_rank(c.q_lora_rank)
        w.add_kv_lora_rank(c.kv_lora_rank)
        w.add_key_length(c.qk_nope_head_dim + c.qk_rope_head_dim)
        w.add_rope_dimension_count(c.qk_rope_head_dim)
        for which, factors in zip(("short", "long"), LISTS):
            made.exact(f"rope_factors_{which}.weight", factors)
    elif name in LATENTS:
        w.add_head_count_kv(1)
        w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
        w.add_value_length(c.kv_lora_rank)
        w.add_rope_dimension_count(c.qk_rope_head_dim)
    else:
        w.add_head_count_kv(c.num_key_value_heads)
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_rope_dimension_count(head_dim // 2 if name in ("glm4_moe", "glm4") else head_dim)
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
        c.head_dim = head_dim
        made.exact("rope_freqs.weight", rope_factors(c))
    if name == "phimoe":
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        w.add_rope_scaling_orig_ctx_len(ORIGINAL)
        w.add_rope_scaling_attn_factors(MAGNITUDE)
        for which in ("short", "long"):
            made.exact(f"rope_factors_{which}.weight", FACTORS)
    e = getattr(c, "n_routed_experts", None) or getattr(c, "moe_num_experts", None)
    if e:
        w.add_expert_count(e)
        w.add_expert_used_count(getattr(c, "moe_k", None) or c.num_experts_per_tok)
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
        w.add_leading_dense_block_count(getattr(c, "first_k_dense_replace", 1))
    if name == "ernie4_5_moe":
        w.add_interleave_moe_layer_step(1)
        w.add_expert_shared_feed_forward_length(c.moe_intermediate_size * c.moe_num_shared_experts)
    elif e:
        w.add_expert_shared_count(c.n_shared_experts)
        w.add_expert_group_count(c.n_group)
        w.add_expert_group_used_count(c.topk_group)
        w.add_expert_weights_scale(c.routed_scaling_factor)
        w.add_expert_weights_norm(name != "deepseek_v2")
        softmax = name in ("deepseek_v2", "mistral4")
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if softmax else gguf.ExpertGatingFuncType.SIGMOID)
    if name in LATENTS:
        if c.q_lora_rank:
            w.add_q_lora_rank(c.q_lora_rank)
        w.add_kv_lora_rank(c.kv_lora_rank)
        w.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim)
        w.add_value_length_mla(c.v_head_dim)
        rope = c.rope_parameters
        if rope["rope_type"] == "yarn":
            w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            w.add_rope_scaling_factor(rope["factor"])
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            # The converter of DeepSeek writes a tenth of the weight.
            w.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"] * (1.0 if name == "mistral4" else 0.1))
        if name in SPARSE:
            w.add_indexer_head_count(c.index_n_heads)
            w.add_indexer_key_length(c.index_head_dim)
            w.add_indexer_top_k(c.index_topk)
        if name == "mistral4":
            w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


SPARSE = ("deepseek_v32", "glm_moe_dsa")
LATENTS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu", *SPARSE)
# The gguf package of these goldens has no such architecture. It has DeepSeek V3's tensors and those of GLM-5's indexer.
NAMES = {"deepseek_v32": "deepseek32"}


def parts_of(key, value, c):
    """The tensors that GGUF splits one into, as views of its values."""
    block = f"blk.{key.split('.')[2]}"
    if "kv_b_proj" in key:
        heads = value.reshape(c.num_attention_heads, c.qk_nope_head_dim + c.v_head_dim, c.kv_lora_rank)
        keys, values = heads[:, :c.qk_nope_head_dim], heads[:, c.qk_nope_head_dim:]
        return [(f"{block}.attn_k_b.weight", keys.swapaxes(1, 2)), (f"{block}.attn_v_b.weight", values)]
    half = value.shape[1] // 2
    if "gate_up" in key:
        return [(f"{block}.ffn_gate_exps.weight", value[:, :half]), (f"{block}.ffn_up_exps.weight", value[:, half:])]
    return [(f"{block}.ffn_down_exps.weight", value)]


def write_gguf(path, name, model, seed, kind="Q8_0", more=lambda made: None):
    """Stores the model with matrices in a format and weights from a seed, and puts what was stored back into the model."""
    _, arch, paired = MODELS[name]
    arch, c = gguf.MODEL_ARCH[arch], model.config
    names, indexer = (gguf.get_tensor_name_map(kind, c.num_hidden_layers) for kind in (arch, gguf.MODEL_ARCH.GLM_DSA))
    made = Gguf(path, NAMES.get(name, gguf.MODEL_ARCH_NAMES[arch]), seed)
    metadata(made, name, model)
    for key, p in [*model.named_buffers(), *model.named_parameters()]:
        value = p.detach().float().numpy().copy()
        if "e_score_correction_bias" in key:
            value[...] = made.put(f"blk.{key.split('.')[2]}.exp_probs_b.bias", value.reshape(-1)).reshape(value.shape)
        elif not isinstance(p, torch.nn.Parameter) or "act_fn" in key or key == "lm_head.weight" and getattr(c, "tie_word_embeddings", False):
            continue
        elif ".experts." in key or "kv_b_proj" in key and name != "minicpm3":
            for own, rows in parts_of(key, value, c):
                rows[...] = made.put(own, rows, kind)
        else:
            other = indexer if ".indexer." in key else names
            own = other.get_name(key, try_suffixes=(".weight", ".bias"))
            assert own, key
            value = made.put(own, value, "F32" if value.ndim == 1 else kind)
            heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(key.split(".")[-2])
            if paired and heads and value.ndim == 2:
                value = swap(value, heads, back=True)
        with torch.no_grad():
            p.copy_(torch.from_numpy(value))
    more(made)
    made.finish()


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    torch.set_num_threads(1)
    goldens = Goldens(out, "plain.json")
    for name in wanted:
        number = list(MODELS).index(name)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        prompt = np.random.default_rng(300 + number).integers(2, VOCAB, PROMPT).tolist()

        def keep(model, kind, path):
            stem = path.removesuffix(".gguf")
            goldens.keep(f"{name}/{stem}", f"{name}/{path}", name, kind, prompt, logits(model, prompt), VOCAB)

        def file(seed):
            model = build(name, seed)
            write_gguf(folder / "q8_0.gguf", name, model, seed)
            return model

        mixed = "n_routed_experts" in build(name, 0).config.to_dict() or name in ("ernie4_5_moe", "phimoe")
        tries = 200 if name == "phimoe" else 40
        select = functools.partial(clearest, tries=tries) if mixed else calmest
        write = lambda seed: directory(build(name, seed).to(torch.bfloat16), folder / "hf", seed)
        keep(select(write, prompt, 400 + 100 * number, "BF16"), "BF16", "hf")
        keep(select(file, prompt, 450 + 100 * number, "Q8_0"), "Q8_0", "q8_0.gguf")


if __name__ == "__main__":
    main()
