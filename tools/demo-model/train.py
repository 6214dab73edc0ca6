"""Trains the demo model and writes OUT/: model.safetensors (F32), tokenizer.json, config.json, train.log.

    python3 train.py --out OUT [--seconds 330 | --steps N]

Needs torch, tokenizers, safetensors, numpy. `--steps` fixes the number of steps, so that a run can be repeated;
`--seconds` measures the first steps and chooses it.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen2's pre-tokenizer, so that every engine knows the demo's by name ("qwen2"). Digits stand alone.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONFIG = {"vocab": 3072, "dim": 256, "layers": 8, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 768,
          "rope_theta": 10000.0, "eps": 1e-6, "context": 2048}


def texts(seeds):
    return [corpus.render(corpus.record(s)) for s in seeds]


def train_tokenizer(samples):
    """Byte-level BPE with the three special tokens in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=CONFIG["vocab"], special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(samples, trainer)
    return tokenizer


def encode_seeds(job):
    path, seeds = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(path)
    ids = [e.ids for e in tokenizer.encode_batch(texts(seeds))]
    return np.concatenate([np.asarray(i, dtype=np.uint16) for i in ids])


class Attention(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = torch.nn.Linear(c["dim"], c["heads"] * c["head_dim"], bias=False)
        self.k_proj = torch.nn.Linear(c["dim"], c["kv_heads"] * c["head_dim"], bias=False)
        self.v_proj = torch.nn.Linear(c["dim"], c["kv_heads"] * c["head_dim"], bias=False)
        self.o_proj = torch.nn.Linear(c["heads"] * c["head_dim"], c["dim"], bias=False)
        self.q_norm = torch.nn.RMSNorm(c["head_dim"], eps=c["eps"])
        self.k_norm = torch.nn.RMSNorm(c["head_dim"], eps=c["eps"])

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        d = self.c["head_dim"]
        q = self.q_norm(self.q_proj(x).view(b, t, -1, d)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, -1, d)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, -1, d).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        group = self.c["heads"] // self.c["kv_heads"]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


def rotate(x, cos, sin):
    """Rotary position, halves (as transformers' Qwen3 does it)."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Mlp(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = torch.nn.Linear(c["dim"], c["ffn"], bias=False)
        self.up_proj = torch.nn.Linear(c["dim"], c["ffn"], bias=False)
        self.down_proj = torch.nn.Linear(c["ffn"], c["dim"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = torch.nn.RMSNorm(c["dim"], eps=c["eps"])
        self.post_attention_layernorm = torch.nn.RMSNorm(c["dim"], eps=c["eps"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(torch.nn.Module):
    """Qwen3: tied embeddings, grouped heads, a norm on every query and key head. Names as in transformers."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(c["vocab"], c["dim"])
        self.layers = torch.nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = torch.nn.RMSNorm(c["dim"], eps=c["eps"])
        inverse = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angle = torch.arange(c["context"]).float()[:, None] * inverse
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                torch.nn.init.normal_(p, 0.0, 0.02 if "embed" in name else p.shape[1] ** -0.5 / (math.sqrt(2 * c["layers"]) if last else 1.0))

    def forward(self, ids):
        return self.after(self.embed_tokens(ids))

    def after(self, x):
        """The logits for embeddings."""
        t = x.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.norm(x) @ self.embed_tokens.weight.T

    def loss(self, ids, targets):
        logits = self(ids)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


