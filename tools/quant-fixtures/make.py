"""Writes the fixtures of welte-formats' quantisation tests.

Needs gguf==0.19.0, numpy and, for F8_E4M3, torch. Run from the repository's root:

    python3 tools/quant-fixtures/make.py

For each format FMT, in crates/welte-formats/tests/fixtures/quant/:
  FMT.bytes    random blocks whose f16 scales are ordinary numbers
  FMT.decoded  what the gguf package's reference decodes them to, as f32 bits (little-endian)
and, once: gauss.f32 (values, mostly Gaussian, with blocks of zeros, of one value and of one sign), and for the formats
that the package can quantise FMT.encoded (its encoding of gauss.f32). F8_E4M3 is torch's, in blocks of 128 with a scale.
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


if __name__ == "__main__":
    main()
