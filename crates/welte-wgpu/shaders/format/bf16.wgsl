fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn pair(word: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2(word << 16u, word & 0xffff0000u));
}

fn eight_of(w: vec4<u32>) -> Eight {
    return Eight(vec4(pair(w.x), pair(w.y)), vec4(pair(w.z), pair(w.w)));
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    return eight_of(weight4[row / 4u + unit]);
}
