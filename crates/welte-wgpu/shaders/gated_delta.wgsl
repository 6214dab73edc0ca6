// BY_CHANNEL: the rows of a state decay apart from each other, and the third part of a row's numbers is what is kept of them.
struct Params { layer: u32, key_heads: u32, heads: u32, key_dim: u32, value_dim: u32, tiled: u32, eps: f32, x_stride: u32, gates_stride: u32, y_stride: u32, by_channel: u32 }

struct Step { kept: f32, rate: f32, value: f32 }

fn gates_at(row: u32) -> u32 {
    return command.at.b + row * command.p.gates_stride;
}

// How much of a head's state is kept; of row `own` of all heads' states.
fn kept_of(row: u32, head: u32, own: u32) -> f32 {
    return exp(vector0(head) * softplus(float_at(gates_at(row) + command.p.heads + own) + weight1[own]));
}

// Heads with the same keys and queries.
fn group_of(head: u32) -> u32 {
    let p = command.p;
    return select(head / (p.heads / p.key_heads), head % p.key_heads, p.tiled == 1u);
}

fn element(part: u32, row: u32, head: u32, group: u32, i: u32) -> f32 {
    let p = command.p;
    if part == 2u {
        return kept_of(row, head, head * KEY_DIM + i);
    }
    let keys = select(p.key_heads * KEY_DIM, 0u, part == 1u);
    return float_at(command.at.a + row * p.x_stride + keys + group * KEY_DIM + i);
}

fn step_of(row: u32, head: u32, column: u32) -> Step {
    let p = command.p;
    let values = command.at.a + row * p.x_stride + 2u * p.key_heads * KEY_DIM;
    var step: Step;
    if !BY_CHANNEL {
        step.kept = kept_of(row, head, head);
    }
    step.rate = sigmoid(float_at(gates_at(row) + head));
    step.value = float_at(values + head * p.value_dim + column);
    return step;
}

fn kept_cells(step: Step, keys: u32, quad: u32, own: u32) -> vec4<f32> {
    if BY_CHANNEL {
        return shared_quads[keys + 2u * PADDED + quad];
    }
    return vec4(step.kept);
}

// What the keys, divided by their length, add to the column. `sums` are its product with them, and their squares.
fn change_of(step: Step, sums: vec2<f32>) -> f32 {
    let length = sqrt(sums.y + command.p.eps);
    return step.rate * (step.value - sums.x / length) / length;
}

fn answer_of(step: Step, sums: vec2<f32>, head: u32, column: u32) -> f32 {
    return sums.x / (sqrt(sums.y + command.p.eps) * sqrt(f32(KEY_DIM)));
}
