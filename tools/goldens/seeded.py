"""Weights from a seed: files of models without their bytes.

A golden's weight file FILE is kept as FILE.head, the bytes before the first tensor as another program wrote them, and FILE.fill, a
line for each tensor: how its bytes follow from the seed. `crates/welte-goldens` makes the same files for the tests.

    python3 tools/goldens/seeded.py crates/welte/tests/goldens OUT          writes all of them to OUT

Element i of a stream is a hash of its key and i. A tensor is an array of blocks of `width` bytes. They are the bytes of the tensor's own
stream, and then each field overwrites `count` neighbouring elements from byte `at` on with a stream of its own.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

STEP = np.uint64(0x9E3779B97F4A7C15)
# The standard deviation of the sum of four random 16-bit numbers.
SPREAD = 37837.0
FLOATS = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype("<u2")}
# What safetensors calls them.
NAMES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
INTEGERS = ("byte", "nibbles", "high", "e4m3")


def mix(z):
    """The last steps of splitmix64."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def stream(key, n):
    with np.errstate(over="ignore"):
        return mix(np.uint64(key) + np.arange(1, n + 1, dtype=np.uint64) * STEP)


def key_of(seed, name):
    """A tensor's key: FNV-1a of its name, with the seed."""
    hash = 0xCBF29CE484222325
    for byte in name.encode():
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return int(stream((hash + seed) % 2**64, 1)[0])


def rounded(values):
    """The 16 high bits of floats, rounded to the nearest and ties to even."""
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype("<u2")


def elements(words, kind, a, b, old):
    """What a field's elements become, as an array of its type."""
    if kind in FLOATS:
        total = sum((words >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48)) - 2 * 65535
        values = (total * (b / SPREAD) + a).astype(np.float32)
        return rounded(values) if kind == "bf16" else values.astype(FLOATS[kind])
    within = lambda word, low, high: low + (word * np.uint64(high - low + 1) >> np.uint64(32)).astype(np.int64)
    first, second = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    if kind == "byte":
        return within(first, a, b).astype(np.uint8)
    if kind == "nibbles":
        return (within(first, a, b) | within(second, a, b) << 4).astype(np.uint8)
    if kind == "high":  # keeps the low half of a byte
        return (old & 15 | a << 4).astype(np.uint8)
    assert kind == "e4m3"  # every number but the two NaNs
    return (within(first, 0, 126) | within(second, 0, 1) << 7).astype(np.uint8)


