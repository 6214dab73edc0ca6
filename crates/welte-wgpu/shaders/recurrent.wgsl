// State of sequences: `[layer][page][floats]`. It passes from row to row of a slot; a slot's first row in the step finds what earlier
// steps left.
@group(0) @binding(6) var<storage, read_write> cache: array<f32>;

const NO_ROW = 0xffffffffu;

// The row of the same slot before, or NO_ROW.
fn previous_of_slot(row: u32) -> u32 {
    let slot = slot_of(row);
    for (var other = row; other > 0u; other--) {
        if slot_of(other - 1u) == slot {
            return other - 1u;
        }
    }
    return NO_ROW;
}

fn is_first_of_slot(row: u32) -> bool {
    return previous_of_slot(row) == NO_ROW;
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

// The last row of a row's slot.
fn last_of_slot(row: u32) -> u32 {
    let slot = slot_of(row);
    var last = state[0] - 1u;
    while slot_of(last) != slot {
        last--;
    }
    return last;
}

fn state_place(row: u32, floats: u32) -> u32 {
    let page = pages[command.at.lists + slot_of(row)];
    return command.at.first + page * floats;
}
