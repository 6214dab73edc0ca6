// BY_CHANNEL: columns have time steps of their own, and the elements of a state decays.
struct Params { layer: u32, groups: u32, heads: u32, key_dim: u32, value_dim: u32, x_stride: u32, dt_stride: u32, y_stride: u32, by_channel: u32 }

struct Step { kept: f32, time: f32, value: f32 }

// Heads with the same keys and queries.
fn group_of(head: u32) -> u32 {
    return head / (command.p.heads / command.p.groups);
}

fn element(part: u32, row: u32, head: u32, group: u32, i: u32) -> f32 {
    let p = command.p;
    let keys = command.at.a + row * p.x_stride + p.heads * p.value_dim;
    return float_at(keys + (part * p.groups + group) * KEY_DIM + i);
}

// Where a column's time step and its share of the input lie.
fn time_at(head: u32, column: u32) -> u32 {
    return select(head, head * command.p.value_dim + column, BY_CHANNEL);
}

fn step_of(row: u32, head: u32, column: u32) -> Step {
    let p = command.p;
    let time = time_at(head, column);
    var step: Step;
    step.time = softplus(float_at(command.at.b + row * p.dt_stride + time) + weight1[time]);
    step.value = float_at(command.at.a + row * p.x_stride + head * p.value_dim + column);
    if !BY_CHANNEL {
        step.kept = exp(vector0(head) * step.time);
    }
    return step;
}

fn kept_cells(step: Step, keys: u32, quad: u32, own: u32) -> vec4<f32> {
    if BY_CHANNEL {
        var decays = vec4(0.0);
        for (var i = 0u; i < 4u; i++) {
            if 4u * quad + i < KEY_DIM {
                decays[i] = vector0(own + (4u * quad + i) * command.p.value_dim);
            }
        }
        return exp(decays * step.time);
    }
    return vec4(step.kept);
}

fn change_of(step: Step, sums: vec2<f32>) -> f32 {
    return step.time * step.value;
}

fn answer_of(step: Step, sums: vec2<f32>, head: u32, column: u32) -> f32 {
    return sums.x + weight2[time_at(head, column)] * step.value;
}
