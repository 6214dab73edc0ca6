// A vector of floats in workgroup memory.

const QUADS = CHUNK / 4u;
// Elements whose squares are added up first.
const PART = 4u;

var<workgroup> inputs: array<vec4<f32>, QUADS>;
// With a norm: the sums of squares.
var<workgroup> parts: array<f32, select(1u, QUADS, NORM)>;

fn prepare(input: Input, chunk: u32, t: u32) {
    //for g
    let at$g = chunk + ($gu * WG + t) * 4u;
    var v$g = vec4(0.0);
    var n$g = vec4(0.0);
    if at$g < input.k {
        v$g = input_quad(input.x, at$g, input.k);
        n$g = norm_weights(input, at$g);
    }
    //end g
    workgroupBarrier();
    //for g
    if NORM {
        parts[$gu * WG + t] = add_squares(v$g, 0.0);
    }
    inputs[$gu * WG + t] = v$g * n$g;
    //end g
}

fn vector_of(m: u32, places: vec2<u32>, k: u32) -> Vector {
    return Vector(inputs[places.x], inputs[places.y]);
}
