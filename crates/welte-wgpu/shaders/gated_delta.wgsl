// A workgroup for each head of each slot; an invocation has whole columns of the state. BY_CHANNEL: the rows of a state decay apart from
// each other.
struct Params { layer: u32, key_heads: u32, heads: u32, key_dim: u32, value_dim: u32, tiled: u32, eps: f32, x_stride: u32, gates_stride: u32, y_stride: u32, by_channel: u32 }

var<workgroup> key: array<f32, KEY_DIM>;
var<workgroup> query: array<f32, KEY_DIM>;
var<workgroup> keeps: array<f32, KEY_DIM>;

// How much of a head's state is kept; of row `own` of all heads' states.
fn kept_of(head: u32, gates: u32, own: u32) -> f32 {
    return exp(vector0(head) * softplus(float_at(gates + command.p.heads + own) + weight1[own]));
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let head = id.x;
    if !is_first_of_slot(id.z) {
        return;
    }
    let s = state_place(id.z, p.heads * KEY_DIM * p.value_dim) + head * KEY_DIM * p.value_dim;
    var key_head = head / (p.heads / p.key_heads);
    if p.tiled == 1u {
        key_head = head % p.key_heads;
    }
    for (var row = id.z; row < state[0]; row = next_of_slot(row)) {
        let x = command.at.a + row * p.x_stride;
        let gates = command.at.b + row * p.gates_stride;
        let q_at = x + key_head * KEY_DIM;
        let k_at = q_at + p.key_heads * KEY_DIM;
        var q_squares = 0.0;
        var k_squares = 0.0;
        for (var i = t; i < KEY_DIM; i += WG) {
            let q = float_at(q_at + i);
            let k = float_at(k_at + i);
            q_squares += q * q;
            k_squares += k * k;
        }
        let q_length = sqrt(sum_of_all(t, q_squares) + p.eps) * sqrt(f32(KEY_DIM));
        let k_length = sqrt(sum_of_all(t, k_squares) + p.eps);
        for (var i = t; i < KEY_DIM; i += WG) {
            query[i] = float_at(q_at + i) / q_length;
            key[i] = float_at(k_at + i) / k_length;
            if BY_CHANNEL {
                keeps[i] = kept_of(head, gates, head * KEY_DIM + i);
            }
        }
        workgroupBarrier();
        let rate = sigmoid(float_at(gates + head));
        var kept = 0.0;
        if !BY_CHANNEL {
            kept = kept_of(head, gates, head);
        }
        let fresh = position_of(row) == 0u;
        for (var i = t; i < p.value_dim; i += WG) {
            var sum = 0.0;
            for (var j = 0u; j < KEY_DIM; j++) {
                var cell = 0.0;
                // The state before position 0 is zero, even if the page holds other numbers.
                if !fresh {
                    if BY_CHANNEL {
                        kept = keeps[j];
                    }
                    cell = cache[s + j * p.value_dim + i] * kept;
                }
                cache[s + j * p.value_dim + i] = cell;
                sum += cell * key[j];
            }
            let value = float_at(x + 2u * p.key_heads * KEY_DIM + head * p.value_dim + i);
            let change = rate * (value - sum);
            var answer = 0.0;
            for (var j = 0u; j < KEY_DIM; j++) {
                let cell = cache[s + j * p.value_dim + i] + key[j] * change;
                cache[s + j * p.value_dim + i] = cell;
                answer += cell * query[j];
            }
            put(command.at.c + row * p.y_stride + head * p.value_dim + i, answer);
        }
        workgroupBarrier();
    }
}
