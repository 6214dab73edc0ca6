#!/usr/bin/env python3
"""Writes the goldens of encoders: small models of transformers with random weights, texts as tokens, and the vectors or scores
that transformers computes for them. transformers lacks nomic-bert with experts, so its forward pass is here.

    tools/goldens/encoders.py crates/welte/tests/goldens [name ...]
"""

import json
import pathlib
import sys
import tempfile

import gguf
import torch
import torch.nn.functional as F
import transformers as tf
from safetensors.torch import load_file, save_file

from make import directory, swap
from seeded import Gguf, Safetensors, cut, generate

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


# nomic-embed-text-v2-moe: nomic-bert with biases and GELU, and experts in every second layer.
MOE = {"num_experts": 4, "moe_top_k": 2, "moe_every_n_layers": 2}
ROPE_BASE = 10000.0


def nomic_moe_config():
    # The keys of the published one.
    return {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "gelu", "causal": False,
            "layer_norm_epsilon": 1e-5, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "qkv_proj_bias": True,
            "moe_normalize_expert_weights": False, "n_embd": SIZES["hidden_size"], "n_head": SIZES["num_attention_heads"],
            "n_inner": SIZES["intermediate_size"], "n_layer": SIZES["num_hidden_layers"], "n_positions": SIZES["max_position_embeddings"],
            "prenorm": False, "rotary_emb_base": ROPE_BASE, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None, "type_vocab_size": 1, "vocab_size": SIZES["vocab_size"], "pad_token_id": 1} | MOE


def nomic_moe_weights(seed):
    generator = torch.Generator().manual_seed(seed)
    dim, ffn, experts = SIZES["hidden_size"], SIZES["intermediate_size"], MOE["num_experts"]
    shapes = {"embeddings.word_embeddings.weight": (SIZES["vocab_size"], dim), "embeddings.token_type_embeddings.weight": (1, dim)}
    norms = ["emb_ln"]
    for layer in range(SIZES["num_hidden_layers"]):
        own = f"encoder.layers.{layer}."
        norms += [own + "norm1", own + "norm2"]
        matrices = {"attn.Wqkv": (3 * dim, dim), "attn.out_proj": (dim, dim)}
        if layer % MOE["moe_every_n_layers"] == 1:
            shapes |= {own + "mlp.router.layer.weight": (experts, dim), own + "mlp.experts.bias": (dim,),
                       own + "mlp.experts.mlp.w1": (experts * ffn, dim), own + "mlp.experts.mlp.w2": (experts * ffn, dim)}
        else:
            matrices |= {"mlp.fc1": (ffn, dim), "mlp.fc2": (dim, ffn)}
        for name, shape in matrices.items():
            shapes |= {f"{own}{name}.weight": shape, f"{own}{name}.bias": shape[:1]}
    random = lambda shape: torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else 0.18)
    weights = {name: random(shape) for name, shape in shapes.items()}
    for name in norms:
        weights |= {f"{name}.weight": 1 + random((dim,)), f"{name}.bias": random((dim,))}
    return weights


