// Attention of one head of one row of a decode step over an F16 cache, or of one split of its context. A position has LANES
// neighbours in a subgroup, which share the head's octets, and every team of LANES walks its own positions, four at a time: in the walk
// no team waits for another. The keys and values of the next four are in flight meanwhile. In the end teams are joined: first
// those of a subgroup, then the subgroups. The order of a sum depends on the row alone.
//
// With JOINED the launch also is the `rope_append` before it, of a single row. Every workgroup rotates its query and the newest
// key, and takes both from workgroup memory. One workgroup for each key head stores the newest key and value, which no workgroup reads
// from the cache.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, softcap: f32, q_stride: u32, y_stride: u32, causal: u32, chunked: u32,
    rot: u32, interleaved: u32, magnitude: f32, eps: f32, sections: u32 }

@group(0) @binding(6) var<storage, read_write> cache: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> sinks: array<f32>;

const TEAMS = WG / LANES;
const SUBGROUPS = WG / SUBGROUP;
// The invocations that rotate a head.
const TURNERS = 64u;
const HEADS = select(1u, 2u, JOINED);

// The query, and with JOINED the newest key.
var<workgroup> heads: array<f32, HEADS * HEAD_DIM>;
// Of every subgroup: the largest score, the sum of weights, and weighted values.
var<workgroup> most: array<f32, SUBGROUPS>;
var<workgroup> total: array<f32, SUBGROUPS>;
var<workgroup> values: array<f32, SUBGROUPS * HEAD_DIM>;

