// The angle less whole turns. The first two parts of a turn have few bits, so their multiples are exact.
fn within_a_turn(angle: f32) -> f32 {
    let turns = round(angle * 0.15915494309);
    return ((angle - turns * 6.28125) - turns * 0.0019350051879882812) - turns * 3.0199159819567529e-7;
}

// Rotates a pair of a row's values by its position times frequency i.
fn rotate(first: u32, second: u32, row: u32, i: u32, magnitude: f32) {
    let angle = within_a_turn(f32(position_of(row)) * vector0(i));
    let c = cos(angle) * magnitude;
    let s = sin(angle) * magnitude;
    let a = float_at(first);
    let b = float_at(second);
    put(first, a * c - b * s);
    put(second, a * s + b * c);
}
