// Powers of two that bring numbers into the range of F16. A power is stored as its inverse, which undoes it in the end.

// The inverse for numbers of at most this size: it brings the largest to 2^14 at least and below 2^15. Infinity and NaN stay.
fn inverse_for(most: f32) -> f32 {
    let exponent = bitcast<u32>(most) >> 23u;
    if exponent >= 255u {
        return 1.0;
    }
    return bitcast<f32>((max(exponent, 15u) - 14u) << 23u);
}

// Exact, as a division need not be.
fn power_of(inverse: f32) -> f32 {
    return bitcast<f32>(0x7f000000u - bitcast<u32>(inverse));
}
