// Vectors as floats, for every format: a unit has eight elements, as `load` gives them.

const UNIT = 8u;
const QUADS = CHUNK / 4u;
// Elements whose squares are added up first.
const PART = 4u;

var<workgroup> inputs: array<vec4<f32>, ROWS * QUADS>;
// With a norm: the sums of squares of a single vector.
var<workgroup> parts: array<f32, select(1u, QUADS, NORM)>;

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

fn prepare(input: Inputs, chunk: u32, t: u32) {
    //for g
    let m$g = ($gu * WG + t) / QUADS;
    let at$g = chunk + ($gu * WG + t) % QUADS * 4u;
    var v$g = vec4(0.0);
    var n$g = vec4(0.0);
    if m$g < input.rows && at$g < input.k {
        v$g = input_quad(input, m$g, at$g);
        n$g = norm_weights(input, at$g);
    }
    //end g
    workgroupBarrier();
    //for g
    if NORM && ROWS == 1u {
        parts[$gu * WG + t] = add_squares(v$g, 0.0);
    }
    inputs[$gu * WG + t] = v$g * n$g;
    //end g
}

fn vector_of(m: u32, places: vec2<u32>) -> Vector {
    return Vector(inputs[m * QUADS + places.x], inputs[m * QUADS + places.y]);
}

fn add_unit(w: Eight, x: Vector, sum: f32) -> f32 {
    let first = fma(w.a.w, x.a.w, fma(w.a.z, x.a.z, fma(w.a.y, x.a.y, fma(w.a.x, x.a.x, sum))));
    return fma(w.b.w, x.b.w, fma(w.b.z, x.b.z, fma(w.b.y, x.b.y, fma(w.b.x, x.b.x, first))));
}
