struct Params { n: u32, scale: f32, cap: f32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let at = command.at.a + row * p.y_stride + i;
    var y = 0.0;
    // A scale of 0 gives 0 even where y is not a number.
    if p.scale != 0.0 {
        y = float_at(at) * p.scale;
    }
    if p.cap != 0.0 {
        y = p.cap * safe_tanh(y / p.cap);
    }
    put(at, y);
}
