"""Writes goldens of language models that hear with a conformer, as hearing.py writes those that hear with Whisper's encoder, into the same list.

    python3 tools/goldens/conformers.py crates/welte/tests/goldens [NAME ...]

Needs torch, torchaudio, peft, transformers, numpy. A spectrogram of each goes to crates/welte-audio/tests/data.
"""

import json
import sys
from pathlib import Path

import gemma3n
import gemma4
import numpy as np
import torch
import transformers
from hearing import TEXT, spread
from make import KEPT, directory
from speech import sound
from transformers.models.gemma3n import modeling_gemma3n
from transformers.models.gemma3n.feature_extraction_gemma3n import Gemma3nAudioFeatureExtractor
from transformers.models.granite_speech.feature_extraction_granite_speech import GraniteSpeechFeatureExtractor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor

MEL = 2000
# Blocks of 20 states, and windows of 6 of which 2 features come.
GRANITE = dict(input_dim=32, num_layers=4, hidden_dim=48, num_heads=3, feedforward_mult=2, dim_head=12, output_dim=13, context_size=20,
               max_pos_emb=24, conv_kernel_size=5, conv_expansion_factor=2)
QUERIES = dict(model_type="blip_2_qformer", hidden_size=48, encoder_hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
               intermediate_size=64, cross_attention_frequency=1, vocab_size=11)
LIMITS = ("input_min", "input_max", "output_min", "output_max")
# The last tokens of Gemma 3n are its encoders' own.
TEXT_3N = gemma3n.CONFIG | dict(hidden_size=64, pad_token_id=0)
VISION_OFFSET, AUDIO_OFFSET, AUDIO_3N = 230, 238, 240
CONFORMER_3N = dict(vocab_size=251 - AUDIO_OFFSET, vocab_offset=AUDIO_OFFSET, input_feat_size=16, hidden_size=48, conf_num_attention_heads=3,
                    conf_num_hidden_layers=2, conf_attention_chunk_size=5, conf_attention_context_left=7, conf_conv_kernel_size=4,
                    conf_attention_logit_cap=4.0, sscp_conv_channel_size=[12, 8])
CONFORMER_4 = dict(hidden_size=48, num_attention_heads=3, num_hidden_layers=2, subsampling_conv_channels=[16, 8], conv_kernel_size=5,
                   attention_chunk_size=6, attention_context_left=7, attention_logit_cap=4.0, output_proj_dims=40)


def make_gemma3n():
    """Its pictures' encoder needs a package, and nothing here reads it."""
    real = modeling_gemma3n.AutoModel

    class Without:
        @staticmethod
        def from_config(config, **more):
            return torch.nn.Module() if config.model_type == "gemma3n_vision" else real.from_config(config, **more)

    modeling_gemma3n.AutoModel = Without
    config = transformers.Gemma3nConfig(text_config=TEXT_3N, audio_config=CONFORMER_3N, audio_token_id=AUDIO_3N,
                                        vision_config=dict(hidden_size=32, vocab_size=8, vocab_offset=VISION_OFFSET))
    return transformers.Gemma3nForConditionalGeneration(config)


def make_gemma4():
    text = gemma4.SMALL | dict(hidden_size=64, intermediate_size=96, pad_token_id=0)
    return transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(
        text_config=text, audio_config=CONFORMER_4, vision_config=None, audio_token_id=7))


def make_granite():
    text = TEXT | dict(model_type="granite", logits_scaling=0.5, embedding_multiplier=2.0, residual_multiplier=0.8, attention_multiplier=0.25)
    return transformers.GraniteSpeechForConditionalGeneration(transformers.GraniteSpeechConfig(
        text_config=text, encoder_config=GRANITE, projector_config=QUERIES, audio_token_index=7, has_lora_adapter=False, window_size=6,
        downsample_rate=3, tie_word_embeddings=False))


def soften(model, seed):
    """Parts of the language models have scales of their own; limits cut some values off."""
    model = spread(model, seed).float()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "q_norm" in name:
                p.copy_(0.25 * (1 + 0.2 * torch.randn(p.shape, generator=g)))
            elif "correct_output_scale" in name:
                p.copy_(1 + 0.2 * torch.randn(p.shape, generator=g))
            elif "_coefs" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=g))
            elif "modality_router" in name:
                p.copy_(4 * torch.randn(p.shape, generator=g))
            elif "pos_proj" in name or "relative_k_proj" in name:  # what they read is not random
                p.mul_(3)
        for name, p in model.named_buffers():
            if name.endswith("running_mean"):
                p.copy_(0.2 * torch.randn(p.shape, generator=g))
            elif name.endswith("running_var"):
                p.copy_(0.5 + torch.rand(p.shape, generator=g))
            if name.endswith(LIMITS):
                p.fill_((-1 if name.endswith("min") else 1) * (1.5 + torch.rand((), generator=g).item()))
    return model.bfloat16()


