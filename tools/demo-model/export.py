"""Turns train.py's folder into GGUF: demo.gguf (matrices in Q8_0) and demo-f16.gguf, and the held-out text.

    python3 export.py TRAINED OUT          needs numpy, safetensors, gguf
"""

import json
import random
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

import corpus

TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    """transformers' tensor name in GGUF's words."""
    stem = name.removeprefix("model.").removesuffix(".weight")
    if stem == "embed_tokens":
        return "token_embd.weight"
    if stem == "norm":
        return "output_norm.weight"
    _, layer, rest = stem.split(".", 2)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def write(path, trained, kind):
    c = json.loads((trained / "config.json").read_text())
    tokenizer = json.loads((trained / "tokenizer.json").read_text())
    w = gguf.GGUFWriter(path, "qwen3")
    w.add_name("welte-demo")
    w.add_description("A tiny storyteller that Welte trained on text it wrote itself.")
    w.add_license("mit OR apache-2.0")
    w.add_context_length(c["context"])
    w.add_embedding_length(c["dim"])
    w.add_block_count(c["layers"])
    w.add_feed_forward_length(c["ffn"])
    w.add_head_count(c["heads"])
    w.add_head_count_kv(c["kv_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["eps"])
    w.add_vocab_size(c["vocab"])
    w.add_file_type({"Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "F16": gguf.LlamaFileType.MOSTLY_F16}[kind])
    w.add_quantization_version(2)
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {t["content"] for t in tokenizer["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.index("<|endoftext|>"))
    w.add_eos_token_id(tokens.index("<|im_end|>"))
    w.add_pad_token_id(tokens.index("<|endoftext|>"))
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    for name, value in load_file(trained / "model.safetensors").items():
        if value.ndim == 1:
            w.add_tensor(gguf_name(name), value.astype(np.float32))
        elif kind == "F16":
            w.add_tensor(gguf_name(name), value.astype(np.float16))
        else:
            stored = gguf.quants.quantize(value, gguf.GGMLQuantizationType.Q8_0)
            w.add_tensor(gguf_name(name), stored, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    trained, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    write(out / "demo.gguf", trained, "Q8_0")
    write(out / "demo-f16.gguf", trained, "F16")
    held, seed = "", corpus.VALIDATION_SEED + 500_000
    while len(held) < 30_000:
        r = random.Random(seed)
        held += corpus.tell(r, corpus.scene(r)) + "\n\n"
        seed += 1
    (out / "demo-validation.txt").write_text(held)
    for name in ("demo.gguf", "demo-f16.gguf", "demo-validation.txt"):
        print(name, (out / name).stat().st_size)
