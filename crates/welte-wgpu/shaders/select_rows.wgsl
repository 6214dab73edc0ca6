struct Params { n: u32, x_stride: u32, y_stride: u32 }

fn width() -> u32 {
    return command.p.n;
}

fn each(output: u32, i: u32) {
    let p = command.p;
    let row = state[command.at.outputs + output];
    mem[command.at.b + output * p.y_stride + i] = mem[command.at.a + row * p.x_stride + i];
}
