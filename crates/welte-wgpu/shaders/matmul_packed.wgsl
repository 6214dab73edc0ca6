// Vectors as integers of 8 bits with a scale for every 32. Products of integers are exact. A group's part of the product is
// `x_scale * (scale * dot(weights, x) - least * sum(x))`.

const UNIT = 32u;

struct Vector {
    a: vec4<u32>,
    b: vec4<u32>,
    both: vec2<f32>,
    scale: vec2<f32>,
}

fn units(k: u32) -> u32 {
    return k / 32u;
}

fn places_of(unit: u32, chunk: u32) -> vec2<u32> {
    return groups_of(unit) - chunk / 16u;
}

// The place that many elements after the first one.
fn places(elements: u32) -> u32 {
    return elements / 16u;
}

fn add_unit(w: Unit, x: Vector, sum: f32) -> f32 {
    if WHOLE {
        let value = fma(w.scale.x, f32(dot16(w.a, x.a) + dot16(w.b, x.b)), -(w.least.x * (x.both.x + x.both.y)));
        return fma(x.scale.x, value, sum);
    }
    let a = fma(w.scale.x, f32(dot16(w.a, x.a)), -(w.least.x * x.both.x));
    let b = fma(w.scale.y, f32(dot16(w.b, x.b)), -(w.least.y * x.both.y));
    return fma(x.scale.y, b, fma(x.scale.x, a, sum));
}
