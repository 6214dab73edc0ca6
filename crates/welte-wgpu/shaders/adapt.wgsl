// Low-rank parts of products. A bank has a place for each adapter (`Bank` of welte-table): ranks and scales of its sets, A, then B, in
// halves. Of `Place`, `pages` are the words of a place, `split` and `entries` those before A and B, `scratch` is where the adapters of
// slots are: two words each.
@group(0) @binding(6) var<storage, read_write> bank: array<u32>;

const NO_ADAPTER = 0xffffffffu;

// Where the place of a row's adapter begins; NO_ADAPTER: it has none.
fn place_of(row: u32) -> u32 {
    let number = mem[command.at.scratch + 2u * slot_at(row)];
    return select(number * command.at.pages, NO_ADAPTER, number == NO_ADAPTER);
}

fn scale_of(row: u32) -> f32 {
    return float_at(command.at.scratch + 2u * slot_at(row) + 1u);
}

// The slot of an input row, or of a chosen one.
fn slot_at(row: u32) -> u32 {
    if command.at.live == 1u {
        return slot_of(state[command.at.outputs + row]);
    }
    return slot_of(row);
}

// Rank and scale of a set.
fn rank_of(place: u32, number: u32) -> u32 {
    return bank[place + 2u * number];
}

fn scale_of_set(place: u32, number: u32) -> f32 {
    return bitcast<f32>(bank[place + 2u * number + 1u]);
}

// A value of A or B, which begin at a word.
fn half_at(begin: u32, i: u32) -> f32 {
    return unpack2x16float(bank[begin + i / 2u])[i % 2u];
}
