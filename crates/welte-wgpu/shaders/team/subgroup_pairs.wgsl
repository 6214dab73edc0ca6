// The largest element of a block, of which each of two neighbours has half: neighbours are in one subgroup.

fn tell_largest(group: u32, bits: u32) {}

fn largest_of_pair(group: u32, bits: u32) -> u32 {
    return max(bits, subgroupShuffleXor(bits, 1u));
}

fn wait_for_pairs() {}
