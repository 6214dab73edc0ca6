// Products of a matrix with many rows: a workgroup computes 8 * TALL rows of 64 outputs, an invocation every eighth row of them, and
// two quads of outputs. Weights are widened once per workgroup. A sum is one chain over the units of k in order.
struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32 }

const ROWS = 8u * TALL;
const OUTPUTS = 64u;
const UNITS = 2u;
// Quads of k of a row or an output. One more keeps neighbours in different banks.
const STRIDE = 2u * UNITS + 1u;

var<workgroup> weights: array<vec4<f32>, OUTPUTS * STRIDE>;
var<workgroup> inputs: array<vec4<f32>, ROWS * STRIDE>;

// Where an output lies in `weights`: the first ones of all quads come first, because neighbouring invocations have neighbouring quads.
fn slot(output: u32) -> u32 {
    return output % 4u * (OUTPUTS / 4u) + output / 4u;
}

// Four values of a row at `x`, zeros after its end.
fn input(x: u32, place: u32) -> vec4<f32> {
    let k = command.p.k;
    var values = vec4(0.0);
    if ALIGNED {
        if place < k {
            values = quad_at(x + place);
        }
    } else {
        for (var j = 0u; j < 4u; j++) {
            if place + j < k {
                values[j] = float_at(x + place + j);
            }
        }
    }
    return values;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let p = command.p;
    let at = command.at;
    let first = (id.x + id.y * grid.x) * OUTPUTS;
    if first >= at.count {
        return;
    }
    let first_row = id.z * ROWS;
    let live = state[0];
    let units = (p.k + 7u) / 8u;
    let words = row_words(p.k);
    let own_quad = t % 8u;
    let own_row = t / 8u;
    //for r
    //for h
    var sums$r_$h = vec4(0.0);
    //end h
    //end r
    for (var unit = 0u; unit < units; unit += UNITS) {
        for (var i = t; i < OUTPUTS * UNITS; i += WG) {
            let output = i / UNITS;
            let own = unit + i % UNITS;
            var values = Eight(vec4(0.0), vec4(0.0));
            if own < units && first + output < at.count {
                values = load((first + output) * words, own, p.k);
            }
            let to = slot(output) * STRIDE + i % UNITS * 2u;
            weights[to] = values.a;
            weights[to + 1u] = values.b;
        }
        for (var i = t; i < ROWS * UNITS; i += WG) {
            let row = i / UNITS;
            let own = unit + i % UNITS;
            var values = Eight(vec4(0.0), vec4(0.0));
            if own < units && first_row + row < live {
                let x = at.a + (first_row + row) * p.x_stride;
                let places = quads(own);
                values = Eight(input(x, places.x), input(x, places.y));
            }
            let to = row * STRIDE + i % UNITS * 2u;
            inputs[to] = values.a;
            inputs[to + 1u] = values.b;
        }
        workgroupBarrier();
        for (var q = 0u; q < 2u * UNITS; q++) {
            //for h
            let a$h = weights[slot(4u * own_quad + 32u * $hu) * STRIDE + q];
            let b$h = weights[slot(4u * own_quad + 32u * $hu + 1u) * STRIDE + q];
            let c$h = weights[slot(4u * own_quad + 32u * $hu + 2u) * STRIDE + q];
            let d$h = weights[slot(4u * own_quad + 32u * $hu + 3u) * STRIDE + q];
            //end h
            //for r
            let x$r = inputs[(own_row + 8u * $ru) * STRIDE + q];
            //for h
            sums$r_$h = fma(vec4(x$r.x), vec4(a$h.x, b$h.x, c$h.x, d$h.x), sums$r_$h);
            sums$r_$h = fma(vec4(x$r.y), vec4(a$h.y, b$h.y, c$h.y, d$h.y), sums$r_$h);
            sums$r_$h = fma(vec4(x$r.z), vec4(a$h.z, b$h.z, c$h.z, d$h.z), sums$r_$h);
            sums$r_$h = fma(vec4(x$r.w), vec4(a$h.w, b$h.w, c$h.w, d$h.w), sums$r_$h);
            //end h
            //end r
        }
        workgroupBarrier();
    }
    //for r
    //for h
    if first_row + own_row + 8u * $ru < live && first + 4u * own_quad + 32u * $hu < at.count {
        store_outputs(first_row + own_row + 8u * $ru, first + 4u * own_quad + 32u * $hu, sums$r_$h);
    }
    //end h
    //end r
}