def nomic_moe_states(w, tokens):
    """The last hidden states of a text. Sums are normed; shares of experts are those of a softmax over all of them."""
    heads, top = SIZES["num_attention_heads"], MOE["moe_top_k"]
    affine = lambda name, x: F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))
    norm = lambda name, x: F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)
    rows, dim = len(tokens), SIZES["hidden_size"]
    half = dim // heads // 2
    angles = torch.arange(rows)[:, None, None] * ROPE_BASE ** (-torch.arange(half) / half)

    def turned(x):
        a, b = x.split(half, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm("emb_ln", x)
    for layer in range(SIZES["num_hidden_layers"]):
        own = f"encoder.layers.{layer}."
        q, k, v = affine(own + "attn.Wqkv", x).view(rows, 3, heads, -1).unbind(1)
        scores = torch.einsum("ihd,jhd->hij", turned(q), turned(k)) / (2 * half) ** 0.5
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(rows, dim)
        x = norm(own + "norm1", x + affine(own + "attn.out_proj", mixed))
        if own + "mlp.fc1.weight" in w:
            y = affine(own + "mlp.fc2", F.gelu(affine(own + "mlp.fc1", x)))
        else:
            shares, chosen = affine(own + "mlp.router.layer", x).softmax(-1).topk(top, -1)
            up, down = (w[f"{own}mlp.experts.mlp.{name}"].view(MOE["num_experts"], -1, dim) for name in ("w1", "w2"))
            each = [(share * (F.gelu(up[e] @ row) @ down[e])) for row, s, c in zip(x, shares, chosen) for share, e in zip(s, c)]
            y = torch.stack(each).view(rows, top, dim).sum(1) + w.get(own + "mlp.experts.bias", 0)
        x = norm(own + "norm2", x + y)
    return x


def nomic_moe_directory(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(nomic_moe_config(), indent=1) + "\n")
    save_file(nomic_moe_weights(seed), folder / "model.safetensors", {"format": "pt"})
    stored = Safetensors(folder / "model.safetensors", seed)
    weights = load_file(folder / "model.safetensors")
    stored.cut()
    return weights


NOMIC_NAMES = {"attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "norm2": "layer_output_norm",
               "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.router.layer": "ffn_gate_inp", "mlp.experts.mlp.w1": "ffn_up_exps",
               "mlp.experts.mlp.w2": "ffn_down_exps", "embeddings.word_embeddings": "token_embd", "emb_ln": "token_embd_norm",
               "embeddings.token_type_embeddings": "token_types"}


def nomic_moe_gguf(path, seed):
    made, c = Gguf(path, "nomic-bert-moe", seed), SIZES
    w = made.keys
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_layer_norm_eps(1e-5)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    w.add_token_type_count(1)
    w.add_expert_count(MOE["num_experts"])
    w.add_expert_used_count(MOE["moe_top_k"])
    w.add_moe_every_n_layers(MOE["moe_every_n_layers"])
    weights = {}
    for name, value in nomic_moe_weights(seed).items():
        # The converter leaves it out.
        if name.endswith("experts.bias"):
            continue
        stem, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            stem, kind = name, "weight"
        block, value = "", value.numpy()
        if stem.startswith("encoder.layers."):
            _, _, layer, stem = stem.split(".", 3)
            block = f"blk.{layer}."
        down = stem.endswith("w2")
        if stem.startswith("mlp.experts"):
            value = value.reshape(MOE["num_experts"], -1, value.shape[-1])
            value = value.swapaxes(1, 2) if down else value
        value = torch.from_numpy(made.put(f"{block}{NOMIC_NAMES[stem]}.{kind}", value))
        value = value.swapaxes(1, 2) if down else value
        weights[name] = value.reshape(-1, value.shape[-1]) if value.ndim > 2 else value
    made.finish()
    return weights


LLAMA_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
               "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
               "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "embed_tokens": "token_embd", "norm": "output_norm"}


def llama_gguf(model, path, seed, arch):
    """An encoder with Llama's layers. What is stored goes into the model. `llama-embed` has the rows of Q and K in pairs."""
    made, c = Gguf(path, arch, seed), model.config
    w = made.keys
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    heads = {"self_attn.q_proj": c.num_attention_heads, "self_attn.k_proj": c.num_key_value_heads}
    for name, p in model.named_parameters():
        stem, _, kind = name.rpartition(".")
        block = ""
        if stem.startswith("layers."):
            _, layer, stem = stem.split(".", 2)
            block = f"blk.{layer}."
        value = made.put(f"{block}{LLAMA_NAMES[stem]}.{kind}", p.detach().numpy())
        if arch == "llama-embed" and stem in heads:
            value = swap(value, heads[stem], back=True)
        with torch.no_grad():
            p.copy_(torch.from_numpy(value.copy()))
    made.finish()


def jina_v3_tasks(out, add):
    """Jina v3 as it was published: an XLM-R with rotary positions, whose matrices have a change of low rank for each task."""
    seed, tasks, rank, name = 100, ["retrieval.query", "retrieval.passage", "separation"], 2, "jina-v3-tasks"
    config = tf.JinaEmbeddingsV3Config(**dict(SIZES, type_vocab_size=1))
    config._attn_implementation = "eager"
    folder, generator = out / "encoders" / name, torch.Generator().manual_seed(seed)
    made = {}
    with tempfile.TemporaryDirectory() as place:
        # Names as they are stored.
        randomise(tf.JinaEmbeddingsV3Model(config), seed).save_pretrained(place)
        plain = load_file(pathlib.Path(place) / "model.safetensors")
    folder.mkdir(parents=True, exist_ok=True)
    for weight, value in plain.items():
        if value.dim() < 2:
            made[f"roberta.{weight}"] = value
            continue
        start, (n, k) = f"roberta.{weight}".removesuffix(".weight") + ".parametrizations.weight", value.shape
        made[f"{start}.original"] = value
        shapes = ((n, rank), (rank, k)) if "embeddings." in weight else ((rank, k), (n, rank))
        for half, shape in zip("AB", shapes):
            made[f"{start}.0.lora_{half}"] = torch.randn((len(tasks), *shape), generator=generator) * 0.3
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    kept = Safetensors(folder / "model.safetensors", seed)
    made = {key.removeprefix("roberta."): value for key, value in load_file(folder / "model.safetensors").items()}
    kept.cut()
    said = dict(SIZES, model_type="xlm-roberta", architectures=["XLMRobertaModel"], hidden_act="gelu", layer_norm_eps=1e-5, type_vocab_size=1,
                position_embedding_type="rotary", rotary_emb_base=20000.0, lora_adaptations=tasks, lora_alpha=1, lora_rank=rank,
                default_task=tasks[1], pad_token_id=1, emb_pooler=None)
    (folder / "config.json").write_text(json.dumps(said, indent=1) + "\n")
    modules(folder, "mean", config.hidden_size)
    prompts = {task: f"{task}: " for task in tasks} | {"plain": "so: "}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts, "default_prompt_name": None}))
    merged = {}
    for key, value in made.items():
        if ".parametrizations." not in key:
            merged[key] = value
        elif key.endswith(".original"):
            start = key.removesuffix(".original")
            a, b = (made[f"{start}.0.lora_{half}"][1] for half in "AB")
            change = a @ b if "embeddings." in key else b @ a
            merged[start.removesuffix(".parametrizations.weight") + ".weight"] = value + change / rank
    with tempfile.TemporaryDirectory() as place:
        config.save_pretrained(place)
        save_file({key: value.contiguous() for key, value in merged.items()}, pathlib.Path(place) / "model.safetensors", {"format": "pt"})
        model, told = tf.JinaEmbeddingsV3Model.from_pretrained(place, attn_implementation="eager", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"], told
    inputs = texts(config.vocab_size, seed)
    with torch.no_grad():
        states = [model.eval()(input_ids=torch.tensor([text])).last_hidden_state[0] for text in inputs]
    add(name, folder, "mean", inputs, [s.mean(0) for s in states])


def splade(out, add, name, seed, model):
    # The head of a masked language model over all rows: log(1 + max(logit, 0)), and the largest of each token of the vocabulary.
    folder = out / "encoders" / name
    model.config._attn_implementation = "eager"
    model = directory(randomise(model, seed), folder, seed)
    kinds = {"": "MLMTransformer.MLMTransformer", "1_Pooling": "SpladePooling.SpladePooling"}
    module = lambda at, path, kind: {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.sparse_encoder.models.{kind}"}
    (folder / "modules.json").write_text(json.dumps([module(at, *each) for at, each in enumerate(kinds.items())]))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": None}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    inputs = texts(model.config.vocab_size, seed)
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([text])).logits[0] for text in inputs]
    weights = [torch.log1p(torch.relu(each)).amax(0) for each in logits]
    add(name, folder, "splade", inputs, [], [{str(t): round(float(w), 6) for t, w in enumerate(each) if w > 0} for each in weights])


