#!/usr/bin/env python3
"""Writes the goldens of encoders: small models of transformers with random weights, texts as tokens, and the vectors or scores
that transformers computes for them.

    tools/goldens/encoders.py crates/welte/tests/goldens
"""

import json
import pathlib
import sys

import gguf
import torch
import transformers as tf

from make import directory
from seeded import cut, generate

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from embedding_models import bert_gguf

SIZES = dict(
    vocab_size=96,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=80,
    max_position_embeddings=72,
    pad_token_id=0,
)
# Lengths of the texts: one row, one strip of a kernel and more, more than one block of keys.
LENGTHS = [1, 5, 33, 70]


def texts(vocab, seed):
    generator = torch.Generator().manual_seed(seed)
    # The first ids are often special.
    return [torch.randint(5, vocab, (n,), generator=generator).tolist() for n in LENGTHS]


def randomise(model, seed):
    """Norms and biases of a new model are 1 and 0, which would hide errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.3 if p.dim() == 1 else 0.18
            noise = torch.randn(p.shape, generator=generator) * scale
            p.copy_(noise + 1.0 if p.dim() == 1 and name.endswith("weight") and "emb" not in name else noise)
    return model.float().eval()


def same_weights(path, folder):
    """Cuts a GGUF file that has the tensors of a directory, under names of its own."""
    fill = json.loads((folder / "model.safetensors.fill").read_text())
    known = {generate(fill["seed"], name, *how).tobytes(): (name, how) for name, _, *how in fill["tensors"]}
    tensors = []
    for tensor in gguf.GGUFReader(path).tensors:
        name, how = known[tensor.data.tobytes()]
        tensors.append([name, int(tensor.data_offset), *how])
    cut(path, fill["seed"], tensors)


def pool(states, kind):
    return {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[kind]


def modules(folder, kind, dim):
    """What sentence-transformers writes beside a model."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    flags = {f"pooling_mode_{name}": key == kind for key, name in names.items()}
    pooling = {"word_embedding_dimension": dim, **flags}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    transformer = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    pooling = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    (folder / "modules.json").write_text(json.dumps([transformer, pooling]))


def main():
    out = pathlib.Path(sys.argv[1])
    index = []

    def add(name, path, pooling, inputs, outputs, scores=False):
        index.append(
            {
                "name": name,
                "path": str(path.relative_to(out)),
                "pooling": pooling,
                "scores": scores,
                "texts": inputs,
                "vectors": [[round(float(v), 6) for v in vector] for vector in outputs],
            }
        )

    gemma = dict(SIZES, num_key_value_heads=2, head_dim=16, sliding_window=16, use_bidirectional_attention=True)
    gemma |= dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"], query_pre_attn_scalar=16)
    modern = dict(SIZES, local_attention=16, global_attn_every_n_layers=3, cls_token_id=1, sep_token_id=2)
    modern |= dict(bos_token_id=1, eos_token_id=2)
    rope = dict(SIZES, type_vocab_size=2)
    models = [
        ("bert", tf.BertConfig(**SIZES), tf.BertModel, "mean"),
        ("xlm-roberta", tf.XLMRobertaConfig(**dict(SIZES, pad_token_id=1, max_position_embeddings=74)), tf.XLMRobertaModel, "cls"),
        ("nomic-bert", tf.NomicBertConfig(**rope), tf.NomicBertModel, "mean"),
        ("jina-v3", tf.JinaEmbeddingsV3Config(**dict(SIZES, type_vocab_size=1)), tf.JinaEmbeddingsV3Model, "mean"),
        ("modernbert", tf.ModernBertConfig(**modern), tf.ModernBertModel, "cls"),
        ("embeddinggemma", tf.Gemma3TextConfig(**gemma), tf.Gemma3TextModel, "mean"),
    ]
    for seed, (name, config, kind, pooling) in enumerate(models):
        config._attn_implementation = "eager"
        folder = out / "encoders" / name
        model = directory(randomise(kind(config), seed), folder, seed)
        modules(folder, pooling, config.hidden_size)
        inputs = texts(config.vocab_size, seed)
        with torch.no_grad():
            states = [model(input_ids=torch.tensor([t])).last_hidden_state[0] for t in inputs]
        add(name, folder, pooling, inputs, [pool(s, pooling) for s in states])
        if name == "bert":
            path = out / "encoders" / "bert.gguf"
            bert_gguf(model, config, path)
            same_weights(path, folder)
            add("bert (GGUF)", path, pooling, inputs, [pool(s, pooling) for s in states])
    classifiers = [
        ("bert-classifier", tf.BertConfig(**SIZES, num_labels=1), tf.BertForSequenceClassification),
        (
            "xlm-roberta-classifier",
            tf.XLMRobertaConfig(**dict(SIZES, pad_token_id=1, max_position_embeddings=74), num_labels=1),
            tf.XLMRobertaForSequenceClassification,
        ),
        ("modernbert-classifier", tf.ModernBertConfig(**modern, num_labels=1), tf.ModernBertForSequenceClassification),
    ]
    for seed, (name, config, kind) in enumerate(classifiers, 20):
        config._attn_implementation = "eager"
        folder = out / "encoders" / name
        model = directory(randomise(kind(config), seed), folder, seed)
        inputs = texts(config.vocab_size, seed)
        outputs = []
        for text in inputs:
            given = {"input_ids": torch.tensor([text])}
            if isinstance(config, tf.BertConfig) and not isinstance(config, tf.XLMRobertaConfig):
                # The second half is the second text.
                half = len(text) // 2
                given["token_type_ids"] = torch.tensor([[0] * half + [1] * (len(text) - half)])
            with torch.no_grad():
                outputs.append(torch.sigmoid(model(**given).logits[0]))
        add(name, folder, "cls", inputs, outputs, scores=True)
    (out / "encoders.json").write_text(json.dumps(index, indent=1) + "\n")


main()
