// Scale and min of a sub-block, from the first 16 bytes of its block.
fn wide_scale_min(head: vec4<u32>, sub: u32) -> vec2<f32> {
    let factors = unpack2x16float(head.x);
    let shift = 8u * (sub % 4u);
    let scale = (head.y >> shift) & 0xffu;
    let least = (head.z >> shift) & 0xffu;
    if sub < 4u {
        return factors * vec2(f32(scale & 63u), f32(least & 63u));
    }
    let low = (head.w >> shift) & 0xffu;
    return factors * vec2(f32((low & 15u) | ((scale >> 6u) << 4u)), f32((low >> 4u) | ((least >> 6u) << 4u)));
}

fn dot32(row: u32, block: u32, k: u32, x: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    let base = row + block / 8u * 9u;
    let sub = block % 8u;
    let factors = wide_scale_min(weight4[base], sub);
    let shift = 4u * (sub % 2u);
    let a = weight4[base + 1u + sub / 2u * 2u] >> vec4(shift);
    let b = weight4[base + 2u + sub / 2u * 2u] >> vec4(shift);
    var sum = 0.0;
    var all = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        sum += dot(low_quad(a[i]), (*x)[i]) + dot(low_quad(b[i]), (*x)[i + 4u]);
        all += (*x)[i] + (*x)[i + 4u];
    }
    return factors.x * sum - factors.y * dot(all, vec4(1.0));
}
