// Products of a matrix with one row, as in matmul.wgsl, for formats that load 32 elements at once (`dot32`) and rows of whole such
// blocks. Invocation t takes blocks t, t + WG, ….

@group(0) @binding(8) var<storage, read> weight4: array<vec4<u32>>;

fn products(rows: vec4<u32>, x: u32, k: u32, t: u32) -> vec4<f32> {
    let bases = rows * (row_words(k) / 4u);
    var sum = vec4(0.0);
    for (var block = t; block < k / 32u; block += WG) {
        let at = x / 4u + block * 8u;
        var values: array<vec4<f32>, 8>;
        for (var i = 0u; i < 8u; i++) {
            values[i] = mem[at + i];
        }
        sum += vec4(
            dot32(bases.x, block, k, &values),
            dot32(bases.y, block, k, &values),
            dot32(bases.z, block, k, &values),
            dot32(bases.w, block, k, &values),
        );
    }
    return sum;
}

// The scale of 16 bits of a block that is stored apart. Block `k / BLOCK` is where they begin.
fn wide_tail16(row: u32, block: u32, k: u32) -> f32 {
    let word = k / BLOCK * WORDS + block / 2u;
    return unpack2x16float(weight4[row + word / 4u][word % 4u] >> (16u * (block % 2u))).x;
}

fn low_quad(word: u32) -> vec4<f32> {
    return vec4<f32>(bytes(word & 0x0f0f0f0fu));
}

fn high_quad(word: u32) -> vec4<f32> {
    return vec4<f32>(bytes((word >> 4u) & 0x0f0f0f0fu));
}
