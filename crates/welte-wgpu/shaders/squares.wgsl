// Sums of squares for RMS norms. A vector's squares are added in parts of PART elements; lane j of LANES adds up every LANES-th part; then the
// lanes are added as a tree.

const LANES = 32u;

// Four elements of a vector from i on, with zeros beyond its end.
fn input_quad(x: u32, i: u32, k: u32) -> vec4<f32> {
    if PADDED && i + 4u > k {
        var quad = vec4(0.0);
        for (var j = 0u; j < 4u; j++) {
            if i + j < k {
                quad[j] = float_at(x + i + j);
            }
        }
        return quad;
    }
    return quad_at(x + i);
}

fn add_squares(quad: vec4<f32>, sum: f32) -> f32 {
    return fma(quad.w, quad.w, fma(quad.z, quad.z, fma(quad.y, quad.y, fma(quad.x, quad.x, sum))));
}

// What a norm multiplies by, after the first invocation has the sum of squares.
fn norm_factor(squares: f32, k: u32, eps: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(k) + eps);
}
