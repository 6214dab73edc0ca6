// `y[i] = act(gate) * up` of the grouped products of `experts_act_mul`.
struct Params { n: u32, used: u32, act: u32, choice_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n / 4u * command.p.used;
}

fn bias_at(i: u32) -> vec4<f32> {
    return vec4(weight1[i], weight1[i + 1u], weight1[i + 2u], weight1[i + 3u]);
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let nth = 4u * i / p.n;
    let place = 4u * i % p.n;
    let x = command.at.a + (row * p.used + nth) * 2u * p.n + place;
    var gate = quad_at(x);
    var up = quad_at(x + p.n);
    if has(1u) {
        let bias = mem[command.at.b + row * p.choice_stride + nth] * 2u * p.n + place;
        gate += bias_at(bias);
        up += bias_at(bias + p.n);
    }
    let y = command.at.c + row * p.y_stride + 4u * i;
    put_quad(y, vec4(gated(p.act, gate.x, up.x), gated(p.act, gate.y, up.y), gated(p.act, gate.z, up.z), gated(p.act, gate.w, up.w)));
}
