fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let base = row / 4u + unit / 8u * 9u;
    let head = weight4[base];
    let w = weight4[base + 1u + unit % 8u];
    let factors = unpack2x16float(head.x);
    let sub = unit % 8u / 2u * 2u;
    let a = factors * packed_scale_min(head, sub);
    let b = factors * packed_scale_min(head, sub + 1u);
    return Unit(low_nibbles(w), high_nibbles(w), vec2(a.x, b.x), vec2(a.y, b.y));
}
