// The arena as words.
@group(0) @binding(0) var<storage, read_write> mem: array<u32>;

fn float_at(i: u32) -> f32 {
    return bitcast<f32>(mem[i]);
}

fn put(i: u32, value: f32) {
    mem[i] = bitcast<u32>(value);
}
