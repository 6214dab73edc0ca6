"""Writes a Whisper model of a Hugging Face directory as whisper.cpp's .bin file.

    python3 tools/whisper-to-ggml.py FROM TO [f16|q4_0|q4_1|q5_0|q5_1|q8_0]

For comparisons. Needs numpy, safetensors and gguf. FROM has the vocabulary in tokenizer.json.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Type
from safetensors.numpy import load_file

FTYPES = {"f16": 1, "q4_0": 2002, "q4_1": 2003, "q8_0": 2007, "q5_0": 2008, "q5_1": 2009}
MODULES = {"self_attn.": "attn.", "encoder_attn.": "cross_attn.", "self_attn_layer_norm": "attn_ln", "encoder_attn_layer_norm": "cross_attn_ln",
           "final_layer_norm": "mlp_ln", "fc1": "mlp.0", "fc2": "mlp.2", "q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}


def letters():
    """Byte of each letter of the alphabet of byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


def name_of(name):
    part, rest = name.removeprefix("model.").split(".", 1)
    if rest == "embed_positions.weight":
        return f"{part}.positional_embedding"
    rest = rest.replace("embed_tokens", "token_embedding").replace("layers.", "blocks.")
    if rest.startswith("layer_norm"):
        return f"{part}." + rest.replace("layer_norm", "ln_post" if part == "encoder" else "ln")
    for ours, theirs in MODULES.items():
        rest = rest.replace(ours, theirs) if ".conv" not in rest else rest
    return f"{part}.{rest}"


def main(source, to, kind="f16"):
    source = Path(source)
    c = json.loads((source / "config.json").read_text())
    vocab = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word, _ in sorted(vocab.items(), key=lambda pair: pair[1])]
    words = words[: 50256 + (c["vocab_size"] > 51864)]
    byte = letters()
    with open(to, "wb") as out:
        sizes = [c["vocab_size"], c["max_source_positions"], c["d_model"], c["encoder_attention_heads"], c["encoder_layers"], c["max_target_positions"],
                 c["d_model"], c["decoder_attention_heads"], c["decoder_layers"], c["num_mel_bins"], FTYPES[kind]]
        out.write(struct.pack("<12i", 0x67676D6C, *sizes))
        out.write(struct.pack("<2i", c["num_mel_bins"], 201) + mel(c["num_mel_bins"]).tobytes())
        out.write(struct.pack("<i", len(words)))
        for word in words:
            word = bytes(byte[letter] for letter in word)
            out.write(struct.pack("<i", len(word)) + word)
        for name, values in load_file(source / "model.safetensors").items():
            theirs, shape = name_of(name), values.shape
            if theirs.endswith("conv1.bias") or theirs.endswith("conv2.bias"):
                shape = (*shape, 1)
            plain = len(shape) == 1 or "conv" in theirs and len(shape) == 2 or "positional" in theirs or "ln" in theirs
            if plain:
                number, data = 0, values.astype("<f4").tobytes()
            elif kind == "f16" or len(shape) == 3:
                number, data = 1, values.astype("<f2").tobytes()
            else:
                number, data = int(Type[kind.upper()]), quants.quantize(values.astype(np.float32), Type[kind.upper()]).tobytes()
            out.write(struct.pack("<3i", len(shape), len(theirs), number) + struct.pack(f"<{len(shape)}i", *reversed(shape)) + theirs.encode() + data)


def mel(bins):
    """The filters of the spectrogram: triangles on Slaney's scale."""
    step = np.log(6.4) / 27
    to_hertz = lambda mel: np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * step))
    edges = to_hertz(np.linspace(0, 15 + np.log(8) / step, bins + 2))
    hertz = np.linspace(0, 8000, 201)
    low, middle, high = (edges[i : i + bins, None] for i in range(3))
    weights = np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle))
    return (np.maximum(weights, 0) * 2 / (high - low)).astype("<f4")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
