"""A Whisper of random weights with windows of one second, small enough to be made for a test, and a sound for it."""

import json
import math
import pathlib
import random
import struct
import wave

DIM, LAYERS, MELS, POSITIONS, TOKENS, WORDS = 16, 1, 80, 50, 64, 256
NAMES = ["endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
TIMES = [f"{i * 0.02:.2f}" for i in range(POSITIONS + 1)]


def letters():
    """The alphabet of byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (chr(0x100 + i) for i in range(WORDS))
    return sorted(chr(byte) if byte in plain else next(others) for byte in range(WORDS))


def shapes():
    yield "model.decoder.embed_tokens.weight", (WORDS + len(NAMES) + len(TIMES), DIM)
    for part, rows in [("encoder", POSITIONS), ("decoder", TOKENS)]:
        yield f"model.{part}.embed_positions.weight", (rows, DIM)
        norms = ["layer_norm"]
        for layer in range(LAYERS):
            name = f"layers.{layer}"
            norms += [f"{name}.self_attn_layer_norm", f"{name}.final_layer_norm"]
            attentions = ["self_attn"]
            if part == "decoder":
                norms.append(f"{name}.encoder_attn_layer_norm")
                attentions.append("encoder_attn")
            for attention in attentions:
                for matrix in ["q_proj", "k_proj", "v_proj", "out_proj"]:
                    yield f"model.{part}.{name}.{attention}.{matrix}.weight", (DIM, DIM)
                    if matrix != "k_proj":
                        yield f"model.{part}.{name}.{attention}.{matrix}.bias", (DIM,)
            for matrix, n, k in [("fc1", 4 * DIM, DIM), ("fc2", DIM, 4 * DIM)]:
                yield f"model.{part}.{name}.{matrix}.weight", (n, k)
                yield f"model.{part}.{name}.{matrix}.bias", (n,)
        for norm in norms:
            yield f"model.{part}.{norm}.weight", (DIM,)
            yield f"model.{part}.{norm}.bias", (DIM,)
    for name, channels in [("conv1", MELS), ("conv2", DIM)]:
        yield f"model.encoder.{name}.weight", (DIM, channels, 3)
        yield f"model.encoder.{name}.bias", (DIM,)


def write(folder):
    """Writes the model as the hub has it."""
    folder = pathlib.Path(folder) / "tiny-whisper"
    folder.mkdir()
    noise, head, data = random.Random(3), {}, b""
    for name, shape in shapes():
        count = math.prod(shape)
        values = struct.pack(f"<{count}f", *(noise.gauss(0, 0.4) for _ in range(count)))
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    sizes = {f"{part}_{key}": value for part in ["encoder", "decoder"]
             for key, value in [("layers", LAYERS), ("attention_heads", 2), ("ffn_dim", 4 * DIM)]}
    config = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": DIM, "num_mel_bins": MELS,
              "vocab_size": WORDS + len(NAMES) + len(TIMES), "max_source_positions": POSITIONS, "max_target_positions": TOKENS, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    names = [(name, True) for name in NAMES] + [(time, False) for time in TIMES]
    added = [{"id": WORDS + i, "content": f"<|{name}|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
             for i, (name, special) in enumerate(names)]
    tokenizer = {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters())}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def sound(path, seconds=2):
    """Writes a tone."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"".join(struct.pack("<h", int(8000 * math.sin(i / 4))) for i in range(8000 * seconds)))
    return path
