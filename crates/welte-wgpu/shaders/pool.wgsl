// Pools the rows of each chosen row's slot, or a group of neighbours: a workgroup per output.
struct Params { n: u32, kind: u32, normalise: u32, x_stride: u32, y_stride: u32, group: u32 }

// A value of the nth of the neighbours that end with the chosen row. Row 0 is repeated for rows before it.
fn of_group(chosen: u32, nth: u32, i: u32) -> f32 {
    let end = chosen + 1u + nth;
    let row = max(end, command.p.group) - command.p.group;
    return float_at(command.at.a + row * command.p.x_stride + i);
}

fn pooled(chosen: u32, i: u32) -> f32 {
    let p = command.p;
    if p.kind == 3u {
        return of_group(chosen, i / p.n, i % p.n);
    }
    if p.kind == 4u {
        return of_group(chosen, i % p.group, i / p.group);
    }
    if p.kind != 1u {
        return of_group(chosen, select(0u, p.group - 1u, p.kind == 0u), i);
    }
    var sum = 0.0;
    for (var nth = 0u; nth < p.group; nth++) {
        sum += of_group(chosen, nth, i);
    }
    return sum / f32(p.group);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let chosen = state[command.at.outputs + id.z];
    let slot = slot_of(chosen);
    var squares = 0.0;
    let y = command.at.b + id.z * p.y_stride;
    let width = select(p.n, p.n * p.group, p.group != 0u && p.kind >= 3u);
    for (var i = t; i < width; i += WG) {
        var value = 0.0;
        var count = 0.0;
        // The last row is known.
        let begin = select(0u, chosen, p.kind == 0u);
        for (var row = begin; row <= chosen && p.group == 0u; row++) {
            if slot_of(row) == slot {
                let x = float_at(command.at.a + row * p.x_stride + i);
                if p.kind == 1u {
                    value += x;
                } else if p.kind == 5u && count > 0.0 {
                    value = max(value, x);
                } else if p.kind == 0u || count == 0.0 {
                    value = x;
                }
                count += 1.0;
            }
        }
        if p.group != 0u {
            value = pooled(chosen, i);
        } else if p.kind == 1u {
            value /= count;
        }
        put(y + i, value);
        squares += value * value;
    }
    if p.normalise == 1u {
        let length = max(sqrt(sum_of_all(t, squares)), 1e-12);
        for (var i = t; i < width; i += WG) {
            put(y + i, float_at(y + i) / length);
        }
    }
}
