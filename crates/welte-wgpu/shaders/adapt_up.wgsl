// `y += B h`, also of each chosen expert: to the expert's own values of y, or (`sum` 1) times its share to the row.
struct Params { n: u32, k: u32, parts: u32, rank: u32, experts: u32, used: u32, sum: u32, h_stride: u32, choice_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return select(command.p.used, 1u, command.p.sum == 1u) * command.p.n;
}

fn each(row: u32, index: u32) {
    let p = command.p;
    let place = place_of(row);
    if place == NO_ADAPTER {
        return;
    }
    let j = index % p.n;
    var part = 0u;
    if has(0u) {
        part = u32(vector0(j));
    }
    let first = index / p.n;
    let y = command.at.c + row * p.y_stride + index;
    var value = float_at(y);
    for (var which = first; which < select(first + 1u, p.used, p.sum == 1u); which++) {
        var expert = 0u;
        var share = 1.0;
        if p.choice_stride > 0u {
            let choice = command.at.b + row * p.choice_stride;
            expert = min(mem[choice + which], p.experts - 1u);
            if p.sum == 1u {
                share = float_at(choice + p.used + which);
            }
        }
        let h = command.at.a + row * p.h_stride + (which * p.parts + part) * p.rank;
        var sum = 0.0;
        for (var i = 0u; i < rank_of(place, expert * p.parts + part); i++) {
            sum = fma(half_at(place + command.at.entries, (expert * p.n + j) * p.rank + i), float_at(h + i), sum);
        }
        value = fma(share, sum, value);
    }
    put(y, value);
}