def prepare(name, extractor, samples):
    if name == "granite_speech":
        made = extractor(torch.tensor(samples))
        return dict(input_features=made["input_features"]), made["audio_embed_sizes"][0]
    made = extractor([samples], return_tensors="pt")
    mask = made["input_features_mask"].bool()
    count = int(mask[0, ::2][::2].sum())
    return dict(input_features=made["input_features"], input_features_mask=mask), 188 if name == "gemma3n" else count


def features_of(name, model, inputs):
    if name == "granite_speech":
        return model.get_audio_features(inputs["input_features"], return_dict=True).pooler_output[0]
    features, mask = inputs["input_features"], inputs["input_features_mask"]
    if name == "gemma4":
        made = model.model.get_audio_features(features, mask, return_dict=True)
        return made.pooler_output[made.attention_mask]
    made = model.model.get_audio_features(features, ~mask, return_dict=True)
    assert not made.audio_mel_mask.any()
    filler = model.model.embed_audio(input_ids=torch.tensor([[model.config.text_config.vocab_size - 1]]))
    return torch.cat([made.pooler_output[0], filler[0].expand(188 - made.pooler_output.shape[1], -1)])


MODELS = {
    # Sounds of whole and of broken groups; of a few frames; of more times than a step takes.
    "gemma3n": (make_gemma3n, lambda: Gemma3nAudioFeatureExtractor(feature_size=16), [16000, 2003, 29000], 1, AUDIO_3N, 211),
    "gemma4": (make_gemma4, lambda: Gemma4AudioFeatureExtractor(feature_size=16), [16000, 2003, 29000], 2, 7, 251),
    # Whole blocks and windows, less than a window, and a block that is filled up.
    "granite_speech": (make_granite, lambda: GraniteSpeechFeatureExtractor(n_mels=16, projector_window_size=6, projector_downsample_rate=3), [19040, 1300, 16500], 1, 7, 251),
}


def main():
    torch.set_num_threads(1)
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    made = []
    for number, (name, (make, make_extractor, lengths, used, token, words)) in enumerate(MODELS.items()):
        if name not in wanted:
            continue
        folder, extractor = out / f"hearing/{name}/hf", make_extractor()
        folder.parent.mkdir(parents=True, exist_ok=True)
        model = directory(soften(make(), 240 + number), folder, 240 + number, extractor.save_pretrained)
        entry, shown = {"name": name, "path": f"hearing/{name}/hf", "sounds": []}, []
        for length in lengths:
            inputs, count = prepare(name, extractor, sound(length))
            with torch.no_grad():
                found = features_of(name, model, inputs).numpy()
            assert found.shape == (count, 64) and np.isfinite(found).all() and found.std() > 0.1, (name, found.shape, count, found.std())
            file = f"hearing/{name}/{length}.f32"
            np.ascontiguousarray(found, "<f4").tofile(out / file)
            print(name, length, found.shape, f"std {found.std():.2f}, apart {found.std(0).mean():.2f}")
            entry["sounds"].append({"samples": length, "features": file, "count": count})
            shown.append((length, inputs, count))
        mel = prepare(name, extractor, sound(MEL))[0]
        mel = mel["input_features"][0][mel["input_features_mask"][0]] if "input_features_mask" in mel else mel["input_features"][0]
        np.ascontiguousarray(mel.numpy(), "<f4").tofile(out / f"../../../welte-audio/tests/data/{name}.f32")
        with torch.no_grad():
            parts, found = logits(model, shown[:used][::-1], np.random.default_rng(260 + number), token, words)
        np.ascontiguousarray(found, "<f4").tofile(out / f"hearing/{name}/logits.f32")
        print(name, "logits", found.shape, f"std {found.std():.2f}")
        made.append(entry | {"parts": parts, "logits": f"hearing/{name}/logits.f32"})
    path = out / "hearing.json"
    kept = json.loads(path.read_text()) if path.exists() else []
    kept = [entry for entry in kept if entry["name"] not in wanted]
    path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in kept + made) + "\n]\n")


def logits(model, shown, random, token, most):
    """As `logits_of` of hearing.py, with sounds that are padded along their frames."""
    words = lambda n: [int(one) for one in random.integers(10, most, n)]
    parts, tokens = [], []
    for length, _, count in shown:
        parts += [{"tokens": words(6)}, {"sound": length}]
        tokens += parts[-2]["tokens"] + [token] * count
    parts.append({"tokens": words(9)})
    tokens += parts[-1]["tokens"]

    def join(key):
        each = [inputs[key] for _, inputs, _ in shown]
        longest = max(one.shape[1] for one in each)
        pad = lambda one: (0, 0) * (one.dim() - 2) + (0, longest - one.shape[1])
        return torch.cat([torch.nn.functional.pad(one, pad(one)) for one in each])

    inputs = {key: join(key) for key in shown[0][1]}
    found = model(input_ids=torch.tensor([tokens]), **inputs).logits[0, -KEPT:].float().numpy()
    # transformers 5.24 has its own head here, which forgets the divisor that the language model alone has.
    found = found / getattr(model.config.text_config, "logits_scaling", 1.0)
    assert np.isfinite(found).all() and found.std() > 0.8, found.std()
    return parts, found


if __name__ == "__main__":
    main()
