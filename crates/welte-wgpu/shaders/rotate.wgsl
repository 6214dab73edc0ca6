// The angle less whole turns. The first two parts of a turn have few bits, so their multiples are exact.
fn within_a_turn(angle: f32) -> f32 {
    let turns = round(angle * 0.15915494309);
    return fma(-turns, 3.0199159819567529e-7, fma(-turns, 0.0019350051879882812, fma(-turns, 6.28125, angle)));
}

// A pair of a row's values, rotated by its coordinate times frequency i.
fn turned_pair(pair: vec2<f32>, row: u32, i: u32, magnitude: f32) -> vec2<f32> {
    let angle = within_a_turn(f32(coordinate_of(row, command.p.sections, i)) * vector0(i));
    let c = cos(angle) * magnitude;
    let s = sin(angle) * magnitude;
    return vec2(fma(pair.x, c, -(pair.y * s)), fma(pair.x, s, pair.y * c));
}

// Which values of a head make pair i of those that are rotated.
fn pair_of(i: u32, rot: u32, interleaved: u32) -> vec2<u32> {
    if interleaved != 0u {
        return vec2(2u * i, 2u * i + 1u);
    }
    return vec2(i, i + rot / 2u);
}

// Rotates pair i of the head that begins at `y`.
fn rotate(y: u32, rot: u32, interleaved: u32, row: u32, i: u32, magnitude: f32) {
    let at = vec2(y) + pair_of(i, rot, interleaved);
    let turned = turned_pair(vec2(float_at(at.x), float_at(at.y)), row, i, magnitude);
    put(at.x, turned.x);
    put(at.y, turned.y);
}
