// The sum of the values of every `size` neighbours, as a tree in workgroup memory.
fn sum_as_tree(t: u32, value: vec4<f32>, size: u32) -> vec4<f32> {
    workgroupBarrier();
    partial[t] = value;
    for (var half = size / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t % size < half {
            partial[t] += partial[t + half];
        }
    }
    workgroupBarrier();
    return partial[t - t % size];
}
