// The arena as quads of floats. Two invocations must not write to one quad, since a write of one of its elements may touch them all.
@group(0) @binding(0) var<storage, read_write> mem: array<vec4<f32>>;

fn float_at(i: u32) -> f32 {
    return mem[i / 4u][i % 4u];
}

fn put(i: u32, value: f32) {
    mem[i / 4u][i % 4u] = value;
}

// i is a multiple of four.
fn quad_at(i: u32) -> vec4<f32> {
    return mem[i / 4u];
}

fn put_quad(i: u32, value: vec4<f32>) {
    mem[i / 4u] = value;
}
