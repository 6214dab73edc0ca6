// Attention of one head over an F16 cache, for prompts, on cooperative matrices: a workgroup takes ROWS rows.
// It walks the context in steps of STEP positions, which begin at multiples of STEP. A step without a position that the row sees changes
// none of its bits, so they do not depend on the other rows. In softmax LANES invocations share a row.
//
// Sums cannot be scaled where they are. They are relative to a score that follows the largest one only when it is far behind, because
// then they pass through workgroup memory.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, softcap: f32, q_stride: u32, y_stride: u32, causal: u32, chunked: u32 }

@group(0) @binding(6) var<storage, read_write> cache: array<vec4<u32>>;

const OCTETS = HEAD_DIM / 8u;
// ACROSS subgroups share TALL squares of rows: each has a part of a step's positions, later a part of a head's elements.
const ROWS = SUBGROUPS / ACROSS * TALL * SQUARE;
const POSITIONS = STEP / ACROSS / SQUARE;
const ELEMENTS = HEAD_DIM / ACROSS / SQUARE;
const LANES = SUBGROUPS * SUBGROUP / ROWS;
// Invocations for a row of a square.
const SHARE = SUBGROUP / SQUARE;
// Quads of a row of a square.
const QUADS = SQUARE / 4u;
// Strides in quads: two more keep neighbours in different banks.
const ENTRY = HEAD_DIM / 4u + 2u;
const SCORE = STEP / 4u + 2u;
// How far, in powers of e, a score may be above the one that sums are relative to. F16 holds the weight.
const FAR = 8.0;

// Queries, later keys of a step, then its values.
var<workgroup> entries: array<vec4<f16>, ENTRIES * ENTRY - 2u>;
var<workgroup> scores: array<vec4<f32>, ROWS * SCORE>;
var<workgroup> weights: array<vec4<f16>, ROWS * SCORE>;
// By subgroup: whether one of its rows is relative to another score now.
var<workgroup> moved: array<u32, SUBGROUPS>;

fn halves(a: u32, b: u32) -> vec4<f16> {
    return vec4<f16>(vec4(unpack2x16float(a), unpack2x16float(b)));
}

// Where the keys of a page lie, in eights; PAGE is the number of its positions.
fn page_at(kv_head: u32, slot: u32, position: u32) -> u32 {
    let at = command.at;
    let page = pages[at.lists + slot * at.entries + position / PAGE];
    return at.first / 8u + (page * command.p.kv_heads + kv_head) * PAGE * OCTETS;
}

// The i-th eight numbers of a step's keys (part 0) or values (part 1); zeros outside of the positions that are seen. The step begins in
// the page at `first`.
fn octet(part: u32, kv_head: u32, slot: u32, step: u32, first: u32, seen: vec2<u32>, i: u32) -> vec4<u32> {
    let position = step + i / OCTETS;
    if position < seen.x || position >= seen.y {
        return vec4(0u);
    }
    let place = part * command.at.pages * command.p.kv_heads * PAGE * OCTETS;
    if PAGE % STEP == 0u {
        return cache[place + first + step % PAGE * OCTETS + i];
    }
    return cache[place + page_at(kv_head, slot, position) + position % PAGE * OCTETS + i % OCTETS];
}

fn keep(i: u32, words: vec4<u32>) {
    if i < STEP * OCTETS {
        let to = i / OCTETS * ENTRY + 2u * (i % OCTETS);
        entries[to] = halves(words.x, words.y);
        entries[to + 1u] = halves(words.z, words.w);
    }
}

// What the sums of a row are multiplied by, in the padding of its scores.
fn factor_at(row: u32) -> f32 {
    return scores[row * SCORE + STEP / 4u].x;
}

fn keep_factor(row: u32, factor: f32) {
    scores[row * SCORE + STEP / 4u].x = factor;
}

