// Chooses the positions of the largest scores: a workgroup has a row. The rank of the last one that is chosen is found eight bits at a time.
struct Params { layer: u32, heads: u32, head_dim: u32, used: u32, q_stride: u32, gates_stride: u32, y_stride: u32, context: u32 }

var<workgroup> counts: array<atomic<u32>, 256>;
// The bits of the rank that are known, and how many of the positions with these bits are chosen.
var<workgroup> known: u32;
var<workgroup> left: u32;
// By invocation: its positions above that rank and those of that rank, later those of the invocations before it.
var<workgroup> above: array<u32, WG>;
var<workgroup> equal: array<u32, WG>;

// A number whose order is that of the scores. Both zeros have the same one.
fn rank_at(i: u32) -> u32 {
    let bits = mem[i];
    if (bits & 0x7fffffffu) == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let end = reach_of(id.z) + 1u;
    let scores = command.at.scratch + id.z * p.context;
    let y = command.at.d + id.z * p.y_stride;
    if end <= p.used {
        for (var i = t; i < p.used; i += WG) {
            mem[y + i] = select(0u, i, i < end);
        }
        return;
    }
    if t == 0u {
        known = 0u;
        left = p.used;
    }
    for (var turn = 0u; turn < 4u; turn++) {
        let shift = 24u - 8u * turn;
        for (var i = t; i < 256u; i += WG) {
            atomicStore(&counts[i], 0u);
        }
        workgroupBarrier();
        let bits = known;
        for (var i = t; i < end; i += WG) {
            let rank = rank_at(scores + i);
            if turn == 0u || (rank >> (shift + 8u)) == (bits >> (shift + 8u)) {
                atomicAdd(&counts[(rank >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if t == 0u {
            var byte = 255u;
            var rest = left;
            while byte > 0u && atomicLoad(&counts[byte]) < rest {
                rest -= atomicLoad(&counts[byte]);
                byte--;
            }
            known = bits | (byte << shift);
            left = rest;
        }
        workgroupBarrier();
    }
    // Each invocation has neighbouring positions.
    let last = known;
    let each = (end + WG - 1u) / WG;
    let begin = min(t * each, end);
    let stop = min(begin + each, end);
    var more = 0u;
    var same = 0u;
    for (var i = begin; i < stop; i++) {
        let rank = rank_at(scores + i);
        more += u32(rank > last);
        same += u32(rank == last);
    }
    above[t] = more;
    equal[t] = same;
    workgroupBarrier();
    if t == 0u {
        var before = vec2(0u);
        for (var i = 0u; i < WG; i++) {
            let own = vec2(above[i], equal[i]);
            above[i] = before.x;
            equal[i] = before.y;
            before += own;
        }
    }
    workgroupBarrier();
    var taken = min(equal[t], left);
    var place = y + above[t] + taken;
    for (var i = begin; i < stop; i++) {
        let rank = rank_at(scores + i);
        if rank > last || (rank == last && taken < left) {
            taken += u32(rank == last);
            mem[place] = i;
            place++;
        }
    }
}
