"""Writes goldens of LFM2-Audio, as conformers.py writes those of other conformers, into the same list: a directory and an `mmproj` file.

    python3 tools/goldens/lfm2_audio.py crates/welte/tests/goldens

Needs torch, transformers, gguf, numpy. transformers 5.24 lacks the model, but has its parts: Parakeet's encoder and feature extractor, and LFM2.
Names and settings are those of Liquid AI's files.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from make import KEPT
from safetensors.torch import load_file, save_file
from seeded import Gguf, Safetensors
from speech import sound
from transformers.models.parakeet.feature_extraction_parakeet import ParakeetFeatureExtractor

NAME, SEED, MEL, VOCAB, MELS, DIM, WIDTH = "lfm2_audio", 280, 2000, 251, 24, 48, 64
ENCODER = dict(hidden_size=DIM, num_hidden_layers=2, num_attention_heads=3, intermediate_size=2 * DIM, conv_kernel_size=5, num_mel_bins=MELS,
               subsampling_conv_channels=8, scale_input=False, attention_bias=True, convolution_bias=True)
TEXT = dict(vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, tie_word_embeddings=True, layer_types=["conv", "full_attention", "conv"], norm_eps=1e-5,
            pad_token_id=0, bos_token_id=1, eos_token_id=7, block_multiple_of=32)
# Frames are one more than whole steps of the encoder, few, and more states than a step takes.
LENGTHS = [16000, 2003, 29000]
PREPROCESSOR = dict(sample_rate=16000, normalize="per_feature", window_size=0.025, window_stride=0.01, window="hann", features=MELS, n_fft=512,
                    log=True, frame_splicing=1, dither=1e-05, pad_to=0, pad_value=0.0)
AUTHORS = dict(feat_in=MELS, feat_out=-1, n_layers=2, d_model=DIM, subsampling="dw_striding", subsampling_factor=8, subsampling_conv_channels=8,
               causal_downsampling=False, reduction=None, reduction_position=None, reduction_factor=1, ff_expansion_factor=2,
               self_attention_model="rel_pos", n_heads=3, att_context_size=[-1, -1], xscaling=False, untie_biases=True, pos_emb_max_len=5000,
               conv_kernel_size=5, conv_norm_type="batch_norm", conv_context_size=None, dropout=0.1, dropout_pre_encoder=0.1, dropout_emb=0.0,
               dropout_att=0.1)
# Names in transformers, and those in the files.
RENAMED = {"subsampling.layers.": "pre_encode.conv.", "subsampling.linear.": "pre_encode.out.", "q_proj.": "linear_q.", "k_proj.": "linear_k.",
           "v_proj.": "linear_v.", "o_proj.": "linear_out.", "self_attn.relative_linear_k.": "self_attn.linear_pos.", "bias_u": "pos_bias_u",
           "bias_v": "pos_bias_v", "conv.norm.": "conv.batch_norm."}
GGUF = {"norm_feed_forward1": "ffn_norm", "feed_forward1.linear1": "ffn_up", "feed_forward1.linear2": "ffn_down", "norm_self_att": "ln1",
        "self_attn.linear_q": "attn_q", "self_attn.linear_k": "attn_k", "self_attn.linear_v": "attn_v", "self_attn.linear_out": "attn_out",
        "self_attn.linear_pos": "linear_pos", "norm_conv": "norm_conv", "conv.pointwise_conv1": "conv_pw1", "conv.depthwise_conv": "conv_dw",
        "conv.batch_norm": "conv_norm", "conv.pointwise_conv2": "conv_pw2", "norm_feed_forward2": "ffn_norm_1",
        "feed_forward2.linear1": "ffn_up_1", "feed_forward2.linear2": "ffn_down_1", "norm_out": "ln2"}


class Extractor(ParakeetFeatureExtractor):
    """With more digits: norms make much of little."""

    def _torch_extract_fbank_features(self, waveform, device="cpu"):
        self.mel_filters = self.mel_filters.double()
        torch.set_default_dtype(torch.float64)
        found = super()._torch_extract_fbank_features(waveform.double(), device)
        torch.set_default_dtype(torch.float32)
        return found

    def frames(self, samples):
        return self([samples], sampling_rate=16000, return_tensors="pt")["input_features"].float()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.text = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**TEXT))
        self.conformer = transformers.ParakeetEncoder(transformers.ParakeetEncoderConfig(**ENCODER))
        layers = [torch.nn.LayerNorm(DIM), torch.nn.Linear(DIM, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH)]
        self.audio_adapter = torch.nn.Module()
        self.audio_adapter.model = torch.nn.Sequential(*layers)

    def stored(self):
        """The tensors, by their names in files."""
        found = {f"lfm.{key}": p for key, p in self.text.model.state_dict().items()}
        for key, p in self.conformer.state_dict().items():
            for old, new in RENAMED.items():
                key = key.replace(old, new)
            found[f"conformer.{key}"] = p
        return found | {f"audio_adapter.{key}": p for key, p in self.audio_adapter.state_dict().items()}

    def hear(self, frames):
        return self.audio_adapter.model(self.conformer(frames).last_hidden_state)[0]


def spread(model):
    g = torch.Generator().manual_seed(SEED)
    random = lambda p: torch.randn(p.shape, generator=g)
    with torch.no_grad():
        for name, p in model.stored().items():
            if name.endswith("running_var"):
                p.copy_(0.5 + torch.rand(p.shape, generator=g))
            elif name.endswith("num_batches_tracked"):
                pass
            elif name.endswith("weight") and ("norm" in name or name == "audio_adapter.model.0.weight"):
                p.copy_(1 + 0.2 * random(p))
            elif p.dim() == 1:
                p.copy_(0.2 * random(p))
            elif "embed_tokens" in name:
                p.copy_(0.3 * random(p))
            elif "conv.conv" in name and name.startswith("lfm"):
                p.copy_(0.6 * random(p))
            elif "pos_bias" in name:
                p.copy_(0.5 * random(p))
            else:  # what positions are made of is not random
                p.copy_((2.5 if "linear_pos" in name else 1.4) * random(p) / p[0].numel() ** 0.5)
    return model


def directory(model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = dict(architectures=["Lfm2AudioForConditionalGeneration"], codebooks=8, tie_audio_embeddings=False, semantic_codebook_factor=100,
                  codebook_weight="log", interleaved_n_text=6, interleaved_n_audio=12, preprocessor=PREPROCESSOR, encoder=AUTHORS,
                  lfm=model.text.config.to_dict(), depthformer=dict(layers=1, dim=16, tie=True))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {name: p.bfloat16() if p.is_floating_point() else p for name, p in model.stored().items()}
    # What makes sound of states, which is not read.
    tensors |= {"depth_linear.weight": torch.randn(16, WIDTH).bfloat16(), "depthformer.layers.0.operator_norm.weight": torch.ones(16).bfloat16(),
                "depth_embeddings.0.embedding.weight": torch.randn(9, 16).bfloat16(), "audio_embedding.embedding.weight": torch.randn(9, WIDTH).bfloat16(),
                "codebook_offsets": torch.arange(8), "audio_loss_weights": torch.ones(8).bfloat16()}
    save_file({name: p.contiguous() for name, p in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    weights = Safetensors(folder / "model.safetensors", SEED)
    stored = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, p in model.stored().items():
            p.copy_(stored[name].to(p.dtype))
    weights.cut()


def mmproj(model, path):
    """Stores the encoder as llama.cpp's converter does, and puts what was stored into the model."""
    file = Gguf(path, "clip", SEED + 1)
    file.keys.add_bool("clip.has_audio_encoder", True)
    file.keys.add_string("clip.projector_type", "lfm2a")
    # The width of the feed-forward part is not what files say.
    for key, value in {"embedding_length": DIM, "feed_forward_length": DIM, "block_count": 2, "attention.head_count": 3, "num_mel_bins": MELS,
                       "projection_dim": WIDTH}.items():
        file.keys.add_uint32(f"clip.audio.{key}", value)
    file.keys.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    stored = model.stored()
    with torch.no_grad():
        for name in [name for name in stored if name.endswith("batch_norm.weight")]:
            of = lambda part: stored[name.removesuffix("weight") + part]
            factor = of("weight") / torch.sqrt(of("running_var") + 1e-5)
            of("bias").sub_(of("running_mean") * factor)
            of("weight").copy_(factor)
            of("running_mean").zero_()
            of("running_var").fill_(1 - 1e-5)
        for name, p in stored.items():
            if name.startswith("lfm.") or name.endswith(("running_mean", "running_var", "num_batches_tracked")):
                continue
            value = p.float().numpy()
            stem, _, end = name.rpartition(".")
            if name.startswith("conformer.layers."):
                _, _, number, part = stem.split(".", 3)
                own = f"a.blk.{number}." + (end if end.startswith("pos_bias") else f"{GGUF[part]}.{end}")
            else:
                own = stem.replace("conformer.pre_encode.conv", "a.conv1d").replace("conformer.pre_encode", "a.pre_encode")
                own = own.replace("audio_adapter.model", "mm.a.mlp") + f".{end}"
            if own.startswith("a.conv1d.") and end == "bias":
                value = value[:, None, None]
            if "depthwise" in name and end == "weight":
                value = value[:, 0]
            elif "pointwise" in name and end == "weight":
                value = value[..., 0]
            kind = "F32" if "conv" in name or "pos_bias" in name or value.ndim == 1 else "F16"
            p.copy_(torch.from_numpy(np.ascontiguousarray(file.put(own, value, kind))).reshape(p.shape))
    file.finish()


