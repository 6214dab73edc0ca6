fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let base = row + unit * 5u;
    let head = unpack2x16float(weight0[base]);
    let w = four_words(base + 1u);
    return Unit(low_nibbles(w), high_nibbles(w), vec2(head.x), vec2(-head.y));
}
