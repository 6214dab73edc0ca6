// Products of a matrix with many rows on cooperative matrices: a workgroup computes ROWS rows of OUTPUTS outputs. Its subgroups share
// them, DOWN x ACROSS, and a subgroup has TALL x WIDE squares of sums. The rows are rounded already (round_rows.wgsl). Weights wait in
// registers as they are stored, and are multiplied by their row's power of two and rounded once per workgroup. A sum is one chain over
// k in order, so its bits do not depend on the tile.
//
// GROUPED: the matrix has `count` outputs for each expert, and a tile has entries of one of them (experts_group.wgsl). An entry's inputs are
// row `entry / splits`, its outputs row `entry`.
struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32 }

// Eights of inputs and items of weights of a slice. A row of a slice is padded, so that neighbouring rows lie in different banks.
const EIGHTS = SLICE / 8u;
const ITEMS = SLICE / ITEM;
const STRIDE = SLICE / 4u + 2u;
// Quads of a row of a square.
const QUADS = SQUARE / 4u;

var<workgroup> inputs: array<vec4<f16>, ROWS * STRIDE>;
var<workgroup> weights: array<vec4<f16>, OUTPUTS * STRIDE>;
// The first and last entry of a tile, and its expert.
var<workgroup> tile: vec4<u32>;
// A square of each subgroup, before it is stored to the arena.
var<workgroup> results: array<f32, DOWN * ACROSS * SQUARE * SQUARE>;

fn halves(words: vec2<f32>) -> vec4<f16> {
    let pairs = bitcast<vec2<u32>>(words);
    return vec4<f16>(vec4(unpack2x16float(pairs.x), unpack2x16float(pairs.y)));
}

fn tile_at(i: u32) -> vec4<u32> {
    let tiles = command.at.d;
    if i >= u32(float_at(tiles)) {
        return vec4(0u);
    }
    return vec4<u32>(quad_at(tiles + 4u + 4u * i));
}

// The row of outputs of the i-th row or entry.
fn output_row(i: u32) -> u32 {
    if GROUPED {
        return u32(float_at(command.at.c + i));
    }
    return i;
}

fn input_at(i: u32) -> u32 {
    var row = output_row(i);
    if GROUPED {
        row /= command.at.splits;
    }
    return command.at.a + row * command.p.x_stride;
}

// Undoes the powers of two of the i-th row and of four outputs of the matrix from `first` on. Outputs that the piece does not have are not
// stored, so any power does.
fn unscaled(i: u32, first: u32, output: u32, sums: vec4<f32>) -> vec4<f32> {
    let inverse = float_at(input_at(i));
    let last = command.at.count - 1u;
    let inverses = vec4(
        weight2[first + output],
        weight2[first + min(output + 1u, last)],
        weight2[first + min(output + 2u, last)],
        weight2[first + min(output + 3u, last)],
    );
    return sums * inverse * inverses;
}

// An item of a row of the matrix; zeros after the row's end.
fn item_of(row: u32, item: u32) -> Raw {
    let k = command.p.k;
    if PADDED && item * ITEM >= k {
        return Raw();
    }
    return load_raw(row, item, k);
}

// Whether the workgroup's i-th item exists.
fn has_item(i: u32) -> bool {
    return OUTPUTS * ITEMS % WG == 0u || i < OUTPUTS * ITEMS;
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
    //for plain
    let first = (id.x + id.y * grid.x) * OUTPUTS;
    let first_row = id.z * ROWS;
    let end_row = state[0];
    let matrix = 0u;
    //end plain
    //for grouped
    if t == 0u {
        tile = tile_at(id.y);
    }
    let own = workgroupUniformLoad(&tile);
    let first = id.x * OUTPUTS;
    let first_row = own.x;
    let end_row = own.y;
    // Where the expert's outputs begin.
    let matrix = own.z * at.count;
    if end_row == 0u {
        return;
    }
    //end grouped
    if first >= at.count {
        return;
    }
    let words = row_words(p.k);
    let own_row = subgroup / ACROSS * (TALL * SQUARE);
    let own_output = subgroup % ACROSS * (WIDE * SQUARE);
    let eight = t % EIGHTS;
    let item = t % ITEMS;
    // What this invocation copies of a slice to workgroup memory. Rows beyond the last repeat it, and are not stored.
    //for i
    let to_input$i = ($iu * WG + t) / EIGHTS;
    let input$i = input_at(min(first_row + to_input$i, end_row - 1u)) + 4u * (1u + eight);
    var x$i = quad_at(input$i);
    //end i
    //for w
    let to_weight$w = ($wu * WG + t) / ITEMS;
    let row$w = matrix + min(first + to_weight$w, at.count - 1u);
    let power$w = power_of(weight2[row$w]);
    var w$w = Raw();
    if has_item($wu * WG + t) {
        w$w = item_of(row$w * words, item);
    }
    //end w
    //for r
    //for c
    var sums$r_$c = Sums();
    //end c
    //end r
    // Each iteration stores the current slice, loads the next one into registers, and multiplies.
    for (var slice = 0u; slice < p.k; slice += SLICE) {
        workgroupBarrier();
        //for i
        inputs[to_input$i * STRIDE + 2u * eight] = halves(x$i.xy);
        inputs[to_input$i * STRIDE + 2u * eight + 1u] = halves(x$i.zw);
        //end i
        //for w
        if has_item($wu * WG + t) {
            keep_item(to_weight$w * STRIDE + ITEM / 4u * item, w$w, slice / ITEM + item, power$w);
        }
        //end w
        workgroupBarrier();
        let next = slice + SLICE;
        if next < p.k {
            //for i
            x$i = quad_at(input$i + next / 2u);
            //end i
            //for w
            if has_item($wu * WG + t) {
                w$w = item_of(row$w * words, next / ITEM + item);
            }
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
        if row < end_row && output < at.count {
            let begin = place + 4u * i;
            let sums = vec4(results[begin], results[begin + 1u], results[begin + 2u], results[begin + 3u]);
            store_outputs(output_row(row), output, unscaled(row, matrix, output, sums));
        }
    }
    workgroupBarrier();
    //end c
    //end r
}
