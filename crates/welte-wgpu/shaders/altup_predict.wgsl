struct Params { dim: u32, streams: u32, scale: f32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.dim;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let x = command.at.a + row * p.x_stride;
    let y = command.at.b + row * p.y_stride + i;
    var old: array<f32, MOST_STREAMS>;
    for (var stream = 0u; stream < p.streams; stream++) {
        old[stream] = float_at(y + stream * p.dim);
    }
    for (var stream = 0u; stream < p.streams; stream++) {
        var sum = 0.0;
        for (var other = 0u; other < p.streams; other++) {
            sum += coefficient(stream * p.streams + other, x) * old[other];
        }
        put(y + stream * p.dim, old[stream] + sum);
    }
}
