fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let base = row / 4u + unit / 8u * 11u;
    let head = weight4[base];
    let sub = unit % 8u / 2u * 2u;
    // Bit g of byte j belongs to element 32g + j.
    let fifth = weight4[base + 1u + unit % 2u] >> vec4(sub);
    let w = weight4[base + 3u + unit % 8u];
    let factors = unpack2x16float(head.x);
    let a = factors * packed_scale_min(head, sub);
    let b = factors * packed_scale_min(head, sub + 1u);
    let one = vec4(0x01010101u);
    return Unit(
        low_nibbles(w) | ((fifth & one) << vec4(4u)),
        high_nibbles(w) | (((fifth >> vec4(1u)) & one) << vec4(4u)),
        vec2(a.x, b.x),
        vec2(a.y, b.y),
    );
}
