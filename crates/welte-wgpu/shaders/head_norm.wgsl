// The norm of a head before its rope.

// The sums of squares of a head's elements: each of 64 invocations has those of every 64th element.
var<workgroup> turned_squares: array<f32, 64u * NORMED_HEADS>;

// The factor of a head whose sums begin at `first`: `eps` is added to the mean.
fn norm_factor(first: u32, head_dim: u32, eps: f32) -> f32 {
    var sums = vec4(0.0);
    for (var i = first; i < first + 64u; i += 4u) {
        sums += vec4(turned_squares[i], turned_squares[i + 1u], turned_squares[i + 2u], turned_squares[i + 3u]);
    }
    return 1.0 / sqrt(((sums.x + sums.y) + (sums.z + sums.w)) / f32(head_dim) + eps);
}
