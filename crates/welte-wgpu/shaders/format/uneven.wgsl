const UNEVEN = array<u32, 4>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);

// The values of IQ4_NL and IQ4_XS, denser around zero.
fn uneven(q: vec4<u32>) -> vec4<f32> {
    var table = UNEVEN;
    var values: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        values[i] = f32(extractBits(bitcast<i32>(table[q[i] / 4u]), 8u * (q[i] % 4u), 8u));
    }
    return values;
}
