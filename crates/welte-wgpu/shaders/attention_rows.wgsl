// Attention of one head over an F16 cache, for prompts: a workgroup takes ROWS rows and reads keys and values once for all of them. It
// walks the context in steps of STEP positions, which begin at multiples of STEP. A step without a position that the row sees changes
// none of its bits, so they do not depend on the other rows. Invocations lie in a square of 8 x 8. In scores an invocation has every eighth
// row and every eighth position of the step, in sums of values every eighth row and every eighth octet.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, softcap: f32, q_stride: u32, y_stride: u32, causal: u32, chunked: u32 }

@group(0) @binding(6) var<storage, read_write> cache: array<vec4<u32>>;

const OCTETS = HEAD_DIM / 8u;
// Strides in workgroup memory: one more keeps neighbours in different banks.
const QUERY = 2u * OCTETS + 1u;
const ENTRY = OCTETS + 1u;
const SHARE = STEP + 1u;

var<workgroup> queries: array<vec4<f32>, ROWS * QUERY>;
// Keys of a step, then its values.
var<workgroup> entries: array<vec4<u32>, STEP * ENTRY>;
var<workgroup> shares: array<f32, ROWS * SHARE>;
// Of a row: each invocation's largest score, in the end its sum of weights.
var<workgroup> parts: array<f32, ROWS * 8u>;

// Loads the keys (part 0) or values (part 1) of a step; zeros outside of the positions that are seen.
fn load_entries(part: u32, kv_head: u32, slot: u32, step: u32, seen: vec2<u32>, t: u32) {
    for (var i = t; i < STEP * OCTETS; i += WG) {
        let position = step + i / OCTETS;
        var words = vec4(0u);
        if position >= seen.x && position < seen.y {
            let place = head_place(part, kv_head, command.p.kv_heads, slot, position, HEAD_DIM) / 8u;
            words = cache[place + i % OCTETS];
        }
        entries[i / OCTETS * ENTRY + i % OCTETS] = words;
    }
}

fn lower_half(words: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn upper_half(words: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(words.z), unpack2x16float(words.w));
}

// One chain of eight additions.
fn added(sum: f32, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> f32 {
    let first = fma(a.w, c.w, fma(a.z, c.z, fma(a.y, c.y, fma(a.x, c.x, sum))));
    return fma(b.w, d.w, fma(b.z, d.z, fma(b.y, d.y, fma(b.x, d.x, first))));
}

fn scored(sum: f32) -> f32 {
    let score = sum * command.p.scale;
    if command.p.softcap != 0.0 {
        return command.p.softcap * safe_tanh(score / command.p.softcap);
    }
    return score;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let at = command.at;
    let head = id.x;
    let kv_head = head / (p.heads / p.kv_heads);
    let first_row = id.z * ROWS;
    let end_row = min(first_row + ROWS, state[0]);
    for (var i = t; i < ROWS * OCTETS * 2u; i += WG) {
        let row = min(first_row + i / (2u * OCTETS), end_row - 1u);
        let quad = i % (2u * OCTETS);
        queries[i / (2u * OCTETS) * QUERY + quad] = quad_at(at.a + row * p.q_stride + head * HEAD_DIM + 4u * quad);
    }
    let across = t % 8u;
    let down = t / 8u;
    //for r
    let row$r = first_row + down + 8u * $ru;
    let query$r = (down + 8u * $ru) * QUERY;
    let share$r = (down + 8u * $ru) * SHARE;
    let part$r = (down + 8u * $ru) * 8u;
    var largest$r = LOWEST;
    var total$r = 0.0;
    //for o
    var a$r_$o = vec4(0.0);
    var b$r_$o = vec4(0.0);
    //end o
    //end r
    var next = first_row;
    while next < end_row {
        // A run of rows: what they see has no gap.
        let begin = next;
        let count = run_of(begin, end_row);
        next = begin + count;
        let slot = slot_of(begin);
        var seen = vec2(first_seen(begin), 0u);
        for (var row = begin; row < next; row++) {
            seen.y = max(seen.y, end_seen(row));
        }
        //for r
        // What the row sees; nothing, if it is not of this run.
        var seen$r = vec2(0u);
        if row$r >= begin && row$r < next {
            seen$r = vec2(first_seen(row$r), end_seen(row$r));
        }
        //end r
        for (var step = seen.x / STEP * STEP; step < seen.y; step += STEP) {
            workgroupBarrier();
            load_entries(0u, kv_head, slot, step, seen, t);
            workgroupBarrier();
            //for r
            //for s
            var score$r_$s = 0.0;
            //end s
            //end r
            for (var octet = 0u; octet < OCTETS; octet++) {
                //for s
                let key$s = entries[(across + 8u * $su) * ENTRY + octet];
                let low$s = lower_half(key$s);
                let high$s = upper_half(key$s);
                //end s
                //for r
                let c$r = queries[query$r + 2u * octet];
                let d$r = queries[query$r + 2u * octet + 1u];
                //for s
                score$r_$s = added(score$r_$s, low$s, high$s, c$r, d$r);
                //end s
                //end r
            }
            //for r
            var most$r = LOWEST;
            //for s
            let sees$r_$s = step + across + 8u * $su >= seen$r.x && step + across + 8u * $su < seen$r.y;
            score$r_$s = scored(score$r_$s);
            if sees$r_$s {
                most$r = max(most$r, score$r_$s);
            }
            //end s
            parts[part$r + across] = most$r;
            //end r
            workgroupBarrier();
            load_entries(1u, kv_head, slot, step, seen, t);
            //for r
            let before$r = largest$r;
            for (var i = 0u; i < 8u; i++) {
                largest$r = max(largest$r, parts[part$r + i]);
            }
            let kept$r = exp(before$r - largest$r);
            total$r *= kept$r;
            //for o
            a$r_$o *= kept$r;
            b$r_$o *= kept$r;
            //end o
            //for s
            let weight$r_$s = select(0.0, exp(score$r_$s - largest$r), sees$r_$s);
            total$r += weight$r_$s;
            shares[share$r + across + 8u * $su] = weight$r_$s;
            //end s
            //end r
            workgroupBarrier();
            for (var i = 0u; i < STEP; i++) {
                //for o
                let value$o = entries[i * ENTRY + min(across + 8u * $ou, OCTETS - 1u)];
                //end o
                // A value that the row does not see may be a NaN, so a weight of zero is not enough.
                //for r
                if step + i >= seen$r.x && step + i < seen$r.y {
                    let weight = vec4(shares[share$r + i]);
                    //for o
                    a$r_$o = fma(weight, lower_half(value$o), a$r_$o);
                    b$r_$o = fma(weight, upper_half(value$o), b$r_$o);
                    //end o
                }
                //end r
            }
        }
    }
    workgroupBarrier();
    //for r
    parts[part$r + across] = total$r;
    //end r
    workgroupBarrier();
    var sink = LOWEST;
    if has(0u) {
        sink = vector0(head);
    }
    //for r
    if row$r < end_row {
        let most = max(largest$r, sink);
        var factor = exp(largest$r - most);
        var all = 0.0;
        for (var i = 0u; i < 8u; i++) {
            all += parts[part$r + i];
        }
        all *= factor;
        if sink > LOWEST {
            all += exp(sink - most);
        }
        factor /= all;
        let y = at.c + row$r * p.y_stride + head * HEAD_DIM;
        //for o
        if across + 8u * $ou < OCTETS {
            put_quad(y + 8u * (across + 8u * $ou), factor * a$r_$o);
            put_quad(y + 8u * (across + 8u * $ou) + 4u, factor * b$r_$o);
        }
        //end o
    }
    //end r
}
