// Vectors as integers of 8 bits with a scale for every 32. Products of integers are exact. A group's part of the product is
// `x_scale * (scale * dot(weights, x) - least * sum(x))`.

const UNIT = 32u;
const GROUPS = CHUNK / 16u;
const BLOCKS = CHUNK / 32u;
// Elements whose squares are added up first: a group.
const PART = 16u;

struct Vector {
    a: vec4<u32>,
    b: vec4<u32>,
    both: vec2<f32>,
    scale: vec2<f32>,
}

var<workgroup> inputs: array<vec4<u32>, ROWS * GROUPS>;
// The sum of each group of `inputs`.
var<workgroup> totals: array<f32, ROWS * GROUPS>;
var<workgroup> scales: array<f32, ROWS * BLOCKS>;
// With a norm: the sums of squares of a single vector.
var<workgroup> parts: array<f32, GROUPS>;

fn units(k: u32) -> u32 {
    return k / 32u;
}

fn places_of(unit: u32, chunk: u32) -> vec2<u32> {
    return groups_of(unit) - chunk / 16u;
}

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

// Neighbours share a block: each rounds a group, and they exchange their largest elements.
fn prepare(input: Inputs, chunk: u32, t: u32) {
    let end = min(chunk + CHUNK, input.k);
    //for g
    let group$g = $gu * WG + t;
    let m$g = group$g / GROUPS;
    let at$g = chunk + group$g % GROUPS * 16u;
    let exists$g = m$g < input.rows && at$g < end;
    //for e
    var v$g_$e = vec4(0.0);
    var n$g_$e = vec4(0.0);
    //end e
    if exists$g {
        //for e
        v$g_$e = input_quad(input, m$g, at$g + 4u * $eu);
        n$g_$e = norm_weights(input, at$g + 4u * $eu);
        //end e
    }
    //end g
    workgroupBarrier();
    //for g
    var bits$g = 0u;
    if NORM && ROWS == 1u {
        parts[group$g] = add_squares(v$g_3, add_squares(v$g_2, add_squares(v$g_1, add_squares(v$g_0, 0.0))));
    }
    //for e
    v$g_$e *= n$g_$e;
    bits$g = max(bits$g, largest_bits(v$g_$e));
    //end e
    tell_largest(group$g, bits$g);
    //end g
    wait_for_pairs();
    //for g
    bits$g = largest_of_pair(group$g, bits$g);
    //end g
    wait_for_pairs();
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

fn vector_of(m: u32, places: vec2<u32>) -> Vector {
    let a = m * GROUPS + places.x;
    let b = m * GROUPS + places.y;
    return Vector(inputs[a], inputs[b], vec2(totals[a], totals[b]), vec2(scales[a / 2u], scales[b / 2u]));
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
