// `y += sum over the chosen experts of share * (W x + bias)`: OUTPUTS outputs per workgroup.
struct Params { n: u32, k: u32, experts: u32, used: u32, x_stride: u32, choice_stride: u32, y_stride: u32 }

const OUTPUTS = TEAMS * OWN;

// Where the rows of the matrix of the nth chosen expert begin. The expert may lie in another piece of the matrix.
fn bases_of(choice: u32, nth: u32, outputs: Bases) -> Bases {
    let rows = outputs + (mem[choice + nth] - command.at.first) * command.p.n;
    return rows * row_words(command.p.k);
}

fn is_here(choice: u32, nth: u32) -> bool {
    return mem[choice + nth] - command.at.first < command.at.count;
}

//for apart
var<workgroup> here: u32;

//end apart
@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, invocation: Invocation) {
    let t = number_of(invocation);
    let p = command.p;
    let first = id.x * OUTPUTS;
    // The invocation stores output `own` of its team.
    let own = t % TEAM;
    let output = first + t / TEAM * OWN + own;
    let outputs = min(Bases(first + t / TEAM * OWN) + NUMBERS % Bases(OWN), Bases(p.n - 1u));
    let choice = command.at.b + id.z * p.choice_stride;
    let x = command.at.a + id.z * p.x_stride;
    var sum = vec4(0.0);
    //for together
    // The vectors of all experts lie in workgroup memory.
    let end = units(p.k);
    if is_here(choice, 0u) {
        fetch(bases_of(choice, 0u, outputs), own, end, p.k);
    }
    prepare(Input(x, p.used * p.k), 0u, t);
    workgroupBarrier();
    for (var i = 0u; i < p.used; i++) {
        sums[0] = vec4(0.0);
        let here = is_here(choice, i);
        if here {
            accumulate(1u, p.k, 0u, places(i * p.k), bases_of(choice, i, outputs), own, end);
        }
        if i + 1u < p.used && is_here(choice, i + 1u) {
            fetch(bases_of(choice, i + 1u, outputs), own, end, p.k);
        }
        if here {
            sum = fma(vec4(float_at(choice + p.used + i)), sums[0], sum);
        }
    }
    //end together
    //for prepared
    for (var i = 0u; i < p.used; i++) {
        if is_here(choice, i) {
            first_row = id.z * p.used + i;
            sums[0] = vec4(0.0);
            accumulate(1u, p.k, 0u, 0u, bases_of(choice, i, outputs), own, units(p.k));
            sum = fma(vec4(float_at(choice + p.used + i)), sums[0], sum);
        }
    }
    //end prepared
    //for apart
    for (var i = 0u; i < p.used; i++) {
        if t == 0u {
            here = u32(is_here(choice, i));
        }
        if workgroupUniformLoad(&here) == 1u {
            let bases = bases_of(choice, i, outputs);
            let input = Input(x + i * p.k, p.k);
            fetch_first(input, 0u, bases, t);
            multiply(input, bases, false, t);
            sum = fma(vec4(float_at(choice + p.used + i)), sums[0], sum);
        }
    }
    //end apart
    let all = sum_of_team(t, sum, TEAM);
    if own < OWN && output < p.n {
        var bias = 0.0;
        for (var i = 0u; has(1u) && i < p.used; i++) {
            if is_here(choice, i) {
                bias = fma(float_at(choice + p.used + i), weight1[mem[choice + i] * p.n + output], bias);
            }
        }
        let y = command.at.c + id.z * p.y_stride + output;
        put(y, float_at(y) + all[own] + bias);
    }
}
