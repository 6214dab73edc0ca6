"""Writes goldens of speech: what transformers' feature extractor makes of a sound, the states of an encoder, logits and texts.

    python3 tools/goldens/speech.py crates/welte/tests/goldens crates/welte-audio/tests/data

Needs torch, transformers, numpy. The sound follows from a formula (`sound`, which the tests have, too). The models are small Whispers with
windows of 1 s, whose weights are random and follow from a seed. `speech.json` lists them.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from make import directory
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

RATE, POSITIONS, TOKENS, WORDS = 16000, 50, 64, 256
NAMES = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>",
         "<|nospeech|>", "<|notimestamps|>"]
IDS = {name: WORDS + i for i, name in enumerate(NAMES)}
TIMES = WORDS + len(NAMES)
VOCAB = TIMES + POSITIONS + 1
# Of models whose texts have timestamps and no near ties.
SEEDS = [2, 23]
SUPPRESSED, FIRST = [33, 34, *(IDS[name] for name in NAMES[1:-1])], [220, IDS["<|endoftext|>"]]


def sound(count):
    """Tones that rise and fall over noise."""
    n = np.arange(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        hash = (n * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    noise = hash.astype(np.float64) / 2**24 - 0.5
    t = n.astype(np.float64) / RATE
    tones = np.sin(2 * np.pi * (200 * t + 300 * t * t)) * 0.4 + np.sin(2 * np.pi * 1700 * t) * 0.2 * np.sin(2 * np.pi * 3 * t)
    return (tones + 0.02 * noise).astype(np.float32)


def features(samples, mels, seconds):
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels, chunk_length=seconds)
    return extractor(samples, sampling_rate=RATE, return_tensors="np", truncation=False, padding="longest")["input_features"][0]


def write_features(out):
    out.mkdir(parents=True, exist_ok=True)
    samples = sound(RATE + 10)
    for mels in [80, 128]:
        found = features(samples, mels, 2)[:, ::3].T
        np.ascontiguousarray(found, "<f4").tofile(out / f"mel{mels}.f32")
        print("features", mels, found.shape, found.min(), found.max())


def tokenizer(path):
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(letters))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in NAMES])
    tokenizer.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", special=False, normalized=False) for i in range(POSITIONS + 1)])
    assert tokenizer.get_vocab_size() == VOCAB
    tokenizer.save(str(path), pretty=False)


def model(mels, layers, dtype, seed):
    torch.manual_seed(seed)
    config = transformers.WhisperConfig(
        vocab_size=VOCAB, num_mel_bins=mels, d_model=48, encoder_layers=2, decoder_layers=layers, encoder_attention_heads=3, decoder_attention_heads=2,
        encoder_ffn_dim=80, decoder_ffn_dim=96, max_source_positions=POSITIONS, max_target_positions=TOKENS, pad_token_id=WORDS, bos_token_id=WORDS,
        eos_token_id=WORDS, decoder_start_token_id=IDS["<|startoftranscript|>"], suppress_tokens=None, begin_suppress_tokens=None)
    made = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "layer_norm" in name and name.endswith("weight"):
                p.normal_(1, 0.1)
            elif name.endswith("bias"):
                p.normal_(0, 0.1)
            elif "embed_tokens" in name:
                p.normal_(0, 0.35)
            elif "embed_positions" in name:
                p.normal_(0, 0.3)
            else:
                p.normal_(0, 1.5 / p[0].numel() ** 0.5)
    return made.to(dtype)


def golden(out, name, mels, layers, dtype, seed, check=False):
    folder = out / "speech" / name
    made = directory(model(mels, layers, dtype, seed), folder, seed)
    tokenizer(folder / "tokenizer.json")
    settings = transformers.GenerationConfig(
        no_timestamps_token_id=IDS["<|notimestamps|>"], lang_to_id={f"<|{code}|>": IDS[f"<|{code}|>"] for code in ["en", "de"]},
        task_to_id={task: IDS[f"<|{task}|>"] for task in ["transcribe", "translate"]}, is_multilingual=True, max_initial_timestamp_index=50,
        suppress_tokens=SUPPRESSED, begin_suppress_tokens=FIRST, prev_sot_token_id=IDS["<|startofprev|>"], eos_token_id=WORDS, pad_token_id=WORDS,
        bos_token_id=WORDS, decoder_start_token_id=IDS["<|startoftranscript|>"], alignment_heads=[[0, 0], [layers - 1, 1]], return_timestamps=True)
    settings.save_pretrained(folder)
    made.generation_config = settings
    frames = torch.from_numpy(features(sound(RATE), mels, 1))[None]
    with torch.no_grad():
        states = made.model.encoder(frames).last_hidden_state[0]
        prompt = [IDS[name] for name in ["<|startoftranscript|>", "<|de|>", "<|transcribe|>"]]
        forced = prompt + [TIMES, *np.random.default_rng(seed).integers(0, WORDS, 8).tolist(), TIMES + 20]
        made.set_attn_implementation("eager")
        forced_run = made(input_features=frames, decoder_input_ids=torch.tensor([forced]), output_attentions=True)
        logits = forced_run.logits[0]
        looks = torch.stack([forced_run.cross_attentions[layer][0, head] for layer, head in settings.alignment_heads])
        languages = logits[0, [IDS["<|en|>"], IDS["<|de|>"]]].softmax(-1)
        found = made.generate(frames, language="de", task="transcribe", num_beams=1, do_sample=False, max_new_tokens=20, output_scores=True,
                              return_dict_in_generate=True, return_timestamps=True)
        # There may be further windows.
        first = found["segments"][0][0]["result"]
        best = torch.stack(list(first["scores"])).topk(2).values
        least = [(best[:, 0] - best[:, 1])[best[:, 1].isfinite()].min().item()]
        texts = {"timestamps": first["sequences"].tolist()[3:], "plain": []}
        # Without timestamps transformers may write some.
        plain = [*prompt, IDS["<|notimestamps|>"]]
        for at in range(20):
            scores = made(input_features=frames, decoder_input_ids=torch.tensor([plain + texts["plain"]])).logits[0, -1]
            scores[[*range(TIMES, VOCAB), *SUPPRESSED, IDS["<|notimestamps|>"], *(FIRST if at == 0 else [])]] = -torch.inf
            best = scores.topk(2)
            least.append((best.values[0] - best.values[1]).item())
            texts["plain"].append(best.indices[0].item())
    print(name, seed, texts, "margins", least[0], min(least))
    if check and (min(least) < 0.1 or sum(token >= TIMES for token in texts["timestamps"]) < 3):
        return None
    files = {"states": states, "logits": logits, "looks": looks}
    for key, values in files.items():
        np.ascontiguousarray(values.float().numpy(), "<f4").tofile(out / "speech" / f"{name}.{key}.f32")
    print(name, f"states {states.std():.2f}, logits {logits.std():.2f}, languages {languages.tolist()}")
    return {"name": name, "path": f"speech/{name}", "mels": mels, "forced": forced, "german": languages[1].item(), **texts}


def main(out, audio):
    out = Path(out)
    write_features(Path(audio))
    entries = [golden(out, "f32", 80, 2, torch.float32, SEEDS[0]), golden(out, "f16", 128, 3, torch.float16, SEEDS[1])]
    (out / "speech.json").write_text(json.dumps(entries).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
