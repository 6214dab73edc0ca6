// Elements as matmul_packed_rows.wgsl reads them: groups of 16 integers, then the sum and the scale of each. An invocation has a block of 32.

fn prepare(x: u32, y: u32, block: u32) {
    let k = command.p.dim;
    if block >= k / 32u {
        return;
    }
    var bits = 0u;
    //for v
    let v$v = weighed(x, 32u * block + 4u * $vu);
    bits = max(bits, largest_bits(v$v));
    //end v
    let scale = scale_of(bits);
    let a = vec4(rounded(v0 * scale.y), rounded(v1 * scale.y), rounded(v2 * scale.y), rounded(v3 * scale.y));
    let b = vec4(rounded(v4 * scale.y), rounded(v5 * scale.y), rounded(v6 * scale.y), rounded(v7 * scale.y));
    prepared[y + 2u * block] = a;
    prepared[y + 2u * block + 1u] = b;
    prepared[y + k / 16u + block] = bitcast<vec4<u32>>(vec4(total(a), scale.x, total(b), scale.x));
}
