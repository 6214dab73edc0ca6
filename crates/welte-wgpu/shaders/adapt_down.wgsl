// `h = scale * A x`, also of each chosen expert. A workgroup makes one value of h. Without a choice (stride 0) there is one matrix.
struct Params { n: u32, k: u32, parts: u32, rank: u32, experts: u32, used: u32, own: u32, x_stride: u32, choice_stride: u32, h_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let row = id.z;
    let i = id.x % p.rank;
    let which = id.x / p.rank / p.parts;
    var number = id.x / p.rank % p.parts;
    if p.choice_stride > 0u {
        number += min(mem[command.at.b + row * p.choice_stride + which], p.experts - 1u) * p.parts;
    }
    let place = place_of(row);
    var sum = 0.0;
    var scale = 0.0;
    if place != NO_ADAPTER {
        if i < rank_of(place, number) {
            scale = scale_of(row) * scale_of_set(place, number);
            let x = command.at.a + row * p.x_stride + select(0u, which * p.k, p.own == 1u);
            for (var at = t; at < p.k; at += WG) {
                sum = fma(half_at(place + command.at.split, (number * p.rank + i) * p.k + at), float_at(x + at), sum);
            }
        }
    }
    let all = sum_of_all(t, sum);
    if t == 0u {
        put(command.at.c + row * p.h_stride + id.x, all * scale);
    }
}
