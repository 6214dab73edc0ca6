// Prepares rows for `matmul_rows.wgsl`. The first quad of a row has the factor of its norm, which workgroup 0 of the row computes if NORM; the
// others prepare elements.
struct Params { dim: u32, groups: u32, eps: f32, x_stride: u32, y_stride: u32 }

// At the place of a cache.
@group(0) @binding(6) var<storage, read_write> prepared: array<vec4<u32>>;

var<workgroup> partial: array<vec4<f32>, WG>;
var<workgroup> parts: array<f32, WG>;

fn write_norm(x: u32, y: u32, t: u32) {
    let k = command.p.dim;
    var squares = 0.0;
    for (var first = 0u; first < k; first += WG * PART) {
        var part = 0.0;
        for (var i = first + t * PART; i < min(first + (t + 1u) * PART, k); i += 4u) {
            part = add_squares(input_quad(x, i, k), part);
        }
        workgroupBarrier();
        parts[t] = part;
        workgroupBarrier();
        for (var i = t % LANES; i < WG; i += LANES) {
            squares += parts[i];
        }
    }
    let sum = sum_of_team(t, vec4(squares), LANES);
    if t == 0u {
        prepared[y] = vec4(bitcast<u32>(norm_factor(sum.x, k, command.p.eps)));
    }
}

// Four elements from i on, times the weights of the norm.
fn weighed(x: u32, i: u32) -> vec4<f32> {
    let quad = input_quad(x, i, command.p.dim);
    if NORM {
        return quad * norm_quad(i, command.p.dim);
    }
    return quad;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, invocation: Invocation) {
    let t = number_of(invocation);
    let x = command.at.a + id.z * command.p.x_stride + id.y * command.p.dim;
    let y = (id.z * command.p.groups + id.y) * (command.p.y_stride / 4u);
    let others = select(0u, 1u, NORM);
    if id.x < others {
        write_norm(x, y, t);
    } else {
        prepare(x, y + 1u, (id.x - others) * WG + t);
    }
}
