fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let base = row + unit * 6u;
    let head = unpack2x16float(weight0[base]);
    let fifth = weight0[base + 1u];
    let w = four_words(base + 2u);
    return Unit(low_nibbles(w) | fifth_bits(fifth), high_nibbles(w) | fifth_bits(fifth >> 16u), vec2(head.x), vec2(-head.y));
}
