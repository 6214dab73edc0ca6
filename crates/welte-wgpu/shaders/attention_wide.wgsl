// Attention of one head of one row over an F16 cache, for heads of whole octets: a workgroup walks positions in steps of WG, or one
// split of them. In a step an invocation computes the score of one position; then it adds up eight values of every GROUPS-th
// position. Splits and steps begin at places that depend on the row alone, and so does the order of sums.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, softcap: f32, q_stride: u32, y_stride: u32, causal: u32, chunked: u32 }

@group(0) @binding(6) var<storage, read_write> cache: array<vec4<u32>>;

const GROUPS = WG / OCTETS;

var<workgroup> query: array<vec4<f32>, 2 * OCTETS>;
var<workgroup> share: array<f32, WG>;
var<workgroup> places: array<u32, WG>;
var<workgroup> sums: array<vec4<f32>, 2 * OCTETS * GROUPS>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let at = command.at;
    let row = id.z;
    let head = id.x;
    let slot = slot_of(row);
    let bounds = split_of(row, id.y);
    if at.splits > 1u && bounds.x >= bounds.y {
        return;
    }
    let kv_head = head / (p.heads / p.kv_heads);
    let q = at.a + row * p.q_stride + head * HEAD_DIM;
    for (var i = t; i < 2u * OCTETS; i += WG) {
        query[i] = vec4(float_at(q + 4u * i), float_at(q + 4u * i + 1u), float_at(q + 4u * i + 2u), float_at(q + 4u * i + 3u));
    }
    workgroupBarrier();
    let octet = t % OCTETS;
    let group = t / OCTETS;
    var largest = LOWEST;
    var total = 0.0;
    var a = vec4(0.0);
    var b = vec4(0.0);
    for (var step = bounds.x; step < bounds.y; step += WG) {
        let position = step + t;
        var score = LOWEST;
        if position < bounds.y {
            let key = place(0u, kv_head, slot, position);
            places[t] = place(1u, kv_head, slot, position);
            var sum = vec4(0.0);
            for (var i = 0u; i < OCTETS; i++) {
                let w = cache[key + i];
                sum += first_four(w) * query[2u * i];
                sum += last_four(w) * query[2u * i + 1u];
            }
            score = dot(sum, vec4(1.0)) * p.scale;
            if p.softcap != 0.0 {
                score = p.softcap * safe_tanh(score / p.softcap);
            }
        }
        let before = largest;
        largest = max(largest, max_of_all(t, score));
        var weight = 0.0;
        if position < bounds.y {
            weight = exp(score - largest);
        }
        share[t] = weight;
        let kept = exp(before - largest);
        total = total * kept + sum_of_all(t, weight);
        a *= kept;
        b *= kept;
        if group < GROUPS {
            let count = min(WG, bounds.y - step);
            for (var j = group; j < count; j += GROUPS) {
                let w = cache[places[j] + octet];
                a += share[j] * first_four(w);
                b += share[j] * last_four(w);
            }
        }
        workgroupBarrier();
    }
    if group < GROUPS {
        sums[2u * t] = a;
        sums[2u * t + 1u] = b;
    }
    workgroupBarrier();
    var sink = LOWEST;
    if has(0u) {
        sink = vector0(head);
    }
    let partial = partial_place(row, head, id.y, HEAD_DIM);
    let whole = is_whole(row);
    var factor = 1.0;
    if whole {
        let most = max(largest, sink);
        factor = exp(largest - most);
        var all = total * factor;
        if sink > LOWEST {
            all += exp(sink - most);
        }
        factor /= all;
    } else if t == 0u {
        put(partial, largest);
        put(partial + 1u, total);
    }
    var y = at.c + row * p.y_stride + head * HEAD_DIM;
    if !whole {
        y = partial + 2u;
    }
    for (var i = t; i < 2u * OCTETS; i += WG) {
        var sum = vec4(0.0);
        for (var j = 0u; j < GROUPS; j++) {
            sum += sums[2u * OCTETS * j + i];
        }
        sum *= factor;
        put(y + 4u * i, sum.x);
        put(y + 4u * i + 1u, sum.y);
        put(y + 4u * i + 2u, sum.z);
        put(y + 4u * i + 3u, sum.w);
    }
}
