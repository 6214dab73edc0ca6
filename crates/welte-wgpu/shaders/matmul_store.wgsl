// How products with many rows store their outputs.

// Stores four outputs of a row from `output` on, those that the piece has; `y += values` if ADDS.
fn store_outputs(row: u32, output: u32, values: vec4<f32>) {
    let at = command.at;
    let y = at.b + row * command.p.y_stride + at.first + output;
    if ALIGNED {
        var value = values;
        if ADDS {
            value += quad_at(y);
        }
        put_quad(y, value);
        return;
    }
    for (var j = 0u; j < min(4u, at.count - output); j++) {
        var value = values[j];
        if ADDS {
            value += float_at(y + j);
        }
        put(y + j, value);
    }
}
