// Products of a matrix with up to ROWS vectors, for decode steps. The vectors lie in workgroup memory, CHUNK elements at a time:
// matmul_packed.wgsl and matmul_float.wgsl bring them there (`prepare`), load weights one unit ahead
// (`fetch`) and multiply (`accumulate`). A team of TEAM invocations
// computes EACH sums for every vector, of OWN outputs: neighbours load neighbouring words of the matrix. An invocation adds up every TEAM-th unit of
// k; then the team's sums are added as a tree. So the order of a sum depends on k alone. Every multiplication before an addition is
// an `fma`, so that kernels for one vector and for many cannot be contracted differently.

const TEAMS = WG / TEAM;

// Output r of vector m is element `m * EACH + r`.
var<private> sums: array<vec4<f32>, SLOTS>;
var<workgroup> partial: array<vec4<f32>, WG>;
var<workgroup> norms: array<f32, ROWS>;

// Vectors of k elements in the arena: where the first begins, words from one to the next, and how many there are.
struct Inputs {
    x: u32,
    stride: u32,
    rows: u32,
    k: u32,
}

// Adds up the values of every `size` neighbours. The first of them has the sum.
fn add_partials(t: u32, value: vec4<f32>, size: u32) {
    workgroupBarrier();
    partial[t] = value;
    for (var half = size / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t % size < half {
            partial[t] += partial[t + half];
        }
    }
    workgroupBarrier();
}

// Four elements of vector m from i on, with zeros beyond its end.
fn input_quad(input: Inputs, m: u32, i: u32) -> vec4<f32> {
    let at = input.x + m * input.stride + i;
    if PADDED && i + 4u > input.k {
        var quad = vec4(0.0);
        for (var j = 0u; j < 4u; j++) {
            if i + j < input.k {
                quad[j] = float_at(at + j);
            }
        }
        return quad;
    }
    return quad_at(at);
}

// The same after the norm, if there is one.
fn normed_quad(input: Inputs, m: u32, i: u32) -> vec4<f32> {
    let quad = input_quad(input, m, i);
    if !NORM {
        return quad;
    }
    let places = min(vec4(i) + vec4(0u, 1u, 2u, 3u), vec4(input.k - 1u));
    let weights = vec4(weight1[places.x], weight1[places.y], weight1[places.z], weight1[places.w]);
    return quad * norms[m] * weights;
}

// The factors of the vectors' RMS norms.
fn find_norms(input: Inputs, eps: f32, t: u32) {
    for (var first = 0u; first < ROWS; first += 4u) {
        var squares = vec4(0.0);
        for (var c = 0u; c < min(4u, ROWS); c++) {
            if first + c < input.rows {
                var sum = 0.0;
                for (var i = 4u * t; i < input.k; i += 4u * WG) {
                    let quad = input_quad(input, first + c, i);
                    sum = fma(quad.w, quad.w, fma(quad.z, quad.z, fma(quad.y, quad.y, fma(quad.x, quad.x, sum))));
                }
                squares[c] = sum;
            }
        }
        add_partials(t, squares, WG);
        if t < min(4u, ROWS) {
            norms[first + t] = 1.0 / sqrt(partial[0][t] / f32(input.k) + eps);
        }
    }
}

// Requests the first weights of the rows at words `bases`, so that they are on their way while the vectors are prepared.
fn fetch_first(input: Inputs, bases: vec4<u32>, t: u32) {
    if AHEAD {
        fetch(input.k, bases, t % TEAM);
    }
}

// Products of the matrix rows at words `bases` with the vectors, after `fetch_first`. `ready` if workgroup memory has the whole vectors.
fn multiply(input: Inputs, bases: vec4<u32>, ready: bool, t: u32) {
    //for s
    sums[$s] = vec4(0.0);
    //end s
    for (var chunk = 0u; chunk < input.k; chunk += CHUNK) {
        if !ready {
            workgroupBarrier();
            prepare(input, chunk, t);
            workgroupBarrier();
        }
        accumulate(input, chunk, bases, t % TEAM);
    }
}
