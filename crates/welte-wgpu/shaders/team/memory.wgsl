// Sums of teams through workgroup memory.

struct Invocation {
    @builtin(local_invocation_index) index: u32,
}

// The number of an invocation in its workgroup.
fn number_of(invocation: Invocation) -> u32 {
    return invocation.index;
}

fn add_partials(t: u32, value: vec4<f32>, size: u32) {
    add_as_tree(t, value, size);
}
