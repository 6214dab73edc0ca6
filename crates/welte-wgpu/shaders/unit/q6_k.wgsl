const WHOLE = false;

// Byte 64h + j of the lower bits holds elements 128h + j and 128h + 64 + j. A unit has 16 such bytes.
fn groups_of(unit: u32) -> vec2<u32> {
    let first = unit / 8u * 16u + unit % 8u / 4u * 8u + unit % 4u;
    return vec2(first, first + 4u);
}

struct Raw {
    low: vec4<u32>,
    high: vec4<u32>,
    scales: vec2<u32>,
    d: u32,
}

fn load_raw(row: u32, unit: u32, k: u32) -> Raw {
    let base = row / 4u + unit / 8u * 13u;
    let half = unit % 8u / 4u;
    let part = unit % 4u;
    // Of the scales of 16 elements, those of a half and the ones after them.
    let scales = row + unit / 8u * 52u + 48u + 2u * half;
    let high = weight4[base + 8u + half * 2u + part % 2u];
    return Raw(weight4[base + unit % 8u], high, vec2(weight0[scales], weight0[scales + 1u]), tail_word(row, unit / 8u, k));
}

fn unit_of(raw: Raw, unit: u32) -> Unit {
    let part = unit % 4u;
    // Bits 2g and 2g + 1 of byte 32h + j belong to element 128h + 32g + j.
    let high = raw.high >> vec4(part / 2u * 2u);
    let signed = bitcast<vec2<i32>>(raw.scales);
    let scale = half_of(raw.d, unit / 8u) * vec2<f32>(extractBits(signed, 8u * part, 8u));
    let three = vec4(0x03030303u);
    let a = low_nibbles(raw.low) | ((high & three) << vec4(4u));
    let b = high_nibbles(raw.low) | (((high >> vec4(4u)) & three) << vec4(4u));
    return Unit(a, b, scale, 32.0 * scale);
}
