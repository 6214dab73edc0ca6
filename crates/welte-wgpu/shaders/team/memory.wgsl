// Sums of teams through workgroup memory.

struct Invocation {
    @builtin(local_invocation_index) index: u32,
}

// The number of an invocation in its workgroup.
fn number_of(invocation: Invocation) -> u32 {
    return invocation.index;
}

// Adds up the values of every `size` neighbours, as a tree. The first of them has the sum.
fn add_partials(t: u32, value: vec4<f32>, size: u32) {
    workgroupBarrier();
    partial[t] = value;
    for (var half = size / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t % size < half {
            partial[t] += partial[t + half];
        }
    }
    workgroupBarrier();
}
