struct Params { n: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let at = command.at.a + row * command.p.y_stride + i;
    put(at, float_at(at) + vector0(i));
}
