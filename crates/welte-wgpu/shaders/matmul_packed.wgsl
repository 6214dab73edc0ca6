// Vectors as integers of 8 bits with a scale for every 32. Products of integers are exact. `load_unit` gives 32 elements of a matrix
// row as two groups of 16, and `groups_of` says which. A group's part of the product is
// `x_scale * (scale * dot(weights, x) - least * sum(x))`.

const GROUPS = CHUNK / 16u;
const BLOCKS = CHUNK / 32u;

struct Unit {
    a: vec4<u32>,
    b: vec4<u32>,
    scale: vec2<f32>,
    least: vec2<f32>,
}

var<workgroup> inputs: array<vec4<u32>, ROWS * GROUPS>;
// The sum of each group of `inputs`.
var<workgroup> totals: array<f32, ROWS * GROUPS>;
var<workgroup> scales: array<f32, ROWS * BLOCKS>;

fn largest_bits(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn rounded(v: vec4<f32>) -> u32 {
    return pack4xI8(vec4<i32>(round(v)));
}

fn total(group: vec4<u32>) -> f32 {
    return f32(dot16(group, vec4(0x01010101u)));
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// Neighbours share a block: each rounds a group. They tell each other their largest elements where the totals come afterwards.
fn prepare(input: Inputs, chunk: u32, t: u32) {
    let end = min(chunk + CHUNK, input.k);
    //for g
    let group$g = $gu * WG + t;
    let m$g = group$g / GROUPS;
    let at$g = chunk + group$g % GROUPS * 16u;
    let exists$g = m$g < input.rows && at$g < end;
    //for e
    var v$g_$e = vec4(0.0);
    //end e
    if exists$g {
        var bits = 0u;
        //for e
        v$g_$e = normed_quad(input, m$g, at$g + 4u * $eu);
        bits = max(bits, largest_bits(v$g_$e));
        //end e
        totals[group$g] = bitcast<f32>(bits);
    }
    //end g
    workgroupBarrier();
    //for g
    var bits$g = 0u;
    if exists$g {
        let first = group$g / 2u * 2u;
        bits$g = max(bitcast<u32>(totals[first]), bitcast<u32>(totals[first + 1u]));
    }
    //end g
    workgroupBarrier();
    //for g
    if exists$g {
        let largest = bitcast<f32>(bits$g);
        var scale = 0.0;
        var inverse = 0.0;
        if bits$g >= 0x7f800000u {
            // Infinity or NaN stays one.
            scale = largest;
        } else if largest > 1e-30 {
            scale = largest / 127.0;
            inverse = 127.0 / largest;
        }
        let group = vec4(rounded(v$g_0 * inverse), rounded(v$g_1 * inverse), rounded(v$g_2 * inverse), rounded(v$g_3 * inverse));
        inputs[group$g] = group;
        totals[group$g] = total(group);
        if group$g % 2u == 0u {
            scales[group$g / 2u] = scale;
        }
    }
    //end g
}

//for r
var<private> next$r: Unit;
//end r

fn fetch(k: u32, bases: vec4<u32>, unit: u32) {
    if unit < k / 32u {
        //for r
        next$r = load_unit(bases[$r], unit, k);
        //end r
    }
}

fn accumulate(input: Inputs, chunk: u32, bases: vec4<u32>, lane: u32) {
    let end = min(input.k, chunk + CHUNK) / 32u;
    for (var unit = chunk / 32u + lane; unit < end; unit += TEAM) {
        let groups = groups_of(unit) - chunk / 16u;
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
            let a = $mu * GROUPS + groups.x;
            let b = $mu * GROUPS + groups.y;
            let xa = inputs[a];
            let xb = inputs[b];
            let both = vec2(totals[a], totals[b]);
            let scale = vec2(scales[a / 2u], scales[b / 2u]);
            //for r
            sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4] = add_unit(w$r, xa, xb, both, scale, sums[($m * EACH + $r) / 4][($m * EACH + $r) % 4]);
            //end r
        }
        //end m
    }
}

fn add_unit(w: Unit, xa: vec4<u32>, xb: vec4<u32>, both: vec2<f32>, scale: vec2<f32>, sum: f32) -> f32 {
    if WHOLE {
        let value = fma(w.scale.x, f32(dot16(w.a, xa) + dot16(w.b, xb)), -(w.least.x * (both.x + both.y)));
        return fma(scale.x, value, sum);
    }
    let a = fma(w.scale.x, f32(dot16(w.a, xa)), -(w.least.x * both.x));
    let b = fma(w.scale.y, f32(dot16(w.b, xb)), -(w.least.y * both.y));
    return fma(scale.y, b, fma(scale.x, a, sum));
}

fn low_nibbles(w: vec4<u32>) -> vec4<u32> {
    return w & vec4(0x0f0f0f0fu);
}

fn high_nibbles(w: vec4<u32>) -> vec4<u32> {
    return (w >> vec4(4u)) & vec4(0x0f0f0f0fu);
}
