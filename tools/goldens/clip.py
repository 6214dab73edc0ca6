"""Writes the golden of jina-clip: two texts, two pictures, and the vectors of both in one space.

    python3 tools/goldens/clip.py crates/welte/tests/goldens crates/welte-vision/tests/data

Needs torch, torchvision, transformers, tokenizers, pillow, numpy. The image encoder (EVA-02) is written here from its publication
(arXiv 2303.11331): transformers has no such model. The text model is transformers' Jina v3 with the weights of a task, W + alpha / rank * B A.
`clip.json` has the tokens and vectors of texts, and the names of files with those of pictures.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from seeded import Safetensors
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

SEED = 77
WIDTH, VOCAB, LAYERS, RANK, ALPHA = 48, 96, 3, 4, 6
TASKS, TASK = ["retrieval.query", "text-matching"], "text-matching"
TEXT = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=80,
            max_position_embeddings=72)
# As with 512 pixels and patches of 14, some pixels belong to no patch, and rows of 110 values are no whole blocks.
VISION = dict(embed_dim=WIDTH, width=WIDTH, image_size=33, patch_size=8, layers=LAYERS, head_width=16, mlp_ratio=2.3, qkv_bias=True,
              ls_init_value=None, patch_dropout=0.0, post_norm=False, rope_embeddings=True, pt_hw_seq_len=3, intp_freq=True,
              naive_swiglu=True, subln=True, x_attention=False, fused_layer_norm=False, drop_path_rate=0.0, proj_type=None,
              model_type="jina_clip_vision")
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
TEXTS = ["a fox sees a red box", "two blue birds"]
PREFIX = "text_model.transformer.roberta."


def configuration():
    changes = TEXT | dict(load_trained_adapters=False, lora_adaptations=TASKS, lora_alpha=ALPHA, lora_dropout_p=0.0,
                          lora_main_params_trainable=False, lora_rank=RANK, use_flash_attn=True,
                          task_instructions={"retrieval.query": "a query: "})
    text = dict(default_instruction_task=None, default_lora_task=TASK, embed_dim=WIDTH, hf_model_config_kwargs=changes,
                hf_model_name_or_path="jinaai/jina-embeddings-v3", model_type="jina_clip_text", pooler_type="mean_pooler",
                proj_bias=False, proj_type=None)
    return dict(add_projections=False, architectures=["JinaCLIPModel"], initializer_factor=1.0, logit_scale_init_value=2.6592,
                matryoshka_dimensions=[16, 32, 48], model_type="jina_clip", projection_dim=WIDTH, text_config=text,
                torch_dtype="bfloat16", truncate_dim=None, vision_config=VISION)


def tokenizer():
    """Words and letters, as XLM-R's."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    words = sorted({word for text in TEXTS for word in text.split()} | {"query:"})
    entries = [(text, 0.0) for text in specials] + [("\u2581", -4.0)]
    entries += [("\u2581" + word, -3.0) for word in words if len(word) > 1]
    entries += [(letter, -6.0) for letter in "abcdefghijklmnopqrstuvwxyz:"]
    entries += [(f"<{i}>", -9.0) for i in range(VOCAB - len(entries))]
    made = Tokenizer(models.Unigram(entries, 3, False))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(text, special=True) for text in specials])
    ends = [(name, made.token_to_id(name)) for name in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends)
    names = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def tensors():
    """Random weights under which every part matters."""
    torch.manual_seed(SEED)
    made = {}
    matrix = lambda n, k, scale=1.4: torch.randn(n, k) * scale / k**0.5
    vector = lambda n, centre=0.0: torch.randn(n) * 0.2 + centre

    def norm(name, n=WIDTH):
        made[f"{name}.weight"], made[f"{name}.bias"] = vector(n, 1.0), vector(n)

    def changed(name, weight, table=False):
        (n, k), start = weight.shape, f"{PREFIX}{name}.parametrizations.weight"
        made[f"{start}.original"] = weight
        shapes = ((n, RANK), (RANK, k)) if table else ((RANK, k), (n, RANK))
        for half, shape in zip("AB", shapes):
            made[f"{start}.0.lora_{half}"] = torch.randn(len(TASKS), *shape) * (float(weight.std()) / 2) ** 0.5

    changed("embeddings.word_embeddings", torch.randn(VOCAB, WIDTH), True)
    changed("embeddings.token_type_embeddings", torch.randn(1, WIDTH) * 0.3, True)
    norm(f"{PREFIX}emb_ln")
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}."
        for name, n, k in (("mixer.Wqkv", 3 * WIDTH, WIDTH), ("mixer.out_proj", WIDTH, WIDTH), ("mlp.fc1", 80, WIDTH), ("mlp.fc2", WIDTH, 80)):
            changed(layer + name, matrix(n, k))
            made[f"{PREFIX}{layer}{name}.bias"] = vector(n)
        norm(f"{PREFIX}{layer}norm1")
        norm(f"{PREFIX}{layer}norm2")
    side, patch, own = VISION["image_size"] // VISION["patch_size"], VISION["patch_size"], "vision_model."
    inner = int(WIDTH * VISION["mlp_ratio"])
    made[own + "cls_token"] = torch.randn(1, 1, WIDTH) * 0.5
    made[own + "pos_embed"] = torch.randn(1, side * side + 1, WIDTH) * 0.4
    made[own + "patch_embed.proj.weight"] = matrix(WIDTH, 3 * patch * patch).view(WIDTH, 3, patch, patch)
    made[own + "patch_embed.proj.bias"] = vector(WIDTH)
    for i in range(VISION["layers"]):
        block = f"{own}blocks.{i}."
        for name in ("norm1", "norm2", "attn.inner_attn_ln"):
            norm(block + name)
        norm(block + "mlp.ffn_ln", inner)
        for name in ("q_proj", "k_proj", "v_proj", "proj"):
            made[f"{block}attn.{name}.weight"] = matrix(WIDTH, WIDTH)
        for name in ("q_bias", "v_bias", "proj.bias"):
            made[f"{block}attn.{name}"] = vector(WIDTH)
        for name, n, k in (("w1", inner, WIDTH), ("w2", inner, WIDTH), ("w3", WIDTH, inner)):
            made[f"{block}mlp.{name}.weight"], made[f"{block}mlp.{name}.bias"] = matrix(n, k), vector(n)
    norm(own + "norm")
    made["logit_scale"] = torch.tensor(2.6592)
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in made.items()}


