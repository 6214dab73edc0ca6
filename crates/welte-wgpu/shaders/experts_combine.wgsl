// `y += sum over the chosen experts of share * (grouped product + bias)`.
struct Params { n: u32, used: u32, choice_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n / 4u;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let choice = command.at.b + row * p.choice_stride;
    var sum = vec4(0.0);
    for (var nth = 0u; nth < p.used; nth++) {
        var value = quad_at(command.at.a + (row * p.used + nth) * p.n + 4u * i);
        if has(1u) {
            let bias = mem[choice + nth] * p.n + 4u * i;
            value += vec4(weight1[bias], weight1[bias + 1u], weight1[bias + 2u], weight1[bias + 3u]);
        }
        sum = fma(vec4(float_at(choice + p.used + nth)), value, sum);
    }
    let y = command.at.c + row * p.y_stride + 4u * i;
    put_quad(y, quad_at(y) + sum);
}
