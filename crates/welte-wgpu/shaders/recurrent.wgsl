// State of sequences: `[layer][page][floats]`. The rows of a slot are computed by one invocation or workgroup, in their order:
// that of the slot's first row in the step.
@group(0) @binding(6) var<storage, read_write> cache: array<f32>;

fn is_first_of_slot(row: u32) -> bool {
    let slot = slot_of(row);
    for (var other = 0u; other < row; other++) {
        if slot_of(other) == slot {
            return false;
        }
    }
    return true;
}

// The next row of the same slot, or the number of rows.
fn next_of_slot(row: u32) -> u32 {
    let slot = slot_of(row);
    var other = row + 1u;
    while other < state[0] && slot_of(other) != slot {
        other++;
    }
    return other;
}

fn state_place(row: u32, floats: u32) -> u32 {
    let page = pages[command.at.lists + slot_of(row)];
    return command.at.first + page * floats;
}
