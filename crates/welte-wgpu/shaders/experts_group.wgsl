// Groups the entries of a step by expert: entry `i` is choice `i % used` of row `i / used`. One workgroup writes the entries' numbers, those
// of an expert next to each other, then tiles of at most TILE_ROWS of them: their number, and for each its first and last entry and its
// expert. Numbers are stored as floats. Results do not depend on the order within an expert.
struct Params { experts: u32, used: u32, choice_stride: u32 }

// By expert: entries, then where the next one goes.
var<workgroup> counts: array<atomic<u32>, MOST_EXPERTS>;

fn expert_of(entry: u32) -> u32 {
    let p = command.p;
    return mem[command.at.a + entry / p.used * p.choice_stride + entry % p.used];
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) t: u32) {
    let at = command.at;
    let entries = state[0] * command.p.used;
    for (var i = t; i < command.p.experts; i += WG) {
        atomicStore(&counts[i], 0u);
    }
    workgroupBarrier();
    for (var i = t; i < entries; i += WG) {
        atomicAdd(&counts[expert_of(i)], 1u);
    }
    workgroupBarrier();
    if t == 0u {
        var next = 0u;
        var tiles = 0u;
        for (var expert = 0u; expert < command.p.experts; expert++) {
            let end = next + atomicLoad(&counts[expert]);
            atomicStore(&counts[expert], next);
            while next < end {
                let last = min(next + TILE_ROWS, end);
                tiles++;
                put_quad(at.d + 4u * tiles, vec4(f32(next), f32(last), f32(expert), 0.0));
                next = last;
            }
        }
        put(at.d, f32(tiles));
    }
    workgroupBarrier();
    for (var i = t; i < entries; i += WG) {
        put(at.c + atomicAdd(&counts[expert_of(i)], 1u), f32(i));
    }
}
