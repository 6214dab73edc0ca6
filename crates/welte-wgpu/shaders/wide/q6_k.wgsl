fn dot32(row: u32, block: u32, k: u32, x: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    let base = row + block / 8u * 13u;
    let half = block % 8u / 4u;
    let part = block % 4u;
    let low = base + half * 4u + part % 2u * 2u;
    let high = base + 8u + half * 2u;
    let la = weight4[low] >> vec4(part / 2u * 4u);
    let lb = weight4[low + 1u] >> vec4(part / 2u * 4u);
    let ha = weight4[high] >> vec4(part * 2u);
    let hb = weight4[high + 1u] >> vec4(part * 2u);
    var first = 0.0;
    var second = 0.0;
    for (var i = 0u; i < 4u; i++) {
        first += dot(six(la[i], ha[i]), (*x)[i]);
        second += dot(six(lb[i], hb[i]), (*x)[i + 4u]);
    }
    let sub = block % 8u * 2u;
    let scales = bitcast<i32>(weight4[base + 12u][sub / 4u]);
    let a = f32(extractBits(scales, 8u * (sub % 4u), 8u));
    let b = f32(extractBits(scales, 8u * (sub % 4u + 1u), 8u));
    return wide_tail16(row, block / 8u, k) * (a * first + b * second);
}

// Four values of four lower and two upper bits.
fn six(low: u32, high: u32) -> vec4<f32> {
    return vec4<f32>(bytes((low & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4u))) - 32.0;
}
