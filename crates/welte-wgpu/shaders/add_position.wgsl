struct Params { k: u32, period: u32, offset: u32, x_stride: u32 }

fn width() -> u32 {
    return command.p.k;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let at = command.at.a + row * p.x_stride + i;
    let position = position_of(row);
    var x = float_at(at) + vector0((p.offset + position % p.period) * p.k + i);
    if has(1u) {
        x += weight1[position / p.period * p.k + i];
    }
    put(at, x);
}
