// A matrix for each head. An invocation makes one output of a head, or copies one value of its tail.
struct Params { heads: u32, n: u32, k: u32, tail: u32, x_head: u32, y_head: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.heads * (command.p.n + command.p.tail);
}

// Elements of x from `first` on; those past the end of the head count as zero.
fn four(x: u32, first: u32) -> vec4<f32> {
    var values = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        if first + i < command.p.k {
            values[i] = float_at(x + first + i);
        }
    }
    return values;
}

fn each(row: u32, index: u32) {
    let p = command.p;
    let head = index / (p.n + p.tail);
    let i = index % (p.n + p.tail);
    let x = command.at.a + row * p.x_stride + head * p.x_head;
    let y = command.at.b + row * p.y_stride + head * p.y_head;
    if i < p.tail {
        put(y + i, float_at(x + p.k + i));
        return;
    }
    // The row may lie in another piece of the matrices.
    let output = head * p.n + i - p.tail - command.at.first;
    if output >= command.at.count {
        return;
    }
    var sum = 0.0;
    for (var unit = 0u; 8u * unit < p.k; unit++) {
        let places = quads(unit);
        let values = load(output * row_words(p.k), unit, p.k);
        sum += dot(values.a, four(x, places.x)) + dot(values.b, four(x, places.y));
    }
    put(y + i, sum);
}
