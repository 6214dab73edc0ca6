"""Random models as sentence-transformers saves them, for tools that compare vectors or speed.

Tokenizers are complete but made up: every word of up to three letters is one token, so a text of N words has N tokens and those
that the model puts around a text.
"""

import itertools
import json
import string

import torch
import transformers as tf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ["".join(letters) for n in (1, 2, 3) for letters in itertools.product(string.ascii_lowercase, repeat=n)]
# BERT's base vocabulary has room for fewer words than there are.
PRINTABLE = [chr(code) for code in range(33, 127)]


def around(tokenizer, first, last, doubled=False):
    """Puts tokens around a text; between two texts, RoBERTa has two."""
    middle = f"{last} {last}" if doubled else last
    names = [name for name in dict.fromkeys([first, last]) if name]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}".strip(),
        pair=f"{first} $A {middle} $B:1 {last}:1".strip(),
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names],
    )


def word_piece():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    texts = specials + PRINTABLE + [f"##{c}" for c in PRINTABLE] + [word for word in WORDS if len(word) > 1]
    tokenizer = Tokenizer(models.WordPiece({text: id for id, text in enumerate(texts)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    around(tokenizer, "[CLS]", "[SEP]")
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def unigram():
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    entries = [(text, 0.0) for text in specials] + [("\u2581", -6.0)]
    entries += [(c, -9.0) for c in PRINTABLE] + [("\u2581" + word, -4.0 - len(word)) for word in WORDS]
    tokenizer = Tokenizer(models.Unigram(entries, 3, False))
    tokenizer.normalizer = normalizers.NFKC()
    words = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    around(tokenizer, "<s>", "</s>", doubled=True)
    names = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>")
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_level(first, last):
    """BPE whose merges make each word from its beginning, with a space in front."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("Ġ" + word[:-1], word[-1]) for word in WORDS]
    specials = [text for text in dict.fromkeys(["<pad>", first, last]) if text]
    texts = specials + letters + ["".join(pair) for pair in pairs]
    tokenizer = Tokenizer(models.BPE({text: id for id, text in enumerate(texts)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    around(tokenizer, first, last)
    names = dict(pad_token="<pad>", bos_token=first or None, eos_token=last)
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def randomise(model, seed):
    """A new model has norms of 1, biases of 0 and matrices that hardly tell texts apart, which would hide errors."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape) * 1.5 * p.shape[1] ** -0.5)
            else:
                p.copy_(torch.randn(p.shape) * 0.2 + float(name.endswith("weight")))
    return model.eval()


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def save(folder, model, tokenizer, pooling, longest, dense=(), prompts=None):
    """Writes the model and the files of sentence-transformers around it. `dense`: the widths of dense layers after pooling."""
    from safetensors.torch import save_file

    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    dim = model.config.hidden_size
    modules = ["Transformer", "Pooling"] + ["Dense"] * len(dense) + ["Normalize"]
    entries = []
    for at, name in enumerate(modules):
        path = "" if at == 0 else f"{at}_{name}"
        entries.append({"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"})
    write_json(folder / "modules.json", entries)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    names = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    flags = {f"pooling_mode_{name}": key == pooling for key, name in names.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": dim, **flags})
    for at, width in enumerate(dense):
        path = folder / f"{at + 2}_Dense"
        config = {"in_features": dim, "out_features": width, "bias": False}
        write_json(path / "config.json", config | {"activation_function": "torch.nn.modules.linear.Identity"})
        save_file({"linear.weight": torch.randn(width, dim) * dim**-0.5}, path / "model.safetensors")
        dim = width
    config = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", config)


def add_word_piece(writer, tokenizer):
    """The vocabulary as converters write it: beginnings of words are marked, in place of continuations."""
    texts = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    specials = set(tokenizer.all_special_tokens)
    spelled = [t if t in specials else t[2:] if t.startswith("##") else "\u2581" + t for t in texts]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(spelled)
    writer.add_token_types([3 if text in specials else 1 for text in texts])
    writer.add_bos_token_id(tokenizer.cls_token_id)
    writer.add_sep_token_id(tokenizer.sep_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_mask_token_id(tokenizer.mask_token_id)


def bert_gguf(model, config, path, tokenizer=None, half=False):
    """The same weights under llama.cpp's names; with `half`, matrices in F16."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_uint32("bert.block_count", config.num_hidden_layers)
    writer.add_uint32("bert.context_length", config.max_position_embeddings)
    writer.add_uint32("bert.embedding_length", config.hidden_size)
    writer.add_uint32("bert.feed_forward_length", config.intermediate_size)
    writer.add_uint32("bert.attention.head_count", config.num_attention_heads)
    writer.add_float32("bert.attention.layer_norm_epsilon", config.layer_norm_eps)
    writer.add_bool("bert.attention.causal", False)
    writer.add_uint32("bert.pooling_type", 1)
    writer.add_uint32("tokenizer.ggml.token_type_count", config.type_vocab_size)
    if tokenizer:
        add_word_piece(writer, tokenizer)
    plain = {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
    }
    parts = {
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    }
    for name, tensor in model.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("encoder.layer."):
            _, _, layer, part = stem.split(".", 3)
            target = f"blk.{layer}.{parts[part]}"
        elif stem in plain:
            target = plain[stem]
        else:
            continue
        tensor = tensor.float().numpy()
        # llama.cpp keeps positions and segments in F32.
        is_half = half and tensor.ndim == 2 and target not in ("position_embd", "token_types")
        writer.add_tensor(f"{target}.{kind}", tensor.astype(numpy.float16) if is_half else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def word_text(words, seed):
    """A text of `words` words, one token each."""
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(26, len(WORDS), (words,), generator=generator)
    return " ".join(WORDS[pick] for pick in picks)
