// One part of a row whose largest logit is known: a workgroup for each part. Without filters it draws the part's token. With filters
// it lists the elements that may remain, and adds up the weights of all.

// Elements further below the largest are listed only if top-k asks for them.
const FAR = -12.0;

// The rank of the last element that is listed.
var<workgroup> last: u32;
var<workgroup> listed: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let slot = slot_of(id.z);
    let temperature = float_setting(slot, TEMPERATURE);
    if !(temperature > 0.0) {
        return;
    }
    let parts = command.at.splits;
    var own = 0.0;
    var place = NOWHERE;
    if t < parts {
        own = float_at(record_of(id.z, t) + LARGEST);
        place = mem[record_of(id.z, t) + PLACE];
    }
    find_best(t, own, place);
    workgroupBarrier();
    let best = largest[0];
    let logits = logits_of(id.z, slot);
    let record = record_of(id.z, id.x);
    let first = id.x * command.at.split;
    var end = min(command.p.n, first + command.at.split);
    if !is_finite(best) {
        end = first;
    }
    if !has_filters(slot) {
        let seed = vec2(setting(slot, SEED), setting(slot, SEED + 1u));
        let key = noise_key(seed, position_of(id.z) + 1u);
        let least = float_setting(slot, LEAST);
        var draw = NO_DRAW;
        for (var i = first + t; i < end; i += WG) {
            let below = float_at(logits + i) - best;
            if order_of(below) != NEVER && below >= least {
                draw = with_token(draw, key, temperature, below, i);
            }
        }
        draw = best_draw(t, draw);
        if t == 0u {
            put(record + KEY, draw.key);
            mem[record + TOKEN] = draw.token;
            put(record + SECOND, draw.second);
        }
        return;
    }
    if t == 0u {
        last = order_of(FAR);
        atomicStore(&listed, 0u);
    }
    workgroupBarrier();
    // At least k parts have a largest element that is not below the k-th of these. So none of the top k is below it.
    let top_k = setting(slot, TOP_K);
    if top_k > 0u && top_k <= parts && place != NOWHERE {
        var better = 0u;
        for (var part = 0u; part < parts; part++) {
            let other = record_of(id.z, part);
            if is_better(float_at(other + LARGEST), mem[other + PLACE], own, place) {
                better++;
            }
        }
        if better == top_k - 1u {
            last = order_of(own - best);
        }
    }
    workgroupBarrier();
    let list = list_of(id.z, id.x);
    var near = 0.0;
    var other = 0.0;
    for (var i = first + t; i < end; i += WG) {
        let below = float_at(logits + i) - best;
        let order = order_of(below);
        if order == NEVER {
            continue;
        }
        if order <= last {
            near += exp(below);
            let nth = atomicAdd(&listed, 1u);
            if nth < CAPACITY {
                mem[list + nth] = i;
            }
        } else {
            other += exp(below);
        }
    }
    near = sum_of_all(t, near);
    other = sum_of_all(t, other);
    if t == 0u {
        mem[record + COUNT] = atomicLoad(&listed);
        put(record + WHOLE, near + other);
        put(record + LISTED, near);
    }
}
