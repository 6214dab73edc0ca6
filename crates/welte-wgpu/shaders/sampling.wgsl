// What the kernels of sampling share: sample_adjust.wgsl, sample_gather.wgsl, then sample_choose.wgsl.
//
// `weight0` has the settings of every slot (context/samplers.rs). After the step state every slot has a history: the index of its
// next token, how many tokens it has, and the tokens, a ring of `entries`. It begins at `lists`.
//
// The logits of a row are divided into `splits` parts of `split` elements. The scratch has a block for each row: a record for each
// part, a list for each part, then the row's logits with biases and penalties.
struct Params { n: u32, logits_stride: u32 }

// Words of a slot's settings before its biases: token and value.
const TEMPERATURE = 0u;
const TOP_K = 1u;
const TOP_P = 2u;
const LEAST = 3u; // the logarithm of min-p
const REPEAT = 4u;
const FREQUENCY = 5u;
const PRESENCE = 6u;
const LAST_N = 7u; // 0 without penalties
const SEED = 8u;
const BIASES = 10u;
const ZERO = 11u;

// Words of a part's record.
const RECORD = 6u;
const LARGEST = 0u;
const PLACE = 1u;
const ODD = 2u;
// If the row has filters: elements of the list, and the weights of all elements and of those in the list.
const COUNT = 3u;
const WHOLE = 4u;
const LISTED = 5u;
// Otherwise: the largest key, its token, and the second largest key.
const KEY = 3u;
const TOKEN = 4u;
const SECOND = 5u;

// A logit that is not a number, or impossible.
const NEVER = 0xffffffffu;

fn setting(slot: u32, word: u32) -> u32 {
    return weight0[slot * SETTINGS + word];
}

fn float_setting(slot: u32, word: u32) -> f32 {
    return bitcast<f32>(setting(slot, word));
}

// Some elements may be left out before the draw. Kernels that ask for all have no such filter.
fn has_filters(slot: u32) -> bool {
    return setting(slot, TOP_K) > 0u || float_setting(slot, TOP_P) < 1.0;
}

fn block_of(row: u32) -> u32 {
    return command.at.scratch + row * command.at.count;
}

fn record_of(row: u32, part: u32) -> u32 {
    return block_of(row) + part * RECORD;
}

fn list_of(row: u32, part: u32) -> u32 {
    return block_of(row) + command.at.splits * RECORD + part * CAPACITY;
}

// The logits that tokens are chosen from.
fn logits_of(row: u32, slot: u32) -> u32 {
    if setting(slot, BIASES) > 0u || setting(slot, LAST_N) > 0u {
        return adjusted_of(row);
    }
    return command.at.a + row * command.p.logits_stride;
}

fn adjusted_of(row: u32) -> u32 {
    return list_of(row, command.at.splits);
}

fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u;
}

// The rank of a distance from the largest logit, which is not above 0: 0 for the largest.
fn order_of(distance: f32) -> u32 {
    let bits = bitcast<u32>(distance);
    if (bits & 0x7fffffffu) >= 0x7f800000u {
        return NEVER;
    }
    if bits == 0u {
        return 0u;
    }
    return 1u + (bits & 0x7fffffffu);
}