fn packed_octet(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    return vec4(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

fn head_quad(head: u32, i: u32) -> vec4<f32> {
    let at = head * HEAD_DIM + i;
    return vec4(heads[at], heads[at + 1u], heads[at + 2u], heads[at + 3u]);
}

fn arena_quad(at: u32) -> vec4<f32> {
    return vec4(float_at(at), float_at(at + 1u), float_at(at + 2u), float_at(at + 3u));
}

// `sum + dot(x, w)` with the octet of a head.
fn add_products(xa: vec4<f32>, xb: vec4<f32>, w: vec4<u32>, sum: f32) -> f32 {
    let a = first_four(w);
    let b = last_four(w);
    let first = fma(xa.w, a.w, fma(xa.z, a.z, fma(xa.y, a.y, fma(xa.x, a.x, sum))));
    return fma(xb.w, b.w, fma(xb.z, b.z, fma(xb.y, b.y, fma(xb.x, b.x, first))));
}

fn scored(sums: vec4<f32>) -> vec4<f32> {
    var scores = sums;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        scores += subgroupShuffleXor(scores, half);
    }
    scores *= command.p.scale;
    let softcap = command.p.softcap;
    if softcap != 0.0 {
        for (var i = 0u; i < 4u; i++) {
            scores[i] = softcap * safe_tanh(scores[i] / softcap);
        }
    }
    return scores;
}

//for joined
// The newest key and value, as the cache has them. No compiler leaves their rounding out, because they come from another invocation.
var<workgroup> newest_words: array<vec4<u32>, 2u * OCTETS>;

// Norm and rope of the row's query and newest key, into workgroup memory.
fn turn_heads(row: u32, head: u32, kv_head: u32, t: u32) {
    let p = command.p;
    let qkv = command.at.a + row * p.q_stride;
    let which = t / TURNERS;
    let i = t % TURNERS;
    let x = qkv + select(head, p.heads + kv_head, which == 1u) * HEAD_DIM;
    var squares = 0.0;
    if which < 2u {
        for (var j = i; j < HEAD_DIM; j += TURNERS) {
            let value = float_at(x + j);
            heads[which * HEAD_DIM + j] = value;
            squares = fma(value, value, squares);
        }
        turned_squares[t] = squares;
    }
    workgroupBarrier();
    if which < 2u && has(1u + which) {
        let factor = norm_factor(which * TURNERS, HEAD_DIM, p.eps);
        for (var j = i; j < HEAD_DIM; j += TURNERS) {
            var weight = 1.0;
            if which == 0u {
                weight = weight1[j];
            } else {
                weight = weight2[j];
            }
            heads[which * HEAD_DIM + j] = heads[which * HEAD_DIM + j] * factor * weight;
        }
    }
    workgroupBarrier();
    if which < 2u {
        for (var j = i; j < p.rot / 2u; j += TURNERS) {
            let pair = which * HEAD_DIM + pair_of(j, p.rot, p.interleaved);
            let turned = turned_pair(vec2(heads[pair.x], heads[pair.y]), row, j, p.magnitude);
            heads[pair.x] = turned.x;
            heads[pair.y] = turned.y;
        }
    }
    workgroupBarrier();
    if t < OCTETS {
        newest_words[t] = packed_octet(head_quad(1u, 8u * t), head_quad(1u, 8u * t + 4u));
        let v = qkv + (p.heads + p.kv_heads + kv_head) * HEAD_DIM + 8u * t;
        newest_words[OCTETS + t] = packed_octet(arena_quad(v), arena_quad(v + 4u));
    }
    workgroupBarrier();
}
//end joined

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    let p = command.p;
    let at = command.at;
    let row = id.z;
    let head = id.x;
    let slot = slot_of(row);
    let bounds = split_of(row, id.y);
    if at.splits > 1u && bounds.x >= bounds.y {
        return;
    }
    let t = subgroup * SUBGROUP + invocation;
    let lane = invocation % LANES;
    let team = t / LANES;
    let group = p.heads / p.kv_heads;
    let kv_head = head / group;
    // The newest position begins the sums of the first team. The walk has those before it.
    let newest = last_seen(row);
    let end = min(bounds.y, newest);
    let begins = team == 0u && bounds.y > newest;

    //for p
    var position$p = bounds.x + team + $pu * TEAMS;
    var key_at$p = 0u;
    var value_at$p = 0u;
    if position$p < end {
        key_at$p = place(0u, kv_head, slot, position$p);
        value_at$p = place(1u, kv_head, slot, position$p);
    }
    //end p
    //for o
    let octet$o = lane + $ou * LANES;
    //for p
    var key$p_$o = vec4(0u);
    var value$p_$o = vec4(0u);
    if position$p < end && octet$o < OCTETS {
        key$p_$o = cache[key_at$p + octet$o];
        value$p_$o = cache[value_at$p + octet$o];
    }
    //end p
    //end o

    let newest_key = place(0u, kv_head, slot, newest);
    let newest_value = place(1u, kv_head, slot, newest);
    //for joined
    turn_heads(row, head, kv_head, t);
    //end joined
    //for alone
    let q = at.a + row * p.q_stride + head * HEAD_DIM;
    //end alone
    var sums = vec4(0.0);
    //for o
    var xa$o = vec4(0.0);
    var xb$o = vec4(0.0);
    var a$o = vec4(0.0);
    var b$o = vec4(0.0);
    if octet$o < OCTETS {
        //for alone
        xa$o = arena_quad(q + 8u * octet$o);
        xb$o = arena_quad(q + 8u * octet$o + 4u);
        //end alone
        //for joined
        xa$o = head_quad(0u, 8u * octet$o);
        xb$o = head_quad(0u, 8u * octet$o + 4u);
        //end joined
        if begins {
            //for alone
            let key = cache[newest_key + octet$o];
            let value = cache[newest_value + octet$o];
            //end alone
            //for joined
            let key = newest_words[octet$o];
            let value = newest_words[OCTETS + octet$o];
            if head % group == 0u {
                cache[newest_key + octet$o] = key;
                cache[newest_value + octet$o] = value;
            }
            //end joined
            sums.x = add_products(xa$o, xb$o, key, sums.x);
            a$o = first_four(value);
            b$o = last_four(value);
        }
    }
    //end o
    let first = scored(sums).x;
    var largest = select(LOWEST, first, begins);
    var all = select(0.0, 1.0, begins);

    for (var step = bounds.x; step < end; step += 4u * TEAMS) {
        // Where the next four are.
        //for p
        let next$p = position$p + 4u * TEAMS;
        if next$p < end {
            key_at$p = place(0u, kv_head, slot, next$p);
            value_at$p = place(1u, kv_head, slot, next$p);
        }
        //end p
        sums = vec4(0.0);
        //for p
        //for o
        sums[$p] = add_products(xa$o, xb$o, key$p_$o, sums[$p]);
        if next$p < end && octet$o < OCTETS {
            key$p_$o = cache[key_at$p + octet$o];
        }
        //end o
        //end p
        let exists = vec4(position0, position1, position2, position3) < vec4(end);
        let scores = select(vec4(LOWEST), scored(sums), exists);
        let before = largest;
        largest = max(largest, max(max(scores.x, scores.y), max(scores.z, scores.w)));
        let weights = select(vec4(0.0), exp(scores - largest), exists);
        let kept = exp(before - largest);
        all = fma(all, kept, (weights.x + weights.y) + (weights.z + weights.w));
        //for o
        a$o *= kept;
        b$o *= kept;
        //for p
        a$o = fma(vec4(weights[$p]), first_four(value$p_$o), a$o);
        b$o = fma(vec4(weights[$p]), last_four(value$p_$o), b$o);
        if next$p < end && octet$o < OCTETS {
            value$p_$o = cache[value_at$p + octet$o];
        }
        //end p
        //end o
        //for p
        position$p = next$p;
        //end p
    }

    // The teams of a subgroup.
    var highest = largest;
    for (var half = SUBGROUP / 2u; half >= LANES; half /= 2u) {
        highest = max(highest, subgroupShuffleXor(highest, half));
    }
    let part = exp(largest - highest);
    all *= part;
    //for o
    a$o *= part;
    b$o *= part;
    //end o
    for (var half = SUBGROUP / 2u; half >= LANES; half /= 2u) {
        all += subgroupShuffleXor(all, half);
        //for o
        a$o += subgroupShuffleXor(a$o, half);
        b$o += subgroupShuffleXor(b$o, half);
        //end o
    }
    if invocation == 0u {
        most[subgroup] = highest;
        total[subgroup] = all;
    }
    if invocation < LANES {
        //for o
        if octet$o < OCTETS {
            let begin = subgroup * HEAD_DIM + 8u * octet$o;
            values[begin] = a$o.x;
            values[begin + 1u] = a$o.y;
            values[begin + 2u] = a$o.z;
            values[begin + 3u] = a$o.w;
            values[begin + 4u] = b$o.x;
            values[begin + 5u] = b$o.y;
            values[begin + 6u] = b$o.z;
            values[begin + 7u] = b$o.w;
        }
        //end o
    }
    workgroupBarrier();
    var sink = LOWEST;
    if has(SINKS) {
        sink = sinks[head];
    }
    let whole = is_whole(row);
    var top = LOWEST;
    for (var s = 0u; s < SUBGROUPS; s++) {
        top = max(top, most[s]);
    }
    if whole {
        top = max(top, sink);
    }
    var sum = 0.0;
    for (var s = 0u; s < SUBGROUPS; s++) {
        sum = fma(exp(most[s] - top), total[s], sum);
    }
    let partial = partial_place(row, head, id.y, HEAD_DIM);
    var y = at.c + row * p.y_stride + head * HEAD_DIM;
    var factor = 1.0;
    if whole {
        if sink > LOWEST {
            sum += exp(sink - top);
        }
        factor = 1.0 / sum;
    } else {
        y = partial + 2u;
        if t == 0u {
            put(partial, top);
            put(partial + 1u, sum);
        }
    }
    for (var i = t; i < HEAD_DIM; i += WG) {
        var value = 0.0;
        for (var s = 0u; s < SUBGROUPS; s++) {
            value = fma(exp(most[s] - top), values[s * HEAD_DIM + i], value);
        }
        put(y + i, value * factor);
    }
}
