struct Params { n: u32, taps: u32, before: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, channel: u32) {
    let p = command.p;
    let slot = slot_of(row);
    var first = row;
    while first > 0u && row - first < p.before && slot_of(first - 1u) == slot {
        first--;
    }
    var end = row + 1u;
    while end < state[0] && end - row < p.taps - p.before && slot_of(end) == slot {
        end++;
    }
    var sum = 0.0;
    if has(1u) {
        sum = weight1[channel];
    }
    for (var other = first; other < end; other++) {
        sum += vector0(channel * p.taps + other + p.before - row) * float_at(command.at.a + other * p.x_stride + channel);
    }
    put(command.at.b + row * p.y_stride + channel, sum);
}
