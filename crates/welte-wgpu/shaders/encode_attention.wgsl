struct Params { heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, qkv_stride: u32, y_stride: u32, by_axis: u32, unseen: u32 }

fn element(at: u32, i: u32) -> f32 {
    return float_at(at + i);
}

fn key_place(row: u32, kv_head: u32, other: u32) -> u32 {
    return command.at.a + other * command.p.qkv_stride + (command.p.heads + kv_head) * HEAD_DIM;
}

fn value_place(row: u32, kv_head: u32, other: u32) -> u32 {
    return key_place(row, kv_head + command.p.kv_heads, other);
}

// Whether neighbours belong to one run.
fn together(row: u32, other: u32) -> bool {
    let by_axis = command.p.by_axis != 0u;
    return slot_of(row) == slot_of(other) && (!by_axis || axis_of(row, 0u) == axis_of(other, 0u));
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let row = id.z;
    var first = row;
    while first > 0u && together(row, first - 1u) {
        first--;
    }
    var end = row + 1u;
    while end < state[0] && together(row, end) {
        end++;
    }
    if end - first > p.unseen {
        end -= p.unseen;
    }
    if p.window != 0u {
        end = min(end, row + p.window + 1u);
        if row > p.window {
            first = max(first, row - p.window);
        }
    }
    let q = command.at.a + row * p.qkv_stride + id.x * HEAD_DIM;
    let y = command.at.b + row * p.y_stride + id.x * HEAD_DIM;
    attend(row, id.x, id.x / (p.heads / p.kv_heads), q, y, t, first, end, p.scale, 0.0, LOWEST);
}
