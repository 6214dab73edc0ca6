"""Plain encoders for the K formats and IQ4 (the gguf package only decodes them): one pass, no search for better scales.

Each takes float32 rows whose length is a multiple of 256 and returns the rows' bytes. What matters for the goldens is
that the blocks are valid and use every field; the logits are those of the decoded weights.
"""

import numpy as np


def blocks(rows, part):
    return np.asarray(rows, np.float32).reshape(-1, 256 // part, part)


def half(x):
    """Float16 scales as they will be read, and their bytes."""
    h = x.astype(np.float16)
    return h.astype(np.float32), h.reshape(-1, 1).view(np.uint8)


def divide(a, b):
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), np.float32), where=b != 0)


def with_minimum(x, levels, scale_levels):
    """x ≈ d·scale·q − dmin·minimum per part: d and dmin bytes, scales, minima, q."""
    low = np.minimum(x.min(-1), 0)
    step = (x.max(-1) - low) / levels
    d, d_bytes = half(step.max(-1) / scale_levels)
    m, m_bytes = half((-low).max(-1) / scale_levels)
    scale = np.clip(np.rint(divide(step, d[:, None])), 0, scale_levels).astype(np.uint8)
    minimum = np.clip(np.rint(divide(-low, m[:, None])), 0, scale_levels).astype(np.uint8)
    ds, dm = (d[:, None] * scale)[..., None], (m[:, None] * minimum)[..., None]
    q = np.clip(np.rint(divide(x + dm, ds)), 0, levels).astype(np.uint8)
    return d_bytes, m_bytes, scale, minimum, q


def signed(x, low, high, scale_low, scale_high):
    """x ≈ d·scale·q per part, q in low..=high; the scale carries the sign of the part's largest value."""
    at = np.abs(x).argmax(-1)[..., None]
    step = np.take_along_axis(x, at, -1)[..., 0] / low
    d, d_bytes = half(np.abs(step).max(-1) / scale_high)
    scale = np.clip(np.rint(divide(step, d[:, None])), scale_low, scale_high).astype(np.int8)
    q = np.clip(np.rint(divide(x, (d[:, None] * scale)[..., None])), low, high).astype(np.int8)
    return d_bytes, scale, q


def two_bits(q):
    """Eight groups of 32 two-bit values: group g in bits 2·(g mod 4) of half g div 4."""
    g = q.reshape(-1, 2, 4, 32)
    return (g[:, :, 0] | g[:, :, 1] << 2 | g[:, :, 2] << 4 | g[:, :, 3] << 6).reshape(-1, 64)


def eight_masks(bit):
    """Eight groups of 32 bits: group g in bit g."""
    g = bit.reshape(-1, 8, 32)
    return np.bitwise_or.reduce(g << np.arange(8, dtype=np.uint8)[None, :, None], axis=1)


def nibbles(q):
    """Eight groups of 32 four-bit values: groups 2i and 2i+1 share 32 bytes."""
    g = q.reshape(-1, 4, 2, 32)
    return (g[:, :, 0] | g[:, :, 1] << 4).reshape(-1, 128)


def six_bits(scale, minimum):
    """Eight scales and eight minima of six bits in twelve bytes."""
    a = scale[:, :4] | (scale[:, 4:] >> 4) << 6
    b = minimum[:, :4] | (minimum[:, 4:] >> 4) << 6
    return np.hstack([a, b, (scale[:, 4:] & 15) | (minimum[:, 4:] & 15) << 4])


def q2_k(x):
    d, m, scale, minimum, q = with_minimum(blocks(x, 16), 3, 15)
    return np.hstack([scale | minimum << 4, two_bits(q), d, m])


def q3_k(x):
    d, scale, q = signed(blocks(x, 16), -4, 3, -32, 31)
    s = (scale + 32).astype(np.uint8)
    q = (q + 4).astype(np.uint8)
    low, high = s & 15, (s >> 4).reshape(-1, 4, 4)
    packed = np.hstack([low[:, :8] | low[:, 8:] << 4, high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6])
    return np.hstack([eight_masks(q >> 2), two_bits(q & 3), packed, d])


def q4_k(x):
    d, m, scale, minimum, q = with_minimum(blocks(x, 32), 15, 63)
    return np.hstack([d, m, six_bits(scale, minimum), nibbles(q)])


def q5_k(x):
    d, m, scale, minimum, q = with_minimum(blocks(x, 32), 31, 63)
    return np.hstack([d, m, six_bits(scale, minimum), eight_masks(q >> 4), nibbles(q & 15)])


def q6_k(x):
    d, scale, q = signed(blocks(x, 16), -32, 31, -128, 127)
    q = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = q & 15, q >> 4
    ql = np.stack([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], 2).reshape(-1, 128)
    qh = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
    return np.hstack([ql, qh, scale.view(np.uint8), d])


UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def places(x):
    """The nearest of the uneven values, and two places to a byte: element j and j + 16."""
    q = np.abs(x[..., None] - UNEVEN).argmin(-1).astype(np.uint8)
    return q[..., :16] | q[..., 16:] << 4


def largest(x):
    return np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]


def iq4_nl(x):
    x = x.reshape(-1, 32)
    d, d_bytes = half(largest(x) / UNEVEN[0])
    return np.hstack([d_bytes, places(divide(x, d[:, None]))])


def iq4_xs(x):
    x = blocks(x, 32)
    step = largest(x) / UNEVEN[0]
    d, d_bytes = half(largest(step) / -32)
    scale = np.clip(np.rint(divide(step, d[:, None])), -32, 31)
    q = places(divide(x, (d[:, None] * scale)[..., None])).reshape(-1, 128)
    s = (scale + 32).astype(np.uint16)
    high = sum((s[:, i] >> 4) << 2 * i for i in range(8)).astype(np.uint16).reshape(-1, 1).view(np.uint8)
    low = ((s[:, 0::2] & 15) | (s[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.hstack([d_bytes, high, low, q])


ENCODERS = {"Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k, "IQ4_NL": iq4_nl, "IQ4_XS": iq4_xs}


def encode(rows, kind):
    """The bytes of `rows` (n, k) in the format of that name: an array (n, bytes)."""
    return np.ascontiguousarray(ENCODERS[kind](rows)).reshape(rows.shape[0], -1)
