//! The noise of sampling, which every device computes alike.

/// Gumbel noise: a function of the seed, the position of the new token and the index in the vocabulary, and of nothing
/// else.
pub fn noise(seed: u64, position: u32, index: u32) -> f32 {
    let key = mix(seed ^ mix(position as u64 ^ 0x9e37_79b9_7f4a_7c15));
    let bits = mix(key ^ (index as u64).wrapping_mul(0xd134_2543_de82_ef95)) >> 32;
    let uniform = (bits as f64 + 0.5) / 4_294_967_296.0;
    -(-uniform.ln()).ln() as f32
}

/// A bijection of 64 bits that looks random.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
