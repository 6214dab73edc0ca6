"""Converts a Whisper model in CTranslate2's layout (as faster-whisper has them) to a directory of the Hugging Face hub.

    python3 tools/whisper-from-ct2.py FROM TO

FROM has model.bin, config.json and tokenizer.json. Weights must be in F32 or F16; TO has them in F16. Needs numpy and safetensors.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        (value,) = struct.unpack_from(kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return value

    def text(self):
        size = self.number("<H")
        self.at += size
        return self.data[self.at - size : self.at].rstrip(b"\0").decode()

    def tensors(self):
        version, name, _ = self.number("<I"), self.text(), self.number("<I")
        if version != 6 or name != "WhisperSpec":
            sys.exit(f"{name} in version {version}; known is WhisperSpec in version 6")
        found = {}
        for _ in range(self.number("<I")):
            name = self.text()
            shape = [self.number("<I") for _ in range(self.number("<B"))]
            kind, size = self.number("<B"), self.number("<I")
            if kind not in TYPES:
                sys.exit(f"{name} has type {kind}")
            found[name] = np.frombuffer(self.data, TYPES[kind], size // np.dtype(TYPES[kind]).itemsize, self.at).reshape(shape)
            self.at += size
        return found


def layers(found, part):
    count = sum(name.startswith(f"{part}/layer_") and name.endswith("/ffn/linear_0/weight") for name in found)
    for i in range(count):
        ours, theirs = f"model.{part}.layers.{i}", f"{part}/layer_{i}"
        for what, norm in [("self_attention", "self_attn_layer_norm"), ("ffn", "final_layer_norm"), ("attention", "encoder_attn_layer_norm")]:
            if f"{theirs}/{what}/layer_norm/gamma" in found:
                yield f"{ours}.{norm}.weight", found[f"{theirs}/{what}/layer_norm/gamma"]
                yield f"{ours}.{norm}.bias", found[f"{theirs}/{what}/layer_norm/beta"]
        products = [("self_attention/linear_0", "self_attn", ["q_proj", "k_proj", "v_proj"]), ("self_attention/linear_1", "self_attn", ["out_proj"]),
                    ("ffn/linear_0", None, ["fc1"]), ("ffn/linear_1", None, ["fc2"])]
        if part == "decoder":
            products += [("attention/linear_0", "encoder_attn", ["q_proj"]), ("attention/linear_1", "encoder_attn", ["k_proj", "v_proj"]),
                         ("attention/linear_2", "encoder_attn", ["out_proj"])]
        for their, module, names in products:
            for kind in ["weight", "bias"]:
                pieces = np.split(found[f"{theirs}/{their}/{kind}"], len(names))
                for name, values in zip(names, pieces):
                    if name == "k_proj" and kind == "bias":
                        assert not values.any(), "keys have no bias"
                        continue
                    yield ".".join([ours, *([module] if module else []), name, kind]), values


def main(source, to):
    source, to = Path(source), Path(to)
    found = Reader((source / "model.bin").read_bytes()).tensors()
    tensors = dict(layers(found, "encoder")) | dict(layers(found, "decoder"))
    for part in ["encoder", "decoder"]:
        tensors[f"model.{part}.embed_positions.weight"] = found[f"{part}/position_encodings/encodings"]
        tensors[f"model.{part}.layer_norm.weight"] = found[f"{part}/layer_norm/gamma"]
        tensors[f"model.{part}.layer_norm.bias"] = found[f"{part}/layer_norm/beta"]
    for conv in ["conv1", "conv2"]:
        for kind in ["weight", "bias"]:
            tensors[f"model.encoder.{conv}.{kind}"] = found[f"encoder/{conv}/{kind}"]
    tensors["model.decoder.embed_tokens.weight"] = found["decoder/embeddings/weight"]
    settings = json.loads((source / "config.json").read_text())
    vocab, width = found["decoder/embeddings/weight"].shape
    count = lambda part: sum(name.startswith(f"model.{part}.layers.") and name.endswith(".fc1.weight") for name in tensors)
    config = {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "vocab_size": vocab, "d_model": width,
        "num_mel_bins": found["encoder/conv1/weight"].shape[1], "activation_function": "gelu", "scale_embedding": False,
        "max_source_positions": len(found["encoder/position_encodings/encodings"]), "max_target_positions": len(found["decoder/position_encodings/encodings"]),
    }
    for part in ["encoder", "decoder"]:
        config |= {f"{part}_layers": count(part), f"{part}_attention_heads": int(found[f"{part}/num_heads"]),
                   f"{part}_ffn_dim": len(found[f"{part}/layer_0/ffn/linear_0/bias"])}
    generation = {"suppress_tokens": settings["suppress_ids"], "begin_suppress_tokens": settings["suppress_ids_begin"], "alignment_heads": settings["alignment_heads"]}
    to.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(values.astype("<f2")) for name, values in tensors.items()}, to / "model.safetensors", {"format": "pt"})
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (to / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    shutil.copy(source / "tokenizer.json", to / "tokenizer.json")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
