struct Params { n: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    var value = float_at(command.at.a + row * p.x_stride + i);
    if has(0u) {
        value *= vector0(i);
    }
    put(command.at.b + row * p.y_stride + i, value);
}
