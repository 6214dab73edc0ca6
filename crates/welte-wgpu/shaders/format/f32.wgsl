fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let at = row / 4u + 2u * unit;
    return Eight(bitcast<vec4<f32>>(weight4[at]), bitcast<vec4<f32>>(weight4[at + 1u]));
}