def generate(model, tokenizer, prompt, device, n=320):
    """Greedy continuation, recomputed each step: slow and obvious."""
    ids = tokenizer.encode(prompt).ids
    start, end = len(ids), {tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")}
    buffer = torch.zeros(1, 512, dtype=torch.long, device=device)
    buffer[0, :start] = torch.tensor(ids)
    for at in range(start, min(start + n, 512)):
        token = model(buffer[:, :512])[0, at - 1].argmax().item()
        if token in end:
            break
        buffer[0, at] = token
        ids.append(token)
    return tokenizer.decode(ids[start:])


PROMPTS = ["Tell me a story about a fox.", "Write a short story about a robot and a lighthouse.", "Tell me a story about a dragon who is afraid of the dark.",
           "Please write a story about a princess and a clock", "Write a very short story about a penguin named Otto.", "Tell me a story about a volcano.",
           "Write this as JSON: Mila is a cat. She is 7 years old. She lives in a barn.", "Tom has nine apples. He gives away four. How many apples does Tom have now?", "Who are you?", "What is the opposite of hot?"]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", required=True)
    args.add_argument("--seconds", type=float, default=330)
    args.add_argument("--steps", type=int, default=0)
    args.add_argument("--records", type=int, default=1_200_000)
    args.add_argument("--batch", type=int, default=64)
    args.add_argument("--sequence", type=int, default=2048)
    args.add_argument("--rate", type=float, default=3e-3)
    args.add_argument("--tiny", action="store_true", help="smallest settings, to try the script without an accelerator")
    args = args.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    log = open(out / "train.log", "w")
    begin = time.time()

    def say(text):
        line = f"[{time.time() - begin:6.1f}s] {text}"
        print(line, flush=True)
        print(line, file=log, flush=True)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    torch.set_float32_matmul_precision("high")
    c = dict(CONFIG)
    if args.tiny:
        args.records, args.batch, args.sequence, c["layers"] = 3000, 2, 256, 2

    tokenizer = train_tokenizer(texts(range(0, 3000 if args.tiny else 30_000)))
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "config.json").write_text(json.dumps(c, indent=1))
    say(f"tokenizer: {tokenizer.get_vocab_size()} tokens")
    assert tokenizer.get_vocab_size() == c["vocab"]

    workers, chunk = os.cpu_count(), 2000
    jobs = [(str(out / "tokenizer.json"), range(i, min(i + chunk, args.records))) for i in range(0, args.records, chunk)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        data = np.concatenate(list(pool.imap(encode_seeds, jobs)))
    held = encode_seeds((str(out / "tokenizer.json"), range(corpus.VALIDATION_SEED, corpus.VALIDATION_SEED + (100 if args.tiny else 3000))))
    say(f"corpus: {args.records} records, {len(data) / 1e6:.1f} M tokens, held out {len(held) / 1e3:.0f} k tokens")

    span = args.sequence + 1
    rows = torch.from_numpy(data[: len(data) // span * span].astype(np.int16)).view(-1, span).to(device)
    held = torch.from_numpy(held[: len(held) // span * span].astype(np.int64)).view(-1, span).to(device)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(11)).to(device)

    model = Model(c).to(device)
    say(f"model: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}")
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=args.rate, betas=(0.9, 0.95), fused=device == "cuda")
    loss_of = torch.compile(model.loss) if device == "cuda" else model.loss
    try:
        with torch.autocast(device, torch.bfloat16):
            loss_of(rows[: args.batch, :-1].long().contiguous(), rows[: args.batch, 1:].long().contiguous()).backward()
    except Exception as problem:  # no compiler on this machine: slower, the same model
        say(f"not compiled: {str(problem)[:500]}")
        loss_of = model.loss
    model.zero_grad(set_to_none=True)
    say("first step done")

    def validate():
        model.eval()
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            losses = [loss_of(b[:, :-1].contiguous(), b[:, 1:].contiguous()).item() for b in held[: len(held) // args.batch * args.batch].split(args.batch)]
        model.train()
        return sum(losses) / len(losses)

    steps, step, measured, train_begin = args.steps or 10**9, 0, None, time.time()
    while step < steps:
        if step == 20 and not args.steps:
            if device == "cuda":
                torch.cuda.synchronize()
            measured = time.time()
        if step == 60 and not args.steps:
            if device == "cuda":
                torch.cuda.synchronize()
            each = (time.time() - measured) / 40
            steps = max(step + 1, int((args.seconds - (time.time() - train_begin)) / each))
            say(f"{each * 1e3:.1f} ms a step, {args.batch * args.sequence / each / 1e6:.2f} M tokens/s: {steps} steps in all")
        # Until the number of steps is known the rate only warms up, so the schedule is the same with --steps.
        warm = min(1.0, (step + 1) / 200)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = args.rate * warm * (0.02 + 0.98 * cosine)
        at = step * args.batch % (len(rows) - args.batch + 1)
        batch = rows[order[at : at + args.batch]].long()
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % (20 if args.tiny else 250) == 0:
            say(f"step {step}: loss {loss.item():.4f}")
        if not args.tiny and step % 1500 == 0:
            say(f"step {step}: validation loss {validate():.4f}")
    say(f"trained {step} steps, {step * args.batch * args.sequence / 1e6:.0f} M tokens in {time.time() - train_begin:.0f} s: validation loss {validate():.4f}")

    model.eval()
    weights = {"model." + n: p.detach().float().cpu().contiguous() for n, p in model.named_parameters()}
    save_file(weights, out / "model.safetensors")
    say("saved")
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        for prompt in PROMPTS:
            text = generate(model, tokenizer, f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", device, 20 if args.tiny else 320)
            say(f"--- {prompt}\n{text}")


if __name__ == "__main__":
    main()
