// Vectors as `prepare_floats.wgsl` left them.

fn vector_of(m: u32, places: vec2<u32>, k: u32) -> Vector {
    let a = bitcast<vec4<f32>>(prepared_quad(m, places.x));
    return Vector(a, bitcast<vec4<f32>>(prepared_quad(m, places.y)));
}
