struct Params { n: u32, act: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return select(command.p.n, command.p.n / 4u, ALIGNED);
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let x = command.at.a + row * p.x_stride;
    let y = command.at.b + row * p.y_stride;
    if ALIGNED {
        let gate = quad_at(x + 4u * i);
        let up = quad_at(x + p.n + 4u * i);
        let both = vec4(gated(p.act, gate.x, up.x), gated(p.act, gate.y, up.y), gated(p.act, gate.z, up.z), gated(p.act, gate.w, up.w));
        put_quad(y + 4u * i, both);
        return;
    }
    put(y + i, gated(p.act, float_at(x + i), float_at(x + p.n + i)));
}
