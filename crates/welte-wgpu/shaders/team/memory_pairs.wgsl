// The largest element of a block, of which each of two neighbours has half: through the totals, which come later.

fn tell_largest(group: u32, bits: u32) {
    totals[group] = bitcast<f32>(bits);
}

fn largest_of_pair(group: u32, bits: u32) -> u32 {
    let first = group / 2u * 2u;
    return max(bitcast<u32>(totals[first]), bitcast<u32>(totals[first + 1u]));
}

fn wait_for_pairs() {
    workgroupBarrier();
}
