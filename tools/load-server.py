#!/usr/bin/env python3
"""Loads `welte serve` with many clients, of which a third leave in mid-answer, and checks every text against its lone run.

    tools/load-server.py target/release/welte -m models/demo.gguf --clients 200 --seconds 600
    tools/load-server.py welte -m qwen3-4b.gguf --device cuda --clients 200 --parallel 32 --seconds 180 --processes 8

Prompts share beginnings, sizes differ, and the queue is shorter than the number of clients, so some are refused with 429. First every
request runs alone. At the end the server must have idle slots, an empty queue, no page that a request holds, and no more open files
and little more memory than after the first quarter. Prints one JSON object; the exit status is 1 if anything is wrong.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
import urllib.request

VARIANTS = 48


def body(variant, longest):
    """The request with this number."""
    prompt = "The fox and the crow lived near the river. " * (variant % 4) + f"Once upon a time, number {variant}"
    sizes = {"prompt": prompt, "n_predict": 1 + variant * 37 % longest, "ignore_eos": True}
    return json.dumps(sizes | {"temperature": 1.0, "seed": variant, "stream": True}).encode()


class Seen:
    """What a client saw of one answer."""

    def __init__(self):
        self.status, self.text, self.ended, self.first, self.between, self.retry_after = 0, "", False, None, [], None


async def ask(port, request, leave_after=None):
    seen, pieces, last = Seen(), 0, None
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        head = "POST /completion HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(request)}\r\n\r\n".encode() + request)
        async for line in reader:
            if line.startswith(b"HTTP/1.1 "):
                seen.status = int(line[9:12])
            elif line.lower().startswith(b"retry-after: "):
                seen.retry_after = int(line[13:])
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"an answer ended with {event}")
            now = time.perf_counter()
            if last is None:
                seen.first = now - begun
            else:
                seen.between.append(now - last)
            last = now
            seen.text += event["content"]
            seen.ended |= event["stop"]
            pieces += 1
            if pieces == leave_after:
                break
    finally:
        writer.close()
    return seen


async def client(number, port, requests, alone, end, totals, times):
    turn = number
    while time.time() < end:
        turn = (turn * 29 + 17 + number) % (1 << 40)
        variant = turn % VARIANTS
        leave = 1 + turn // 7 % 20 if turn // VARIANTS % 3 == 0 else None
        try:
            seen = await ask(port, requests[variant], leave)
        except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
            totals["failed"].append(f"request {variant}: {error!r}")
            continue
        if seen.status == 429:
            totals["refused"] += 1
            if seen.retry_after is None:
                totals["failed"].append("a 429 had no Retry-After")
            await asyncio.sleep(0.05)
            continue
        right = seen.text == alone[variant] if seen.ended else leave is not None and alone[variant].startswith(seen.text)
        if seen.status != 200 or not right:
            totals["failed"].append(f"request {variant}: status {seen.status}, {len(seen.text)} characters differ from the lone run")
            continue
        totals["whole" if seen.ended else "left"] += 1
        times["first"].append(seen.first)
        times["between"].extend(seen.between)


def clients(numbers, port, requests, alone, end, results):
    """The clients of one process."""
    totals, times = {"whole": 0, "left": 0, "refused": 0, "failed": []}, {"first": [], "between": []}

    async def all_clients():
        await asyncio.gather(*(client(n, port, requests, alone, end, totals, times) for n in numbers))

    asyncio.run(all_clients())
    results.put((totals, times))


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def usage(pid):
    """Memory and open files of the server."""
    with open(f"/proc/{pid}/status") as status:
        resident = int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024
    seen = {"resident_mib": round(resident, 1), "files": len(os.listdir(f"/proc/{pid}/fd"))}
    try:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        seen["gpu_mib"] = int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        pass
    return seen


def idle(port):
    """Why the server is not idle, or nothing."""
    state = get(port, "/welte/state")
    held = sum(pool["pages"].count(kind) for pool in state["pools"] for kind in "os")
    busy = sum(slot["state"] != "idle" for slot in state["slots"])
    if held or busy or state["queue"]:
        return f"{held} pages are held, {busy} slots are busy, {len(state['queue'])} requests wait"
    return None


def percentiles(times):
    times.sort()
    at = lambda part: round(times[min(len(times) - 1, int(len(times) * part))] * 1e3, 2) if times else None
    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "longest_ms": at(1.0), "count": len(times)}


def load(args, port, pid):
    requests = [body(variant, args.longest) for variant in range(VARIANTS)]
    alone, lone_first, lone_between = [], [], []
    for request in requests:
        seen = asyncio.run(ask(port, request))
        if seen.status != 200 or not seen.ended:
            sys.exit(f"error: a lone request ended with {seen.status}: {seen.text}")
        alone.append(seen.text)
        lone_first.append(seen.first)
        lone_between += seen.between
    results, end = multiprocessing.Queue(), time.time() + args.seconds
    processes = []
    for index in range(args.processes):
        numbers = range(index, args.clients, args.processes)
        process = multiprocessing.Process(target=clients, args=(numbers, port, requests, alone, end, results))
        process.start()
        processes.append(process)
    time.sleep(args.seconds / 4)
    warm = usage(pid)
    totals, first, between = {"whole": 0, "left": 0, "refused": 0, "failed": []}, [], []
    for _ in processes:
        more, times = results.get(timeout=args.seconds + 300)
        totals = {key: totals[key] + more[key] for key in totals}
        first += times["first"]
        between += times["between"]
    for process in processes:
        process.join()
    problems = totals.pop("failed")
    for _ in range(400):
        left = idle(port)
        after = usage(pid)
        if left is None and after["files"] <= warm["files"]:
            break
        time.sleep(0.05)
    if left:
        problems.append(f"at the end {left}")
    if after["files"] > warm["files"]:
        problems.append(f"{after['files']} files are open, {warm['files']} under load")
    if after["resident_mib"] > warm["resident_mib"] + 64:
        problems.append(f"memory grew from {warm['resident_mib']} to {after['resident_mib']} MiB")
    if after.get("gpu_mib", 0) > warm.get("gpu_mib", 0) + 64:
        problems.append(f"the GPU's memory grew from {warm['gpu_mib']} to {after['gpu_mib']} MiB")
    # The same requests once more, alone.
    for variant, request in enumerate(requests):
        if asyncio.run(ask(port, request)).text != alone[variant]:
            problems.append(f"request {variant} has another text after the load")
    return {
        "model": args.model, "device": args.device, "clients": args.clients, "parallel": args.parallel, "seconds": args.seconds,
        **totals, "texts_of_lone_runs": VARIANTS, "first_piece": percentiles(first), "between_pieces": percentiles(between),
        "lone_first_piece": percentiles(lone_first), "lone_between_pieces": percentiles(lone_between),
        "under_load": warm, "afterwards": after, "wrong": len(problems), "problems": problems[:10],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("welte", help="the binary")
    parser.add_argument("-m", "--model", default="models/demo.gguf")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--parallel", type=int, default=4, help="requests that are answered at the same time")
    parser.add_argument("--queue", type=int, help="requests that may wait [default: 3/4 of the clients]")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--longest", type=int, default=90, help="tokens of the longest answer")
    parser.add_argument("--processes", type=int, default=1, help="processes of clients")
    parser.add_argument("--threads", help="threads of the server's CPU device")
    args = parser.parse_args()
    queue = args.queue or max(1, args.clients * 3 // 4)
    command = [args.welte, "serve", "-m", args.model, "--device", args.device, "-c", "512", "-np", str(args.parallel)]
    command += ["--queue", str(queue), "--port", "0"] + (["-t", args.threads] if args.threads else [])
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        found = (re.search(r"listening at http://\S+:(\d+)", line) for line in server.stderr)
        port = next((int(one[1]) for one in found if one), None)
        if port is None:
            sys.exit("error: the server did not start")
        result = load(args, port, server.pid)
    finally:
        server.terminate()
        code = server.wait(timeout=60)
    if code != 0:
        result["wrong"] += 1
        result["problems"].append(f"the server ended with {code}")
    print(json.dumps(result, indent=1))
    sys.exit(result["wrong"] > 0)


if __name__ == "__main__":
    main()
