struct Params { layer: u32, n: u32, taps: u32, act: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(first: u32, channel: u32) {
    if !is_first_of_slot(first) {
        return;
    }
    let p = command.p;
    let past = state_place(first, (p.taps - 1u) * p.n) + channel;
    for (var row = first; row < state[0]; row = next_of_slot(row)) {
        let x = float_at(command.at.a + row * p.x_stride + channel);
        // Inputs before position 0 are zero, even if the page holds other numbers.
        let known = min(position_of(row), p.taps - 1u);
        var sum = 0.0;
        if has(1u) {
            sum = weight1[channel];
        }
        for (var tap = 0u; tap < p.taps; tap++) {
            var input = x;
            if tap + 1u < p.taps {
                input = 0.0;
                if tap + 1u + known >= p.taps {
                    input = cache[past + tap * p.n];
                }
                if tap > 0u {
                    cache[past + (tap - 1u) * p.n] = input;
                }
            } else if tap > 0u {
                cache[past + (tap - 1u) * p.n] = input;
            }
            sum += vector0(channel * p.taps + tap) * input;
        }
        if p.act == 1u {
            sum = sum * sigmoid(sum);
        }
        put(command.at.b + row * p.y_stride + channel, sum);
    }
}
