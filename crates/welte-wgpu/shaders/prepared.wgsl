// Rows as `prepare.wgsl` left them, PREPARED words each. They have a buffer of their own, at the place of the page lists, because GPUs keep
// what a kernel cannot write in faster caches.
@group(0) @binding(7) var<storage, read> prepared: array<vec4<u32>>;

// The first row of the workgroup.
var<private> first_row: u32;

// Quad i of row m after its norm's factor.
fn prepared_quad(m: u32, i: u32) -> vec4<u32> {
    return prepared[(first_row + m) * (PREPARED / 4u) + 1u + i];
}

fn norm_of(m: u32) -> f32 {
    return bitcast<f32>(prepared[(first_row + m) * (PREPARED / 4u)].x);
}
