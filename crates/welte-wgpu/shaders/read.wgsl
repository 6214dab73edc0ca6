// Reads a buffer once, 16 bytes at a time. Every invocation stores its sum, so that no load is left out.
@group(0) @binding(0) var<storage, read_write> sums: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<vec4<u32>>;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let distance = grid.x * WG;
    var sum = vec4(0u);
    for (var i = id.x; i < arrayLength(&values); i += distance) {
        sum += values[i];
    }
    sums[id.x] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}
