fn dot32(row: u32, block: u32, k: u32, x: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < 4u; i++) {
        let w = weight4[row + 4u * block + i];
        sum += dot(vec4(pair(w.x), pair(w.y)), (*x)[2u * i]) + dot(vec4(pair(w.z), pair(w.w)), (*x)[2u * i + 1u]);
    }
    return sum;
}