def turned(x, side):
    """Neighbouring values are pairs: those of the first half of a head turn by the line, the others by the column."""
    half = VISION["head_width"] // 2
    speeds = 10000.0 ** (-torch.arange(0, half, 2) / half)
    places = torch.arange(side) / side * VISION["pt_hw_seq_len"]
    angles = torch.outer(places, speeds)
    lines, columns = angles[:, None].expand(side, side, -1), angles[None].expand(side, side, -1)
    angles = torch.cat([lines, columns], -1).reshape(side * side, half)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def eva(w, pixels):
    """The vector of a picture, [3, side, side]."""
    w = {name.removeprefix("vision_model."): tensor for name, tensor in w.items() if name.startswith("vision_model.")}
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)
    linear = lambda x, name: F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])
    x = F.conv2d(pixels[None], w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=VISION["patch_size"])
    side = x.shape[-1]
    x = torch.cat([w["cls_token"][0], x[0].flatten(1).T]) + w["pos_embed"][0]
    heads = lambda x: x.unflatten(-1, (-1, VISION["head_width"])).transpose(0, 1)
    turn = lambda x: torch.cat([x[:, :1], turned(x[:, 1:], side)], 1)
    for i in range(VISION["layers"]):
        at = f"blocks.{i}."
        y = norm(x, at + "norm1")
        q = heads(F.linear(y, w[at + "attn.q_proj.weight"], w[at + "attn.q_bias"]))
        k = heads(F.linear(y, w[at + "attn.k_proj.weight"]))
        v = heads(F.linear(y, w[at + "attn.v_proj.weight"], w[at + "attn.v_bias"]))
        scores = turn(q) @ turn(k).transpose(1, 2) / VISION["head_width"] ** 0.5
        found = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = x + linear(norm(found, at + "attn.inner_attn_ln"), at + "attn.proj")
        y = norm(x, at + "norm2")
        y = F.silu(linear(y, at + "mlp.w1")) * linear(y, at + "mlp.w2")
        x = x + linear(norm(y, at + "mlp.ffn_ln"), at + "mlp.w3")
    return norm(x[0], "norm")


