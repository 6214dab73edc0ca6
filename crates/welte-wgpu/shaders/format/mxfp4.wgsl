// The doubled values of four bits, so the scale is halved.
fn doubled(q: vec4<u32>) -> vec4<f32> {
    let size = q & vec4(7u);
    let exponent = size >> vec4(1u);
    // 0, 1, 2, 3, 4, 6, 8, 12
    let normal = vec4<f32>((vec4(2u) | (size & vec4(1u))) << (max(exponent, vec4(1u)) - vec4(1u)));
    let value = select(vec4<f32>(size), normal, exponent > vec4(0u));
    return select(value, -value, q > vec4(7u));
}

fn quads(unit: u32) -> vec2<u32> {
    return halves_of_32(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let word = weight0[row + unit];
    let block = unit / 4u;
    let e = byte_at(row + k / BLOCK * WORDS, block);
    // 2^(e - 128): half the scale.
    var d = bitcast<f32>((max(e, 1u) - 1u) << 23u);
    if e < 2u {
        d = bitcast<f32>(0x00200000u << e);
    }
    return Eight(d * doubled(low4(word)), d * doubled(high4(word)));
}
