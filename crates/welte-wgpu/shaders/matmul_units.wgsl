// For every format: invocation t takes units t, t + WG, … of eight elements of k.

fn input(at: u32, i: u32, k: u32) -> f32 {
    if PADDED && i >= k {
        return 0.0;
    }
    return float_at(at + i);
}

fn inputs(at: u32, i: u32, k: u32) -> vec4<f32> {
    return vec4(input(at, i, k), input(at, i + 1u, k), input(at, i + 2u, k), input(at, i + 3u, k));
}

// This invocation's part of the products of four matrix rows with the vector at `x`.
fn products(rows: vec4<u32>, x: u32, k: u32, t: u32) -> vec4<f32> {
    let bases = rows * row_words(k);
    var sum = vec4(0.0);
    for (var unit = t; unit < (k + 7u) / 8u; unit += WG) {
        let places = quads(unit);
        let xa = inputs(x, places.x, k);
        let xb = inputs(x, places.y, k);
        for (var j = 0u; j < 4u; j++) {
            let w = load(bases[j], unit, k);
            sum[j] += dot(w.a, xa) + dot(w.b, xb);
        }
    }
    return sum;
}
