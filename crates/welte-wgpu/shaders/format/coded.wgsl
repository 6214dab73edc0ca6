// A block of BLOCK elements: codes of four bits in order, a byte of scale for each 16 elements, the block's scale. VALUES holds the
// values of the codes, a byte each. Scales are whole numbers and an f16, or if E4M3 such floats and an f32.
fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn coded(codes: u32) -> vec4<f32> {
    var table = VALUES;
    var values: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let code = (codes >> (4u * i)) & 15u;
        values[i] = f32(extractBits(bitcast<i32>(table[code / 4u]), 8u * (code % 4u), 8u));
    }
    return values;
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let units = BLOCK / 8u;
    let base = row + unit / units * WORDS;
    let codes = weight0[base + unit % units];
    let byte = byte_at(base + units, unit % units / 2u);
    let word = weight0[base + WORDS - 1u];
    var scale = f32(byte) * unpack2x16float(word).x;
    if E4M3 {
        scale = e4m3(byte) * bitcast<f32>(word);
    }
    scale *= FACTOR;
    return Eight(scale * coded(codes), scale * coded(codes >> 16u));
}
