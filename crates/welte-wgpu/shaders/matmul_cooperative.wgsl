// Products of a matrix with many rows on cooperative matrices: a workgroup computes ROWS rows of OUTPUTS outputs. Its subgroups share
// them, DOWN x ACROSS, and a subgroup has TALL x WIDE squares of sums. The rows are rounded already (round_rows.wgsl). Weights are
// multiplied by their row's power of two and rounded once per workgroup. A sum is one chain over the slices of k in order, so its
// bits do not depend on the tile.
struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32 }

// Units of a slice. A row of a slice is padded, so that neighbouring rows lie in different banks.
const UNITS = SLICE / 8u;
const STRIDE = SLICE / 4u + 2u;
// Quads of a row of a square.
const QUADS = SQUARE / 4u;

var<workgroup> inputs: array<vec4<f16>, ROWS * STRIDE>;
var<workgroup> weights: array<vec4<f16>, OUTPUTS * STRIDE>;
// A square of each subgroup, before it is stored to the arena.
var<workgroup> results: array<f32, DOWN * ACROSS * SQUARE * SQUARE>;

fn halves(words: vec2<f32>) -> vec4<f16> {
    let pairs = bitcast<vec2<u32>>(words);
    return vec4<f16>(vec4(unpack2x16float(pairs.x), unpack2x16float(pairs.y)));
}

// Undoes the powers of two of a row and of four outputs. Outputs that the piece does not have are not stored, so any power does.
fn unscaled(row: u32, output: u32, sums: vec4<f32>) -> vec4<f32> {
    let inverse = float_at(command.at.a + row * command.p.x_stride);
    let last = command.at.count - 1u;
    let inverses = vec4(
        weight2[output],
        weight2[min(output + 1u, last)],
        weight2[min(output + 2u, last)],
        weight2[min(output + 3u, last)],
    );
    return sums * inverse * inverses;
}

// A unit of a row of the matrix; zeros after its end.
fn weight_unit(row: u32, unit: u32) -> Eight {
    let k = command.p.k;
    if unit < (k + 7u) / 8u {
        return load(row, unit, k);
    }
    return Eight(vec4(0.0), vec4(0.0));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
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
    let own_row = subgroup / ACROSS * (TALL * SQUARE);
    let own_output = subgroup % ACROSS * (WIDE * SQUARE);
    let unit = t % UNITS;
    // The units of a slice that this invocation copies to workgroup memory. Rows beyond the last repeat it, and are not stored.
    //for i
    let to_input$i = ($iu * WG + t) / UNITS;
    let input$i = at.a + min(first_row + to_input$i, live - 1u) * p.x_stride + 4u * (1u + unit);
    var x$i = quad_at(input$i);
    //end i
    //for w
    let to_weight$w = ($wu * WG + t) / UNITS;
    let row$w = min(first + to_weight$w, at.count - 1u);
    let power$w = power_of(weight2[row$w]);
    var w$w = weight_unit(row$w * words, unit);
    //end w
    //for r
    //for c
    var sums$r_$c = Sums();
    //end c
    //end r
    // Each iteration stores the current slice, loads the next one into registers, and multiplies.
    for (var slice = 0u; slice < units; slice += UNITS) {
        workgroupBarrier();
        //for i
        inputs[to_input$i * STRIDE + 2u * unit] = halves(x$i.xy);
        inputs[to_input$i * STRIDE + 2u * unit + 1u] = halves(x$i.zw);
        //end i
        //for w
        weights[to_weight$w * STRIDE + 2u * unit] = vec4<f16>(power$w * w$w.a);
        weights[to_weight$w * STRIDE + 2u * unit + 1u] = vec4<f16>(power$w * w$w.b);
        //end w
        workgroupBarrier();
        let next = slice + UNITS;
        if next < units {
            //for i
            x$i = quad_at(input$i + 4u * next);
            //end i
            //for w
            w$w = weight_unit(row$w * words, next + unit);
            //end w
        }
        //for s
        //for r
        let left$s_$r = coopLoadT<Left>(&inputs[(own_row + $ru * SQUARE) * STRIDE + $su * QUADS], STRIDE);
        //end r
        //for c
        let right$s_$c = coopLoad<Right>(&weights[(own_output + $cu * SQUARE) * STRIDE + $su * QUADS], STRIDE);
        //end c
        //for r
        //for c
        sums$r_$c = coopMultiplyAdd(left$s_$r, right$s_$c, sums$r_$c);
        //end c
        //end r
        //end s
    }
    let place = subgroup * (SQUARE * SQUARE);
    //for r
    //for c
    coopStoreT(sums$r_$c, &results[place], SQUARE);
    workgroupBarrier();
    for (var i = lane; i < SQUARE * QUADS; i += WG / (DOWN * ACROSS)) {
        let row = first_row + own_row + $ru * SQUARE + i / QUADS;
        let output = first + own_output + $cu * SQUARE + i % QUADS * 4u;
        if row < live && output < at.count {
            let begin = place + 4u * i;
            let sums = vec4(results[begin], results[begin + 1u], results[begin + 2u], results[begin + 3u]);
            store_outputs(row, output, unscaled(row, output, sums));
        }
    }
    workgroupBarrier();
    //end c
    //end r
}
