fn dot32(row: u32, block: u32, k: u32, x: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    let w = weight4[row + block];
    var sum = 0.0;
    for (var i = 0u; i < 4u; i++) {
        sum += dot(low_quad(w[i]) - 8.0, (*x)[i]) + dot(high_quad(w[i]) - 8.0, (*x)[i + 4u]);
    }
    return wide_tail16(row, block, k) * sum;
}
