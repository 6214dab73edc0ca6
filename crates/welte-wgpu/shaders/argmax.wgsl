// The next token of each row: the best of the parts that argmax_part.wgsl has found. Then the row becomes that of the next
// step, and reports the token.
struct Params { n: u32, logits_stride: u32 }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    var value = 0.0;
    var place = NOWHERE;
    if t < command.at.splits {
        let x = command.at.scratch + 2u * (id.z * command.at.splits + t);
        value = float_at(x);
        place = mem[x + 1u];
    }
    find_best(t, value, place);
    if t == 0u {
        var token = places[0];
        if token == NOWHERE {
            token = 0u;
        }
        mem[command.at.first + id.z] = token;
        mem[command.at.b + id.z] = token;
        advance(id.z, token);
    }
}
