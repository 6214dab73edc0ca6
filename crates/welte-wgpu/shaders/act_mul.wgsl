struct Params { n: u32, act: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let x = command.at.a + row * p.x_stride + i;
    put(command.at.b + row * p.y_stride + i, gated(p.act, float_at(x), float_at(x + p.n)));
}
