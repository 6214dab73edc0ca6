struct Params { heads: u32, head_dim: u32, rot: u32, interleaved: u32, magnitude: f32, y_stride: u32 }

fn width() -> u32 {
    return command.p.heads * (command.p.rot / 2u);
}

// The angle less whole turns. The first two parts of a turn have few bits, so their multiples are exact.
fn within_a_turn(angle: f32) -> f32 {
    let turns = round(angle * 0.15915494309);
    return ((angle - turns * 6.28125) - turns * 0.0019350051879882812) - turns * 3.0199159819567529e-7;
}

fn each(row: u32, index: u32) {
    let p = command.p;
    let half = p.rot / 2u;
    let head = index / half;
    let i = index % half;
    let y = command.at.a + row * p.y_stride + head * p.head_dim;
    var first = y + i;
    var second = y + i + half;
    if p.interleaved != 0u {
        first = y + 2u * i;
        second = y + 2u * i + 1u;
    }
    let angle = within_a_turn(f32(position_of(row)) * vector0(i));
    let c = cos(angle) * p.magnitude;
    let s = sin(angle) * p.magnitude;
    let a = float_at(first);
    let b = float_at(second);
    put(first, a * c - b * s);
    put(second, a * s + b * c);
}
