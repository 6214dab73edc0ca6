struct Params { n: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let y = command.at.b + row * p.y_stride + i;
    put(y, float_at(y) + float_at(command.at.a + row * p.x_stride + i));
}
