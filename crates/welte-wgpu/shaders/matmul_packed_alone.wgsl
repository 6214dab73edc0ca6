// A packed vector in workgroup memory.

const GROUPS = CHUNK / 16u;

var<workgroup> inputs: array<vec4<u32>, GROUPS>;
// The sum of each group of `inputs`.
var<workgroup> totals: array<f32, GROUPS>;
var<workgroup> scales: array<f32, GROUPS / 2u>;
// With a norm: the sums of squares.
var<workgroup> parts: array<f32, select(1u, GROUPS, NORM)>;

// Neighbours share a block: each rounds a group, and they exchange their largest elements.
fn prepare(input: Input, chunk: u32, t: u32) {
    let end = min(chunk + CHUNK, input.k);
    //for g
    let group$g = $gu * WG + t;
    let at$g = chunk + group$g * 16u;
    let exists$g = at$g < end;
    //for e
    var v$g_$e = vec4(0.0);
    var n$g_$e = vec4(0.0);
    //end e
    if exists$g {
        //for e
        v$g_$e = input_quad(input.x, at$g + 4u * $eu, input.k);
        n$g_$e = norm_weights(input, at$g + 4u * $eu);
        //end e
    }
    //end g
    workgroupBarrier();
    //for g
    var bits$g = 0u;
    if NORM {
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
        let scale = scale_of(bits$g);
        let group = vec4(rounded(v$g_0 * scale.y), rounded(v$g_1 * scale.y), rounded(v$g_2 * scale.y), rounded(v$g_3 * scale.y));
        inputs[group$g] = group;
        totals[group$g] = total(group);
        if group$g % 2u == 0u {
            scales[group$g / 2u] = scale.x;
        }
    }
    //end g
}

fn vector_of(m: u32, places: vec2<u32>, k: u32) -> Vector {
    let a = places.x;
    let b = places.y;
    return Vector(inputs[a], inputs[b], vec2(totals[a], totals[b]), vec2(scales[a / 2u], scales[b / 2u]));
}
