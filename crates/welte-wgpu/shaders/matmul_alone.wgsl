// A vector in workgroup memory, CHUNK elements at a time: `prepare` brings them there, with the weights of a norm if NORM.

// A vector of k elements in the arena.
struct Input {
    x: u32,
    k: u32,
}

// The factor of the vector's norm. It multiplies the outputs, so the vector need not wait for it.
var<workgroup> norm: f32;

fn norm_of(m: u32) -> f32 {
    return norm;
}

// The weights of a norm for four elements from i on.
fn norm_weights(input: Input, i: u32) -> vec4<f32> {
    if NORM {
        return norm_quad(i, input.k);
    }
    return vec4(1.0);
}

// The unit after the last one of a chunk.
fn end_of(input: Input, chunk: u32) -> u32 {
    return min(units(input.k), (chunk + CHUNK) / UNIT);
}

// Requests the first weights of a chunk of the rows at words `bases`, so that they are in flight while the vector is prepared.
fn fetch_first(input: Input, chunk: u32, bases: Bases, t: u32) {
    fetch(bases, chunk / UNIT + t % TEAM, end_of(input, chunk), input.k);
}

// Products of the matrix rows at words `bases` with the vector, after `fetch_first` of the first chunk. `ready` if workgroup memory has the
// whole vector. Returns the invocation's part of its squares.
fn multiply(input: Input, bases: Bases, ready: bool, t: u32) -> f32 {
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
            if NORM {
                for (var i = t % LANES; i < CHUNK / PART; i += LANES) {
                    squares += parts[i];
                }
            }
        }
        accumulate(1u, input.k, chunk, 0u, bases, chunk / UNIT + t % TEAM, end_of(input, chunk));
    }
    return squares;
}
