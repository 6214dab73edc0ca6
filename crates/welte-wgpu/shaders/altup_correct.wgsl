struct Params { dim: u32, streams: u32, scale: f32, now_stride: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.dim;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let x = command.at.b + row * p.x_stride;
    let y = command.at.c + row * p.y_stride + i;
    let news = float_at(command.at.a + row * p.now_stride + i) - float_at(y);
    for (var stream = 0u; stream < p.streams; stream++) {
        let at = y + stream * p.dim;
        put(at, float_at(at) + (1.0 + coefficient(stream, x)) * news);
    }
}
