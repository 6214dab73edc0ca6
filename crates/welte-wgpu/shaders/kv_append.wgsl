// Stores a row's keys and values. An invocation writes one element (F16) or one block of 32 (Q8_0). Words may be shared with a
// neighbouring head, which another invocation writes, so each half of a word is replaced by itself.
struct Params { layer: u32, kv_heads: u32, head_dim: u32, k_stride: u32, v_stride: u32 }

@group(0) @binding(6) var<storage, read_write> cache: array<atomic<u32>>;

fn put16(at: u32, value: u32) {
    let shift = 16u * (at % 2u);
    atomicAnd(&cache[at / 2u], 0xffff0000u >> shift);
    atomicOr(&cache[at / 2u], (value & 0xffffu) << shift);
}

fn width() -> u32 {
    return 2u * command.p.kv_heads * (command.p.head_dim / UNIT_ELEMENTS);
}

fn each(row: u32, index: u32) {
    let p = command.p;
    let units = p.head_dim / UNIT_ELEMENTS;
    let unit = index % units;
    let head = index / units % p.kv_heads;
    let part = index / units / p.kv_heads;
    var x = command.at.a + row * p.k_stride;
    if part == 1u {
        x = command.at.b + row * p.v_stride;
    }
    x += head * p.head_dim + unit * UNIT_ELEMENTS;
    let place = head_place(part, head, p.kv_heads, slot_of(row), position_of(row), p.head_dim);
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
    put16(place + unit * 17u, pack2x16float(vec2(d, 0.0)));
    for (var i = 0u; i < 16u; i++) {
        let low = u32(i32(round(float_at(x + 2u * i) * inverse))) & 0xffu;
        let high = u32(i32(round(float_at(x + 2u * i + 1u) * inverse))) & 0xffu;
        put16(place + unit * 17u + 1u + i, low | (high << 8u));
    }
}
