fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let at = row + 8u * unit;
    return Eight(
        bitcast<vec4<f32>>(vec4(weight0[at], weight0[at + 1u], weight0[at + 2u], weight0[at + 3u])),
        bitcast<vec4<f32>>(vec4(weight0[at + 4u], weight0[at + 5u], weight0[at + 6u], weight0[at + 7u])),
    );
}
