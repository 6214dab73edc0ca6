fn element(at: u32, i: u32) -> f32 {
    return cached(at, i);
}

fn key_place(row: u32, kv_head: u32, position: u32) -> u32 {
    return head_place(0u, kv_head, command.p.kv_heads, slot_of(row), position, HEAD_DIM);
}

fn value_place(row: u32, kv_head: u32, position: u32) -> u32 {
    return head_place(1u, kv_head, command.p.kv_heads, slot_of(row), position, HEAD_DIM);
}

// Scores add nothing for the distance.
fn near(row: u32, head: u32, position: u32) -> f32 {
    return 0.0;
}
