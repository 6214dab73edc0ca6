"""Writes goldens of language models that hear: what transformers' feature extractors and encoders make of sounds, and the logits of a
prompt with two of them.

    python3 tools/goldens/hearing.py crates/welte/tests/goldens [NAME ...]

Needs torch, transformers, gguf, numpy. The sound follows from a formula (`sound` of `speech.py`, which the tests have, too), the weights from a
seed. `hearing.json` lists the models with their features and prompts, and those of `mmproj` files, which have other weights
(`hearing_gguf.py`). Windows of Whisper are about 1 s.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from hearing_gguf import Ultravox, mmproj
from make import KEPT, directory
from speech import RATE, sound
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder, Qwen2_5OmniAudioEncoderConfig
from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor
from transformers.models.qwen3_asr.processing_qwen3_asr import Qwen3ASRProcessor
from transformers.models.audioflamingo3.processing_audioflamingo3 import AudioFlamingo3Processor
from transformers.models.glmasr.processing_glmasr import GlmAsrProcessor
from transformers.models.voxtral.processing_voxtral import VoxtralProcessor
from transformers.models.whisper.modeling_whisper import WhisperEncoder

VOCAB, AUDIO = 251, 7
TEXT = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=None)
TOWER = dict(num_mel_bins=80, d_model=48, encoder_layers=2, encoder_attention_heads=3, encoder_ffn_dim=80)
VOXTRAL = dict(num_mel_bins=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=192, max_source_positions=52)

MODELS = {
    "qwen2_audio": (lambda: transformers.Qwen2AudioForConditionalGeneration(transformers.Qwen2AudioConfig(
        audio_config=TOWER | dict(max_source_positions=50), text_config=TEXT | dict(model_type="qwen2"), audio_token_index=AUDIO)),
        lambda: transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1),
        # One as long as a window, one of which a state is left over.
        [16000, 4962, 9000]),
    "voxtral": (lambda: transformers.VoxtralForConditionalGeneration(transformers.VoxtralConfig(
        audio_config=VOXTRAL, text_config=TEXT | dict(model_type="llama", rope_theta=10000.0), audio_token_id=AUDIO)),
        lambda: transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=1),
        [40000, 7001]),
    "qwen3_asr": (lambda: transformers.Qwen3ASRForConditionalGeneration(transformers.Qwen3ASRConfig(
        audio_config=TOWER | dict(num_mel_bins=128, downsample_hidden_size=12, output_dim=64, n_window_infer=200),
        text_config=TEXT | dict(model_type="qwen3"), audio_token_id=AUDIO)),
        lambda: Qwen3ASRFeatureExtractor(),
        # One with several windows of attention, one that is padded to half a second.
        [69977, 4000, 32000]),
    "audioflamingo3": (lambda: transformers.AudioFlamingo3ForConditionalGeneration(transformers.AudioFlamingo3Config(
        audio_config=FLAMINGO, text_config=TEXT | dict(model_type="qwen2"), audio_token_id=AUDIO)),
        lambda: transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=1),
        # The windows of the first one are not equally loud.
        [40000, 7001, 9000]),
    "glm_asr": (lambda: transformers.GlmAsrForConditionalGeneration(transformers.GlmAsrConfig(
        audio_config=GLM, text_config=TEXT | dict(model_type="llama"), audio_token_id=AUDIO, tie_word_embeddings=False)),
        lambda: glm_extractor(),
        [36001, 7001, 9000]),
}
FLAMINGO = dict(num_mel_bins=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=80, max_source_positions=50)
# Heads of 24 values, 12 of which turn.
GLM = dict(num_mel_bins=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=192, max_position_embeddings=44,
           rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5))
# Encoders that have no directory here: what makes them and their extractors, and the sounds.
ENCODERS = {
    "qwen2_5_omni": (lambda: Qwen2_5OmniAudioEncoder(Qwen2_5OmniAudioEncoderConfig(**TOWER, output_dim=64, n_window=100)),
                     lambda: transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=30), [69977, 5441, 36001, 32000]),
    "ultravox": (lambda: Ultravox(WhisperEncoder(transformers.WhisperConfig(**TOWER, max_source_positions=50)), 8, 96, 64),
                 lambda: transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1), [16000, 5441, 25000]),
}


def spread(model, seed):
    """Random weights under which every part matters."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.normal_(1.0 if "norm" in name.lower() and name.endswith("weight") or "ln_post.weight" in name else 0.0, 0.15)
            elif "embed_tokens" in name or "lm_head" in name:
                p.normal_(0, 0.5)
            elif "embed_positions" in name:
                p.normal_(0, 0.3)
            else:
                p.normal_(0, 1.6 / p[0].numel() ** 0.5)
    return model.bfloat16()


