"""Writes small gpt-oss models with transformers' logits.

    python3 tools/goldens/gpt_oss.py crates/welte/tests/goldens

They go to gpt-oss, listed in gpt-oss.json as the other goldens are in index.json: a directory as transformers saves it (BF16,
experts with rows and columns exchanged), one with experts in MXFP4 as the published files have them (blocks and scales apart,
gate and up in turn; made of random bits), and GGUF files in F32 and with experts in MXFP4 beside F16. The window is shorter than
the prompt, sinks are not zero, biases reach beyond the activation's limits, and the ends of YaRN's ramp are not whole numbers.
"""

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from make import PROMPT, VOCAB, directory, logits, save
from safetensors.torch import load_file, save_file
from seeded import Gguf, Goldens, Safetensors
from transformers import GptOssConfig, GptOssForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 16}
CONFIG = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "vocab_size": VOCAB,
          "max_position_embeddings": 512, "rope_parameters": ROPE, "attn_implementation": "eager", "experts_implementation": "eager",
          "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.router": "ffn_gate_inp"}


def build(seed):
    model = GptOssForCausalLM(GptOssConfig(**CONFIG))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            random = torch.randn(p.shape, generator=g)
            if "norm" in name:
                p.copy_(1 + 0.2 * random)
            elif name.endswith("sinks"):
                p.copy_(0.5 + random)
            elif name.endswith("gate_up_proj_bias"):
                p.copy_(4 * random)
            elif name.endswith("bias"):
                p.copy_(0.5 * random)
            elif "embed" in name:
                p.copy_(random)
            elif "lm_head" in name:
                p.copy_(random * 2.5 / p.shape[1] ** 0.5)
            elif "experts" in name:
                p.copy_(random * (0.2 if "down" in name else 1.3) / p.shape[1] ** 0.5)
            else:
                p.copy_(random * 1.3 / p.shape[-1] ** 0.5)
    return model.eval()


def quantised(path, model, seed):
    """Stores the experts in MXFP4 and puts what is stored into the model."""
    save(model.to(torch.bfloat16), path)
    tensors, fields = load_file(path / "model.safetensors"), {}
    packed = [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    for name in packed:
        experts, k, n = tensors.pop(name).shape
        tensors[name + "_blocks"] = torch.zeros(experts, n, k // 32, 16, dtype=torch.uint8)
        tensors[name + "_scales"] = torch.zeros(experts, n, k // 32, dtype=torch.uint8)
        # Codes alone deviate by 2.9.
        exponent = int(np.floor(np.log2((0.2 if "down" in name else 1.3) / k**0.5 / 2.9)))
        fields[name + "_scales"] = [[0, 1, "byte", 127 + exponent, 128 + exponent]]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    weights, parameters = Safetensors(path / "model.safetensors", seed, fields), dict(model.float().named_parameters())
    stored = load_file(path / "model.safetensors")
    with torch.no_grad():
        for name, p in parameters.items():
            blocks, scales = (stored.get(name + part) for part in ("_blocks", "_scales"))
            p.copy_(stored[name].float() if blocks is None else convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    # The way the published checkpoints say it.
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    for key in ("swiglu_alpha", "swiglu_limit"):
        config.pop(key, None)
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    again = GptOssForCausalLM.from_pretrained(path, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16)
    for name, p in again.named_parameters():
        assert torch.equal(p.float(), parameters[name].to(torch.bfloat16).float()), name
    weights.cut()


def write_gguf(path, model, experts, seed):
    """Matrices in F32, or experts in MXFP4 beside F16; what was stored is put back into the model."""
    c = model.config
    made = Gguf(path, "gpt-oss", seed)
    w, put = made.keys, made.put
    w.add_name("golden gpt-oss")
    w.add_context_length(512)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_expert_feed_forward_length(c.intermediate_size)
    w.add_expert_count(c.num_local_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_sliding_window(c.sliding_window)
    w.add_rope_freq_base(ROPE["rope_theta"])
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(ROPE["factor"])
    w.add_rope_scaling_orig_ctx_len(ROPE["original_max_position_embeddings"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(VOCAB)

    for name, p in model.named_parameters():
        value = p.detach().numpy().copy()
        stem, _, kind = name.removeprefix("model.").rpartition(".")
        if stem in ("embed_tokens", "norm", "lm_head"):
            gg = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[stem]
            value = put(f"{gg}.weight", value, "F32" if value.ndim == 1 or experts == "F32" else "F16")
        elif kind == "sinks":
            value = put(f"blk.{stem.split('.')[1]}.attn_sinks.weight", value, "F32")
        elif ".experts" in stem:
            block = f"blk.{stem.split('.')[1]}.ffn"
            parts = {"gate": value[..., ::2], "up": value[..., 1::2]} if "gate_up" in kind else {"down": value}
            for part, rows in parts.items():
                if kind.endswith("bias"):
                    rows[...] = put(f"{block}_{part}_exps.bias", rows)
                else:
                    rows[...] = put(f"{block}_{part}_exps.weight", rows.swapaxes(1, 2), experts).swapaxes(1, 2)
        else:
            _, layer, rest = stem.split(".", 2)
            plain = value.ndim == 1 or experts == "F32" or rest == "mlp.router"
            value = put(f"blk.{layer}.{NAMES[rest]}.{kind}", value, "F32" if plain else "F16")
        with torch.no_grad():
            p.copy_(torch.from_numpy(value))
    made.finish()


def main():
    out = Path(sys.argv[1])
    folder = out / "gpt-oss"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    goldens = Goldens(out, "gpt-oss.json", anew=True)

    def keep(model, name, path, kind):
        prompt = np.random.default_rng(500 + len(goldens.entries)).integers(2, VOCAB, PROMPT).tolist()
        goldens.keep(f"gpt-oss/{name}", f"gpt-oss/{path}", "gpt_oss", kind, prompt, logits(model, prompt), VOCAB)

    keep(directory(build(80).to(torch.bfloat16), folder / "hf", 80), "hf", "hf", "BF16")
    model = build(81)
    quantised(folder / "mxfp4", model, 81)
    keep(model, "mxfp4", "mxfp4", "MXFP4")
    # With the weights of seed 83, rounded activations choose other experts (choose.py).
    for kind, seed in (("F32", 82), ("MXFP4", 85)):
        model = build(seed)
        write_gguf(folder / f"{kind.lower()}.gguf", model, kind, seed)
        keep(model, f"{kind.lower()}_gguf", f"{kind.lower()}.gguf", kind)


if __name__ == "__main__":
    main()
