// Adds up the values of every `size` neighbours, as a tree in workgroup memory. The first of them has the sum.
fn add_as_tree(t: u32, value: vec4<f32>, size: u32) {
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
