struct Params { n: u32, beta: f32, original: u32, y_stride: u32, ahead: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let at = command.at.a + row * p.y_stride + i;
    put(at, float_at(at) * (1.0 + p.beta * log(1.0 + f32((position_of(row) + p.ahead) / p.original))));
}
