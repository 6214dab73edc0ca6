struct Raw {
    head: vec4<u32>,
    w: vec4<u32>,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    let base = row / 4u + unit / 8u * 9u;
    return Raw(weight4[base], weight4[base + 1u + unit % 8u]);
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    let factors = unpack2x16float(raw.head.x);
    let sub = unit % 8u / 2u * 2u;
    let a = factors * packed_scale_min(raw.head, sub);
    let b = factors * packed_scale_min(raw.head, sub + 1u);
    return Unit(low_nibbles(raw.w), high_nibbles(raw.w), vec2(a.x, b.x), vec2(a.y, b.y));
}