def generate(seed, name, blocks, width, fields):
    """A tensor's bytes, [blocks, width]."""
    key = key_of(seed, name)
    out = stream(key, -(-blocks * width // 8)).astype("<u8").view(np.uint8)[: blocks * width].reshape(blocks, width).copy()
    for number, (at, count, kind, a, b) in enumerate(fields, 1):
        size = FLOATS[kind].itemsize if kind in FLOATS else 1
        words = stream(stream((key + number) % 2**64, 1)[0], blocks * count).reshape(blocks, count)
        place = out[:, at : at + count * size]
        made = np.ascontiguousarray(elements(words, kind, a, b, place))
        place[...] = made.view(np.uint8).reshape(place.shape)
    return out


def tokens(seed, count, vocabulary):
    """A long prompt: tokens from 2 on."""
    words = stream(seed, count) >> np.uint64(32)
    return (2 + (words * np.uint64(vocabulary - 2) >> np.uint64(32)).astype(np.int64)).tolist()


def digits(value, n=3):
    return float(f"{value:.{n}g}")


def like(values, kind):
    """A field of floats with the mean and the spread of some values. A mean that can be chance is 0."""
    values = np.asarray(values, np.float64)
    mean, spread = values.mean(), values.std()
    return [0, 1, kind, digits(mean) if abs(mean) > spread / 2 else 0.0, digits(spread)]


def checksum(data):
    """Of a file's words of 8 bytes, with zeros at the end."""
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    with np.errstate(over="ignore"):
        return f"{int(np.add.reduce(mix(words + np.arange(1, len(words) + 1, dtype=np.uint64) * STEP), dtype=np.uint64)):016x}"


def expand(path):
    """The bytes of the file whose head and fill are beside a path."""
    fill = json.loads(Path(f"{path}.fill").read_text())
    data = bytearray(fill["size"])
    head = Path(f"{path}.head").read_bytes()
    data[: len(head)] = head
    for name, at, *how in fill["tensors"]:
        made = bytes.fromhex(how[0]) if len(how) == 1 else generate(fill["seed"], name, *how).tobytes()
        data[at : at + len(made)] = made
    data = bytes(data)
    assert checksum(data) == fill["sum"], path
    return data


def cut(path, seed, tensors):
    """Writes a file's head and fill, and removes the file."""
    path = Path(path)
    data = path.read_bytes()
    lines = ",\n".join(json.dumps(tensor, separators=(",", ":")) for tensor in sorted(tensors, key=lambda t: t[1]))
    text = f'{{"seed": {seed}, "size": {len(data)}, "sum": "{checksum(data)}", "tensors": [\n{lines}\n]}}\n'
    Path(f"{path}.head").write_bytes(data[: min(at for _, at, *_ in tensors)])
    Path(f"{path}.fill").write_text(text)
    assert expand(path) == data, path
    path.unlink()


class Safetensors:
    """A file whose tensors are made anew from a seed: floats with the mean and spread that they have, other types of random bits.

    `fields` says otherwise for some: name to fields. `exact`: names whose bytes stay. The file stays until `cut`."""

    def __init__(self, path, seed, fields={}, exact=()):
        self.path, self.seed, self.tensors = Path(path), seed, []
        data = bytearray(self.path.read_bytes())
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, info in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            at, end = (start + offset for offset in info["data_offsets"])
            own = bytes(data[at:end])
            if name in exact:
                self.tensors.append([name, at, own.hex()])
                continue
            kind = NAMES.get(info["dtype"])
            if name in fields:
                how = fields[name]
            elif kind:
                values = np.frombuffer(own, FLOATS[kind])
                how = [like((values.astype("<u4") << 16).view("<f4") if kind == "bf16" else values, kind)]
            else:
                how = []
            width = FLOATS[kind].itemsize if kind else 1 if how else len(own)
            made = generate(seed, name, len(own) // width, width, how)
            data[at:end] = made.tobytes()
            self.tensors.append([name, at, len(own) // width, width, how])
        self.path.write_bytes(data)

    def cut(self):
        cut(self.path, self.seed, self.tensors)


# How a block of each format has its scales, for a scale of d. Codes and scales below it are random bits. Minima have the mean of what they
# are subtracted from.
def scaled(at, d, part=0.2):
    return [at, 1, "f16", digits(d), digits(abs(d) * part)]


def e4m3(d):
    """The number's code."""
    exponent = int(np.floor(np.log2(d)))
    return (exponent + 7 << 3) + round((d / 2.0**exponent - 1) * 8)


def iq1_m(d):
    """The four parts of a scale in F16."""
    bits = int(np.float16(d).view(np.uint16))
    return [[49 + 2 * j, 1, "high", bits >> 4 * j & 15, 0] for j in range(4)]


BLOCKS = {
    "F32": None, "F16": None, "BF16": None,
    "Q4_0": lambda d: [scaled(0, d)],
    "Q4_1": lambda d: [scaled(0, d), scaled(2, -7.5 * d)],
    "Q5_0": lambda d: [scaled(0, d)],
    "Q5_1": lambda d: [scaled(0, d), scaled(2, -15.5 * d)],
    "Q8_0": lambda d: [scaled(0, d), [2, 32, "byte", -127, 127]],
    "Q2_K": lambda d: [scaled(80, d), scaled(82, 1.5 * d)],
    "Q3_K": lambda d: [scaled(108, d)],
    "Q4_K": lambda d: [scaled(0, d), scaled(2, 7.5 * d)],
    "Q5_K": lambda d: [scaled(0, d), scaled(2, 15.5 * d)],
    "Q6_K": lambda d: [scaled(208, d)],
    "IQ4_NL": lambda d: [scaled(0, d)],
    "IQ4_XS": lambda d: [scaled(0, d)],
    "IQ1_S": lambda d: [scaled(0, d)],
    "IQ1_M": iq1_m,
    "IQ2_XXS": lambda d: [scaled(0, d)],
    "IQ2_XS": lambda d: [scaled(0, d)],
    "IQ2_S": lambda d: [scaled(0, d)],
    "IQ3_XXS": lambda d: [scaled(0, d)],
    "IQ3_S": lambda d: [scaled(0, d)],
    "TQ1_0": lambda d: [scaled(52, d)],
    "TQ2_0": lambda d: [scaled(64, d)],
    "Q1_0": lambda d: [scaled(0, d)],
    "NVFP4": lambda d: [[0, 4, "byte", e4m3(d) - 8, e4m3(d) + 8]],
    "MXFP4": lambda d: [[0, 1, "byte", *(127 + int(np.floor(np.log2(d))) + i for i in (0, 1))]],
}


def q1_0(data):
    """The values of bytes in Q1_0: a scale, then 128 bits, the lowest of a byte first, that are the signs of plus and minus."""
    blocks = data.reshape(-1, 18)
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    return (blocks[:, :2].copy().view("<f2").astype(np.float32) * signs).reshape(-1)


class Gguf:
    """A GGUF file whose tensors are made from a seed. Keys are added to `keys`, the gguf package's writer."""

    def __init__(self, path, arch, seed):
        import gguf

        self.gguf, self.path, self.seed, self.tensors = gguf, Path(path), seed, {}
        self.keys = gguf.GGUFWriter(self.path, arch)

    def exact(self, name, value):
        """Stores a few floats as they are."""
        value = np.ascontiguousarray(value, np.float32)
        self.tensors[name] = None
        self.keys.add_tensor(name, value)

    def put(self, name, value, kind="F32"):
        """Stores a tensor with the mean and spread of a value, or in a block format with the spread, and gives the stored values, as the
        gguf package decodes them."""
        value = np.asarray(value, np.float32)
        if kind in ("F32", "F16", "BF16"):
            field = like(value, kind.lower())
            width = FLOATS[kind.lower()].itemsize
            how = [value.size, width, [field]]
        else:
            size, width = self.gguf.GGML_QUANT_SIZES[self.qtype(kind)]
            how = [value.size // size, width, BLOCKS[kind](1.0)]
            unit = self.decode(generate(self.seed, name, *how), kind)
            how[2] = BLOCKS[kind](digits(value.std() / unit.std()))
        self.tensors[name] = how
        data = generate(self.seed, name, *how)
        raw = data.reshape(*value.shape[:-1], -1)
        if kind == "F32":
            self.keys.add_tensor(name, raw.view("<f4"))
        else:
            self.keys.add_tensor(name, raw, raw_dtype=self.qtype(kind))
        return self.decode(data, kind).reshape(value.shape)

    def qtype(self, kind):
        return self.gguf.GGMLQuantizationType[kind]

    def decode(self, data, kind):
        flat = data.reshape(-1)
        if kind == "Q1_0":  # the package does not decode it
            return q1_0(flat)
        return np.asarray(self.gguf.quants.dequantize(flat.view("<f4") if kind == "F32" else flat, self.qtype(kind)), np.float32).reshape(-1)

    def finish(self):
        self.keys.write_header_to_file()
        self.keys.write_kv_data_to_file()
        self.keys.write_tensors_to_file()
        self.keys.close()
        tensors = []
        for tensor in self.gguf.GGUFReader(self.path).tensors:
            how = self.tensors[tensor.name]
            at = int(tensor.data_offset)
            tensors.append([tensor.name, at, tensor.data.tobytes().hex()] if how is None else [tensor.name, at, *how])
        cut(self.path, self.seed, tensors)


class Goldens:
    """A list of goldens with their logits: `index` is its file. `anew`: without those that it has."""

    def __init__(self, out, index, anew=False):
        self.out, self.path = Path(out), Path(out) / index
        known = json.loads(self.path.read_text()) if self.path.exists() and not anew else []
        self.entries = {entry["name"]: entry for entry in known}

    def keep(self, name, path, architecture, kind, prompt, logits, vocabulary):
        """Adds a golden, or replaces it. `name` and `path` are relative to the folder of goldens. A long prompt is its seed and length."""
        assert np.isfinite(logits).all() and logits.std() > 0.8, (name, logits.std())
        np.ascontiguousarray(logits, "<f4").tofile(self.out / f"{name}.f32")
        self.entries[name] = {"name": name, "path": path, "logits": f"{name}.f32", "architecture": architecture, "format": kind,
                              "prompt": prompt, "first": (prompt["tokens"] if isinstance(prompt, dict) else len(prompt)) - len(logits), "rows": len(logits), "vocabulary": vocabulary}
        print(name, f"std {logits.std():.2f} range {np.ptp(logits):.1f}")
        self.path.write_text(json.dumps(list(self.entries.values())).replace("}, {", "},\n{") + "\n")


def main():
    source, out = map(Path, sys.argv[1:])
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.head", "*.fill"))
    for fill in source.rglob("*.fill"):
        path = fill.relative_to(source).with_suffix("")
        (out / path).write_bytes(expand(source / path))


if __name__ == "__main__":
    main()
