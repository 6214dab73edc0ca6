// The step state, which other kernels only read.
@group(0) @binding(6) var<storage, read_write> next: array<u32>;

// A row becomes that of its next token.
fn advance(row: u32, token: u32) {
    let at = ROWS_AT + ROW * row;
    next[at] = token;
    next[at + 1u] += 1u;
    for (var i = 3u; i < 7u; i++) {
        next[at + i] += 1u;
    }
    next[at + 7u] = NO_FEATURE;
}