# Jina v2 (JinaBERT), which transformers lacks: ALiBi both ways, GEGLU. The model of code norms queries and keys, and the sum after
# attention twice. Six heads, so that slopes are not those of a power of two alone.
JINA_HEADS = 6


def jina_v2_config():
    # The keys of the published ones.
    return {"architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": SIZES["hidden_size"],
            "intermediate_size": SIZES["intermediate_size"], "layer_norm_eps": 1e-12, "max_position_embeddings": SIZES["max_position_embeddings"],
            "num_attention_heads": JINA_HEADS, "num_hidden_layers": SIZES["num_hidden_layers"], "pad_token_id": 0, "type_vocab_size": 2,
            "vocab_size": SIZES["vocab_size"], "feed_forward_type": "geglu", "emb_pooler": "mean", "position_embedding_type": "alibi",
            "attention_probs_dropout_prob": 0.1, "use_cache": True}


def jina_v2_weights(seed, code, prefix=""):
    generator = torch.Generator().manual_seed(seed)
    dim, ffn = SIZES["hidden_size"], SIZES["intermediate_size"]
    random = lambda *shape: torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else 0.18)
    weights = {"embeddings.word_embeddings.weight": random(SIZES["vocab_size"], dim), "embeddings.token_type_embeddings.weight": random(2, dim)}
    norms = ["embeddings.LayerNorm"]
    for layer in range(SIZES["num_hidden_layers"]):
        own = f"encoder.layer.{layer}."
        for name in ["self.query", "self.key", "self.value", "output.dense"]:
            weights |= {f"{own}attention.{name}.weight": random(dim, dim), f"{own}attention.{name}.bias": random(dim)}
        wide, down = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
        weights |= {f"{own}mlp.{wide}.weight": random(2 * ffn, dim), f"{own}mlp.{down}.weight": random(dim, ffn), f"{own}mlp.{down}.bias": random(dim)}
        of_code = ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2"]
        norms += [own + name for name in ["attention.output.LayerNorm", *(of_code if code else ["mlp.layernorm"])]]
    for name in norms:
        weights |= {f"{name}.weight": 1 + random(dim), f"{name}.bias": random(dim)}
    return {prefix + name: value for name, value in weights.items()}


