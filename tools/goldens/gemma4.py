"""Writes small Gemma 4 models with transformers' logits.

    python3 tools/goldens/gemma4.py crates/welte/tests/goldens [effective | mixture | small ...]

They go to gemma4, listed in gemma4.json as the other goldens are in index.json: directories as transformers saves them (BF16) and GGUF files
in F32 and F16, each with embeddings per layer, shared keys and values and double-wide layers, and with experts beside a dense part and keys
as values. The window is shorter than the prompt, and full layers have larger heads than windowed ones. A smaller model is in Q8_0 too:
activations rounded to 8 bits move the logits of the larger one by more than the tests allow (rounding.py).
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from make import PROMPT, VOCAB, directory, logits
from seeded import Gguf, Goldens
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

WINDOWED, FULL = "sliding_attention", "full_attention"
COMMON = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 32, "vocab_size": VOCAB, "sliding_window": 8,
          "vocab_size_per_layer_input": VOCAB, "max_position_embeddings": 512, "final_logit_softcapping": 20.0, "bos_token_id": 0,
          "eos_token_id": 1, "pad_token_id": None, "attn_implementation": "eager", "experts_implementation": "eager",
          "rope_parameters": {FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
                              WINDOWED: {"rope_type": "default", "rope_theta": 1000.0}}}
# Layers 4 to 6 share the keys and values of layers 3 and 2.
EFFECTIVE = COMMON | {"num_hidden_layers": 7, "num_key_value_heads": 2, "global_head_dim": 64, "hidden_size_per_layer_input": 32,
                      "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
                      "layer_types": [WINDOWED, WINDOWED, FULL, WINDOWED, WINDOWED, FULL, FULL]}
MIXTURE = COMMON | {"num_hidden_layers": 3, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "global_head_dim": 64,
                    "attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
                    "moe_intermediate_size": 32, "layer_types": [WINDOWED, FULL, FULL]}
SMALL = EFFECTIVE | {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
                     "global_head_dim": 32, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": [WINDOWED, FULL] * 2}
# GGUF files of F32 and F16 would be large. Narrow models in BF16 move by more than the tests allow.
NARROW = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "global_head_dim": 32}
MODELS = {"effective": (EFFECTIVE, ("F32", "F16")), "mixture": (MIXTURE, ("F32", "F16")), "small": (SMALL, ("Q8_0",))}
# Rounding moves the logits of the small model of this seed by little (rounding.py).
SMALL_SEED = 96
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
         "post_per_layer_input_norm": "post_norm", "post_feedforward_layernorm_1": "post_ffw_norm_1",
         "post_feedforward_layernorm_2": "post_ffw_norm_2", "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "router.proj": "ffn_gate_inp"}
# Names whose last part is not a kind of weight.
WHOLE = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
         "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight"}
OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "embed_tokens_per_layer": "per_layer_token_embd",
         "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm"}


def build(config, seed):
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        scalars = [(name, b) for name, b in model.named_buffers() if name.endswith("layer_scalar")]
        for name, p in [*model.named_parameters(), *scalars]:
            random = torch.randn(p.shape, generator=g)
            if name.endswith("layer_scalar"):
                p.copy_(0.8 + 0.1 * random)
            elif "q_norm" in name:  # carries the scale of the scores, which are not scaled otherwise
                p.copy_(0.25 * (1 + 0.2 * random))
            elif name.endswith(("router.scale", "per_expert_scale")) or "norm" in name:
                p.copy_(1 + 0.2 * random)
            elif "embed_tokens_per_layer" in name:
                p.copy_(0.2 * random)
            elif "embed_tokens" in name:
                p.copy_(0.3 * random)
            elif "router.proj" in name:
                p.copy_(2 * random)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


def gguf_name(name):
    name = name.removeprefix("model.")
    if not name.startswith("layers."):
        stem, _, kind = name.rpartition(".")
        return f"{OUTER[stem]}.{kind}"
    _, layer, rest = name.split(".", 2)
    if rest in WHOLE:
        return f"blk.{layer}.{WHOLE[rest]}"
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES[stem]}.{kind}"


def write_gguf(path, model, kind, seed):
    """Stores the matrices in a format, and puts what was stored back into the model."""
    c = model.config
    swa = [t == WINDOWED for t in c.layer_types]
    shapes = [c.per_layer_config[i] for i in range(c.num_hidden_layers)]
    made = Gguf(path, "gemma4", seed)
    w = made.keys
    w.add_name(f"golden gemma4 {kind}")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    shared = c.num_hidden_layers - c.num_kv_shared_layers
    widths = [c.intermediate_size * (2 if c.use_double_wide_mlp and i >= shared else 1) for i in range(c.num_hidden_layers)]
    w.add_feed_forward_length(widths if c.use_double_wide_mlp else widths[0])
    w.add_head_count(c.num_attention_heads)
    kv = [s.num_key_value_heads for s in shapes]
    w.add_head_count_kv(kv if len(set(kv)) > 1 else kv[0])
    large, small = (max(s.head_dim for s in shapes), min(s.head_dim for s in shapes))
    w.add_key_length(large)
    w.add_value_length(large)
    w.add_key_length_swa(small)
    w.add_value_length_swa(small)
    w.add_rope_dimension_count(large)
    w.add_rope_dimension_count_swa(small)
    w.add_rope_freq_base(c.rope_parameters[FULL]["rope_theta"])
    w.add_rope_freq_base_swa(c.rope_parameters[WINDOWED]["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern(swa)
    w.add_shared_kv_layers(c.num_kv_shared_layers)
    w.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input)
    w.add_final_logit_softcapping(c.final_logit_softcapping)
    w.add_vocab_size(VOCAB)
    if c.enable_moe_block:
        w.add_expert_count(c.num_experts)
        w.add_expert_used_count(c.top_k_experts)
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    turned = int(large * c.rope_parameters[FULL]["partial_rotary_factor"] / 2)
    made.exact("rope_freqs.weight", [1.0] * turned + [1e30] * (large // 2 - turned))
    buffers = [(name, b) for name, b in model.named_buffers() if name.endswith("layer_scalar")]
    for name, p in [*model.named_parameters(), *buffers]:
        value = p.detach().numpy().copy()
        plain = value.ndim == 1 or "router" in name or value.shape[-1] % 32 and kind == "Q8_0"
        with torch.no_grad():
            p.copy_(torch.from_numpy(made.put(gguf_name(name), value, "F32" if plain else kind)))
    made.finish()


def published(folder, config):
    """The way the published checkpoints say it."""
    path = folder / "config.json"
    said = json.loads(path.read_text())
    del said["per_layer_config"]
    said |= {key: config[key] for key in ("global_head_dim", "num_global_key_value_heads")}
    path.write_text(json.dumps(said, indent=1) + "\n")


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    folder = out / "gemma4"
    folder.mkdir(parents=True, exist_ok=True)
    goldens = Goldens(out, "gemma4.json")

    def keep(model, name, path, kind, number):
        prompt = np.random.default_rng(600 + number).integers(2, VOCAB, PROMPT).tolist()
        goldens.keep(f"gemma4/{name}", f"gemma4/{path}", "gemma4", kind, prompt, logits(model, prompt), VOCAB)

    for what in wanted:
        i, (config, kinds) = list(MODELS).index(what), MODELS[what]
        if what != "small":
            edit = (lambda folder: published(folder, MIXTURE)) if what == "mixture" else lambda folder: None
            model = directory(build(config, 90 + i).to(torch.bfloat16), folder / what, 90 + i, edit)
            keep(model, what, what, "BF16", 3 * i)
        for number, kind in enumerate(kinds):
            per_layer = {"hidden_size_per_layer_input": config["hidden_size_per_layer_input"] // 2}
            seed = SMALL_SEED if what == "small" else 92 + i
            model = build(config, 96) if what == "small" else build(config | NARROW | per_layer, 92 + i)
            name = f"{what}-{kind.lower()}"
            write_gguf(folder / f"{name}.gguf", model, kind, seed)
            keep(model, name, f"{name}.gguf", kind, 3 * i + 1 + number)


if __name__ == "__main__":
    main()
