// Products and quotients with the same rounding as on the host, on every driver.

// `x * y`. No compiler can fuse it with an addition, because it does not know that `zero` is zero.
fn rounded_product(x: f32, y: f32, zero: f32) -> f32 {
    return fma(x, y, zero);
}

// `x / y` for positive numbers; neither they nor the result are tiny. GPUs may divide less precisely.
fn rounded_quotient(x: f32, y: f32) -> f32 {
    let a = bitcast<u32>(x);
    let b = bitcast<u32>(y);
    var rest = (a & 0x7fffffu) | 0x800000u;
    let by = (b & 0x7fffffu) | 0x800000u;
    var exponent = (a >> 23u) + 127u - (b >> 23u);
    if rest < by {
        rest <<= 1u;
        exponent -= 1u;
    }
    var digits = 0u;
    for (var i = 0u; i < 24u; i++) {
        digits <<= 1u;
        if rest >= by {
            rest -= by;
            digits |= 1u;
        }
        rest <<= 1u;
    }
    if rest > by || (rest == by && (digits & 1u) == 1u) {
        digits++;
    }
    return bitcast<f32>((exponent << 23u) + digits - 0x800000u);
}
