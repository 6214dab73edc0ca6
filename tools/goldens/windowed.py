"""Writes the goldens of families whose layers have windows: a directory in BF16 as published, and a GGUF file in Q8_0 each.

    python3 windowed.py crates/welte/tests/goldens [family ...]          needs torch, transformers, gguf, numpy

The gguf package of these goldens lacks the families. Tensors must be among those that it lists for others that have them.
`windowed.json` lists the files.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import torch
import transformers as t
from choose import calmest, clearest
from families import FACTORS, WithHead, dressed, inverse, like_llama, renamed
from make import PROMPT, SMALL, THETA, VOCAB, WINDOW, directory, logits, swap
from plain import FOUR, ROPE, TYPES
from seeded import Gguf, Goldens

COMMON = dict(SMALL, vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5, attn_implementation="eager", bos_token_id=0,
              eos_token_id=1, pad_token_id=0) | FOUR


class MuseGlimmer(WithHead):
    """The language model of Muse Glimmer."""

    def forward(self, tokens):
        cap = self.config.final_logit_softcapping
        logits = super().forward(tokens).logits * self.config.output_multiplier
        return SimpleNamespace(logits=cap * torch.tanh(logits / cap))


# The epsilon of the norms before parts is large, so that it cannot be taken for that of the norms after them.
def muse_glimmer():
    return MuseGlimmer(t.MuseGlimmerTextConfig(**COMMON | {"rms_norm_eps": 0.05}, rope_parameters=ROPE, sliding_window=WINDOW,
                                               qk_scale_factor=1.5, output_multiplier=0.8, final_logit_softcapping=6.0))


# A layer of each kind has no rope.
def granite_swa():
    return t.GraniteSWAForCausalLM(t.GraniteSWAConfig(**like_llama(COMMON) | FACTORS, rope_parameters=ROPE, sliding_window=WINDOW,
                                                      layer_types=["full_attention", *TYPES[1:]], layer_rope_theta=[0, THETA, 0, THETA]))


def granitemoe_swa():
    shape = like_llama(COMMON) | FACTORS | {"num_hidden_layers": 2, "intermediate_size": 32}
    return t.GraniteMoeSWAForCausalLM(t.GraniteMoeSWAConfig(**shape, rope_parameters=ROPE, sliding_window=WINDOW, num_local_experts=4,
                                                            num_experts_per_tok=2, shared_intermediate_size=64,
                                                            tie_word_embeddings=False, experts_implementation="eager"))


# How each is made, its name in GGUF, and the architectures whose tensors it has.
FAMILIES = {"muse_glimmer": (muse_glimmer, "muse-glimmer", "AFMOE"), "granite_swa": (granite_swa, "granite_swa", "MIMO2"),
            "granitemoe_swa": (granitemoe_swa, "granite_swa", "MIMO2", "MISTRAL4")}


def added(name, key):
    """What a norm adds to its weights. GGUF contains the sum."""
    return 1 if name == "muse_glimmer" and key.endswith("layernorm.weight") else 0


def build(name, seed):
    """A random model, with weights that spread the logits over several units."""
    model = FAMILIES[name][0]()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            random = torch.randn(p.shape, generator=g)
            if "norm" in key:
                p.copy_(1 - added(name, key) + 0.2 * random)
            elif "embed" in key:
                p.copy_(0.3 * random)
            elif "lm_head" in key:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


def as_muse_glimmer(model, folder, seed):
    """With the names and sections of the published checkpoint, without its vision model."""
    pairs = [("model.", "model.language_model.")]
    config = {"architectures": ["MuseGlimmerForConditionalGeneration"], "model_type": "muse_glimmer", "dtype": "bfloat16",
              "text_config": json.loads(model.config.to_json_string(use_diff=False))}
    to, back = (lambda tensors, pairs=own: renamed(tensors, pairs) for own in (pairs, inverse(pairs)))
    stored = dressed(model, folder, seed, config, to, back, whole=True)
    # Its rope was rounded.
    model = build("muse_glimmer", seed)
    model.load_state_dict(stored.state_dict())
    return model


OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
STEMS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.gate_proj": "attn_gate", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "block_sparse_moe.router": "ffn_gate_inp", "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps",
         "block_sparse_moe.experts.down_proj": "ffn_down_exps", "shared_mlp.input_linear": "ffn_up_shexp",
         "shared_mlp.output_linear": "ffn_down_shexp",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def name_of(name, key):
    """The name of a parameter in GGUF."""
    stem, _, kind = key.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    layer, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", key).groups()
    if rest == "self_attn.sinks":
        return f"blk.{layer}.attn_sinks.weight"
    after = {"post_attention_layernorm": "post_attention_norm" if name == "muse_glimmer" else "ffn_norm"}
    return f"blk.{layer}.{(STEMS | after)[rest.removesuffix('.weight')]}.weight"


def metadata(made, name, c):
    """What a converter writes about the model."""
    w, head_dim = made.keys, getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_name(f"golden {name}")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(THETA)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(VOCAB)
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])
    if name != "muse_glimmer":
        w.add_array("granite_swa.attention.rope_pattern", [theta != 0 for theta in c.layer_rope_theta])
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_attention_scale(c.attention_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_logit_scale(c.logits_scaling)
        if name == "granitemoe_swa":
            w.add_expert_count(c.num_local_experts)
            w.add_expert_used_count(c.num_experts_per_tok)
            w.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
        return
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_final_logit_softcapping(c.final_logit_softcapping)
    w.add_logit_scale(c.output_multiplier)
    for layer in range(c.num_hidden_layers):
        for part, factor in (("q", c.qk_scale_factor), ("k", 1.0)):
            made.exact(f"blk.{layer}.attn_{part}_norm.weight", np.full(head_dim, factor, np.float32))


def write_gguf(path, name, model, seed):
    """Stores the model in Q8_0 with weights from a seed, and puts what was stored back into the model."""
    _, own_name, *like = FAMILIES[name]
    c, made = model.config, Gguf(path, own_name, seed)
    metadata(made, name, c)
    listed = {gguf.TENSOR_NAMES[tensor] for arch in like for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH[arch]]}
    for key, p in model.named_parameters():
        value, own, add = p.detach().float().numpy().copy(), name_of(name, key), added(name, key)
        assert re.sub(r"^blk\.\d+", "blk.{bid}", own.removesuffix(".weight")) in listed, own
        value = made.put(own, value + add, "F32" if value.ndim == 1 else "Q8_0") - add
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(key.split(".")[-2])
        if heads:
            value = swap(value, heads, back=True)
        with torch.no_grad():
            p.copy_(torch.from_numpy(value))
    made.finish()


def main():
    torch.set_num_threads(1)
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(FAMILIES)
    goldens = Goldens(out, "windowed.json")
    for name in wanted:
        number = list(FAMILIES).index(name)
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        prompt = np.random.default_rng(870 + number).integers(2, VOCAB, PROMPT).tolist()

        def keep(model, kind, path):
            stem = path.removesuffix(".gguf")
            goldens.keep(f"{name}/{stem}", f"{name}/{path}", name, kind, prompt, logits(model, prompt), VOCAB)

        def file(seed):
            model = build(name, seed)
            write_gguf(folder / "q8_0.gguf", name, model, seed)
            return model

        def write(seed):
            model = build(name, seed).to(torch.bfloat16)
            return (as_muse_glimmer if name == "muse_glimmer" else directory)(model, folder / "hf", seed)

        select = clearest if name == "granitemoe_swa" else calmest
        keep(select(write, prompt, 6000 + 100 * number, "BF16"), "BF16", "hf")
        keep(select(file, prompt, 6050 + 100 * number, "Q8_0"), "Q8_0", "q8_0.gguf")


if __name__ == "__main__":
    main()