def alibi_slopes(heads):
    """As the paper on ALiBi has them: a geometric series for powers of two, otherwise completed by every second one of the next power."""
    series = lambda n: [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    whole = 2 ** (heads.bit_length() - 1)
    return torch.tensor(series(whole) + series(2 * whole)[0::2][: heads - whole])


def jina_v2_states(w, tokens, code):
    affine = lambda name, x: F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))
    norm = lambda name, x: F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)
    rows, dim = len(tokens), SIZES["hidden_size"]
    heads = lambda x: x.view(rows, JINA_HEADS, -1)
    distance = (torch.arange(rows)[:, None] - torch.arange(rows)[None]).abs()
    bias = -alibi_slopes(JINA_HEADS)[:, None, None] * distance
    x = norm("embeddings.LayerNorm", w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0])
    for layer in range(SIZES["num_hidden_layers"]):
        own = f"encoder.layer.{layer}."
        q, k, v = (affine(f"{own}attention.self.{name}", x) for name in ["query", "key", "value"])
        if code:
            q, k = norm(own + "attention.self.layer_norm_q", q), norm(own + "attention.self.layer_norm_k", k)
        scores = torch.einsum("ihd,jhd->hij", heads(q), heads(k)) / (dim // JINA_HEADS) ** 0.5 + bias
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), heads(v)).reshape(rows, dim)
        attended = norm(own + "attention.output.LayerNorm", x + affine(own + "attention.output.dense", mixed))
        if code:
            x = norm(own + "layer_norm_1", x + attended)
            up, gate = affine(own + "mlp.up_gated_layer", x).chunk(2, -1)
            x = norm(own + "layer_norm_2", x + affine(own + "mlp.down_layer", F.gelu(gate) * up))
        else:
            gate, up = affine(own + "mlp.gated_layers", attended).chunk(2, -1)
            x = norm(own + "mlp.layernorm", attended + affine(own + "mlp.wo", F.gelu(gate) * up))
    return x


JINA_NAMES = {"attention.self.layer_norm_q": "attn_q_norm", "attention.self.layer_norm_k": "attn_k_norm", "layer_norm_1": "attn_norm_2",
              "layer_norm_2": "layer_output_norm", "mlp.layernorm": "layer_output_norm", "mlp.gated_layers": "ffn_up",
              "mlp.wo": "ffn_down", "mlp.down_layer": "ffn_down"}


def jina_v2_gguf(made, weights):
    """Names as llama.cpp's converter writes them. Of the model of code, as it wrote them when it parted gate and up: now it leaves them in
    one tensor, up first."""
    c, w = SIZES, made.keys
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(JINA_HEADS)
    w.add_layer_norm_eps(1e-12)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    w.add_token_type_count(2)
    stored = {}
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        block = ""
        if stem.startswith("encoder.layer."):
            _, _, layer, stem = stem.split(".", 3)
            block = f"blk.{layer}."
        put = lambda name, value: torch.from_numpy(made.put(f"{block}{name}.{kind}", value.numpy()).copy())
        if stem == "mlp.up_gated_layer":
            up, gate = value.chunk(2, 0)
            stored[name] = torch.cat([put("ffn_up", up), put("ffn_gate", gate)])
        else:
            stored[name] = put((BERT_NAMES | JINA_NAMES)[stem], value)
    made.finish()
    return stored


