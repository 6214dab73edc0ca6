struct Raw {
    w: vec4<u32>,
    d: u32,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    return Raw(weight4[row / 4u + unit], tail_word(row, unit, k));
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    let d = half_of(raw.d, unit);
    return Unit(low_nibbles(raw.w), high_nibbles(raw.w), vec2(d), vec2(8.0 * d));
}
