struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let place = vector0(i);
    var value = -3.40282346e38;
    if place >= 0.0 {
        value = float_at(command.at.a + row * p.x_stride + u32(place));
    }
    put(command.at.b + row * p.y_stride + i, value);
}