def jina_v2(out, add, name, seed):
    code = name.endswith("code")
    folder, path = out / "encoders" / name, out / "encoders" / f"{name}.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(jina_v2_config(), indent=1) + "\n")
    # Models of masked words have a prefix.
    prefix = "" if code else "bert."
    save_file(jina_v2_weights(seed, code, prefix), folder / "model.safetensors", {"format": "pt"})
    stored = Safetensors(folder / "model.safetensors", seed)
    weights = {name.removeprefix(prefix): value for name, value in load_file(folder / "model.safetensors").items()}
    stored.cut()
    modules(folder, "mean", SIZES["hidden_size"])
    of_file = jina_v2_gguf(Gguf(path, "jina-bert-v2", seed + 1), jina_v2_weights(seed + 1, code))
    for name, path, weights, seed in [(name, folder, weights, seed), (f"{name} (GGUF)", path, of_file, seed + 1)]:
        inputs = texts(SIZES["vocab_size"], seed)
        add(name, path, "mean", inputs, [jina_v2_states(weights, text, code).mean(0) for text in inputs])


def bge_m3(out, add):
    """BGE-M3: XLM-RoBERTa with a matrix that yields what a token weighs, in a file of torch.save; llama.cpp knows no such matrix."""
    seed = 60
    config = tf.XLMRobertaConfig(**dict(SIZES, pad_token_id=1, max_position_embeddings=74, type_vocab_size=1))
    config._attn_implementation = "eager"
    folder, path = out / "encoders" / "bge-m3", out / "encoders" / "bge-m3.gguf"
    model = directory(randomise(tf.XLMRobertaModel(config), seed), folder, seed)
    modules(folder, "cls", config.hidden_size)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((1, 48), generator=generator) * 0.3
    inputs = texts(config.vocab_size, seed)
    with torch.no_grad():
        # Half of the tokens weigh something.
        bias = -F.linear(model(input_ids=torch.tensor([inputs[-1]])).last_hidden_state[0], weight).median(0).values
    torch.save({"weight": weight.half(), "bias": bias.half()}, folder / "sparse_linear.pt")
    torch.save({"weight": torch.randn((4, 48), generator=generator).half()}, folder / "colbert_linear.pt")

    def outputs(bias):
        states = [model(input_ids=torch.tensor([text])).last_hidden_state[0] for text in inputs]
        weighed = [torch.relu(F.linear(s, weight.half().float(), bias)).flatten().tolist() for s in states]
        most = [{str(token): round(max(w for t, w in zip(text, each) if t == token), 6) for token in sorted(text)} for text, each in zip(inputs, weighed)]
        return [s[0] for s in states], [{token: w for token, w in each.items() if w > 0} for each in most]

    with torch.no_grad():
        add("bge-m3", folder, "cls", inputs, *outputs(bias.half().float()))
        made, c = Gguf(path, "bert", seed + 1), config
        w = made.keys
        w.add_block_count(c.num_hidden_layers)
        w.add_context_length(72)
        w.add_embedding_length(c.hidden_size)
        w.add_feed_forward_length(c.intermediate_size)
        w.add_head_count(c.num_attention_heads)
        w.add_layer_norm_eps(c.layer_norm_eps)
        w.add_causal_attention(False)
        w.add_pooling_type(gguf.PoolingType.CLS)
        w.add_token_type_count(1)
        for name, p in model.named_parameters():
            stem, _, kind = name.rpartition(".")
            block = ""
            if stem.startswith("encoder.layer."):
                _, _, layer, stem = stem.split(".", 3)
                block = f"blk.{layer}."
            if stem not in BERT_NAMES:
                continue
            # Files leave out the positions that padding tokens have.
            first = 2 if stem.endswith("position_embeddings") else 0
            p[first:] = torch.from_numpy(made.put(f"{block}{BERT_NAMES[stem]}.{kind}", p[first:].numpy()).copy())
        weight.copy_(torch.from_numpy(made.put("sparse.weight", weight.numpy())))
        made.finish()
        add("bge-m3 (GGUF)", path, "cls", inputs, *outputs(None))


BERT_NAMES = {"embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
              "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
              "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
              "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
              "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"}


