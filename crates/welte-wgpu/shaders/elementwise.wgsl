// Runs `each(row, i)` for i below `width()`.
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < width() {
        each(id.z, id.x);
    }
}
