// Rows for cooperative products lie in the order of units of 32 elements.
const ITEM = 32u;

// The places of the two quads of the i-th eight.
fn eight(i: u32) -> vec2<u32> {
    let groups = groups_of(i / 4u);
    let first = 16u * select(groups.x, groups.y, i % 4u >= 2u) + i % 2u * 8u;
    return vec2(first, first + 4u);
}
