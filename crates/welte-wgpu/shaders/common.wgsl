// What every kernel shares. Buffers of activations lie in one arena, `mem` (arena.wgsl); the operands of a command are places in it.

struct Place {
    // First words of the command's operands, in their order.
    a: u32,
    b: u32,
    c: u32,
    d: u32,
    // Of a weight that is divided: the first row (token, expert) of this piece, and how many it has. Of a cache: where the
    // layer begins in the binding, in units of 16 bits (attention) or 32 bits (recurrent state). Of a choice: where the chosen
    // tokens are reported, and the words of a row in the scratch.
    first: u32,
    count: u32,
    // Bit i: optional weight i is there.
    flags: u32,
    // Where the numbers of the chosen rows begin in `state`.
    outputs: u32,
    // The cache: its pages, positions of a page, entries of a slot's list, and where the lists begin in `pages`. Of a choice: entries
    // of a slot's history, and where the histories begin in `state`.
    pages: u32,
    page: u32,
    entries: u32,
    lists: u32,
    // Intermediates of this command alone. Of `embed` and `add_feature`: where the
    // features begin. Flag 1 says whether an `embed` takes any.
    scratch: u32,
    // Of a context or of a row of logits: how many parts there are, and their positions or elements. `split` of features: their floats.
    splits: u32,
    split: u32,
    // The word of `state` that has the current number of rows.
    live: u32,
}

struct Command {
    at: Place,
    p: Params,
}

@group(0) @binding(1) var<uniform> command: Command;
// Rows, outputs, two free words; then ROW words of every row: token, position, slot, reach, three axes, feature; then the numbers of the
// chosen rows; then the histories of all slots (sampling.wgsl).
@group(0) @binding(2) var<storage, read> state: array<u32>;
@group(0) @binding(3) var<storage, read> weight0: array<u32>;
@group(0) @binding(4) var<storage, read> weight1: array<f32>;
@group(0) @binding(5) var<storage, read> weight2: array<f32>;
@group(0) @binding(7) var<storage, read> pages: array<u32>;

const ROWS_AT = 4u;
const ROW = 8u;
const NO_FEATURE = 0xffffffffu;
const LOWEST = -3.4028234e38;

fn token_of(row: u32) -> u32 {
    return state[ROWS_AT + ROW * row];
}

fn position_of(row: u32) -> u32 {
    return state[ROWS_AT + ROW * row + 1u];
}

fn slot_of(row: u32) -> u32 {
    return state[ROWS_AT + ROW * row + 2u];
}

// The last position that a row attends to.
fn reach_of(row: u32) -> u32 {
    return state[ROWS_AT + ROW * row + 3u];
}

fn axis_of(row: u32, axis: u32) -> u32 {
    return state[ROWS_AT + ROW * row + 4u + axis];
}

// The number of the feature that a row reads in place of its token.
fn feature_of(row: u32) -> u32 {
    return state[ROWS_AT + ROW * row + 7u];
}

// What the angle of a pair is proportional to. `sections` says which axis each pair follows; 0: all follow the position.
fn coordinate_of(row: u32, sections: u32, pair: u32) -> u32 {
    if sections == 0u {
        return position_of(row);
    }
    let time = sections & 255u;
    let height = (sections >> 8u) & 255u;
    if (sections >> 24u) != 0u {
        let turn = pair % 3u;
        let has_turn = turn > 0u && pair / 3u < ((sections >> (8u * turn)) & 255u);
        return axis_of(row, select(0u, turn, has_turn));
    }
    return axis_of(row, select(select(2u, 1u, pair < time + height), 0u, pair < time));
}

fn has(weight: u32) -> bool {
    return ((command.at.flags >> weight) & 1u) == 1u;
}

// The first position that the row at a position sees. A window of 0 means no window; one that is `chunked` begins at a multiple of its size.
fn window_start(position: u32, window: u32, chunked: u32) -> u32 {
    if chunked != 0u {
        return position - position % window;
    }
    return select(0u, position + 1u - window, window != 0u && position + 1u > window);
}

// The first weight as a vector.
fn vector0(i: u32) -> f32 {
    return bitcast<f32>(weight0[i]);
}

fn is_nan(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u;
}

// Some drivers give NaN for large numbers, and `clamp` may lose a NaN.
fn safe_tanh(x: f32) -> f32 {
    if is_nan(x) {
        return x;
    }
    return tanh(clamp(x, -15.0, 15.0));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

// Abramowitz and Stegun 7.1.26: off by at most 1.5e-7.
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    let poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return sign(x) * (1.0 - poly * exp(-x * x));
}

// `act(gate) * up`
fn gated(act: u32, gate: f32, up: f32) -> f32 {
    switch act {
        case 0u: {
            return gate * sigmoid(gate) * up;
        }
        case 1u: {
            let inner = 0.7978845608 * (gate + 0.044715 * gate * gate * gate);
            return 0.5 * gate * (1.0 + safe_tanh(inner)) * up;
        }
        case 2u: {
            return 0.5 * gate * (1.0 + erf(gate * 0.7071067812)) * up;
        }
        default: {
            let least = min(gate, 7.0);
            return least * sigmoid(1.702 * least) * (clamp(up, -7.0, 7.0) + 1.0);
        }
    }
}

fn softplus(x: f32) -> f32 {
    return max(x, 0.0) + log(1.0 + exp(-abs(x)));
}
