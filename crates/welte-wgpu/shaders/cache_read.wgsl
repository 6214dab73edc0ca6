@group(0) @binding(6) var<storage, read_write> cache: array<u32>;

fn cached16(at: u32) -> u32 {
    return (cache[at / 2u] >> (16u * (at % 2u))) & 0xffffu;
}

// Element i of the head that begins at `at`.
fn cached(at: u32, i: u32) -> f32 {
    if UNIT_ELEMENTS == 1u {
        return unpack2x16float(cached16(at + i)).x;
    }
    let block = at + i / 32u * 17u;
    let pair = cached16(block + 1u + i % 32u / 2u);
    let q = extractBits(bitcast<i32>(pair), 8u * (i % 2u), 8u);
    return unpack2x16float(cached16(block)).x * f32(q);
}