def keep(out, model, extractor, end=""):
    shown, listed = {}, []
    for length in LENGTHS:
        frames = extractor.frames(sound(length))
        with torch.no_grad():
            shown[length] = model.hear(frames)
        found = shown[length].numpy()
        assert found.shape == (-(-frames.shape[1] // 8), WIDTH) and np.isfinite(found).all() and found.std() > 0.1, (found.shape, found.std())
        file = f"hearing/{NAME}/{length}{end}.f32"
        np.ascontiguousarray(found, "<f4").tofile(out / file)
        print(NAME, length, found.shape, f"std {found.std():.2f}, apart {found.std(0).mean():.2f}")
        listed.append({"samples": length, "features": file, "count": len(found)})
    random = np.random.default_rng(SEED)
    words = lambda n: [int(one) for one in random.integers(10, VOCAB, n)]
    parts, rows = [], []
    for length in LENGTHS[:2][::-1]:
        parts += [{"tokens": words(6)}, {"sound": length}]
        rows += [model.text.model.embed_tokens(torch.tensor(parts[-2]["tokens"])), shown[length]]
    parts.append({"tokens": words(9)})
    rows.append(model.text.model.embed_tokens(torch.tensor(parts[-1]["tokens"])))
    with torch.no_grad():
        found = model.text(inputs_embeds=torch.cat(rows)[None]).logits[0, -KEPT:].numpy()
    assert np.isfinite(found).all() and found.std() > 0.5, found.std()
    file = f"hearing/{NAME}/logits{end}.f32"
    np.ascontiguousarray(found, "<f4").tofile(out / file)
    print(NAME, "logits", found.shape, f"std {found.std():.2f}")
    return {"sounds": listed, "parts": parts, "logits": file}


def main():
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    model, extractor = spread(Model().eval()), Extractor(feature_size=MELS)
    directory(model, out / f"hearing/{NAME}/hf")
    entry = {"name": NAME, "path": f"hearing/{NAME}/hf"} | keep(out, model, extractor)
    mel = extractor.frames(sound(MEL))[0].numpy()
    np.ascontiguousarray(mel, "<f4").tofile(out / f"../../../welte-audio/tests/data/{NAME}.f32")
    mmproj(model, out / f"hearing/{NAME}/mmproj.gguf")
    entry["mmproj"] = {"path": f"hearing/{NAME}/mmproj.gguf"} | keep(out, model, extractor, "-mmproj")
    path = out / "hearing.json"
    kept = [one for one in json.loads(path.read_text()) if one["name"] != NAME]
    path.write_text("[\n" + ",\n".join(json.dumps(one) for one in kept + [entry]) + "\n]\n")


if __name__ == "__main__":
    main()
