// Octets of an F16 cache, for heads of whole octets.

const OCTETS = HEAD_DIM / 8u;

// Where a head's octets begin.
fn place(part: u32, kv_head: u32, slot: u32, position: u32) -> u32 {
    return head_place(part, kv_head, command.p.kv_heads, slot, position, HEAD_DIM) / 8u;
}

fn first_four(w: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(w.x), unpack2x16float(w.y));
}

fn last_four(w: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(w.z), unpack2x16float(w.w));
}
