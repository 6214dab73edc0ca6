// Contexts are divided into splits of fixed places. Split s of a row has its largest score, the sum of its weights and its weighted
// values in the scratch of the command.

// The last position that a row sees.
fn last_seen(row: u32) -> u32 {
    return select(reach_of(row), position_of(row), command.p.causal != 0u);
}

// The positions of a split that the row sees: the first, and the one after the last.
fn split_of(row: u32, split: u32) -> vec2<u32> {
    let at = command.at;
    let end = last_seen(row) + 1u;
    let first = window_start(position_of(row), command.p.window, command.p.chunked);
    if at.splits == 1u {
        return vec2(first, end);
    }
    return vec2(max(first, split * at.split), min(end, (split + 1u) * at.split));
}

// True if the first split has all positions that the row sees: then nothing is joined.
fn is_whole(row: u32) -> bool {
    return command.at.splits == 1u || last_seen(row) < command.at.split;
}

fn partial_place(row: u32, head: u32, split: u32, head_dim: u32) -> u32 {
    return command.at.scratch + ((row * command.p.heads + head) * command.at.splits + split) * (head_dim + 2u);
}
