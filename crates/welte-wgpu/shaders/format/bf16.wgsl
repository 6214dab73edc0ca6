fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn pair(word: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2(word << 16u, word & 0xffff0000u));
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let at = row + 4u * unit;
    return Eight(vec4(pair(weight0[at]), pair(weight0[at + 1u])), vec4(pair(weight0[at + 2u]), pair(weight0[at + 3u])));
}
