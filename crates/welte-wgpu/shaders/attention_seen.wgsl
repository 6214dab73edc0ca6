// What the rows of prompts see. `Params` of attention have the window, whether it is a chunk, and whether it is causal.

fn end_seen(row: u32) -> u32 {
    return select(reach_of(row), position_of(row), command.p.causal != 0u) + 1u;
}

fn first_seen(row: u32) -> u32 {
    return window_start(position_of(row), command.p.window, command.p.chunked);
}

// Rows from `row` on, before `end`, that are at successive positions of one slot.
fn run_of(row: u32, end: u32) -> u32 {
    var count = 1u;
    while row + count < end && slot_of(row + count) == slot_of(row) && position_of(row + count) == position_of(row) + count {
        count++;
    }
    return count;
}
