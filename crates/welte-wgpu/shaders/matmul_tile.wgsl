// Products of a matrix with many rows: a workgroup computes 32 rows of 64 outputs, an invocation 4 rows of 8. Weights are widened
// once per workgroup. A sum is one chain over the units of k in order.
struct Params { n: u32, k: u32, x_stride: u32, y_stride: u32 }

const ROWS = 32u;
const OUTPUTS = 64u;
const UNITS = 4u;

// By element of the units at hand, then by output or row.
var<workgroup> weights: array<f32, 8 * UNITS * OUTPUTS>;
var<workgroup> inputs: array<f32, 8 * UNITS * ROWS>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let p = command.p;
    let first = (id.x + id.y * grid.x) * OUTPUTS;
    if first >= command.at.count {
        return;
    }
    let first_row = id.z * ROWS;
    let rows = state[0] - first_row;
    let all_units = (p.k + 7u) / 8u;
    let own_outputs = t % 8u * 8u;
    let own_rows = t / 8u * 4u;
    var sums: array<array<f32, 8>, 4>;
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 8u; j++) {
            sums[i][j] = 0.0;
        }
    }
    for (var unit = 0u; unit < all_units; unit += UNITS) {
        for (var i = t; i < OUTPUTS * UNITS; i += WG) {
            let output = i / UNITS;
            let u = i % UNITS;
            var values = Eight(vec4(0.0), vec4(0.0));
            if unit + u < all_units && first + output < command.at.count {
                values = load((first + output) * row_words(p.k), unit + u, p.k);
            }
            for (var j = 0u; j < 4u; j++) {
                weights[(8u * u + j) * OUTPUTS + output] = values.a[j];
                weights[(8u * u + 4u + j) * OUTPUTS + output] = values.b[j];
            }
        }
        for (var i = t; i < ROWS * UNITS * 2u; i += WG) {
            let row = i / (UNITS * 2u);
            let quad = i % (UNITS * 2u);
            let places = quads(unit + quad / 2u);
            let place = select(places.x, places.y, quad % 2u == 1u);
            let x = command.at.a + (first_row + row) * p.x_stride + place;
            for (var j = 0u; j < 4u; j++) {
                var value = 0.0;
                if row < rows && place + j < p.k && unit + quad / 2u < all_units {
                    value = float_at(x + j);
                }
                inputs[(4u * quad + j) * ROWS + row] = value;
            }
        }
        workgroupBarrier();
        for (var e = 0u; e < 8u * UNITS; e++) {
            for (var i = 0u; i < 4u; i++) {
                let x = inputs[e * ROWS + own_rows + i];
                for (var j = 0u; j < 8u; j++) {
                    sums[i][j] += x * weights[e * OUTPUTS + own_outputs + j];
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 8u; j++) {
            let output = first + own_outputs + j;
            if own_rows + i < rows && output < command.at.count {
                let y = command.at.b + (first_row + own_rows + i) * p.y_stride + command.at.first + output;
                var value = sums[i][j];
                if ADDS {
                    value += float_at(y);
                }
                put(y, value);
            }
        }
    }
}
