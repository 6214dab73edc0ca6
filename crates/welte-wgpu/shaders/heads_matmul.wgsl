struct Params { heads: u32, n: u32, k: u32, tail: u32, transposed: u32, x_head: u32, y_head: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.heads * (command.p.n + command.p.tail);
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
    let n = i - p.tail;
    var first = head * p.n * p.k + n * p.k;
    var distance = 1u;
    if p.transposed == 1u {
        first = head * p.n * p.k + n;
        distance = p.n;
    }
    var sum = 0.0;
    for (var k = 0u; k < p.k; k++) {
        sum += vector0(first + k * distance) * float_at(x + k);
    }
    put(y + i, sum);
}
