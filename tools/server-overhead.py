#!/usr/bin/env python3
"""Compares one stream through HTTP with `welte bench`, alternating, and prints medians as JSON.

    tools/server-overhead.py target/release/welte -m models/demo.gguf
    tools/server-overhead.py welte -m synthetic:qwen3-4b:q4_0 --device cuda -n 512

Both decode N tokens of one sequence, greedily, from an empty context. The client measures the HTTP figure from sending the request
to the last piece of the answer, so it includes a prompt of one token. Nothing is guessed ahead, because `welte bench` does not either. `ratio_to_engine` compares it with
the engine's own figure for the same request. On a busy machine only this ratio means something.
"""

import argparse
import json
import re
import socket
import statistics
import subprocess
import time


def through_http(port, tokens):
    body = {"prompt": [1], "n_predict": tokens, "ignore_eos": True, "temperature": 0, "stream": True, "cache_prompt": False}
    body = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = time.perf_counter()
        client.sendall(head.encode() + body)
        answer, last = b"", sent
        while part := client.recv(1 << 16):
            answer += part
            last = time.perf_counter()
    final = json.loads([line for line in answer.split(b"\n") if line.startswith(b"data: ")][-1][6:])
    if final["tokens_predicted"] != tokens:
        raise SystemExit(f"error: {final['tokens_predicted']} tokens in place of {tokens}")
    return tokens / (last - sent), final["timings"]["predicted_per_second"]


def through_bench(args):
    command = [args.welte, "bench", "-m", args.model, "--device", args.device, "-p", "0", "-n", str(args.tokens), "-r", "3"]
    out = subprocess.run(command + ["-o", "json"], check=True, capture_output=True, text=True).stdout
    # A new process is slow at first, the server is not new.
    return json.loads(out)[0]["samples_ts"][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("welte", help="the binary")
    parser.add_argument("-m", "--model", default="models/demo.gguf")
    parser.add_argument("--device", default="auto")
    parser.add_argument("-n", "--tokens", type=int, default=512)
    parser.add_argument("-r", "--rounds", type=int, default=7)
    args = parser.parse_args()
    command = [args.welte, "serve", "-m", args.model, "--device", args.device, "--port", "0", "-np", "1", "--spec", "off"]
    server = subprocess.Popen([*command, "-c", str(args.tokens + 64)], stderr=subprocess.PIPE, text=True)
    try:
        port = next(int(found[1]) for line in server.stderr if (found := re.search(r"listening at http://\S+:(\d+)", line)))
        # The first round is the warm-up.
        rounds = [(*through_http(port, args.tokens), through_bench(args)) for _ in range(args.rounds + 1)][1:]
    finally:
        server.terminate()
        server.wait()
    http, engine, bench = (statistics.median(column) for column in zip(*rounds))
    share = statistics.median(http / engine for http, engine, _ in rounds)
    result = {"model": args.model, "device": args.device, "tokens": args.tokens, "rounds": args.rounds}
    result |= {"http_tokens_per_second": http, "bench_tokens_per_second": bench, "ratio": http / bench}
    result |= {"engine_tokens_per_second": engine, "ratio_to_engine": share}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
