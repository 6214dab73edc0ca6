#!/usr/bin/env python3
"""Writes what sentence-transformers puts beside an encoder (prompts, pooling without them, lower case), a small tokenizer, and
vectors that sentence-transformers computes with them and the model of the golden `bert`.

    tools/goldens/prompts.py crates/welte/tests/goldens
"""

import json
import pathlib
import shutil
import sys
import tempfile

from seeded import expand
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "fox", "bear", "snow", "a", "eats", "##s", "find", ":", "the", "text", "Fox"]
PROMPTS = {"query": "find the text: ", "document": "text: ", "none": ""}
TEXTS = ["a fox", "A FOX eats", "the bear eats snow, a fox eats bears"]


def main():
    goldens = pathlib.Path(sys.argv[1]) / "encoders"
    out = goldens / "prompts"
    shutil.rmtree(out, ignore_errors=True)
    (out / "1_Pooling").mkdir(parents=True)
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
    ]
    for name, content in {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 72} | special,
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 48, "pooling_mode": "mean", "include_prompt": False},
        "sentence_bert_config.json": {"max_seq_length": 72, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": PROMPTS, "default_prompt_name": "document"},
    }.items():
        (out / name).write_text(json.dumps(content) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        bert = pathlib.Path(folder, "model.safetensors")
        bert.write_bytes(expand(goldens / "bert" / bert.name))
        shutil.copy(goldens / "bert" / "config.json", folder)
        shutil.copytree(out, folder, dirs_exist_ok=True)
        model = SentenceTransformer(folder, device="cpu")
        cases = []
        for name in [None, "query", "none"]:
            for text in TEXTS:
                vector = model.encode(text, prompt_name=name).tolist()
                cases.append({"prompt": name, "text": text, "vector": [round(v, 6) for v in vector]})
    lines = ",\n".join(json.dumps(case) for case in cases)
    (out / "expected.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
