// Vectors as floats, for every format: a unit has eight elements, as `load` gives them.

const QUADS = CHUNK / 4u;

var<workgroup> inputs: array<vec4<f32>, ROWS * QUADS>;

fn prepare(input: Inputs, chunk: u32, t: u32) {
    for (var i = t; i < ROWS * QUADS; i += WG) {
        let m = i / QUADS;
        let at = chunk + i % QUADS * 4u;
        var quad = vec4(0.0);
        if m < input.rows && at < input.k {
            quad = normed_quad(input, m, at);
        }
        inputs[i] = quad;
    }
}

//for r
var<private> next$r: Eight;
//end r

fn fetch(k: u32, bases: vec4<u32>, unit: u32) {
    if unit < (k + 7u) / 8u {
        //for r
        next$r = load(bases[$r], unit, k);
        //end r
    }
}

fn accumulate(input: Inputs, chunk: u32, bases: vec4<u32>, lane: u32) {
    let end = (min(input.k, chunk + CHUNK) + 7u) / 8u;
    for (var unit = chunk / 8u + lane; unit < end; unit += TEAM) {
        let places = (quads(unit) - chunk) / 4u;
        if !AHEAD {
            fetch(input.k, bases, unit);
        }
        //for r
        let w$r = next$r;
        //end r
        if AHEAD {
            fetch(input.k, bases, unit + TEAM);
        }
        //for m
        if ROWS == 1u || $mu < input.rows {
            let xa = inputs[$mu * QUADS + places.x];
            let xb = inputs[$mu * QUADS + places.y];
            //for r
            sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4] = add_unit(w$r, xa, xb, sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4]);
            //end r
        }
        //end m
    }
}

fn add_unit(w: Eight, a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
    let first = fma(w.a.w, a.w, fma(w.a.z, a.z, fma(w.a.y, a.y, fma(w.a.x, a.x, sum))));
    return fma(w.b.w, b.w, fma(w.b.z, b.z, fma(w.b.y, b.y, fma(w.b.x, b.x, first))));
}
