"""Compares `welte transcribe` with faster-whisper on the same weights: text, and time.

    python3 tools/compare-speech.py WELTE MODEL MODEL-CT2 FILE... [--threads 2] [--whisper-cli PROGRAM --ggml FILE]

MODEL is what tools/whisper-from-ct2.py makes of MODEL-CT2; tools/whisper-to-ggml.py makes the FILE of whisper.cpp. Both decode greedily, in
float32 and then in 8 bits (for which MODEL.q8_0.bin must exist). Programs take turns; a time is the median of three, with the model loaded. Needs faster-whisper.

Speech for it: espeak-ng -v en-gb -f text.txt -w speech.wav; ffmpeg -i speech.wav -ar 16000 speech-16k.wav
"""

import argparse
import json
import re
import statistics
import subprocess
import time
from pathlib import Path

TIMES = 3


def errors(ours, theirs):
    """Word errors: insertions, deletions and replacements."""
    a, b = (re.findall(r"[\w']+", text.lower()) for text in (ours, theirs))
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1], len(b)


def welte(args, model, file):
    command = [args.welte, "transcribe", "-m", model, "--json", "-t", str(args.threads), "--device", "cpu", file]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = float(re.search(r"sound in ([\d.]+) s", done.stderr)[1])
    found = json.loads(done.stdout)
    return [(round(s["start"], 2), round(s["end"], 2), s["text"]) for s in found["segments"]], seconds


def faster(model, file):
    start = time.monotonic()
    segments = list(model.transcribe(file, beam_size=1)[0])
    return [(round(s.start, 2), round(s.end, 2), s.text) for s in segments], time.monotonic() - start


def in_turns(*programs):
    """What each program writes, and the median of its times."""
    rounds = [[program() for program in programs] for _ in range(TIMES)]
    return [(all[0][0], statistics.median(seconds for _, seconds in all)) for all in zip(*rounds)]


def cpp(args, file):
    command = [args.whisper_cli, "-m", args.ggml, "-t", str(args.threads), "-bs", "1", "-bo", "1", "-l", "auto", "-np", "-nt", "-f", file]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(0, 0, done.stdout)], time.monotonic() - start


def whole(args, file):
    start = time.monotonic()
    return welte(args, args.ggml, file)[0], time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("welte"), parser.add_argument("model"), parser.add_argument("ct2"), parser.add_argument("files", nargs="+")
    parser.add_argument("--threads", type=int, default=2), parser.add_argument("--whisper-cli"), parser.add_argument("--ggml")
    args = parser.parse_args()
    from faster_whisper import WhisperModel

    print("| file | weights | text, times of segments | words that differ | welte | faster-whisper | ratio |\n|---|---|---|---|---|---|---|")
    q8 = f"{args.model}.q8_0.bin"
    for kind, model in [("float32", args.model)] + ([("int8", q8)] if Path(q8).exists() else []):
        theirs = WhisperModel(args.ct2, device="cpu", compute_type=kind, cpu_threads=args.threads)
        for file in args.files:
            (a, ours), (b, other) = in_turns(lambda: welte(args, model, file), lambda: faster(theirs, file))
            text = ["".join(s[2] for s in found).strip() for found in (a, b)]
            wrong, count = errors(*text)
            same = "equal" if a == b else "equal text" if text[0] == text[1] else "differ"
            print(f"| {Path(file).name} | {kind} | {same} | {wrong} of {count} | {ours:.2f} s | {other:.2f} s | {other / ours:.2f} |", flush=True)
    if args.whisper_cli:
        print("\nwhisper.cpp, with its time to load the model:\n\n| file | words that differ | welte | whisper.cpp | ratio |\n|---|---|---|---|---|")
        for file in args.files:
            (a, ours), (b, other) = in_turns(lambda: whole(args, file), lambda: cpp(args, file))
            wrong, count = errors("".join(s[2] for s in a), b[0][2])
            print(f"| {Path(file).name} | {wrong} of {count} | {ours:.2f} s | {other:.2f} s | {other / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
