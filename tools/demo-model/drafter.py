"""Trains a head that drafts for the demo model, and writes it as GGUF: EAGLE-3, one layer.

    python3 drafter.py ../../models/demo.gguf OUT.gguf [--seconds 240 | --steps N]

Needs torch, tokenizers, numpy, gguf. The language model stays as it is: the head learns to say what it would say two tokens later, then three
later from its own hidden states, and so on. `--steps 20 --batch 4 --sequence 64 --records 400 --device cpu` tries everything without a GPU.
"""

import argparse
import math
import multiprocessing
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F

import corpus
from eyes import language_model
from train import CONFIG, encode_seeds, rotate

DIM, VOCAB, HEAD_DIM, EPS = (CONFIG[key] for key in ("dim", "vocab", "head_dim", "eps"))
HEADS, KV_HEADS, FFN = 4, 1, 384
TAPS = [2, CONFIG["layers"] // 2, CONFIG["layers"] - 3]
AHEAD = 5  # guesses that are trained
DECAY = 0.9  # weight of a guess after the one before it
VALIDATION = 64  # rows


class Head(torch.nn.Module):
    """Names as in directories of SGLang, without `midlayer`."""

    def __init__(self):
        super().__init__()
        linear = lambda k, n: torch.nn.Linear(k, n, bias=False)
        norm = lambda: torch.nn.RMSNorm(DIM, eps=EPS)
        self.fc = linear(len(TAPS) * DIM, DIM)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = norm(), norm(), norm(), norm()
        self.q_proj, self.o_proj = linear(2 * DIM, HEADS * HEAD_DIM), linear(HEADS * HEAD_DIM, DIM)
        self.k_proj, self.v_proj = linear(2 * DIM, KV_HEADS * HEAD_DIM), linear(2 * DIM, KV_HEADS * HEAD_DIM)
        self.gate_proj, self.up_proj, self.down_proj = linear(DIM, FFN), linear(DIM, FFN), linear(FFN, DIM)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, 0.0, p.shape[1] ** -0.5 * (0.3 if name.startswith(("o_", "down_")) else 1.0))

    def layer(self, embedded, hidden, known, cos, sin):
        """Hidden states of all positions `s`, for a guess as many steps ahead as `known` has keys and values of earlier guesses, which
        are appended. The keys that it sees: those of the text up to `s - ahead`, then one of each guess between."""
        b, t, _ = embedded.shape
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        split = lambda y: y.view(b, t, -1, HEAD_DIM).transpose(1, 2)
        q = rotate(split(self.q_proj(x)), cos, sin)
        k, v = rotate(split(self.k_proj(x)), cos, sin), split(self.v_proj(x)).float()
        known.append((k, v))
        ahead, scale = len(known) - 1, HEAD_DIM**-0.5
        at = torch.arange(t, device=x.device)
        first_k, first_v = known[0]
        scores = (q @ first_k.transpose(-1, -2)) * scale
        scores = scores.masked_fill(at[None, :] > at[:, None] - ahead, float("-inf"))
        between = []
        for step in range(1, ahead + 1):
            back = ahead - step
            moved = [torch.roll(part, back, 2) for part in known[step]]
            between.append(moved[1])
            scores = torch.cat([scores, (q * moved[0]).sum(-1, keepdim=True) * scale], -1)
        shares = scores.softmax(-1)
        y = shares[..., :t] @ first_v
        for number, values in enumerate(between):
            y = y + shares[..., t + number, None] * values
        x = hidden + self.o_proj(y.transpose(1, 2).reshape(b, t, -1).to(embedded.dtype))
        n = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))


def seen(model, ids):
    """The inputs of the layers that the head reads, side by side, and the logits."""
    x, taps = model.embed_tokens(ids), []
    for number, layer in enumerate(model.layers):
        if number in TAPS:
            taps.append(x)
        x = layer(x, model.cos[: x.shape[1]], model.sin[: x.shape[1]])
    return torch.cat(taps, -1), model.norm(x) @ model.embed_tokens.weight.T


def guesses(model, head, ids):
    """For each number of steps ahead: the logits of guesses at positions `ahead..`, and those of the model for the same tokens."""
    taps, wanted = seen(model, ids)
    t = ids.shape[1] - 1
    embedded, hidden, known, cos, sin = model.embed_tokens(ids[:, 1:]), head.fc(taps[:, :-1]), [], model.cos[:t], model.sin[:t]
    for ahead in range(AHEAD):
        hidden = head.layer(embedded, hidden, known, cos, sin)
        logits = head.norm(hidden) @ model.embed_tokens.weight.T
        yield logits[:, ahead:].float(), wanted[:, 1 + ahead :].float()
        hidden = torch.roll(hidden, 1, 1)


