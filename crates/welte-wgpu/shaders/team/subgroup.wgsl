// Sums of teams through the registers of a subgroup, in the order of tree.wgsl. Larger teams use workgroup memory.

struct Invocation {
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

// The number of an invocation in its workgroup: those of a subgroup follow each other, which no API promises of the local index.
fn number_of(invocation: Invocation) -> u32 {
    return invocation.subgroup * SUBGROUP + invocation.lane;
}

// The sum of the values of every `size` neighbours, as a tree.
fn sum_of_team(t: u32, value: vec4<f32>, size: u32) -> vec4<f32> {
    if size > SUBGROUP {
        return sum_as_tree(t, value, size);
    }
    var sum = value;
    for (var half = size / 2u; half > 0u; half /= 2u) {
        sum += subgroupShuffleXor(sum, half);
    }
    return sum;
}
