#!/usr/bin/env python3
"""Compares the throughput of text embedding: Welte, llama.cpp's llama-embedding and sentence-transformers, on the same random
model and the same texts.

    tools/compare-embeddings.py --welte target/release/welte --llama-embedding PATH --threads 2 --output result.json

Each engine embeds N texts and 3N texts per run; the difference is free of its start. Engines alternate, and medians of several
runs count. sentence-transformers runs in a process of its own, whose start is not measured. With `--clock cpu` seconds are those of
the processor, for a machine that does other work too; use it with one thread, because waiting threads spin.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import embedding_models as made
import torch
import transformers as tf

SHAPES = {
    "bert-base": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    "minilm": dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
}


def seconds(clock, command, environment=None):
    """Seconds of a command, of all its threads if they are those of the processor."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begun
    return wall if clock == "wall" else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Peer:
    """sentence-transformers in a process of its own: it reads names of files, and answers with seconds."""

    def __init__(self, folder, threads, clock, batch):
        command = [sys.executable, __file__, "--peer", folder, "--threads", str(threads), "--clock", clock, "--texts", str(batch)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def seconds(self, file):
        self.process.stdin.write(f"{file}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve_peer(a):
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(a.threads)
    model = SentenceTransformer(a.peer, device="cpu")
    clock = time.monotonic if a.clock == "wall" else time.process_time
    model.encode(["warm up"])
    for line in sys.stdin:
        texts = pathlib.Path(line.strip()).read_text().splitlines()
        begun = clock()
        model.encode(texts, batch_size=a.texts)
        print(clock() - begun, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--welte", default="target/release/welte")
    p.add_argument("--llama-embedding")
    p.add_argument("--shape", default="bert-base", choices=SHAPES)
    p.add_argument("--format", default="f16", choices=["f16", "f32"], help="of the GGUF file; sentence-transformers computes in F32")
    p.add_argument("--tokens", default="16,128,512")
    p.add_argument("--texts", type=int, default=16, help="texts that Welte and sentence-transformers compute together")
    p.add_argument("--total", type=int, default=4096, help="tokens of the shorter run")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    p.add_argument("--output")
    p.add_argument("--peer", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.peer:
        return serve_peer(a)
    tf.utils.logging.disable_progress_bar()
    tokenizer = made.word_piece()
    config = tf.BertConfig(**SHAPES[a.shape], vocab_size=len(tokenizer))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        torch.manual_seed(0)
        model = tf.BertModel(config).eval()
        made.save(folder / "model", model, tokenizer, "mean", 512)
        file = str(folder / "model.gguf")
        made.bert_gguf(model, config, file, tokenizer, a.format == "f16")
        peer = Peer(str(folder / "model"), a.threads, a.clock, a.texts)
        commands = {"welte": lambda texts, _: [a.welte, "embed", "-m", file, "-t", str(a.threads), "--device", "cpu", "--batch", str(a.texts), "-f", texts]}
        if a.llama_embedding:
            # It fills a batch with texts, and needs as many sequences.
            rows = max(map(int, a.tokens.split(",")))
            commands["llama.cpp"] = lambda texts, tokens: [
                a.llama_embedding, "-m", file, "-t", str(a.threads), "-f", texts, "-c", "0", "-np", str(rows // tokens),
                "-b", str(rows), "-ub", str(rows), "--embd-output-format", "array",
            ]  # fmt: skip
        names = [*commands, "sentence-transformers"]
        print(f"| tokens | {' | '.join(f'{name}, texts/s' for name in names)} | " + " | ".join(f"welte : {name}" for name in names[1:]) + " |")
        print("|---:" * (2 * len(names)) + "|", flush=True)
        for tokens in map(int, a.tokens.split(",")):
            count = max(2, a.total // tokens)
            lists = []
            for n in (count, 3 * count):
                # Two tokens stand around every text.
                lists.append(folder / f"{tokens}-{n}.txt")
                lists[-1].write_text("".join(made.word_text(tokens - 2, seed) + "\n" for seed in range(n)))
            speeds = {name: [] for name in names}
            for _ in range(a.runs):
                for name in names:
                    if name in commands:
                        taken = [seconds(a.clock, commands[name](str(texts), tokens)) for texts in lists]
                    else:
                        taken = [peer.seconds(texts) for texts in lists]
                    speeds[name].append(2 * count / max(1e-9, taken[1] - taken[0]))
            middle = {name: statistics.median(all) for name, all in speeds.items()}
            cells = [f"{middle[name]:.2f}" for name in names] + [f"{middle['welte'] / middle[name]:.2f}" for name in names[1:]]
            print(f"| {tokens} | " + " | ".join(cells) + " |", flush=True)
            results.append({"tokens": tokens, "texts": count, "samples": speeds, "texts_s": middle})
        peer.close()
    if a.output:
        facts = dict(shape=a.shape, format=a.format, threads=a.threads, clock=a.clock, together=a.texts, cores=os.cpu_count())
        pathlib.Path(a.output).write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")


main()
