fn quads(unit: u32) -> vec2<u32> {
    return halves_of_32(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let word = weight0[row + unit];
    let d = tail16(row, unit / 4u, k);
    return Eight(d * (vec4<f32>(low4(word)) - 8.0), d * (vec4<f32>(high4(word)) - 8.0));
}
