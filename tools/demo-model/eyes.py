"""Trains the demo model's encoder of pictures, and writes it as `mmproj` GGUF: CLIP's layers and LLaVA's projector, very small.

    python3 eyes.py ../../models/demo.gguf OUT.gguf [--seconds 150 | --steps N]

Needs torch, tokenizers, numpy, gguf. The language model stays as it is: the encoder learns which vectors make it say what a picture shows.
`--steps 20 --batch 8 --samples 64 --workers 1 --device cpu` tries everything without a GPU.
"""

import argparse
import math
import multiprocessing
import random
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

import corpus
import pictures
from train import CONFIG, SPECIAL, SPLIT, Model

SIDE, PATCH, DIM, LAYERS, HEADS, FFN, EPS = 96, 12, 160, 5, 5, 640, 1e-5
FEATURES = (SIDE // PATCH) ** 2
MEAN, DEVIATION = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
LENGTH = 72  # tokens after the features; longer stories are cut
HELD_OUT = 1_000_000_000
MOST = 3  # things in a picture


def language_model(path):
    """The demo model and its tokenizer, from GGUF."""
    from export import gguf_name
    file = gguf.GGUFReader(path)
    model = Model(CONFIG)
    tensors = {t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)) for t in file.tensors}
    model.load_state_dict({name: tensors[gguf_name(name if name.startswith("embed") else "model." + name)] for name in model.state_dict()})
    field = lambda key: file.fields[key].contents()
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return model.requires_grad_(False), tokenizer


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = torch.nn.LayerNorm(DIM, EPS), torch.nn.LayerNorm(DIM, EPS)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (torch.nn.Linear(DIM, DIM) for _ in range(4))
        self.ffn_up, self.ffn_down = torch.nn.Linear(DIM, FFN), torch.nn.Linear(FFN, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        heads = lambda y: y.view(b, t, HEADS, -1).transpose(1, 2)
        n = self.ln1(x)
        y = F.scaled_dot_product_attention(heads(self.attn_q(n)), heads(self.attn_k(n)), heads(self.attn_v(n)))
        x = x + self.attn_out(y.transpose(1, 2).reshape(b, t, DIM))
        n = self.ffn_up(self.ln2(x))
        return x + self.ffn_down(n * torch.sigmoid(1.702 * n))


class Eyes(torch.nn.Module):
    """CLIP without its last norm, then two matrices. The class's row becomes no feature."""

    def __init__(self):
        super().__init__()
        self.patch = torch.nn.Conv2d(3, DIM, PATCH, PATCH, bias=False)
        self.of_class = torch.nn.Parameter(torch.randn(DIM) * 0.02)
        self.places = torch.nn.Parameter(torch.randn(1 + FEATURES, DIM) * 0.02)
        self.first = torch.nn.LayerNorm(DIM, EPS)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        # Names kinds and colours. It only helps the layers to learn what things look like, and is not written.
        self.names = torch.nn.Linear(DIM, MOST * (len(pictures.KINDS) + len(pictures.COLOURS)))
        self.linear1, self.linear2 = torch.nn.Linear(DIM, CONFIG["dim"]), torch.nn.Linear(CONFIG["dim"], CONFIG["dim"])

    def forward(self, image):
        """The features, and what is said of the things from left to right (`parts`): a training aid."""
        x = self.patch((image - 0.5) / 0.5).flatten(2).transpose(1, 2)
        x = torch.cat([self.of_class.to(x.dtype).expand(x.shape[0], 1, DIM), x], 1) + self.places
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.linear2(F.gelu(self.linear1(x[:, 1:]))), self.names(x[:, 0])


def samples(job):
    """Pictures with questions and answers, as tokens: those of `count` seeds from `first` on."""
    path, first, count = job
    _, tokenizer = language_model(path)
    all_pictures, texts, answers = [], [], []
    for seed in range(first, first + count):
        r = random.Random(seed * 2654435761 + 5)
        ground, things = pictures.picture(r)
        question, answer = pictures.chat(r, things)
        before = r.choice(["", "", "\n"]) + question + "<|im_end|>\n<|im_start|>assistant\n"
        all_pictures.append((ground, things))
        texts.append(before)
        answers.append(answer + "<|im_end|>")
    ids, masks = np.zeros((count, LENGTH), np.int64), np.zeros((count, LENGTH), bool)
    names = np.full((count, MOST, 2), -1)
    for i, (_, things) in enumerate(all_pictures):
        for j, thing in enumerate(things):
            names[i, j] = pictures.KINDS.index(thing.kind), list(pictures.COLOURS).index(thing.colour)
    for i, (a, b) in enumerate(zip(tokenizer.encode_batch(texts), tokenizer.encode_batch(answers))):
        both = (a.ids + b.ids)[:LENGTH]
        ids[i, :len(both)] = both
        masks[i, len(a.ids):len(both)] = True
    return pictures.numbers(all_pictures) + (torch.tensor(names), torch.tensor(ids), torch.tensor(masks))


def gather(path, first, count, workers):
    each = -(-count // workers)
    if workers == 1:
        return samples((path, first, count))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        parts = pool.map(samples, [(path, first + i * each, each) for i in range(workers)])
    return tuple(torch.cat(column) for column in zip(*parts))


def drawn(data, device):
    """The pictures of samples as bytes, with names, tokens and masks."""
    images = torch.empty(data[0].shape[0], 3, SIDE, SIDE, dtype=torch.uint8, device=device)
    for at in range(0, images.shape[0], 1024):
        part = [t[at:at + 1024].to(device) for t in data[:4]]
        tint = lambda c: (c + 0.05 * torch.randn_like(c)).clamp(0, 1)
        images[at:at + 1024] = (255 * pictures.draw(part[0], part[1], tint(part[2]), tint(part[3]), SIDE)).round()
    return [images, *(t.to(device) for t in data[4:])]


def answers(model, features, before, ids):
    """The language model's logits at the positions before each of `ids`."""
    start = model.embed_tokens(before).expand(ids.shape[0], -1, -1)
    x = torch.cat([start, features, model.embed_tokens(ids)], 1)
    return model.after(x)[:, start.shape[1] + FEATURES - 1:-1]


def loss_of_names(said, names):
    said = said.view(-1, MOST, len(pictures.KINDS) + len(pictures.COLOURS))
    there = names[:, :, 0] >= 0
    kinds, colours = said[there].split([len(pictures.KINDS), len(pictures.COLOURS)], -1)
    return F.cross_entropy(kinds.float(), names[there][:, 0]) + F.cross_entropy(colours.float(), names[there][:, 1])


def held_out(run, data):
    """The share of answers to short questions that are right to the last token."""
    right = []
    for at in range(0, data[0].shape[0] // 512 * 512, 512):
        images, _, ids, masks = (t[at:at + 512] for t in data)
        best = run(images.float() / 255, ids)[0].argmax(-1)
        right.append((((best == ids) | ~masks).all(1))[masks.sum(1) < 40])
    return torch.cat(right).float().mean().item()


def write(path, eyes):
    w = gguf.GGUFWriter(path, "clip")
    w.add_name("welte-demo-eyes")
    w.add_description("The eyes of Welte's demo model: things in plain colours.")
    w.add_license("mit OR apache-2.0")
    w.add_string("clip.projector_type", "mlp")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_bool("clip.has_llava_projector", True)
    w.add_bool("clip.use_gelu", False)
    for key, value in [("image_size", SIDE), ("patch_size", PATCH), ("embedding_length", DIM), ("feed_forward_length", FFN), ("projection_dim", CONFIG["dim"]),
                       ("block_count", LAYERS), ("attention.head_count", HEADS)]:
        w.add_uint32(f"clip.vision.{key}", value)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", EPS)
    w.add_array("clip.vision.image_mean", list(MEAN))
    w.add_array("clip.vision.image_std", list(DEVIATION))
    w.add_array("clip.vision.feature_layer", [LAYERS])
    names = {"patch": "v.patch_embd", "first": "v.pre_ln", "linear1": "mm.0", "linear2": "mm.2", "of_class": "v.class_embd", "places": "v.position_embd.weight"}
    for name, value in eyes.state_dict().items():
        if name.startswith("names."):
            continue
        stem, _, rest = name.partition(".")
        name = "v.blk." + rest if stem == "layers" else names[stem] + ("." + rest if rest else "")
        value = value.float().cpu().numpy()
        matrix = value.ndim == 2 and name != "v.position_embd.weight"
        if matrix and value.shape[1] % 32 == 0:
            w.add_tensor(name, gguf.quants.quantize(value, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            w.add_tensor(name, value.astype(np.float16 if value.ndim > 1 else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model")
    args.add_argument("out")
    args.add_argument("--seconds", type=float, default=150, help="early steps decide how many steps that is")
    args.add_argument("--steps", type=int)
    args.add_argument("--batch", type=int, default=512)
    args.add_argument("--samples", type=int, default=400_000)
    args.add_argument("--rate", type=float, default=1.5e-3)
    args.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args.add_argument("--device", default="cuda")
    args = args.parse_args()
    torch.manual_seed(7)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = args.device
    model, tokenizer = language_model(args.model)
    cos, sin = model.cos, model.sin
    model.to(device, torch.bfloat16)
    model.cos, model.sin = cos.to(device), sin.to(device)
    before = torch.tensor([tokenizer.encode("<|im_start|>user\n").ids], device=device)
    started = time.time()
    data = drawn(gather(args.model, 0, args.samples, args.workers), device)
    test = drawn(gather(args.model, HELD_OUT, min(2048, args.samples), args.workers), device)
    print(f"{data[0].shape[0]} pictures with questions after {time.time() - started:.0f} s", flush=True)
    eyes = Eyes().to(device)
    print(sum(p.numel() for p in eyes.parameters()), "parameters")

    def run(images, ids):
        with torch.autocast(device, torch.bfloat16):
            features, said = eyes(images)
            return answers(model, features.to(torch.bfloat16), before, ids), said

    run = torch.compile(run) if device == "cuda" else run
    optimizer = torch.optim.AdamW(eyes.parameters(), lr=args.rate, weight_decay=0.02, betas=(0.9, 0.98))
    step, first, steps, started = 0, None, args.steps, time.time()
    while steps is None or step < steps:
        if steps is None and step == 50:
            first = time.time()
        if steps is None and step == 150:
            steps = step + int((started + args.seconds - time.time()) / ((time.time() - first) / 100))
            print(steps, "steps", flush=True)
        rate = args.rate * min(1, (step + 1) / 200) * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * step / (steps or 10_000))))
        for group in optimizer.param_groups:
            group["lr"] = rate
        pick = torch.randint(data[0].shape[0], (args.batch,), device=device)
        images, names, ids, masks = (t[pick] for t in data)
        images = (images.float() / 255 + 0.02 * torch.randn(images.shape, device=device)).clamp(0, 1)
        got, said = run(images, ids)
        loss = F.cross_entropy(got[masks].float(), ids[masks])
        named = loss_of_names(said, names)
        optimizer.zero_grad(set_to_none=True)
        (loss + 0.3 * named).backward()
        torch.nn.utils.clip_grad_norm_(eyes.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 1000 == 0 or step == steps:
            with torch.no_grad():
                right = held_out(run, test)
            print(f"step {step}: loss {loss.item():.4f}, names {named.item():.4f}, right {100 * right:.1f} %, {time.time() - started:.0f} s", flush=True)
    write(args.out, eyes)


if __name__ == "__main__":
    main()