fn capped(score: vec4<f32>) -> vec4<f32> {
    let cap = command.p.softcap;
    if cap != 0.0 {
        return cap * vec4(safe_tanh(score.x / cap), safe_tanh(score.y / cap), safe_tanh(score.z / cap), safe_tanh(score.w / cap));
    }
    return score;
}

// The largest number of the invocations that share a row, and their sum.
fn row_max(value: f32) -> f32 {
    var most = value;
    for (var apart = 1u; apart < LANES; apart *= 2u) {
        most = max(most, subgroupShuffleXor(most, apart));
    }
    return most;
}

fn row_sum(value: f32) -> f32 {
    var sum = value;
    for (var apart = 1u; apart < LANES; apart *= 2u) {
        sum += subgroupShuffleXor(sum, apart);
    }
    return sum;
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
    let live = state[0];
    // The last rows of a prompt take longest, so they begin first.
    let first_row = (grid.z - 1u - id.z) * ROWS;
    if first_row >= live {
        return;
    }
    let head = id.x;
    let kv_head = head / (p.heads / p.kv_heads);
    let end_row = min(first_row + ROWS, live);
    let own_row = (subgroup * SUBGROUP + lane) / LANES;
    let part = lane % LANES;
    let row = first_row + own_row;
    // Queries are multiplied by a power of two that brings the row's largest into the range of F16.
    let query = at.a + min(row, end_row - 1u) * p.q_stride + head * HEAD_DIM;
    var largest = 0.0;
    for (var i = part; i < 2u * OCTETS; i += LANES) {
        let quad = abs(quad_at(query + 4u * i));
        largest = max(largest, max(max(quad.x, quad.y), max(quad.z, quad.w)));
    }
    let inverse = inverse_for(row_max(largest));
    for (var i = part; i < 2u * OCTETS; i += LANES) {
        entries[own_row * ENTRY + i] = vec4<f16>(power_of(inverse) * quad_at(query + 4u * i));
    }
    workgroupBarrier();
    let group = subgroup / ACROSS * (TALL * SQUARE);
    let side = subgroup % ACROSS;
    // Where the subgroup scales a square of sums, and this invocation's row of it.
    let square = (group + side % TALL * SQUARE) * SCORE + side / TALL * QUADS;
    let square_row = square + lane / SHARE * SCORE;
    //for r
    //for d
    let query$r_$d = coopLoadT<Left>(&entries[(group + $ru * SQUARE) * ENTRY + $du * QUADS], ENTRY);
    //end d
    //for e
    var sums$r_$e = Sums();
    //end e
    //end r
    let own_scores = own_row * SCORE;
    let scale = inverse * p.scale;
    // What the row's sums are relative to, and this invocation's part of the sum of weights.
    var relative = LOWEST;
    var total = 0.0;
    var next = first_row;
    while next < end_row {
        // A run of rows: what they see has no gap.
        let begin = next;
        next = begin + run_of(begin, end_row);
        let slot = slot_of(begin);
        var seen = vec2(first_seen(begin), 0u);
        for (var one = begin; one < next; one++) {
            seen.y = max(seen.y, end_seen(one));
        }
        // What the row sees; nothing, if it is not of this run.
        var sees = vec2(0u);
        if row >= begin && row < next {
            sees = vec2(first_seen(row), end_seen(row));
        }
        let first = seen.x / STEP * STEP;
        // Keys and values are under way while the products before them are computed.
        var page = page_at(kv_head, slot, first);
        //for l
        var key$l = octet(0u, kv_head, slot, first, page, seen, $lu * WG + t);
        //end l
        for (var step = first; step < seen.y; step += STEP) {
            workgroupBarrier();
            //for l
            keep($lu * WG + t, key$l);
            //end l
            workgroupBarrier();
            //for l
            let value$l = octet(1u, kv_head, slot, step, page, seen, $lu * WG + t);
            //end l
            //for c
            //for r
            var products$r_$c = Sums();
            //end r
            //for d
            let keys$d_$c = coopLoad<Right>(&entries[(side * POSITIONS + $cu) * SQUARE * ENTRY + $du * QUADS], ENTRY);
            //for r
            products$r_$c = coopMultiplyAdd(query$r_$d, keys$d_$c, products$r_$c);
            //end r
            //end d
            //for r
            coopStoreT(products$r_$c, &scores[(group + $ru * SQUARE) * SCORE + (side * POSITIONS + $cu) * QUADS], SCORE);
            //end r
            //end c
            workgroupBarrier();
            page = page_at(kv_head, slot, min(step + STEP, seen.y - 1u));
            //for l
            keep($lu * WG + t, value$l);
            key$l = octet(0u, kv_head, slot, step + STEP, page, seen, $lu * WG + t);
            //end l
            var most = LOWEST;
            //for q
            let quad$q = part + LANES * $qu;
            let place$q = vec4(step + 4u * quad$q) + vec4(0u, 1u, 2u, 3u);
            let visible$q = (place$q >= vec4(sees.x)) & (place$q < vec4(sees.y));
            let score$q = select(vec4(LOWEST), capped(scale * scores[own_scores + quad$q]), visible$q);
            most = max(most, max(max(score$q.x, score$q.y), max(score$q.z, score$q.w)));
            //end q
            most = row_max(most);
            var kept = 1.0;
            if most > relative + FAR {
                kept = exp(relative - most);
                relative = most;
            }
            total *= kept;
            //for q
            let weight$q = select(vec4(0.0), exp(score$q - relative), visible$q);
            total += weight$q.x + weight$q.y + weight$q.z + weight$q.w;
            weights[own_scores + quad$q] = vec4<f16>(weight$q);
            //end q
            keep_factor(own_row, kept);
            let has_moved = subgroupAny(kept != 1.0);
            if lane == 0u {
                moved[subgroup] = select(0u, 1u, has_moved);
            }
            let all_moved = workgroupUniformLoad(&moved);
            let moves = 0u
            //for g
            | all_moved[$g]
            //end g
            ;
            if moves != 0u {
                //for r
                //for e
                coopStoreT(sums$r_$e, &scores[square], SCORE);
                workgroupBarrier();
                for (var i = lane % SHARE; i < QUADS; i += SHARE) {
                    scores[square_row + i] *= factor_at(group + $ru * SQUARE + lane / SHARE);
                }
                workgroupBarrier();
                sums$r_$e = coopLoadT<Sums>(&scores[square], SCORE);
                workgroupBarrier();
                //end e
                //end r
            }
            //for s
            //for r
            let share$s_$r = coopLoadT<Left>(&weights[(group + $ru * SQUARE) * SCORE + $su * QUADS], SCORE);
            //end r
            //for e
            let values$s_$e = coopLoadT<Right>(&entries[$su * SQUARE * ENTRY + (side * ELEMENTS + $eu) * QUADS], ENTRY);
            //for r
            sums$r_$e = coopMultiplyAdd(share$s_$r, values$s_$e, sums$r_$e);
            //end r
            //end e
            //end s
        }
    }
    total = row_sum(total);
    var sink = LOWEST;
    if has(0u) {
        sink = vector0(head);
    }
    let most = max(relative, sink);
    var factor = exp(relative - most);
    total *= factor;
    if sink > LOWEST {
        total += exp(sink - most);
    }
    factor /= total;
    workgroupBarrier();
    keep_factor(own_row, factor);
    //for r
    //for e
    workgroupBarrier();
    coopStoreT(sums$r_$e, &scores[square], SCORE);
    workgroupBarrier();
    let row$r_$e = group + $ru * SQUARE + lane / SHARE;
    for (var i = lane % SHARE; i < QUADS; i += SHARE) {
        if first_row + row$r_$e < end_row {
            let y = at.c + (first_row + row$r_$e) * p.y_stride + head * HEAD_DIM;
            put_quad(y + (side * ELEMENTS + $eu) * SQUARE + 4u * i, factor_at(row$r_$e) * scores[square_row + i]);
        }
    }
    //end e
    //end r
}
