// Products of a matrix with up to ROWS vectors, for decode steps. The vectors lie in workgroup memory, CHUNK elements at a time:
// matmul_packed.wgsl and matmul_float.wgsl bring them there (`prepare`), take them from there (`vector_of`) and multiply a unit of UNIT
// weights (`add_unit`). A format says how a unit is loaded (`load_raw`) and unpacked (`unit_of`). An invocation has IN_FLIGHT units
// in flight, as they were loaded: unpacking would wait for them. A team of TEAM invocations
// computes EACH sums for every vector, of OWN outputs: neighbours load neighbouring words of the matrix. An invocation adds up every TEAM-th unit of
// k; then the team's sums are added as a tree. So the order of a sum depends on k alone. Every multiplication before an addition is
// an `fma`, so that kernels for one vector and for many cannot be contracted differently.

const TEAMS = WG / TEAM;
// Partial sums of squares of a vector: LANES lanes, of which each adds every LANES-th part.
const LANES = 32u;

// Output r of vector m is element `m * EACH + r`.
var<private> sums: array<vec4<f32>, SLOTS>;
var<workgroup> partial: array<vec4<f32>, WG>;
// The factors of the vectors' RMS norms. They multiply the outputs, so vectors need not wait for them.
var<workgroup> norms: array<f32, ROWS>;

// Vectors of k elements in the arena: where the first begins, words from one to the next, and how many there are.
struct Inputs {
    x: u32,
    stride: u32,
    rows: u32,
    k: u32,
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

// The weights of a norm for four elements from i on.
fn norm_weights(input: Inputs, i: u32) -> vec4<f32> {
    if NORM {
        return norm_quad(i, input.k);
    }
    return vec4(1.0);
}

fn add_squares(quad: vec4<f32>, sum: f32) -> f32 {
    return fma(quad.w, quad.w, fma(quad.z, quad.z, fma(quad.y, quad.y, fma(quad.x, quad.x, sum))));
}

// The factors of the norms, before the products. Lane j of a vector adds up every LANES-th part, as `norm_of_one` does.
fn find_norms(input: Inputs, eps: f32, t: u32) {
    for (var first = 0u; first < ROWS; first += WG / LANES) {
        let m = first + t / LANES;
        var squares = 0.0;
        if m < input.rows {
            for (var i = t % LANES * PART; i < input.k; i += LANES * PART) {
                var sum = 0.0;
                for (var j = i; j < i + PART && j < input.k; j += 4u) {
                    sum = add_squares(input_quad(input, m, j), sum);
                }
                squares += sum;
            }
        }
        add_partials(t, vec4(squares), LANES);
        if t % LANES == 0u && m < ROWS {
            norms[m] = 1.0 / sqrt(partial[t].x / f32(input.k) + eps);
        }
    }
}

// The same of a single vector, whose parts `prepare` has squared.
fn norm_of_one(input: Inputs, eps: f32, squares: f32, t: u32) {
    add_partials(t, vec4(squares), LANES);
    if t == 0u {
        norms[0] = 1.0 / sqrt(partial[0].x / f32(input.k) + eps);
    }
}

// The next units of the team's matrix rows.
//for d
//for r
var<private> next$d_$r: Raw;
//end r
//end d

// The unit after the last one of a chunk.
fn end_of(input: Inputs, chunk: u32) -> u32 {
    return min(units(input.k), (chunk + CHUNK) / UNIT);
}

// Requests the first weights of a chunk of the rows at words `bases`, so that they are in flight while the vectors are prepared.
fn fetch_first(input: Inputs, chunk: u32, bases: vec2<u32>, t: u32) {
    if AHEAD {
        let first = chunk / UNIT + t % TEAM;
        //for d
        if first + $du * TEAM < end_of(input, chunk) {
            //for r
            next$d_$r = load_raw(bases[$r], first + $du * TEAM, input.k);
            //end r
        }
        //end d
    }
}

// Products of the matrix rows at words `bases` with the vectors, after `fetch_first` of the first chunk. `ready` if workgroup memory has the whole vectors.
// Returns the invocation's part of the squares of a single vector.
fn multiply(input: Inputs, bases: vec2<u32>, ready: bool, t: u32) -> f32 {
    var squares = 0.0;
    //for s
    sums[$s] = vec4(0.0);
    //end s
    for (var chunk = 0u; chunk < input.k; chunk += CHUNK) {
        // A chunk need not end where the units in flight begin again, so the next one does not use those of this one.
        if chunk > 0u {
            fetch_first(input, chunk, bases, t);
        }
        if !ready {
            prepare(input, chunk, t);
            workgroupBarrier();
            if NORM && ROWS == 1u {
                for (var i = t % LANES; i < CHUNK / PART; i += LANES) {
                    squares += parts[i];
                }
            }
        }
        accumulate(input, chunk, bases, t % TEAM);
    }
    return squares;
}

fn accumulate(input: Inputs, chunk: u32, bases: vec2<u32>, lane: u32) {
    let end = end_of(input, chunk);
    for (var first = chunk / UNIT + lane; first < end; first += TEAM * IN_FLIGHT) {
        //for d
        let unit$d = first + $du * TEAM;
        if unit$d < end {
            let places = places_of(unit$d, chunk);
            //for r
            if !AHEAD {
                next$d_$r = load_raw(bases[$r], unit$d, input.k);
            }
            let w$r = unit_of(next$d_$r, unit$d);
            //end r
            if AHEAD && unit$d + TEAM * IN_FLIGHT < end {
                //for r
                next$d_$r = load_raw(bases[$r], unit$d + TEAM * IN_FLIGHT, input.k);
                //end r
            }
            //for m
            if ROWS == 1u || $mu < input.rows {
                let x = vector_of($mu, places);
                //for r
                sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4] = add_unit(w$r, x, sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4]);
                //end r
            }
            //end m
        }
        //end d
    }
}
