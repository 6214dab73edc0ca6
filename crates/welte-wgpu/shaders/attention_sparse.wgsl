// Every row sees the positions that were chosen for it.
struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, used: u32, q_stride: u32, chosen_stride: u32, y_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let end = min(reach_of(id.z) + 1u, p.used);
    let q = command.at.a + id.z * p.q_stride + id.x * HEAD_DIM;
    let y = command.at.d + id.z * p.y_stride + id.x * HEAD_DIM;
    attend(id.z, id.x, id.x / (p.heads / p.kv_heads), q, y, t, 0u, end, p.scale, 0.0, LOWEST);
}
