struct Params { n: u32, k: u32, scale: f32, x_stride: u32 }

fn width() -> u32 {
    return (command.p.k + 7u) / 8u;
}

fn each(row: u32, unit: u32) {
    let p = command.p;
    let feature = feature_of(row);
    if has(1u) && feature != NO_FEATURE {
        // Of the pieces of the table the first one.
        if command.at.first == 0u {
            let given = command.at.scratch + feature * command.at.split;
            let x = command.at.b + row * p.x_stride;
            for (var i = 8u * unit; i < min(8u * unit + 8u, p.k); i++) {
                put(x + i, float_at(given + i));
            }
        }
        return;
    }
    let token = mem[command.at.a + row] - command.at.first;
    if token >= command.at.count {
        return;
    }
    let places = quads(unit);
    let values = load(token * row_words(p.k), unit, p.k);
    let x = command.at.b + row * p.x_stride;
    for (var i = 0u; i < 4u; i++) {
        if places.x + i < p.k {
            put(x + places.x + i, values.a[i] * p.scale);
        }
        if places.y + i < p.k {
            put(x + places.y + i, values.b[i] * p.scale);
        }
    }
}
