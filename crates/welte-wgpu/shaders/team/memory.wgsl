// Sums of teams through workgroup memory.

struct Invocation {
    @builtin(local_invocation_index) index: u32,
}

// The number of an invocation in its workgroup.
fn number_of(invocation: Invocation) -> u32 {
    return invocation.index;
}

fn sum_of_team(t: u32, value: vec4<f32>, size: u32) -> vec4<f32> {
    return sum_as_tree(t, value, size);
}
