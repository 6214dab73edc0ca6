// `y += sum over the chosen experts of share * (W x + bias)`: OUTPUTS outputs per workgroup.
struct Params { n: u32, k: u32, experts: u32, used: u32, x_stride: u32, choice_stride: u32, y_stride: u32 }

const OUTPUTS = TEAMS * OWN;

var<workgroup> chosen: u32;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, invocation: Invocation) {
    let t = number_of(invocation);
    let p = command.p;
    let first = id.x * OUTPUTS;
    let outputs = min(vec2(first + t / TEAM * OWN) + vec2(0u, 1u) % vec2(OWN), vec2(p.n - 1u));
    let choice = command.at.b + id.z * p.choice_stride;
    var sum = vec4(0.0);
    var bias = 0.0;
    for (var i = 0u; i < p.used; i++) {
        if t == 0u {
            chosen = mem[choice + i];
        }
        let expert = workgroupUniformLoad(&chosen);
        // The expert may lie in another piece of the matrix.
        if expert - command.at.first < command.at.count {
            let share = float_at(choice + p.used + i);
            let rows = outputs + (expert - command.at.first) * p.n;
            let input = Inputs(command.at.a + id.z * p.x_stride + i * p.k, 0u, 1u, p.k);
            fetch_first(input, 0u, rows * row_words(p.k), t);
            multiply(input, rows * row_words(p.k), false, t);
            sum = fma(vec4(share), sums[0], sum);
            if has(1u) && t < OUTPUTS && first + t < p.n {
                bias = fma(share, weight1[expert * p.n + first + t], bias);
            }
        }
    }
    add_partials(t, sum, TEAM);
    if t < OUTPUTS && first + t < p.n {
        let y = command.at.c + id.z * p.y_stride + first + t;
        put(y, float_at(y) + partial[t / OWN * TEAM][t % OWN] + bias);
    }
}
