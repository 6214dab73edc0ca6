// Rows for cooperative products lie in the order of units of eight elements.
const ITEM = 8u;

// The places of the two quads of the i-th eight.
fn eight(i: u32) -> vec2<u32> {
    return quads(i);
}
