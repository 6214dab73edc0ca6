fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let base = row + unit * 5u;
    let d = tail16(row, unit, k);
    let fifth = weight0[base];
    let w = four_words(base + 1u);
    return Unit(low_nibbles(w) | fifth_bits(fifth), high_nibbles(w) | fifth_bits(fifth >> 16u), vec2(d), vec2(16.0 * d));
}
