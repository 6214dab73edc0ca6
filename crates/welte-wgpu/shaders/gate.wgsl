struct Params { n: u32, gates: u32, act: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let gate = float_at(command.at.a + row * p.x_stride + i / (p.n / p.gates));
    var factor: f32;
    switch p.act {
        case 4u: {
            factor = sigmoid(gate);
        }
        case 5u: {
            factor = gate;
        }
        case 6u: {
            factor = max(gate, 0.0) + log(1.0 + exp(-abs(gate)));
        }
        default: {
            factor = gated(p.act, gate, 1.0);
        }
    }
    let y = command.at.b + row * p.y_stride + i;
    put(y, float_at(y) * factor);
}