def embedding_gemma2(out, add):
    """EmbeddingGemma 2 (text): full layers have other heads than those with windows, and each layer reads a projection of the embedding."""
    seed, folder = 90, out / "encoders" / "embeddinggemma2"
    sizes = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    config = tf.EmbeddingGemma2TextConfig(
        **sizes, num_key_value_heads=2, head_dim=12, global_head_dim=20, num_global_key_value_heads=1, sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "full_attention"], hidden_size_per_layer_input=16, embedding_dim=28,
        max_position_embeddings=SIZES["max_position_embeddings"],
    )
    config._attn_implementation = "eager"
    model = randomise(tf.EmbeddingGemma2TextModel(config), seed)
    for layer, scalar in zip(model.layers, [0.75, 1.25, 0.5]):
        layer.layer_scalar.fill_(scalar)
    model = directory(model, folder, seed)
    modules(folder, "mean", config.embedding_dim)
    inputs = texts(config.vocab_size, seed)
    with torch.no_grad():
        states = [model(input_ids=torch.tensor([text])).last_hidden_state[0] for text in inputs]
    add("embeddinggemma2", folder, "mean", inputs, [s.mean(0) for s in states])


def main():
    out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
    index = json.loads((out / "encoders.json").read_text()) if wanted else []
    index = [entry for entry in index if entry["name"] not in wanted]

    def add(name, path, pooling, inputs, outputs, weights=None, scores=False):
        index.append(
            ({"weights": weights} if weights else {})
            | {
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
        if wanted and name not in wanted:
            continue
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
    # These came later: the seeds of the others stay.
    later = [("eurobert", tf.EuroBertConfig(**SIZES, num_key_value_heads=2, bos_token_id=1, eos_token_id=2), tf.EuroBertModel, "mean")]
    for seed, (name, config, kind, pooling) in enumerate(later, 50):
        if wanted and name not in wanted:
            continue
        config._attn_implementation = "eager"
        folder = out / "encoders" / name
        model = directory(randomise(kind(config), seed), folder, seed)
        modules(folder, pooling, config.hidden_size)
        for number, (name, path) in enumerate([(name, folder), (f"{name} (GGUF)", folder.with_suffix(".gguf")), ("llama-embed (GGUF)", out / "encoders" / "llama-embed.gguf")]):
            if number:
                llama_gguf(model, path, seed + number, path.stem)
            inputs = texts(config.vocab_size, seed + number)
            with torch.no_grad():
                states = [model(input_ids=torch.tensor([text])).last_hidden_state[0] for text in inputs]
            add(name, path, pooling, inputs, [pool(s, pooling) for s in states])
    if not wanted or "bge-m3" in wanted:
        index = [entry for entry in index if not entry["name"].startswith("bge-m3")]
        bge_m3(out, add)
    if not wanted or "embeddinggemma2" in wanted:
        embedding_gemma2(out, add)
    distil = dict(vocab_size=96, dim=48, n_layers=3, n_heads=4, hidden_dim=80, max_position_embeddings=72)
    if not wanted or "jina-v3-tasks" in wanted:
        jina_v3_tasks(out, add)
    masked = dict(SIZES, pad_token_id=1, max_position_embeddings=74)
    for seed, name, kind, config in [
        (95, "splade", tf.BertForMaskedLM, tf.BertConfig(**SIZES)),
        (96, "splade-roberta", tf.XLMRobertaForMaskedLM, tf.XLMRobertaConfig(**masked)),
        (97, "splade-distilbert", tf.DistilBertForMaskedLM, tf.DistilBertConfig(**distil)),
    ]:
        if not wanted or name in wanted:
            splade(out, add, name, seed, kind(config))
    for seed, name in [(70, "jina-v2"), (80, "jina-v2-code")]:
        if not wanted or name in wanted:
            index = [entry for entry in index if entry["name"].removesuffix(" (GGUF)") != name]
            jina_v2(out, add, name, seed)
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
        if wanted and name not in wanted:
            continue
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
    for seed, name, path, make in [
        (40, "nomic-bert-moe", "nomic-bert-moe", nomic_moe_directory),
        (41, "nomic-bert-moe (GGUF)", "nomic-bert-moe.gguf", nomic_moe_gguf),
    ]:
        if wanted and name not in wanted:
            continue
        path = out / "encoders" / path
        weights, inputs = make(path, seed), texts(SIZES["vocab_size"], seed)
        if path.is_dir():
            modules(path, "mean", SIZES["hidden_size"])
        add(name, path, "mean", inputs, [nomic_moe_states(weights, text).mean(0) for text in inputs])
    (out / "encoders.json").write_text(json.dumps(index, indent=1) + "\n")


main()
