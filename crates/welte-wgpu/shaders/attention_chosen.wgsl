// The n-th position that was chosen for a row. A row that sees few sees all.
fn chosen(row: u32, n: u32) -> u32 {
    if reach_of(row) < command.p.used {
        return n;
    }
    return mem[command.at.c + row * command.p.chosen_stride + n];
}

fn element(at: u32, i: u32) -> f32 {
    return cached(at, i);
}

fn key_place(row: u32, kv_head: u32, n: u32) -> u32 {
    return head_place(0u, kv_head, command.p.kv_heads, slot_of(row), chosen(row, n), HEAD_DIM);
}

fn value_place(row: u32, kv_head: u32, n: u32) -> u32 {
    return head_place(1u, kv_head, command.p.kv_heads, slot_of(row), chosen(row, n), HEAD_DIM);
}

// Scores add nothing for the distance.
fn near(row: u32, head: u32, n: u32) -> f32 {
    return 0.0;
}