def glm_extractor():
    """Its windows have whole features: 88 frames."""
    made = transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=1)
    made.chunk_length, made.n_samples, made.nb_max_frames = 0.88, 14080, 88
    return made


def prepare(name, extractor, samples):
    """What the model takes for a sound, and how many tokens stand for it."""
    if name == "voxtral":
        own = SimpleNamespace(feature_extractor=extractor)
        own.feature_extractor.feature_size = 128
        frames = VoxtralProcessor._retrieve_input_features(own, [samples], 104, sampling_rate=RATE, padding=True, truncation=False,
                                                           pad_to_multiple_of=104 * 160, return_tensors="pt")
        return dict(input_features=frames), frames.shape[0] * 13
    if name == "qwen2_audio":
        own = SimpleNamespace(feature_extractor=SimpleNamespace(fetch_audio=lambda audio: audio), audio_token="x",
                              replace_audio_token=lambda inputs, audio_idx: "")
        call = lambda audio, **more: extractor(audio, sampling_rate=RATE, return_tensors="pt", **more)
        own.feature_extractor = type("Own", (), {"fetch_audio": lambda self, audio: audio, "__call__": lambda self, *a, **m: call(*a, **m)})()
        inputs, _ = Qwen2AudioProcessor._process_audio(own, [samples])
        count = inputs.pop("num_audio_tokens")[0]
        return dict(inputs), count
    if name in ("audioflamingo3", "glm_asr"):
        processor = AudioFlamingo3Processor if name == "audioflamingo3" else GlmAsrProcessor

        class Own:
            chunk_length = extractor.chunk_length
            fetch_audio = staticmethod(lambda audio: audio)
            __call__ = staticmethod(lambda audio, **more: extractor(audio, return_attention_mask=True, return_tensors="pt", **more))

        own = SimpleNamespace(feature_extractor=Own(), max_audio_len=600, replace_audio_token=lambda inputs, audio_idx: "")
        own._get_audio_token_length = lambda lengths: processor._get_audio_token_length(None, lengths)
        inputs, _ = processor._process_audio(own, [samples], sampling_rate=RATE, padding="max_length")
        count = int(inputs.pop("num_audio_tokens")[0])
        return dict(inputs), count
    if name == "ultravox":
        # The mask is padded to whole frames, and so is the sound.
        frames = extractor(samples, sampling_rate=RATE, padding="longest", pad_to_multiple_of=160, truncation=False, return_tensors="pt")
        return dict(frames=frames["input_features"]), None
    if name == "qwen2_5_omni":
        inputs = extractor(samples, sampling_rate=RATE, padding="max_length", return_attention_mask=True, return_tensors="pt")
        seen = inputs["attention_mask"].sum(-1)
        return dict(input_features=inputs["input_features"][0, :, : int(seen[0])], feature_lens=seen), None
    inputs = extractor(samples, sampling_rate=RATE, padding=True, truncation=False, return_attention_mask=True)
    mask = inputs["attention_mask"]
    count = int(Qwen3ASRProcessor._get_audio_token_length(None, mask.sum(-1))[0])
    return dict(input_features=inputs["input_features"], input_features_mask=mask), count


def features_of(name, model, inputs, count):
    if name == "ultravox":
        return model(**inputs)
    if name == "qwen2_5_omni":
        return model(**inputs).last_hidden_state
    if name != "qwen2_audio":
        return model.get_audio_features(**inputs, return_dict=True).pooler_output.reshape(-1, 64)
    # Its model has no such function; the states beyond the sound are not seen.
    inner = model.model
    seen = (inputs["feature_attention_mask"].sum(-1) - 1) // 2 + 1
    mask = torch.where(torch.arange(50)[None, None, None] < seen[:, None, None, None], 0.0, torch.finfo(torch.float32).min)
    states = inner.audio_tower(inputs["input_features"], attention_mask=mask).last_hidden_state
    return inner.multi_modal_projector(states)[0, :count]


def keep_features(out, name, model, extractor, lengths, end=""):
    """Writes the features of sounds. The list of them, and what the model takes for each."""
    listed, shown = [], []
    for length in lengths:
        inputs, count = prepare(name, extractor, sound(length))
        with torch.no_grad():
            found = features_of(name, model, inputs, count).numpy()
        count = count or len(found)
        assert found.shape == (count, 64) and np.isfinite(found).all() and found.std() > 0.1, (name, found.shape, count, found.std())
        file = f"hearing/{name}/{length}{end}.f32"
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        np.ascontiguousarray(found, "<f4").tofile(out / file)
        print(name, length, found.shape, f"std {found.std():.2f}, apart {found.std(0).mean():.2f}")
        listed.append({"samples": length, "features": file, "count": count})
        shown.append((length, inputs, count))
    return listed, shown


