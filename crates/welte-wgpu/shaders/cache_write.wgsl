// Stores keys and values: an element (F16) or a block of 32 (Q8_0). Words may be shared with a neighbouring head, which another
// invocation writes, so each half of a word is replaced by itself.
@group(0) @binding(6) var<storage, read_write> cache: array<atomic<u32>>;

fn put16(at: u32, value: u32) {
    let shift = 16u * (at % 2u);
    atomicAnd(&cache[at / 2u], 0xffff0000u >> shift);
    atomicOr(&cache[at / 2u], (value & 0xffffu) << shift);
}

// Stores the unit at `x` of the head that begins at `place`.
fn store(place: u32, unit: u32, x: u32) {
    if UNIT_ELEMENTS == 1u {
        put16(place + unit, pack2x16float(vec2(float_at(x), 0.0)));
        return;
    }
    var most = 0.0;
    for (var i = 0u; i < 32u; i++) {
        most = max(most, abs(float_at(x + i)));
    }
    let d = most / 127.0;
    var inverse = 0.0;
    if d != 0.0 {
        inverse = 1.0 / d;
    }
    let at = place + unit * 17u;
    put16(at, pack2x16float(vec2(d, 0.0)));
    for (var i = 0u; i < 16u; i++) {
        let low = u32(i32(round(float_at(x + 2u * i) * inverse))) & 0xffu;
        let high = u32(i32(round(float_at(x + 2u * i + 1u) * inverse))) & 0xffu;
        put16(at + 1u + i, low | (high << 8u));
    }
}
