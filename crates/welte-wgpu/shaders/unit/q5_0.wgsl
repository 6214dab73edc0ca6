struct Raw {
    fifth: u32,
    w: vec4<u32>,
    d: u32,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    let base = row + unit * 5u;
    return Raw(weight0[base], four_words(base + 1u), tail_word(row, unit, k));
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    let d = half_of(raw.d, unit);
    let low = low_nibbles(raw.w) | fifth_bits(raw.fifth);
    return Unit(low, high_nibbles(raw.w) | fifth_bits(raw.fifth >> 16u), vec2(d), vec2(16.0 * d));
}
