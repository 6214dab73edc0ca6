struct Raw {
    head: u32,
    w: vec4<u32>,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    let base = row + unit * 5u;
    return Raw(weight0[base], four_words(base + 1u));
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    let head = unpack2x16float(raw.head);
    return Unit(low_nibbles(raw.w), high_nibbles(raw.w), vec2(head.x), vec2(-head.y));
}
