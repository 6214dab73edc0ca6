// An invocation for each column of each head's state of each slot. BY_CHANNEL: columns have time steps of their own, and the elements of a
// state decays.
struct Params { layer: u32, groups: u32, heads: u32, key_dim: u32, value_dim: u32, x_stride: u32, dt_stride: u32, y_stride: u32, by_channel: u32 }

fn width() -> u32 {
    return command.p.heads * command.p.value_dim;
}

fn each(first: u32, index: u32) {
    if !is_first_of_slot(first) {
        return;
    }
    let p = command.p;
    let head = index / p.value_dim;
    let group = head / (p.heads / p.groups);
    let own = head * p.key_dim * p.value_dim + index % p.value_dim;
    let s = state_place(first, p.heads * p.key_dim * p.value_dim) + own;
    var time_at = head;
    if BY_CHANNEL {
        time_at = index;
    }
    for (var row = first; row < state[0]; row = next_of_slot(row)) {
        let x = command.at.a + row * p.x_stride;
        let keys = x + p.heads * p.value_dim + group * p.key_dim;
        let queries = keys + p.groups * p.key_dim;
        let input = float_at(x + index);
        let time = softplus(float_at(command.at.b + row * p.dt_stride + time_at) + weight1[time_at]);
        var kept = 0.0;
        if !BY_CHANNEL {
            kept = exp(vector0(head) * time);
        }
        let fresh = position_of(row) == 0u;
        var answer = 0.0;
        for (var j = 0u; j < p.key_dim; j++) {
            var cell = 0.0;
            // The state before position 0 is zero, even if the page holds other numbers.
            if !fresh {
                if BY_CHANNEL {
                    kept = exp(vector0(own + j * p.value_dim) * time);
                }
                cell = cache[s + j * p.value_dim] * kept;
            }
            cell += float_at(keys + j) * (time * input);
            cache[s + j * p.value_dim] = cell;
            answer += cell * float_at(queries + j);
        }
        put(command.at.c + row * p.y_stride + index, answer + weight2[time_at] * input);
    }
}
