// Vectors as `prepare_packed.wgsl` left them.

fn meta_of(m: u32, group: u32, k: u32) -> vec2<f32> {
    let quad = bitcast<vec4<f32>>(prepared_quad(m, k / 16u + group / 2u));
    return select(quad.xy, quad.zw, vec2(group % 2u == 1u));
}

fn vector_of(m: u32, places: vec2<u32>, k: u32) -> Vector {
    let a = prepared_quad(m, places.x);
    let b = prepared_quad(m, places.y);
    let of_a = meta_of(m, places.x, k);
    let of_b = meta_of(m, places.y, k);
    return Vector(a, b, vec2(of_a.x, of_b.x), vec2(of_a.y, of_b.y));
}
