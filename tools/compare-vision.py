#!/usr/bin/env python3
"""Compares images: Welte's `bench --images` and llama.cpp's llama-mtmd-cli, on the same files of random weights.

    tools/compare-vision.py --welte target/release/welte --llama-mtmd-cli PATH --threads 2 --output result.json

Encoding is the time of the encoder for a tile of a picture; the prompt is that of a tile's rows. The engines may cut a picture into other
numbers of tiles. They run in turns on a picture of the same size, and medians count. The files have the shapes and the tokens of published families, and random
weights. Needs numpy, gguf and Pillow.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

import gguf
import numpy as np
from PIL import Image

CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


class Writer:
    """A GGUF file of random weights. One set of random rows serves all matrices of a width."""

    def __init__(self, path, architecture):
        self.file, self.random, self.rows = gguf.GGUFWriter(path, architecture), np.random.default_rng(7), {}

    def vector(self, name, size, near):
        self.file.add_tensor(name, (near + self.random.normal(0, 0.02, size)).astype(np.float32))

    def matrix(self, name, n, k, kind):
        if (k, kind) not in self.rows:
            values = self.random.normal(0, k**-0.5, (512, k)).astype(np.float32)
            self.rows[k, kind] = gguf.quants.quantize(values, kind)
        rows = self.rows[k, kind]
        start = int(self.random.integers(512))
        self.file.add_tensor(name, rows[(start + np.arange(n)) % 512], raw_dtype=kind)

    def close(self):
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def vocabulary(size, control):
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    tokens = [chr(byte if byte in plain else next(moved)) for byte in range(256)] + ["th", "ĊĊ"]
    tokens += [f"[{number}]" for number in range(size - len(tokens) - len(control))]
    return tokens + control, [gguf.TokenType.NORMAL] * (size - len(control)) + [gguf.TokenType.CONTROL] * len(control)


def text_model(path, architecture, kind, dim, layers, heads, kv_heads, head_dim, ffn, size, control, **more):
    out = Writer(path, architecture)
    f = out.file
    f.add_context_length(8192)
    f.add_embedding_length(dim)
    f.add_block_count(layers)
    f.add_feed_forward_length(ffn)
    f.add_head_count(heads)
    f.add_head_count_kv(kv_heads)
    f.add_key_length(head_dim)
    f.add_value_length(head_dim)
    f.add_layer_norm_rms_eps(1e-5)
    f.add_rope_freq_base(100000.0)
    f.add_rope_dimension_count(head_dim)
    f.add_vocab_size(size)
    if "window" in more:
        f.add_sliding_window(more["window"])
    tokens, types = vocabulary(size, control)
    f.add_tokenizer_model("gpt2")
    f.add_tokenizer_pre("qwen2")
    f.add_token_list(tokens)
    f.add_token_types(types)
    f.add_token_merges(["t h", "Ċ Ċ"])
    f.add_eos_token_id(tokens.index("<|im_end|>"))
    f.add_add_bos_token(False)
    f.add_chat_template(CHAT)
    out.matrix("token_embd.weight", size, dim, kind)
    out.vector("output_norm.weight", dim, 1)
    norms = {"attn_norm": dim, "ffn_norm": dim}
    if architecture == "gemma3":
        norms |= {"post_attention_norm": dim, "post_ffw_norm": dim, "attn_q_norm": head_dim, "attn_k_norm": head_dim}
    matrices = {"attn_q": (heads * head_dim, dim), "attn_k": (kv_heads * head_dim, dim), "attn_v": (kv_heads * head_dim, dim),
                "attn_output": (dim, heads * head_dim), "ffn_gate": (ffn, dim), "ffn_up": (ffn, dim), "ffn_down": (dim, ffn)}
    for layer in range(layers):
        for name, width in norms.items():
            out.vector(f"blk.{layer}.{name}.weight", width, 1)
        for name, (n, k) in matrices.items():
            out.matrix(f"blk.{layer}.{name}.weight", n, k, kind)
    out.close()


def encoder(path, projector, kind, dim, layers, heads, ffn, patch, side, width, **more):
    out = Writer(path, "clip")
    f = out.file
    f.add_bool("clip.has_vision_encoder", True)
    f.add_string("clip.projector_type", projector)
    f.add_bool("clip.use_gelu", True)
    for key, one in {"block_count": layers, "embedding_length": dim, "feed_forward_length": ffn, "attention.head_count": heads,
                     "patch_size": patch, "image_size": side, "projection_dim": width, **more.get("keys", {})}.items():
        f.add_uint32(f"clip.vision.{key}", one)
    f.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    f.add_array("clip.vision.image_mean", [0.5] * 3)
    f.add_array("clip.vision.image_std", [0.5] * 3)
    f.add_tensor("v.patch_embd.weight", out.random.normal(0, 0.02, (dim, 3, patch, patch)).astype(np.float32))
    out.vector("v.patch_embd.bias", dim, 0)
    f.add_tensor("v.position_embd.weight", out.random.normal(0, 0.02, ((side // patch) ** 2, dim)).astype(np.float32))
    matrices = {"attn_q": (dim, dim), "attn_k": (dim, dim), "attn_v": (dim, dim), "attn_out": (dim, dim), "ffn_up": (ffn, dim), "ffn_down": (dim, ffn)}
    for layer in range(layers):
        for name in ["ln1", "ln2"]:
            out.vector(f"v.blk.{layer}.{name}.weight", dim, 1)
            out.vector(f"v.blk.{layer}.{name}.bias", dim, 0)
        for name, (n, k) in matrices.items():
            out.matrix(f"v.blk.{layer}.{name}.weight", n, k, kind)
            out.vector(f"v.blk.{layer}.{name}.bias", n, 0)
    out.vector("v.post_ln.weight", dim, 1)
    out.vector("v.post_ln.bias", dim, 0)
    more["join"](out)
    out.close()


def smolvlm(folder, kind, longest=2048):
    """SmolVLM2-500M: tiles of 512 pixels, and the whole picture in one."""
    rows = [f"<row_{line}_col_{column}>" for line in range(1, 7) for column in range(1, 7)]
    control = ["<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<global-img>", "<image>", "<end_of_utterance>", *rows]
    text_model(folder / "text.gguf", "llama", gguf.GGMLQuantizationType.Q8_0, 960, 32, 15, 5, 64, 2560, 49280, control)
    join = lambda out: out.matrix("mm.model.fc.weight", 960, 768 * 16, kind)
    encoder(folder / "mmproj.gguf", "idefics3", kind, 768, 12, 12, 3072, 16, 512, 960,
            keys={"projector.scale_factor": 4, "preproc_image_size": longest}, join=join)


def gemma3(folder, kind):
    """The encoder of Gemma 3 4B, and a text model of the 1B's shape."""
    control = ["<|im_start|>", "<|im_end|>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    text_model(folder / "text.gguf", "gemma3", gguf.GGMLQuantizationType.Q8_0, 1152, 26, 4, 1, 256, 6912, 65536, control, window=512)

    def join(out):
        out.file.add_tensor("mm.input_projection.weight", out.random.normal(0, 0.03, (1152, 1152)).astype(np.float32))
        out.vector("mm.soft_emb_norm.weight", 1152, 1)

    encoder(folder / "mmproj.gguf", "gemma3", kind, 1152, 27, 16, 4304, 14, 896, 1152, join=join)


def smolvlm_tile(folder, kind):
    """SmolVLM2-500M that makes one tile of every picture."""
    smolvlm(folder, kind, 512)


FAMILIES = {"smolvlm2-500m": smolvlm, "smolvlm2-500m-tile": smolvlm_tile, "gemma-3": gemma3}
# Features of a tile.
TILE = {"smolvlm2-500m": 64, "smolvlm2-500m-tile": 64, "gemma-3": 256}


def llama(a, folder, image):
    """Milliseconds of all tiles' encoding and of the rows' prompt."""
    command = [a.llama_mtmd_cli, "-m", folder / "text.gguf", "--mmproj", folder / "mmproj.gguf", "--image", image, "-p", "th", "-n", "1",
               "-t", str(a.threads), "--temp", "0", "-c", "8192", "-lv", "4"]
    command += ["-ngl", "0", "--no-mmproj-offload", "--no-warmup"] if a.device == "cpu" else ["-ngl", "99"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    said = done.stdout + done.stderr
    encoded = [int(ms) for ms in re.findall(r"(?:slice encoded|batch encoding done) in (\d+) ms", said)]
    decoded = [int(ms) for ms in re.findall(r"decoded \(batch \d+/\d+\) in (\d+) ms", said)]
    if done.returncode or not encoded:
        raise SystemExit(f"{command}: {said[-3000:]}")
    return {"encode": sum(encoded), "prompt": sum(decoded), "tiles": len(encoded)}


def welte(a, folder, size):
    command = [a.welte, "bench", folder / "text.gguf", "--mmproj", folder / "mmproj.gguf", "--images", size, "-t", str(a.threads),
               "-r", "1", "-o", "jsonl", "--device", a.device]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-mtmd-cli", required=True)
    p.add_argument("--families", default=",".join(FAMILIES))
    p.add_argument("--format", default="f16", choices=["f16", "bf16", "q8_0"], help="of the encoder; the text model is Q8_0")
    p.add_argument("--sizes", default="512x512,3840x2160")
    p.add_argument("--device", default="cpu", help="Welte's; llama.cpp has all layers on a GPU unless it is cpu")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--folder", type=pathlib.Path, help="keep the files here")
    p.add_argument("--output", type=pathlib.Path)
    a = p.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for family in a.families.split(","):
            folder = (a.folder or pathlib.Path(temporary)) / f"{family}-{a.format}"
            if not folder.exists():
                folder.mkdir(parents=True)
                FAMILIES[family](folder, gguf.GGMLQuantizationType[a.format.upper()])
            for size in a.sizes.split(","):
                sides = tuple(map(int, size.split("x")))
                image = folder / f"{size}.bmp"
                noise = np.random.default_rng(1).integers(0, 256, (sides[1] // 8, sides[0] // 8, 3), dtype=np.uint8)
                Image.fromarray(noise).resize(sides).save(image)
                pairs = [(welte(a, folder, size), llama(a, folder, image)) for _ in range(a.runs)]
                of = lambda side, key: statistics.median(pair[side][key] for pair in pairs)
                tiles = of(0, "tokens") // TILE[family]
                row = {"model": family, "image": size, "tokens": of(0, "tokens"), "tiles": tiles, "llama_tiles": of(1, "tiles")}
                for what in ["encode", "prompt"]:
                    ours, theirs = of(0, f"{what}_ms") / tiles, of(1, what) / of(1, "tiles")
                    row |= {what: round(ours, 1), f"llama_{what}": round(theirs, 1), f"{what}_ratio": round(theirs / ours, 2)}
                row |= {key: round(of(0, key), 2) for key in ["encode_beside_ms", "token_ms", "token_p99_ms", "beside_ms", "beside_p99_ms"]}
                rows.append(row)
                print(json.dumps(row), flush=True)
    if a.output:
        a.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
