// The arena as words.
@group(0) @binding(0) var<storage, read_write> mem: array<u32>;

fn float_at(i: u32) -> f32 {
    return bitcast<f32>(mem[i]);
}

fn put(i: u32, value: f32) {
    mem[i] = bitcast<u32>(value);
}

fn quad_at(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(mem[i], mem[i + 1u], mem[i + 2u], mem[i + 3u]));
}

fn put_quad(i: u32, value: vec4<f32>) {
    let words = bitcast<vec4<u32>>(value);
    mem[i] = words.x;
    mem[i + 1u] = words.y;
    mem[i + 2u] = words.z;
    mem[i + 3u] = words.w;
}
