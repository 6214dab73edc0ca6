// Every row sees the first positions of its slot, whatever its own.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, positions: u32, q_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let q = command.at.a + id.z * p.q_stride + id.x * HEAD_DIM;
    let y = command.at.c + id.z * p.y_stride + id.x * HEAD_DIM;
    attend(id.z, id.x, id.x / (p.heads / p.kv_heads), q, y, t, 0u, p.positions, p.scale, 0.0, LOWEST);
}
