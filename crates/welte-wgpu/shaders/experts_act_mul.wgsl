// `y[i] = act(gate x) * up x` of each chosen expert, or `relu(up x)^2` without a gate (activation 4). Without activation (5, and 6
// without a gate) all gates come before all ups. A workgroup has OUTPUTS outputs of one expert.
struct Params { n: u32, k: u32, experts: u32, used: u32, act: u32, x_stride: u32, choice_stride: u32, y_stride: u32 }

const OUTPUTS = TEAMS * OWN;

var<workgroup> chosen: u32;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, invocation: Invocation) {
    let t = number_of(invocation);
    let p = command.p;
    let first = id.x * OUTPUTS;
    if t == 0u {
        chosen = mem[command.at.b + id.z * p.choice_stride + id.y];
    }
    let expert = workgroupUniformLoad(&chosen);
    // The expert may lie in another piece of the matrix.
    if expert - command.at.first >= command.at.count {
        return;
    }
    // Without a gate both halves are up.
    let up_rows = select(p.n, 0u, p.act == 4u || p.act == 6u);
    let each = p.n + up_rows;
    let outputs = min(Bases(first + t / TEAM * OWN) + NUMBERS % Bases(OWN), Bases(p.n - 1u));
    let rows = outputs + NUMBERS / Bases(OWN) * up_rows + (expert - command.at.first) * each;
    //for alone
    let input = Input(command.at.a + id.z * p.x_stride, p.k);
    fetch_first(input, 0u, rows * row_words(p.k), t);
    multiply(input, rows * row_words(p.k), false, t);
    //end alone
    //for prepared
    first_row = id.z;
    sums[0] = vec4(0.0);
    accumulate(1u, p.k, 0u, 0u, rows * row_words(p.k), t % TEAM, units(p.k));
    //end prepared
    let sum = sum_of_team(t, sums[0], TEAM);
    // The invocation stores output `own` of its team.
    let own = t % TEAM;
    let output = first + t / TEAM * OWN + own;
    if own < OWN && output < p.n {
        var gate = sum[own];
        var up = sum[own + OWN];
        if has(1u) {
            let bias = expert * each + output;
            gate += weight1[bias];
            up += weight1[bias + up_rows];
        }
        let y = command.at.c + id.z * p.y_stride + output;
        switch p.act {
            case 4u: {
                let above = max(up, 0.0);
                put(y + id.y * p.n, above * above);
            }
            case 5u, 6u: {
                put(y + id.y * each, gate);
                put(y + id.y * each + up_rows, up);
            }
            default: {
                put(y + id.y * p.n, gated(p.act, gate, up));
            }
        }
    }
}
