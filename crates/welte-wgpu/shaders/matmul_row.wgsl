// The product of one row. Workgroups keep a vector that fits into one chunk.

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    invocation: Invocation,
) {
    let t = number_of(invocation);
    let p = command.p;
    let count = number_of_outputs();
    let input = Input(command.at.a + id.z * p.x_stride, p.k);
    var first = id.x * OUTPUTS;
    var bases = own_rows(first, count, t) * row_words(p.k);
    var ready = false;
    fetch_first(input, 0u, bases, t);
    while first < count {
        let squares = multiply(input, bases, ready && p.k <= CHUNK, t);
        let next = first + grid.x * OUTPUTS;
        if next < count {
            bases = own_rows(next, count, t) * row_words(p.k);
            fetch_first(input, 0u, bases, t);
        }
        if NORM && !ready {
            let sum = sum_of_team(t, vec4(squares), LANES);
            if t == 0u {
                norm = norm_factor(sum.x, p.k, p.eps);
            }
        }
        gather(t);
        store(id.z * p.y_stride, first, count, 1u, t);
        first = next;
        ready = true;
    }
}
