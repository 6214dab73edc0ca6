fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let w = weight4[row / 4u + unit];
    let d = tail16(row, unit, k);
    return Unit(low_nibbles(w), high_nibbles(w), vec2(d), vec2(8.0 * d));
}
