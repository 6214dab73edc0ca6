// Blocks of 32 whose byte j holds elements j and j + 16.
const WHOLE = true;

fn groups_of(unit: u32) -> vec2<u32> {
    return vec2(2u * unit, 2u * unit + 1u);
}

fn four_words(at: u32) -> vec4<u32> {
    return vec4(weight0[at], weight0[at + 1u], weight0[at + 2u], weight0[at + 3u]);
}

// The fifth bits of 16 elements, each in its byte.
fn fifth_bits(bits: u32) -> vec4<u32> {
    let four = (vec4(bits) >> vec4(0u, 4u, 8u, 12u)) & vec4(15u);
    return ((four * 0x00204081u) & vec4(0x01010101u)) << vec4(4u);
}
