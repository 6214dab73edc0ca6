struct Params { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, softcap: f32, q_stride: u32, y_stride: u32, causal: u32, chunked: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let end = select(reach_of(id.z), position_of(id.z), p.causal != 0u) + 1u;
    let first = window_start(position_of(id.z), p.window, p.chunked);
    var sink = LOWEST;
    if has(0u) {
        sink = vector0(id.x);
    }
    let q = command.at.a + id.z * p.q_stride + id.x * HEAD_DIM;
    let y = command.at.c + id.z * p.y_stride + id.x * HEAD_DIM;
    attend(id.z, id.x, id.x / (p.heads / p.kv_heads), q, y, t, first, end, p.scale, p.softcap, sink);
}