def keep_logits(out, name, model, shown, seed, end=""):
    with torch.no_grad():
        parts, found = logits_of(model, shown[:2][::-1], np.random.default_rng(seed))
    file = f"hearing/{name}/logits{end}.f32"
    np.ascontiguousarray(found, "<f4").tofile(out / file)
    print(name, "logits", found.shape, f"std {found.std():.2f}")
    return {"parts": parts, "logits": file}


def encoder_of(model):
    """The parameters of an encoder and its projector, by name, and its configuration."""
    inner = getattr(model, "model", model)
    named = [(key, p) for key, p in inner.named_parameters() if "audio_tower" in key or "multi_modal_projector" in key]
    if not named:  # Qwen2.5-Omni's alone, whose places are no parameter
        named = [(key, p) for key, p in model.named_parameters() if "audio_bos_eos" not in key]
        named.append(("embed_positions.weight", model.positional_embedding.positional_embedding))
    return named, (inner.audio_tower if hasattr(inner, "audio_tower") else model).config


def logits_of(model, shown, random):
    """A conversation with sounds: its parts, as the index keeps them, and the logits after the last tokens."""
    words = lambda n: [int(token) for token in random.integers(10, VOCAB, n)]
    parts, tokens = [], []
    for length, _, count in shown:
        parts += [{"tokens": words(6)}, {"sound": length}]
        tokens += parts[-2]["tokens"] + [AUDIO] * count
    parts.append({"tokens": words(9)})
    tokens += parts[-1]["tokens"]
    keys = shown[0][1].keys()

    def join(key):
        each = [inputs[key] for _, inputs, _ in shown]
        longest = max(one.shape[-1] for one in each)
        return torch.cat([torch.nn.functional.pad(one, (0, longest - one.shape[-1])) for one in each])

    inputs = {key: join(key) for key in keys}
    found = model(input_ids=torch.tensor([tokens]), **inputs).logits[0, -KEPT:].float().numpy()
    assert np.isfinite(found).all() and found.std() > 0.8, found.std()
    return parts, found


def main():
    torch.set_num_threads(1)
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or [*MODELS, *ENCODERS]
    made = []
    for number, (name, (make, make_extractor, lengths)) in enumerate(MODELS.items()):
        if name not in wanted:
            continue
        folder, extractor = out / f"hearing/{name}/hf", make_extractor()
        folder.parent.mkdir(parents=True, exist_ok=True)
        model = directory(spread(make(), 140 + number), folder, 140 + number, extractor.save_pretrained)
        sounds, shown = keep_features(out, name, model, extractor, lengths)
        entry = {"name": name, "path": f"hearing/{name}/hf", "sounds": sounds} | keep_logits(out, name, model, shown, 160 + number)
        if name == "glm_asr":
            made.append(entry)
            continue
        # The encoder gets other weights, of a file, which does not say what Qwen3-ASR's windows are.
        if name == "qwen3_asr":
            model.model.audio_tower.n_window_infer = 800
        mmproj(name, *encoder_of(model), out / f"hearing/{name}/mmproj.gguf", 180 + number)
        sounds, shown = keep_features(out, name, model, extractor, lengths, "-mmproj")
        entry["mmproj"] = {"path": f"hearing/{name}/mmproj.gguf", "sounds": sounds}
        made.append(entry | {"mmproj": entry["mmproj"] | keep_logits(out, name, model, shown, 160 + number, "-mmproj")})
    for number, (name, (make, make_extractor, lengths)) in enumerate(ENCODERS.items()):
        if name not in wanted:
            continue
        model = spread(make(), 200 + number).float().eval()
        (out / f"hearing/{name}").mkdir(parents=True, exist_ok=True)
        mmproj(name, *encoder_of(model), out / f"hearing/{name}/mmproj.gguf", 210 + number)
        sounds, _ = keep_features(out, name, model, make_extractor(), lengths, "-mmproj")
        made.append({"name": name, "mmproj": {"path": f"hearing/{name}/mmproj.gguf", "sounds": sounds}})
    path = out / "hearing.json"
    kept = json.loads(path.read_text()) if path.exists() else []
    kept = [entry for entry in kept if entry["name"] not in wanted]
    path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in kept + made) + "\n]\n")


if __name__ == "__main__":
    main()
