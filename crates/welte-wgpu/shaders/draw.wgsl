// Gumbel-max: the noise of a token, and the largest key of a workgroup. The noise is that of welte-device's noise.rs, but for the
// rounding of its logarithms. So keys here differ from the host's by less than half of KEY_MARGIN.

// Keys that are closer may have another order on the host.
const KEY_MARGIN = 6.103515625e-5;
// Noise is between -3.2 and 22.9, and the largest logit is never left out. A token further below it cannot win.
const HOPELESS = -27.0;

// Integers of 64 bits: the low word, then the high one.
fn product_of_words(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a & 0xffffu) * (b >> 16u);
    let second = (a >> 16u) * (b & 0xffffu);
    let middle = (low >> 16u) + (first & 0xffffu) + (second & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u) + (middle >> 16u);
    return vec2((middle << 16u) | (low & 0xffffu), high);
}

fn product_of_longs(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return product_of_words(a.x, b.x) + vec2(0u, a.x * b.y + a.y * b.x);
}

fn xor_shifted(x: vec2<u32>, by: u32) -> vec2<u32> {
    return x ^ vec2((x.x >> by) | (x.y << (32u - by)), x.y >> by);
}

fn mixed(long: vec2<u32>) -> vec2<u32> {
    let once = product_of_longs(xor_shifted(long, 30u), vec2(0x1ce4e5b9u, 0xbf58476du));
    let twice = product_of_longs(xor_shifted(once, 27u), vec2(0x133111ebu, 0x94d049bbu));
    return xor_shifted(twice, 31u);
}

// What the noise of a position depends on besides the token.
fn noise_key(seed: vec2<u32>, position: u32) -> vec2<u32> {
    return mixed(seed ^ mixed(vec2(position ^ 0x7f4a7c15u, 0x9e3779b9u)));
}

fn noise(key: vec2<u32>, token: u32) -> f32 {
    let bits = mixed(key ^ product_of_longs(vec2(token, 0u), vec2(0xde82ef95u, 0xd1342543u))).y;
    var surprise: f32;
    if bits < 0x80000000u {
        surprise = -log((f32(bits) + 0.5) * 2.3283064365386963e-10);
    } else {
        // -log(1 - c) as a series, because 1 - c would lose the digits of c.
        let c = (f32(~bits) + 0.5) * 2.3283064365386963e-10;
        let s = c / (2.0 - c);
        let q = s * s;
        var series = 1.0 / 17.0;
        series = fma(series, q, 1.0 / 15.0);
        series = fma(series, q, 1.0 / 13.0);
        series = fma(series, q, 1.0 / 11.0);
        series = fma(series, q, 1.0 / 9.0);
        series = fma(series, q, 1.0 / 7.0);
        series = fma(series, q, 1.0 / 5.0);
        series = fma(series, q, 1.0 / 3.0);
        surprise = 2.0 * fma(series * q, s, s);
    }
    return -log(surprise);
}

struct Draw {
    // Of NOWHERE: none.
    token: u32,
    key: f32,
    second: f32,
}

const NO_DRAW = Draw(NOWHERE, LOWEST, LOWEST);

var<workgroup> draws: array<Draw, WG>;

fn better_of(a: Draw, b: Draw) -> Draw {
    if b.key > a.key {
        return Draw(b.token, b.key, max(b.second, a.key));
    }
    return Draw(a.token, a.key, max(a.second, b.key));
}

// With another token, which is `below` the largest logit.
fn with_token(draw: Draw, key: vec2<u32>, temperature: f32, below: f32, token: u32) -> Draw {
    let warm = below / temperature;
    if !(warm >= HOPELESS) {
        return draw;
    }
    return better_of(draw, Draw(token, warm + noise(key, token), LOWEST));
}

// The best of a workgroup's draws.
fn best_draw(t: u32, draw: Draw) -> Draw {
    workgroupBarrier();
    draws[t] = draw;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t < half {
            draws[t] = better_of(draws[t], draws[t + half]);
        }
    }
    workgroupBarrier();
    return draws[0];
}
