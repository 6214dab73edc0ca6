struct Params { n: u32, act: u32, a: f32, b: f32, c: f32, d: f32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let at = command.at.a + row * p.y_stride + i;
    let x = float_at(at);
    var y: f32;
    switch p.act {
        case 4u: {
            let positive = max(x, 0.0);
            y = positive * positive;
        }
        case 5u: {
            if x > 0.0 {
                y = p.a * x * x + p.c * x;
            } else {
                y = p.b * (exp(min(x, p.d)) - 1.0 - x) + p.c * x;
            }
        }
        case 6u: {
            y = safe_tanh(x);
        }
        case 7u: {
            y = clamp(x, p.a, p.b);
        }
        default: {
            y = gated(p.act, x, 1.0);
        }
    }
    put(at, y);
}
