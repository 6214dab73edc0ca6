// The products of ROWS rows at a time, which share each read of the matrix.

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    invocation: Invocation,
) {
    let t = number_of(invocation);
    let p = command.p;
    let count = number_of_outputs();
    // Workgroups with the same outputs follow each other, so that later ones find the weights in a cache.
    first_row = id.x * ROWS;
    let rows = min(ROWS, state[command.at.live] - first_row);
    for (var first = id.y * OUTPUTS; first < count; first += grid.y * OUTPUTS) {
        //for s
        sums[$s] = vec4(0.0);
        //end s
        let bases = own_rows(first, count, t) * row_words(p.k);
        accumulate(rows, p.k, 0u, 0u, bases, t % TEAM, units(p.k));
        gather(t);
        store(first_row * p.y_stride, first, count, rows, t);
    }
}
