struct Params { n: u32, part: u32, x_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let feature = feature_of(row);
    if feature == NO_FEATURE {
        return;
    }
    let at = command.at.a + row * p.x_stride + i;
    put(at, float_at(at) + float_at(command.at.scratch + feature * command.at.split + p.part * p.n + i));
}
