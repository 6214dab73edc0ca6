struct Raw {
    a: vec4<u32>,
    b: vec4<u32>,
    d: u32,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    let at = row / 4u + 2u * unit;
    return Raw(weight4[at], weight4[at + 1u], tail_word(row, unit, k));
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    return Unit(raw.a, raw.b, vec2(half_of(raw.d, unit)), vec2(0.0));
}
