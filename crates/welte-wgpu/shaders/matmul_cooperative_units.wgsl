// Units of 32 integers on their way to workgroup memory.

// Four elements: F16 has 1152 plus an integer of 8 bits exactly.
fn widened(word: u32, scale: f32, less: f32) -> vec4<f16> {
    let bytes = word ^ 0x80808080u;
    let even = unpack2x16float((bytes & 0x00ff00ffu) | 0x64006400u);
    let odd = unpack2x16float(((bytes >> 8u) & 0x00ff00ffu) | 0x64006400u);
    let a = fma(vec2(scale), even, vec2(-less));
    let b = fma(vec2(scale), odd, vec2(-less));
    return vec4<f16>(vec4(a.x, b.x, a.y, b.y));
}

fn keep_item(to: u32, raw: Raw, item: u32, power: f32) {
    let unit = unit_of(raw, item);
    let scale = power * unit.scale;
    let less = fma(vec2(1152.0), scale, power * unit.least);
    weights[to] = widened(unit.a.x, scale.x, less.x);
    weights[to + 1u] = widened(unit.a.y, scale.x, less.x);
    weights[to + 2u] = widened(unit.a.z, scale.x, less.x);
    weights[to + 3u] = widened(unit.a.w, scale.x, less.x);
    weights[to + 4u] = widened(unit.b.x, scale.y, less.y);
    weights[to + 5u] = widened(unit.b.y, scale.y, less.y);
    weights[to + 6u] = widened(unit.b.z, scale.y, less.y);
    weights[to + 7u] = widened(unit.b.w, scale.y, less.y);
}
