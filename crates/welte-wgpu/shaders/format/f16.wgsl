fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let at = row + 4u * unit;
    return Eight(
        vec4(unpack2x16float(weight0[at]), unpack2x16float(weight0[at + 1u])),
        vec4(unpack2x16float(weight0[at + 2u]), unpack2x16float(weight0[at + 3u])),
    );
}
