// `h = scale * A[token]`; 0 of a row that reads a feature.
struct Params { n: u32, k: u32, rank: u32, scale: f32, h_stride: u32 }

fn width() -> u32 {
    return command.p.rank;
}

fn each(row: u32, i: u32) {
    let p = command.p;
    let place = place_of(row);
    var value = 0.0;
    if place != NO_ADAPTER && feature_of(row) == NO_FEATURE {
        if i < rank_of(place, 0u) {
            let a = half_at(place + command.at.split, mem[command.at.a + row] * p.rank + i);
            value = scale_of(row) * scale_of_set(place, 0u) * p.scale * a;
        }
    }
    put(command.at.c + row * p.h_stride + i, value);
}
