fn dot32(row: u32, block: u32, k: u32, x: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    let a = weight4[row + 2u * block];
    let b = weight4[row + 2u * block + 1u];
    var sum = 0.0;
    for (var i = 0u; i < 4u; i++) {
        sum += dot(signed_bytes(a[i]), (*x)[i]) + dot(signed_bytes(b[i]), (*x)[i + 4u]);
    }
    return wide_tail16(row, block, k) * sum;
}
