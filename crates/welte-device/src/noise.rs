//! The noise of sampling, which every device computes alike.

/// Gumbel noise: a function of the seed, the position of the new token and the index in the vocabulary, and of nothing
/// else.
pub fn noise(seed: u64, position: u32, index: u32) -> f32 {
    let key = key_of(seed, position);
    let bits = mix(key ^ (index as u64).wrapping_mul(INDEX_FACTOR)) >> 32;
    let uniform = (bits as f64 + 0.5) / 4_294_967_296.0;
    -(-uniform.ln()).ln() as f32
}

/// A uniform number from 0 to 1, both excluded, of a seed and the position of the new token. It is independent of the
/// noise of all tokens.
pub fn chance(seed: u64, position: u32) -> f64 {
    let key = key_of(seed, position);
    let bits = mix(key ^ (1u64 << 32).wrapping_mul(INDEX_FACTOR)) >> 12;
    (bits as f64 + 0.5) / (1u64 << 52) as f64
}

const INDEX_FACTOR: u64 = 0xd134_2543_de82_ef95;

fn key_of(seed: u64, position: u32) -> u64 {
    mix(seed ^ mix(position as u64 ^ 0x9e37_79b9_7f4a_7c15))
}

/// A bijection of 64 bits that looks random.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
