// Several streams of hidden states. A coefficient is the product of a row of the first weight with `tanh(scale * x)`, a value for
// each stream.
const MOST_STREAMS = 8u;

fn coefficient(index: u32, x: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < command.p.streams; i++) {
        sum += vector0(index * command.p.streams + i) * safe_tanh(command.p.scale * float_at(x + i));
    }
    return sum;
}
