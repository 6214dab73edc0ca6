"""Writes the fixtures of welte-formats' quantisation tests.

Needs gguf==0.19.0, numpy and, for F8_E4M3, torch. Run from the repository's root:

    python3 tools/quant-fixtures/make.py

For each format FMT, in crates/welte-formats/tests/fixtures/quant/:
  FMT.bytes    random blocks whose f16 scales are ordinary numbers
  FMT.decoded  what the gguf package's reference decodes them to, as f32 bits (little-endian)
and, once: gauss.f32 (values, mostly Gaussian, with blocks of zeros, of one value and of one sign), and for the formats
that the package can quantise FMT.encoded (its encoding of gauss.f32). F8_E4M3 is torch's, in blocks of 128 with a scale. Q1_0 follows
ggml's definition.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T

OUT = Path("crates/welte-formats/tests/fixtures/quant")

# Format, bytes per block, offsets of its f16 fields, blocks to write.
FORMATS = [
    (T.F16, 2, [0], 512),
    (T.BF16, 2, [], 512),
    (T.Q4_0, 18, [0], 24),
    (T.Q4_1, 20, [0, 2], 24),
    (T.Q5_0, 22, [0], 24),
    (T.Q5_1, 24, [0, 2], 24),
    (T.Q8_0, 34, [0], 24),
    (T.Q2_K, 84, [80, 82], 12),
    (T.Q3_K, 110, [108], 12),
    (T.Q4_K, 144, [0, 2], 12),
    (T.Q5_K, 176, [0, 2], 12),
    (T.Q6_K, 210, [208], 12),
]
# Those that came later, with random numbers of their own, so that the files above stay as they are.
LATER = [
    (T.IQ4_NL, 18, [0], 24),
    (T.IQ4_XS, 136, [0], 12),
    (T.MXFP4, 17, [], 64),
]
# The same once more. The blocks of formats with tables contain every entry of their table.
TABLES = [
    (T.TQ1_0, 54, [52], 12),
    (T.TQ2_0, 66, [64], 12),
    (T.NVFP4, 36, [], 24),
    (T.IQ1_S, 50, [0], 65),
    (T.IQ1_M, 56, [], 65),
    (T.IQ2_XXS, 66, [0], 9),
    (T.IQ2_XS, 74, [0], 17),
    (T.IQ2_S, 82, [0], 33),
    (T.IQ3_XXS, 98, [0], 9),
    (T.IQ3_S, 110, [0], 9),
]
ENCODED = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]


def random_blocks(random, block_bytes, halves, count):
    blocks = random.integers(0, 256, size=(count, block_bytes), dtype=np.uint8)
    for at in halves:
        sizes = np.exp2(random.uniform(-20, 6, size=(count, 1))) * random.choice([-1, 1], size=(count, 1))
        blocks[:, at : at + 2] = sizes.astype(np.float16).view(np.uint8)
    return blocks


def write(kind, bytes_, decoded):
    (OUT / f"{kind}.bytes").write_bytes(bytes_.tobytes())
    (OUT / f"{kind}.decoded").write_bytes(decoded.astype("<f4").tobytes())


def later(gauss):
    random = np.random.default_rng(20261121)
    for kind, block_bytes, halves, count in LATER:
        blocks = random_blocks(random, block_bytes, halves, count)
        if kind == T.MXFP4:
            blocks[:4, 0] = [0, 1, 2, 254]
            blocks[4:, 0] = random.integers(90, 140, count - 4)
        write(kind.name, blocks, gguf.quants.dequantize(blocks.reshape(1, -1), kind))
    (OUT / "MXFP4.encoded").write_bytes(gguf.quants.quantize(gauss.reshape(1, -1), T.MXFP4).tobytes())
    # Every byte but NaN, then the bytes of Gaussian values, with scales as the largest values ask for.
    values = torch.from_numpy(gauss).reshape(-1, 128)
    scales = values.abs().amax(1, keepdim=True) / 448
    eight = (values / scales).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    (OUT / "F8_E4M3.encoded").write_bytes(np.concatenate([scales.numpy().view(np.uint8), eight], 1).tobytes())
    all_bytes = np.arange(256, dtype=np.uint8)
    all_bytes[[0x7F, 0xFF]] = 0
    blocks = np.concatenate([all_bytes.reshape(2, 128), random.permutation(all_bytes).reshape(2, 128)])
    scales = np.array([[1.0], [0.0371], [-2.5e-4], [3e30]], np.float32)
    decoded = torch.from_numpy(blocks).view(torch.float8_e4m3fn).float().numpy() * scales
    write("F8_E4M3", np.concatenate([scales.view(np.uint8), blocks], 1), decoded)


def index_entries(name, blocks, first):
    """Gives the entries of the blocks consecutive indices."""
    per = 64 if name.startswith("IQ3") else 32
    i = (first + np.arange(blocks.shape[0] * per)).reshape(-1, per)
    low, high = (i & 255).astype(np.uint8), i >> 8
    if name == "IQ2_XXS":
        for j in range(32):
            blocks[:, 2 + j // 4 * 8 + j % 4] = low[:, j]
    elif name == "IQ2_XS":
        signs = blocks[:, 2:66].copy().view("<u2") & 0xFE00
        blocks[:, 2:66] = (signs | (i & 511)).astype("<u2").view(np.uint8)
    elif name == "IQ2_S":
        blocks[:, 2:34] = low
        blocks[:, 66:74] = ((high & 3).reshape(-1, 8, 4) << np.array([0, 2, 4, 6])).sum(2)
    elif name == "IQ3_XXS":
        blocks[:, 2:66] = low
    elif name == "IQ3_S":
        blocks[:, 2:66] = low
        blocks[:, 66:74] = ((high & 1).reshape(-1, 8, 8) << np.arange(8)).sum(2)
    elif name == "IQ1_S":
        blocks[:, 2:34] = low
        rest = blocks[:, 34:50].copy().view("<u2") & 0xF000
        blocks[:, 34:50] = (rest | ((high & 7).reshape(-1, 8, 4) << np.array([0, 3, 6, 9])).sum(2)).astype("<u2").view(np.uint8)
    elif name == "IQ1_M":
        blocks[:, :32] = low
        blocks[:, 32:48] = (blocks[:, 32:48] & 0x88) | ((high & 7).reshape(-1, 16, 2) << np.array([0, 4])).sum(2)


def tables(gauss):
    random = np.random.default_rng(20261123)
    for kind, block_bytes, halves, count in TABLES:
        blocks = random_blocks(random, block_bytes, halves, count)
        if kind == T.NVFP4:
            blocks[:, :4] &= 0x7F
            blocks[:2, :4] = [[0, 1, 7, 8], [0x7F, 0x7E, 0x38, 0x40]]
        if kind == T.IQ1_M:
            # The scale's f16 lies in four places.
            sizes = (np.exp2(random.uniform(-14, 6, count)) * random.choice([-1, 1], count)).astype(np.float16).view(np.uint16)
            words = blocks[:, 48:56].copy().view("<u2") & 0x0FFF
            for j in range(4):
                words[:, j] |= (sizes >> (4 * j) & 15) << 12
            blocks[:, 48:56] = words.astype("<u2").view(np.uint8)
        index_entries(kind.name, blocks, 3)
        write(kind.name, blocks, gguf.quants.dequantize(blocks.reshape(1, -1), kind))
    for kind in (T.TQ1_0, T.TQ2_0):
        (OUT / f"{kind.name}.encoded").write_bytes(gguf.quants.quantize(gauss.reshape(1, -1), kind).tobytes())
    # As safetensors have it: the factor of the matrix is apart, and torch multiplies.
    blocks = random_blocks(random, 40, [], 24)
    factors = np.exp2(random.uniform(-20, 2, (24, 1))).astype(np.float32)
    blocks[:, :4] = factors.view(np.uint8)
    blocks[:, 4:8] &= 0x7F
    blocks[:, 4:8] -= blocks[:, 4:8] == 0x7F
    scales = torch.from_numpy(blocks[:, 4:8].copy()).view(torch.float8_e4m3fn).float() * torch.from_numpy(factors)
    low, high = blocks[:, 8:].reshape(-1, 4, 8) & 15, blocks[:, 8:].reshape(-1, 4, 8) >> 4
    four = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    values = torch.from_numpy(four[np.concatenate([low, high], 2)]) * scales[:, :, None]
    write("NVFP4_F32", blocks, values.reshape(-1).numpy())


def one_bit(gauss):
    """Q1_0, which the package does not know: a scale, then 128 bits, the lowest of a byte first. The encoder takes the mean magnitude."""
    random = np.random.default_rng(20261128)
    blocks = random_blocks(random, 18, [0], 24)
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    write("Q1_0", blocks, (blocks[:, :2].copy().view(np.float16).astype(np.float32) * signs).reshape(-1))
    values = gauss.reshape(-1, 128)
    total = np.zeros(len(values), np.float32)
    for column in np.abs(values).T:
        total += column  # one after the other, as in C
    bits = np.packbits(values >= 0, axis=1, bitorder="little")
    scales = (total / np.float32(128)).astype(np.float16).reshape(-1, 1).view(np.uint8)
    (OUT / "Q1_0.encoded").write_bytes(np.concatenate([scales, bits], 1).tobytes())


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(20240607)
    for kind, block_bytes, halves, count in FORMATS:
        blocks = random_blocks(random, block_bytes, halves, count)
        if kind == T.BF16:
            # No NaN: what becomes of its payload is nobody's business.
            blocks[:, 1] &= 0xBF
        decoded = gguf.quants.dequantize(blocks.reshape(1, -1), kind)
        write(kind.name, blocks, decoded)
    gauss = random.standard_normal(4096).astype(np.float32) * np.float32(0.02)
    gauss[:32] = 0
    gauss[32:64] = 0.25
    gauss[64:96] = -0.25
    gauss[96:128] = np.abs(gauss[96:128])
    gauss[128:160] = -np.abs(gauss[128:160])
    gauss[160:192] *= 1e4
    (OUT / "gauss.f32").write_bytes(gauss.astype("<f4").tobytes())
    for kind in ENCODED:
        (OUT / f"{kind.name}.encoded").write_bytes(gguf.quants.quantize(gauss.reshape(1, -1), kind).tobytes())
    later(gauss)
    tables(gauss)
    one_bit(gauss)


if __name__ == "__main__":
    main()
