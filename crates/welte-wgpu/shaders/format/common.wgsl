// The first weight as words of 16 bytes.
@group(0) @binding(8) var<storage, read> weight4: array<vec4<u32>>;

// A unit of a matrix row: two quads of elements that are loaded together. A format says which elements they are (`quads`) and
// loads them (`load`). A row has whole blocks of WORDS words, then the scales that are stored apart, TAIL bytes each, and is
// padded to 16 bytes.
struct Eight {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn row_words(k: u32) -> u32 {
    let blocks = (k + BLOCK - 1u) / BLOCK;
    return (blocks * WORDS + (blocks * TAIL + 3u) / 4u + 3u) / 4u * 4u;
}

// The scale of 16 bits of a block that is stored apart.
fn tail16(row: u32, block: u32, k: u32) -> f32 {
    return half_of(tail_word(row, block, k), block);
}

// The word that it lies in.
fn tail_word(row: u32, block: u32, k: u32) -> u32 {
    return weight0[row + k / BLOCK * WORDS + block / 2u];
}

fn half_of(word: u32, block: u32) -> f32 {
    return unpack2x16float(word >> (16u * (block % 2u))).x;
}

fn bf16(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

// The bytes of a word, the first in the lowest bits.
fn bytes(word: u32) -> vec4<u32> {
    return vec4(word, word >> 8u, word >> 16u, word >> 24u) & vec4(0xffu);
}

fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(word));
}

// Byte i of the block at word `base`.
fn byte_at(base: u32, i: u32) -> u32 {
    return (weight0[base + i / 4u] >> (8u * (i % 4u))) & 0xffu;
}

// The lower and the upper four bits of each byte.
fn low4(word: u32) -> vec4<u32> {
    return bytes(word & 0x0f0f0f0fu);
}

fn high4(word: u32) -> vec4<u32> {
    return bytes((word >> 4u) & 0x0f0f0f0fu);
}

fn in_order(unit: u32) -> vec2<u32> {
    return vec2(8u * unit, 8u * unit + 4u);
}

// In blocks of 32, byte j holds elements j and j + 16.
fn halves_of_32(unit: u32) -> vec2<u32> {
    let first = unit / 4u * 32u + unit % 4u * 4u;
    return vec2(first, first + 16u);
}

// The value of a byte of the format E4M3.
fn e4m3(byte: u32) -> f32 {
    let exponent = (byte >> 3u) & 15u;
    let mantissa = byte & 7u;
    var size = bitcast<f32>(((exponent + 120u) << 23u) | (mantissa << 20u));
    if exponent == 0u {
        size = f32(mantissa) / 512.0;
    }
    return select(size, -size, byte > 127u);
}
