// `y = W x` of up to ROWS rows: `y += W x` if ADDS, `y = act(gate x) * up x` if PAIRED, of the normed x if NORM. Workgroups take
// groups of outputs in turn, and keep vectors that fit into one chunk.
struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32, eps: f32, act: u32 }

// Outputs of a workgroup at a time, and vectors whose outputs lie in one slot.
const OUTPUTS = TEAMS * OWN;
const TOGETHER = min(ROWS, 4u / EACH);

// Output o of vector m, whose slot was added up.
fn output(slot: u32, m: u32, o: u32) -> f32 {
    let team = partial[o / OWN * TEAM];
    let c = m * EACH + o % OWN - 4u * slot;
    var factor = 1.0;
    if NORM {
        factor = norms[m];
    }
    if PAIRED {
        return gated(command.p.act, factor * team[c], factor * team[c + OWN]);
    }
    return factor * team[c];
}

fn store(slot: u32, base: u32, first: u32, count: u32, rows: u32, t: u32) {
    let m = slot * TOGETHER + t / (OUTPUTS / 4u);
    let o = t % (OUTPUTS / 4u) * 4u;
    if t >= OUTPUTS / 4u * TOGETHER || m >= rows || first + o >= count {
        return;
    }
    let y = command.at.b + base + m * command.p.y_stride + command.at.first + first + o;
    var values = vec4(output(slot, m, o), output(slot, m, o + 1u), output(slot, m, o + 2u), output(slot, m, o + 3u));
    if first + o + 4u <= count {
        if ADDS {
            values += quad_at(y);
        }
        put_quad(y, values);
        return;
    }
    for (var i = 0u; i < count - first - o; i++) {
        if ADDS {
            values[i] += float_at(y + i);
        }
        put(y + i, values[i]);
    }
}

// The matrix rows of an invocation's team, for the outputs from `first` on. Beyond the last output it is the last one.
fn own_rows(first: u32, count: u32, t: u32) -> vec2<u32> {
    let own = vec2(first + t / TEAM * OWN) + vec2(0u, 1u) % vec2(OWN);
    let rows = min(own, vec2(count - 1u));
    return select(rows, rows + vec2(0u, 1u) / vec2(OWN) * command.p.n, vec2(PAIRED));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    invocation: Invocation,
) {
    let t = number_of(invocation);
    let p = command.p;
    let begin = id.x * OUTPUTS;
    let count = select(command.at.count, p.n, PAIRED);
    var bases = own_rows(begin, count, t) * row_words(p.k);
    let first_row = id.z * ROWS;
    let input = Inputs(command.at.a + first_row * p.x_stride, p.x_stride, min(ROWS, state[command.at.live] - first_row), p.k);
    let y = first_row * p.y_stride;
    fetch_first(input, 0u, bases, t);
    if NORM && ROWS > 1u {
        find_norms(input, p.eps, t);
    }
    for (var first = begin; first < count; first += grid.x * OUTPUTS) {
        if first != begin {
            bases = own_rows(first, count, t) * row_words(p.k);
            fetch_first(input, 0u, bases, t);
        }
        let squares = multiply(input, bases, first != begin && p.k <= CHUNK, t);
        if NORM && ROWS == 1u && first == begin {
            norm_of_one(input, p.eps, squares, t);
        }
        //for s
        add_partials(t, sums[$s], TEAM);
        store($su, y, first, count, input.rows, t);
        //end s
    }
}
