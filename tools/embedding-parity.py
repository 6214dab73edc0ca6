#!/usr/bin/env python3
"""Compares the vectors of `welte embed` with those of sentence-transformers, on a small random model of every family in F32.

    tools/embedding-parity.py --welte target/release/welte [--device cpu]

The least cosine of a family must be at least 0.9999. It covers tokenizers, prompts, pooling, dense layers, normalisation and
shortened (Matryoshka) vectors, because both read the same folder and the same texts. The last column is the largest cosine of two
different texts.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import embedding_models as made
import torch
import transformers as tf
from sentence_transformers import SentenceTransformer

LEAST = 0.9999
TEXTS = [
    "a",
    "A fox lived by the river, and every morning she went down to drink.",
    "In 1999 there were 12 foxes; 1234567890 of them. 3.14159 ½",
    "Über größer Où mañana naïve. Лиса жила у реки. 狐狸住在河边，每天早上都去喝水。",
    "tabs\tand  double   spaces   at the end  ",
    "🦊🌊 → ✓ camelCase HTTPServer snake_case x86_64!!!",
    *(made.word_text(words, words) for words in (3, 14, 15, 16, 17, 60, 120, 200)),
]
PROMPTS = {"query": "search for this: ", "document": "text: "}


def families():
    """Name, model, tokenizer, pooling, dense layers."""
    word_piece, unigram, gpt = made.word_piece(), made.unigram(), made.byte_level("<s>", "</s>")
    last = made.byte_level("", "<|endoftext|>")
    sizes = dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=160, max_position_embeddings=258)
    few = dict(num_key_value_heads=2, head_dim=32)
    bert = dict(sizes, vocab_size=len(word_piece), pad_token_id=0)
    roberta = dict(sizes, vocab_size=len(unigram), pad_token_id=1, bos_token_id=0, eos_token_id=2)
    modern = dict(sizes, vocab_size=len(gpt), pad_token_id=0, local_attention=32, global_attn_every_n_layers=3)
    modern |= dict(bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2)
    gemma = dict(sizes, **few, vocab_size=len(gpt), pad_token_id=0, bos_token_id=1, eos_token_id=2, sliding_window=64)
    gemma |= dict(use_bidirectional_attention=True, query_pre_attn_scalar=32)
    gemma |= dict(layer_types=["sliding_attention", "full_attention"] * 2)
    qwen = dict(sizes, **few, vocab_size=len(last), eos_token_id=last.eos_token_id)
    yield "BERT", tf.BertModel(tf.BertConfig(**bert)), word_piece, "mean", []
    yield "XLM-R", tf.XLMRobertaModel(tf.XLMRobertaConfig(**roberta)), unigram, "cls", []
    yield "nomic-bert", tf.NomicBertModel(tf.NomicBertConfig(**dict(bert, type_vocab_size=2))), word_piece, "mean", []
    jina = tf.JinaEmbeddingsV3Config(**dict(roberta, type_vocab_size=1))
    yield "Jina v3", tf.JinaEmbeddingsV3Model(jina), unigram, "mean", []
    yield "ModernBERT", tf.ModernBertModel(tf.ModernBertConfig(**modern)), gpt, "cls", []
    yield "EmbeddingGemma", tf.Gemma3TextModel(tf.Gemma3TextConfig(**gemma)), gpt, "mean", [224, 96]
    yield "Qwen3-Embedding", tf.Qwen3Model(tf.Qwen3Config(**qwen)), last, "lasttoken", []


def vectors(welte, folder, device, words):
    """What welte embed prints for the texts."""
    lines = "".join(json.dumps(text) + "\n" for text in TEXTS)
    command = [welte, "embed", "-m", folder, "--device", device, "--jsonl", "-f", "-", "--batch", "5", *words]
    out = subprocess.run(command, check=True, input=lines, stdout=subprocess.PIPE, text=True).stdout
    return torch.tensor([json.loads(line)["embedding"] for line in out.splitlines()])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--device", default="cpu")
    p.add_argument("--family", action="append", help="only this one (repeatable)")
    p.add_argument("--least", type=float, default=LEAST)
    a = p.parse_args()
    wrong = []
    tf.utils.logging.disable_progress_bar()
    print("| family | vectors | query prompt | first 32 values | different texts |\n|---|---:|---:|---:|---:|")
    for seed, (name, model, tokenizer, pooling, dense) in enumerate(families()):
        if a.family and name not in a.family:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            made.save(path, made.randomise(model, seed), tokenizer, pooling, 256, dense, PROMPTS)
            reference = SentenceTransformer(folder, device="cpu", model_kwargs={"attn_implementation": "eager", "dtype": torch.float32})
            # By themselves, padded rows would change the rounding.
            encode = lambda **words: torch.stack([reference.encode(text, convert_to_tensor=True, **words) for text in TEXTS])
            shorter = torch.nn.functional.normalize(encode()[:, :32], dim=1)
            pairs = [
                (encode(), vectors(a.welte, folder, a.device, [])),
                (encode(prompt_name="query"), vectors(a.welte, folder, a.device, ["--prompt-name", "query"])),
                (shorter, vectors(a.welte, folder, a.device, ["--dimensions", "32"])),
            ]
        least = [torch.nn.functional.cosine_similarity(x.double(), y.double()).min().item() for x, y in pairs]
        # How near the vectors of different texts are: a comparison means little if they are all alike.
        among = pairs[0][0] @ pairs[0][0].T
        alike = (among - 2 * torch.eye(len(TEXTS))).max().item()
        print(f"| {name} | " + " | ".join(f"{cosine:.7f}" for cosine in least) + f" | {alike:.3f} |", flush=True)
        lengths = [(x.norm(dim=1) - y.norm(dim=1)).abs().max().item() for x, y in pairs]
        if min(least) < a.least or max(lengths) > 1e-3:
            wrong.append(f"{name}: least cosine {min(least)}, lengths differ by {max(lengths)}")
    if wrong:
        sys.exit("\n".join(wrong))


main()
