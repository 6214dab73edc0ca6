#!/usr/bin/env python3
"""Compares `welte serve` with llama-server on the same file, one stream and many, and prints medians of ratios.

    tools/compare-server.py --welte target/release/welte --llama-server PATH -m models/demo.gguf --streams 1,32 --pairs 3
    tools/compare-server.py --llama-server PATH -m qwen3-4b.gguf --device cuda --llama-args "-ngl 99 -fa on"

Both servers run all the time, and one of them works at a time: A B B A. Each stream sends a prompt of its own and generates N tokens
greedily. The figure is tokens of all streams per second, from the first request to the last piece, so it includes the prompts. Nothing
is guessed ahead and no prompt is cached.
"""

import argparse
import json
import re
import socket
import statistics
import subprocess
import threading
import time


def stream(port, prompt, tokens, counts):
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "temperature": 0, "stream": True, "cache_prompt": False}
    body = json.dumps(body).encode()
    head = "POST /completion HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    final = [line for line in answer.split(b"\n") if line.startswith(b"data: {")][-1]
    counts.append(json.loads(final[6:])["tokens_predicted"])


def run(port, streams, prompt, tokens):
    """Tokens per second of all streams."""
    counts = []
    prompts = [[1 + (7 * i + 31 * j) % 900 for j in range(prompt)] for i in range(streams)]
    threads = [threading.Thread(target=stream, args=(port, one, tokens, counts)) for one in prompts]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    if counts != [tokens] * streams:
        raise SystemExit(f"error: {counts} in place of {streams} times {tokens} tokens")
    return streams * tokens / seconds


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def start(command, ready):
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in server.stdout:
        if re.search(ready, line):
            # Somebody must read the log, or the server waits.
            threading.Thread(target=server.stdout.read, daemon=True).start()
            return server
    raise SystemExit(f"error: {' '.join(command)} did not start")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--welte", default="target/release/welte")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("-m", "--model", default="models/demo.gguf")
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="generated tokens of each stream")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--device", default="cpu", help="of welte")
    parser.add_argument("--llama-args", default="", help="further arguments of llama-server")
    args = parser.parse_args()
    print("| file | streams | welte, tok/s | llama-server, tok/s | ratio: median (min-max) |\n|---|---:|---:|---:|---:|")
    for streams in map(int, args.streams.split(",")):
        context = args.prompt + args.tokens + 16
        ports = [free_port(), free_port()]
        ours = [args.welte, "serve", "-m", args.model, "--device", args.device, "-t", args.threads, "--spec", "off"]
        ours += ["-np", str(streams), "-c", str(context), "--port", str(ports[0])]
        theirs = [args.llama_server, "-m", args.model, "-t", args.threads, "-np", str(streams), "-c", str(context * streams)]
        theirs += ["--port", str(ports[1]), "--no-webui", *args.llama_args.split()]
        servers = [start(command, "listening (at|on) http") for command in (ours, theirs)]
        try:
            for port in ports:
                run(port, streams, args.prompt, args.tokens)
            all_speeds = []
            for pair in range(args.pairs):
                order = [0, 1] if pair % 2 == 0 else [1, 0]
                speeds = {which: run(ports[which], streams, args.prompt, args.tokens) for which in order}
                all_speeds.append((speeds[0], speeds[1]))
        finally:
            for server in servers:
                server.terminate()
                server.wait()
        ratios = [ours / theirs for ours, theirs in all_speeds]
        welte, llama = (statistics.median(column) for column in zip(*all_speeds))
        name, ratio = args.model.rsplit("/", 1)[-1], statistics.median(ratios)
        print(f"| {name} | {streams} | {welte:.1f} | {llama:.1f} | {ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |", flush=True)


if __name__ == "__main__":
    main()
