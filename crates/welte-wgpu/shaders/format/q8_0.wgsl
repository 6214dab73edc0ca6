fn quads(unit: u32) -> vec2<u32> {
    return in_order(unit);
}

fn load(row: u32, unit: u32, k: u32) -> Eight {
    let d = tail16(row, unit / 4u, k);
    return Eight(d * signed_bytes(weight0[row + 2u * unit]), d * signed_bytes(weight0[row + 2u * unit + 1u]));
}
