struct Raw {
    head: u32,
    fifth: u32,
    w: vec4<u32>,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    let base = row + unit * 6u;
    return Raw(weight0[base], weight0[base + 1u], four_words(base + 2u));
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    let head = unpack2x16float(raw.head);
    let low = low_nibbles(raw.w) | fifth_bits(raw.fifth);
    return Unit(low, high_nibbles(raw.w) | fifth_bits(raw.fifth >> 16u), vec2(head.x), vec2(-head.y));
}
