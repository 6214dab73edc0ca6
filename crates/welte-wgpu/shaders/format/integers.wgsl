// Groups of BLOCK elements: four bytes of scale and offset, then a stream of integers of BITS bits. `x = scale q + bias` if AFFINE,
// otherwise `scale (q - zero)`. HEAD 0: scale and offset are BF16, 1: F16, 2: an f32 scale, and zero is MIDDLE.
fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn integers(base: u32, element: u32) -> vec4<f32> {
    let bit = element * BITS;
    let at = base + 1u + bit / 32u;
    let shift = bit % 32u;
    var stream = weight0[at] >> shift;
    if shift + 4u * BITS > 32u {
        stream |= weight0[at + 1u] << (32u - shift);
    }
    return vec4<f32>(vec4(stream, stream >> BITS, stream >> (2u * BITS), stream >> (3u * BITS)) & vec4((1u << BITS) - 1u));
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let units = BLOCK / 8u;
    let base = row + unit / units * WORDS;
    let word = weight0[base];
    var head = vec2(bitcast<f32>(word), MIDDLE);
    if HEAD == 0u {
        head = vec2(bf16(word & 0xffffu), bf16(word >> 16u));
    } else if HEAD == 1u {
        head = unpack2x16float(word);
    }
    let element = unit % units * 8u;
    let a = integers(base, element);
    let b = integers(base, element + 4u);
    if AFFINE {
        return Eight(head.x * a + head.y, head.x * b + head.y);
    }
    return Eight(head.x * (a - head.y), head.x * (b - head.y));
}
