// A row with `taps - 1` earlier rows of its slot in this step has its own invocation. The slot's first row computes the rows before that,
// and stores the last inputs for the next step.
struct Params { layer: u32, n: u32, taps: u32, act: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn input_at(row: u32, channel: u32) -> f32 {
    return float_at(command.at.a + row * command.p.x_stride + channel);
}

fn each(first: u32, channel: u32) {
    let p = command.p;
    // The input so many rows ago, which meets the tap before.
    var known = 0u;
    var before = first;
    //for t
    var ago$t = 0.0;
    if before != NO_ROW {
        before = previous_of_slot(before);
        if before != NO_ROW {
            ago$t = input_at(before, channel);
            known++;
        }
    }
    //end t
    var rows = 1u;
    if known < TAPS - 1u {
        if known > 0u {
            return;
        }
        rows = TAPS - 1u;
    }
    let past = state_place(first, (TAPS - 1u) * p.n) + channel;
    // Inputs before position 0 are zero, even if the page holds other numbers.
    //for t
    if known == 0u && $tu < position_of(first) {
        ago$t = cache[past + (TAPS - 2u - $tu) * p.n];
    }
    let tap$t = vector0(channel * TAPS + TAPS - 2u - $tu);
    //end t
    let tap = vector0(channel * TAPS + TAPS - 1u);
    var row = first;
    while rows > 0u && row < state[0] {
        let x = input_at(row, channel);
        var sum = tap * x;
        if has(1u) {
            sum += weight1[channel];
        }
        var moved = x;
        //for t
        {
            let old = ago$t;
            sum = fma(tap$t, old, sum);
            ago$t = moved;
            moved = old;
        }
        //end t
        if p.act == 1u {
            sum = sum * sigmoid(sum);
        }
        put(command.at.b + row * p.y_stride + channel, sum);
        rows--;
        row = next_of_slot(row);
    }
    if known > 0u {
        return;
    }
    // The slot has more rows than that, so its last ones have all that is kept.
    if row < state[0] {
        row = last_of_slot(first);
        //for t
        ago$t = input_at(row, channel);
        row = previous_of_slot(row);
        //end t
    }
    //for t
    cache[past + (TAPS - 2u - $tu) * p.n] = ago$t;
    //end t
}
