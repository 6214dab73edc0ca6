//! f16 fields inside blocks.

use half::f16;

/// The f16 at byte `at`, as f32.
pub(super) fn get(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores a value as the f16 at byte `at`.
pub(super) fn put(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The nearest number that is finite and within the range of f16; zero for NaN.
pub(super) fn tame(x: f32) -> f32 {
    const LARGEST: f32 = 65504.0;
    if x.is_nan() {
        0.0
    } else {
        x.clamp(-LARGEST, LARGEST)
    }
}