def loss_of(model, head, ids):
    total = 0.0
    for ahead, (logits, wanted) in enumerate(guesses(model, head, ids)):
        each = -(wanted.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        total = total + DECAY**ahead * each
    return total / sum(DECAY**ahead for ahead in range(AHEAD))


def right(model, head, ids):
    """How often each guess is the model's first choice, if those before it are."""
    shares, all_right = [], None
    with torch.no_grad():
        for logits, wanted in guesses(model, head, ids):
            hit = logits.argmax(-1) == wanted.argmax(-1)
            # Position s of a guess begins where position s - 1 of the one before it began.
            hit = hit if all_right is None else hit & all_right[:, : hit.shape[1]]
            shares.append((hit.sum() / (hit.numel() if all_right is None else all_right[:, : hit.shape[1]].sum().clamp(min=1))).item())
            all_right = hit
    return shares


def pairs(w, heads):
    """Rows of a projection as llama.cpp keeps them: neighbours form the pairs of rope."""
    n, k = w.shape
    return np.ascontiguousarray(w.reshape(heads, 2, n // heads // 2, k).swapaxes(1, 2).reshape(n, k))


def write(path, head):
    w = gguf.GGUFWriter(path, "eagle3")
    w.add_name("welte-demo-drafter")
    w.add_description("Drafts for Welte's demo model.")
    w.add_license("mit OR apache-2.0")
    w.add_context_length(CONFIG["context"])
    w.add_embedding_length(DIM)
    w.add_block_count(1)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_rope_dimension_count(HEAD_DIM)
    w.add_rope_freq_base(CONFIG["rope_theta"])
    w.add_layer_norm_rms_eps(EPS)
    w.add_vocab_size(VOCAB)
    w.add_array("eagle3.target_layers", TAPS)
    w.add_uint32("eagle3.target_hidden_size", DIM)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(2)
    names = {"fc": "fc", "norm": "output_norm", "input_layernorm": "blk.0.attn_norm", "hidden_norm": "blk.0.attn_norm_2",
             "post_attention_layernorm": "blk.0.ffn_norm", "q_proj": "blk.0.attn_q", "k_proj": "blk.0.attn_k", "v_proj": "blk.0.attn_v",
             "o_proj": "blk.0.attn_output", "gate_proj": "blk.0.ffn_gate", "up_proj": "blk.0.ffn_up", "down_proj": "blk.0.ffn_down"}
    for name, p in head.named_parameters():
        stem = name.removesuffix(".weight")
        value = p.detach().float().cpu().numpy()
        if stem in ("q_proj", "k_proj"):
            value = pairs(value, HEADS if stem == "q_proj" else KV_HEADS)
        if value.ndim == 1:
            w.add_tensor(f"{names[stem]}.weight", value)
        else:
            stored = gguf.quants.quantize(value, gguf.GGMLQuantizationType.Q8_0)
            w.add_tensor(f"{names[stem]}.weight", stored, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model")
    args.add_argument("out")
    args.add_argument("--seconds", type=float, default=240)
    args.add_argument("--steps", type=int, default=0)
    args.add_argument("--records", type=int, default=200_000)
    args.add_argument("--batch", type=int, default=64)
    args.add_argument("--sequence", type=int, default=512)
    args.add_argument("--rate", type=float, default=2e-3)
    args.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = args.parse_args()
    torch.manual_seed(7)
    torch.set_float32_matmul_precision("high")
    begin = time.time()
    say = lambda text: print(f"[{time.time() - begin:6.1f}s] {text}", flush=True)

    model, tokenizer = language_model(args.model)
    model = model.to(args.device).eval()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "tokenizer.json")
        tokenizer.save(file)
        chunk = 500
        ranges = [range(at, min(at + chunk, args.records)) for at in range(0, args.records, chunk)]
        ranges.append(range(corpus.VALIDATION_SEED, corpus.VALIDATION_SEED + 400))
        with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
            parts = pool.map(encode_seeds, [(file, seeds) for seeds in ranges])
    span = args.sequence + 1
    rows_of = lambda data: torch.from_numpy(data[: len(data) // span * span].astype(np.int64)).view(-1, span)
    rows, held = rows_of(np.concatenate(parts[:-1])), rows_of(parts[-1])[:VALIDATION].to(args.device)
    say(f"{rows.numel() / 1e6:.1f} M tokens")

    head = Head().to(args.device)
    say(f"{sum(p.numel() for p in head.parameters()) / 1e6:.2f} M parameters on {args.device}")
    matrices, vectors = ([p for p in head.parameters() if (p.dim() == 2) == wide] for wide in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=args.rate,
                                  betas=(0.9, 0.95))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(11))
    kind = args.device.split(":")[0]

    def validate():
        with torch.autocast(kind, torch.bfloat16):
            return "right by guess: " + " ".join(f"{share:.3f}" for share in right(model, head, held))

    steps, step, measured = args.steps or 10**9, 0, begin
    while step < steps:
        if not args.steps and step in (10, 30):
            if kind == "cuda":
                torch.cuda.synchronize()
            if step == 30:
                each = (time.time() - measured) / 20
                steps = step + max(1, int((args.seconds - (time.time() - begin)) / each))
                say(f"{each * 1e3:.1f} ms a step: {steps} steps in all")
            measured = time.time()
        warm, cosine = min(1.0, (step + 1) / 100), 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = args.rate * warm * (0.02 + 0.98 * cosine)
        at = step * args.batch % max(1, len(rows) - args.batch + 1)
        batch = rows[order[at : at + args.batch]].to(args.device)
        with torch.autocast(kind, torch.bfloat16):
            loss = loss_of(model, head, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 250 == 0 or step == steps:
            say(f"step {step}: loss {loss.item():.4f}, {validate()}")
    write(args.out, head)
    say(f"{args.out}: {Path(args.out).stat().st_size} bytes")


if __name__ == "__main__":
    main()
