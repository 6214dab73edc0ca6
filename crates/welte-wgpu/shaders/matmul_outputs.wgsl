// Outputs of products: `y = W x`, `y += W x` if ADDS, `y = act(gate x) * up x` if PAIRED, of the normed x if NORM. Workgroups take groups of
// outputs in turn.
struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32, eps: f32, act: u32 }

// Outputs of a workgroup at a time.
const OUTPUTS = TEAMS * OWN;

// The sums of every team: invocation s of the team writes slot s.
fn gather(t: u32) {
    var own = vec4(0.0);
    //for s
    let sum$s = sum_of_team(t, sums[$s], TEAM);
    if t % TEAM == $su {
        own = sum$s;
    }
    //end s
    workgroupBarrier();
    partial[t] = own;
    workgroupBarrier();
}

// Output o of vector m.
fn output(m: u32, o: u32) -> f32 {
    let i = m * EACH + o % OWN;
    let slot = partial[o / OWN * TEAM + i / 4u];
    var factor = 1.0;
    if NORM {
        factor = norm_of(m);
    }
    if PAIRED {
        return gated(command.p.act, factor * slot[i % 4u], factor * slot[i % 4u + OWN]);
    }
    return factor * slot[i % 4u];
}

// Writes the outputs from `first` on of each row. The first row begins at word `base`.
fn store(base: u32, first: u32, count: u32, rows: u32, t: u32) {
    for (var i = t; i < rows * (OUTPUTS / 4u); i += WG) {
        let m = i / (OUTPUTS / 4u);
        let o = i % (OUTPUTS / 4u) * 4u;
        let y = command.at.b + base + m * command.p.y_stride + command.at.first + first + o;
        if first + o + 4u <= count {
            var values = vec4(output(m, o), output(m, o + 1u), output(m, o + 2u), output(m, o + 3u));
            if ADDS {
                values += quad_at(y);
            }
            put_quad(y, values);
        } else {
            for (var j = 0u; first + o + j < count; j++) {
                var value = output(m, o + j);
                if ADDS {
                    value += float_at(y + j);
                }
                put(y + j, value);
            }
        }
    }
}

// The matrix rows of an invocation's team, for the outputs from `first` on. Beyond the last output it is the last one.
fn own_rows(first: u32, count: u32, t: u32) -> Bases {
    let own = Bases(first + t / TEAM * OWN) + NUMBERS % Bases(OWN);
    let rows = min(own, Bases(count - 1u));
    if PAIRED {
        return rows + NUMBERS / Bases(OWN) * command.p.n;
    }
    return rows;
}

fn number_of_outputs() -> u32 {
    return select(command.at.count, command.p.n, PAIRED);
}
