struct Raw {
    head: vec4<u32>,
    fifth: vec4<u32>,
    w: vec4<u32>,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    let base = row / 4u + unit / 8u * 11u;
    return Raw(weight4[base], weight4[base + 1u + unit % 2u], weight4[base + 3u + unit % 8u]);
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    let sub = unit % 8u / 2u * 2u;
    // Bit g of byte j belongs to element 32g + j.
    let fifth = raw.fifth >> vec4(sub);
    let factors = unpack2x16float(raw.head.x);
    let a = factors * packed_scale_min(raw.head, sub);
    let b = factors * packed_scale_min(raw.head, sub + 1u);
    let one = vec4(0x01010101u);
    return Unit(
        low_nibbles(raw.w) | ((fifth & one) << vec4(4u)),
        high_nibbles(raw.w) | (((fifth >> vec4(1u)) & one) << vec4(4u)),
        vec2(a.x, b.x),
        vec2(a.y, b.y),
    );
}
