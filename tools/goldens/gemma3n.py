"""Writes a small Gemma 3n with transformers' logits.

    python3 tools/goldens/gemma3n.py crates/welte/tests/goldens

It goes to gemma3n, listed in gemma3n.json as the other goldens are in index.json: a directory as transformers saves it (BF16) and a GGUF
file in Q8_0 with llama.cpp's names. The first and third layer are sparse, the last two share keys and values, and the window is shorter
than the prompt. Some tokens have no embedding per layer.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from make import PROMPT, VOCAB, directory, logits
from seeded import Gguf, Goldens
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

WINDOWED, FULL = "sliding_attention", "full_attention"
PER_LAYER_VOCAB = VOCAB - 40
CONFIG = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": VOCAB,
          "vocab_size_per_layer_input": PER_LAYER_VOCAB, "hidden_size_per_layer_input": 32, "sliding_window": 8, "num_hidden_layers": 4,
          "num_kv_shared_layers": 2, "layer_types": [WINDOWED, FULL, WINDOWED, FULL], "activation_sparsity_pattern": [0.7, 0.0, 0.6, 0.0],
          "laurel_rank": 32, "altup_num_inputs": 4, "max_position_embeddings": 512, "final_logit_softcapping": 20.0, "bos_token_id": 0,
          "eos_token_id": 1, "pad_token_id": None, "attn_implementation": "eager",
          "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 100000.0}, WINDOWED: {"rope_type": "default", "rope_theta": 10000.0}}}
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
         "post_per_layer_input_norm": "post_norm", "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm",
         "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef", "laurel.linear_left": "laurel_l",
         "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm"}
OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "embed_tokens_per_layer": "per_layer_token_embd",
         "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm"}
STACKED = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}


def build(seed):
    model = Gemma3nForCausalLM(Gemma3nTextConfig(**CONFIG))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            random = torch.randn(p.shape, generator=g)
            if "q_norm" in name:  # carries the scale of the scores, which are not scaled otherwise
                p.copy_(0.25 * (1 + 0.2 * random))
            elif "norm" in name or "correct_output_scale" in name:
                p.copy_(1 + 0.2 * random)
            elif "_coefs" in name:
                p.copy_(0.3 * random)
            elif "modality_router" in name:  # its input is divided by the width
                p.copy_(4 * random)
            elif "embed_tokens" in name:
                p.copy_(0.3 * random)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.float().eval()


def gguf_name(name):
    if not name.startswith("layers."):
        stem, _, kind = name.rpartition(".")
        return f"{OUTER[stem]}.{kind}"
    _, layer, rest = name.split(".", 2)
    if rest == "altup.correct_output_scale":
        return f"blk.{layer}.altup_correct_scale.weight"
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES[stem]}.{kind}"


def write_gguf(path, model, seed):
    """Stores the matrices in Q8_0, and puts what was stored back into the model."""
    c = model.config
    made = Gguf(path, "gemma3n", seed)
    w = made.keys
    w.add_name("golden gemma3n Q8_0")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_freq_base(c.rope_parameters[FULL]["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern([kind == WINDOWED for kind in c.layer_types])
    w.add_shared_kv_layers(c.num_kv_shared_layers)
    w.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input)
    w.add_altup_active_idx(0)
    w.add_altup_num_inputs(c.altup_num_inputs)
    normal = torch.distributions.normal.Normal(0, 1)
    w.add_activation_sparsity_scale([normal.icdf(torch.tensor(s)).item() for s in c.activation_sparsity_pattern])
    w.add_final_logit_softcapping(c.final_logit_softcapping)
    w.add_vocab_size(VOCAB)

    def put(name, value):
        """Stores values, and gives what is stored."""
        return made.put(name, value, "F32" if value.ndim == 1 or "altup" in name or value.shape[-1] % 32 else "Q8_0")

    stacks = {own: [] for own in STACKED.values()}
    for name, p in model.named_parameters():
        name, value = name.removeprefix("model."), p.detach().numpy().copy()
        stack = STACKED.get(name.split(".")[0])
        if stack:
            stacks[stack].append(p)
            continue
        with torch.no_grad():
            p.copy_(torch.from_numpy(put(gguf_name(name), value)))
    for own, parameters in stacks.items():
        with torch.no_grad():
            for p, value in zip(parameters, put(f"{own}.weight", np.stack([p.numpy() for p in parameters]))):
                p.copy_(torch.from_numpy(value))
    made.finish()


def main():
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    folder = out / "gemma3n"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    goldens = Goldens(out, "gemma3n.json", anew=True)
    prompt = np.random.default_rng(650).integers(2, VOCAB, PROMPT).tolist()
    assert any(token >= PER_LAYER_VOCAB for token in prompt)

    def keep(model, name, path, kind):
        goldens.keep(f"gemma3n/{name}", f"gemma3n/{path}", "gemma3n", kind, prompt, logits(model, prompt), VOCAB)

    keep(directory(build(97).to(torch.bfloat16), folder / "hf", 97), "hf", "hf", "BF16")
    model = build(98)
    write_gguf(folder / "q8_0.gguf", model, 98)
    keep(model, "q8_0", "q8_0.gguf", "Q8_0")


if __name__ == "__main__":
    main()
