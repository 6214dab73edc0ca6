struct Params { heads: u32, head_dim: u32, rot: u32, interleaved: u32, magnitude: f32, y_stride: u32, sections: u32 }

fn width() -> u32 {
    return command.p.heads * (command.p.rot / 2u);
}

fn each(row: u32, index: u32) {
    let p = command.p;
    let half = p.rot / 2u;
    let head = index / half;
    let i = index % half;
    let y = command.at.a + row * p.y_stride + head * p.head_dim;
    rotate(y, p.rot, p.interleaved, row, i, p.magnitude);
}