def prepared(image):
    """Pixels as torchvision makes them."""
    side = VISION["image_size"]
    return CenterCrop(side)(Resize(side, InterpolationMode.BICUBIC)(image.convert("RGB")))


def text_model(w):
    """Transformers' model with the weights of the task. Changed weights are rounded as the others are."""
    w, task, end = {n.removeprefix(PREFIX): t for n, t in w.items() if n.startswith(PREFIX)}, TASKS.index(TASK), ".parametrizations.weight"
    for name in [name.removesuffix(f"{end}.original") for name in w if name.endswith(".original")]:
        original, a, b = w.pop(f"{name}{end}.original"), w.pop(f"{name}{end}.0.lora_A")[task], w.pop(f"{name}{end}.0.lora_B")[task]
        change = a @ b if name.startswith("embeddings.") else b @ a
        assert float(change.std()) > 0.2 * float(original.std()), name
        w[f"{name}.weight"] = (original + ALPHA / RANK * change).bfloat16()
    with tempfile.TemporaryDirectory() as folder:
        config = transformers.JinaEmbeddingsV3Config(**TEXT, architectures=["JinaEmbeddingsV3Model"])
        config.save_pretrained(folder)
        save_file({name: t.bfloat16().contiguous() for name, t in w.items()}, Path(folder) / "model.safetensors", {"format": "pt"})
        model, told = transformers.JinaEmbeddingsV3Model.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                         output_loading_info=True, add_pooling_layer=False)
    assert not told["missing_keys"] and not told["unexpected_keys"], told
    return model.eval()


def main():
    torch.set_num_threads(1)
    out, data = map(Path, sys.argv[1:3])
    folder = out / "vision/jina_clip/hf"
    folder.mkdir(parents=True, exist_ok=True)
    own = tokenizer()
    own.save_pretrained(folder)
    write = lambda path, value: path.write_text(json.dumps(value, indent=1) + "\n")
    write(folder / "config.json", configuration())
    write(folder / "preprocessor_config.json", dict(
        fill_color=0, image_processor_type="JinaCLIPImageProcessor", interpolation="bicubic", mean=MEAN,
        processor_class="JinaCLIPProcessor", resize_mode="shortest", size=VISION["image_size"], std=STD))
    save_file(tensors(), folder / "model.safetensors", {"format": "pt"})
    weights = Safetensors(folder / "model.safetensors", SEED)
    w = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    weights.cut()
    index, tiles = {"path": "vision/jina_clip/hf", "texts": [], "pictures": []}, []
    model = text_model(w)
    for text in TEXTS:
        tokens = own(text)["input_ids"]
        with torch.no_grad():
            vector = model(input_ids=torch.tensor([tokens])).last_hidden_state[0].mean(0)
        index["texts"].append({"text": text, "tokens": tokens, "vector": [round(float(v), 6) for v in vector]})
    used = VISION["image_size"] // VISION["patch_size"] * VISION["patch_size"]
    for name in ("tall", "wide"):
        pixels = np.asarray(prepared(Image.open(data / f"pictures/{name}.png")))
        kept = f"jina_clip-{name}.rgb"
        (data / kept).write_bytes(np.ascontiguousarray(pixels[:used, :used]).tobytes())
        tiles.append({"model": "jina_clip", "picture": f"{name}.png", "tiles": [[used, used]], "pixels": kept, "layout": "<image>"})
        values = (torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        vector = eva(w, values)
        index["pictures"].append({"picture": f"{name}.png", "vector": [round(float(v), 6) for v in vector]})
    for one in index["texts"] + index["pictures"]:
        print(one.get("text", one.get("picture")), f"std {np.std(one['vector']):.2f}", one.get("tokens", ""))
    write(out / "clip.json", index)
    path = data / "processors.json"
    kept = [entry for entry in json.loads(path.read_text()) if entry["model"] != "jina_clip"]
    path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in kept + tiles) + "\n]\n")


if __name__ == "__main__":
    main()
