// Vectors as `prepare_floats.wgsl` left them.

fn vector_of(m: u32, places: vec2<u32>, k: u32) -> Vector {
    return Vector(prepared_quad(m, places.x), prepared_quad(m, places.y));
}
