// Vectors as floats, for every format: a unit has eight elements, as `load` gives them.

const UNIT = 8u;

struct Vector {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn units(k: u32) -> u32 {
    return (k + 7u) / 8u;
}

fn places_of(unit: u32, chunk: u32) -> vec2<u32> {
    return (quads(unit) - chunk) / 4u;
}

// The place that many elements after the first one.
fn places(elements: u32) -> u32 {
    return elements / 4u;
}

fn add_unit(w: Eight, x: Vector, sum: f32) -> f32 {
    let first = fma(w.a.w, x.a.w, fma(w.a.z, x.a.z, fma(w.a.y, x.a.y, fma(w.a.x, x.a.x, sum))));
    return fma(w.b.w, x.b.w, fma(w.b.z, x.b.z, fma(w.b.y, x.b.y, fma(w.b.x, x.b.x, first))));
}
