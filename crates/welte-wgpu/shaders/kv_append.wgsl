// Stores a row's keys and values: an invocation for each unit of a head.
struct Params { layer: u32, kv_heads: u32, head_dim: u32, k_stride: u32, v_stride: u32 }

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
    store(place, unit, x);
}
