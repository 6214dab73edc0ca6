const WHOLE = false;

// Byte 64h + j of the lower bits holds elements 128h + j and 128h + 64 + j. A unit has 16 such bytes.
fn groups_of(unit: u32) -> vec2<u32> {
    let first = unit / 8u * 16u + unit % 8u / 4u * 8u + unit % 4u;
    return vec2(first, first + 4u);
}

fn load_unit(row: u32, unit: u32, k: u32) -> Unit {
    let base = row / 4u + unit / 8u * 13u;
    let half = unit % 8u / 4u;
    let part = unit % 4u;
    let low = weight4[base + unit % 8u];
    // Bits 2g and 2g + 1 of byte 32h + j belong to element 128h + 32g + j.
    let high = weight4[base + 8u + half * 2u + part % 2u] >> vec4(part / 2u * 2u);
    let sub = half * 8u + part;
    let signed = vec2(bitcast<i32>(weight0[row + unit / 8u * 52u + 48u + sub / 4u]), bitcast<i32>(weight0[row + unit / 8u * 52u + 49u + sub / 4u]));
    let scale = tail16(row, unit / 8u, k) * vec2<f32>(extractBits(signed, 8u * (sub % 4u), 8u));
    let three = vec4(0x03030303u);
    let a = low_nibbles(low) | ((high & three) << vec4(4u));
    let b = high_nibbles(low) | (((high >> vec4(4u)) & three) << vec4(4u));
    return Unit(a, b, scale, 32.0 * scale);
}
