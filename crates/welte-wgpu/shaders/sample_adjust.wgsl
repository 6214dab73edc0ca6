// Adds biases and penalties to one part of a row's logits, and finds the largest of them: a workgroup for each part.

var<workgroup> odd: atomic<u32>;

fn with_biases(slot: u32, bits: u32, token: u32) -> u32 {
    let biases = slot * SETTINGS + SETTINGS_HEAD;
    let count = setting(slot, BIASES);
    // They are in the order of their tokens.
    var low = 0u;
    var high = count;
    while low < high {
        let middle = (low + high) / 2u;
        if weight0[biases + 2u * middle] < token {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    var value = bits;
    for (; low < count && weight0[biases + 2u * low] == token; low++) {
        let bias = weight0[biases + 2u * low + 1u];
        if bias == 0xff800000u && is_finite(bitcast<f32>(value)) {
            value = bias;
        } else {
            value = bitcast<u32>(bitcast<f32>(value) + bitcast<f32>(bias));
        }
    }
    return value;
}

fn penalised(slot: u32, value: f32, count: u32) -> f32 {
    let repeat = float_setting(slot, REPEAT);
    let zero = float_setting(slot, ZERO);
    var repeated = value;
    if value > 0.0 && is_finite(value) {
        repeated = rounded_quotient(value, repeat);
    } else if is_finite(value) {
        repeated = rounded_product(value, repeat, zero);
    }
    let frequency = rounded_product(f32(count), float_setting(slot, FREQUENCY), zero);
    return repeated - frequency - float_setting(slot, PRESENCE);
}

// A token of the history: 0 is the last one.
fn recent(slot: u32, nth: u32) -> u32 {
    let entries = command.at.entries;
    let at = command.at.lists + slot * (entries + 2u);
    return state[at + 2u + (state[at] + entries - 1u - nth) % entries];
}

// Tiny numbers and minus zero: GPUs may flush them to zero. They are left to the host.
fn is_odd(bits: u32) -> bool {
    return bits != 0u && (bits & 0x7f800000u) < 0x0d800000u;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let slot = slot_of(id.z);
    let raw = command.at.a + id.z * command.p.logits_stride;
    let first = id.x * command.at.split;
    let end = min(command.p.n, first + command.at.split);
    let adjusted = adjusted_of(id.z);
    if t == 0u {
        atomicStore(&odd, 0u);
    }
    workgroupBarrier();
    if setting(slot, BIASES) > 0u || setting(slot, LAST_N) > 0u {
        for (var i = first + t; i < end; i += WG) {
            let bits = mem[raw + i];
            if is_odd(bits) {
                atomicStore(&odd, 1u);
            }
            mem[adjusted + i] = with_biases(slot, bits, i);
        }
        storageBarrier();
        let history = command.at.lists + slot * (command.at.entries + 2u);
        let count = min(setting(slot, LAST_N), state[history + 1u]);
        for (var nth = t; nth < count; nth += WG) {
            let token = recent(slot, nth);
            if token < first || token >= end {
                continue;
            }
            // The last occurrence counts the others.
            var times = 1u;
            for (var other = 0u; other < count; other++) {
                if other != nth && recent(slot, other) == token {
                    if other < nth {
                        times = 0u;
                        break;
                    }
                    times++;
                }
            }
            if times > 0u {
                let value = float_at(adjusted + token);
                if is_odd(bitcast<u32>(value)) {
                    atomicStore(&odd, 1u);
                }
                put(adjusted + token, penalised(slot, value, times));
            }
        }
        storageBarrier();
    }
    let logits = logits_of(id.z, slot);
    var most = 0.0;
    var place = NOWHERE;
    for (var i = first + t; i < end; i += WG) {
        let value = float_at(logits + i);
        if is_odd(bitcast<u32>(value)) {
            atomicStore(&odd, 1u);
        }
        if !is_nan(value) && is_better(value, i, most, place) {
            most = value;
            place = i;
        }
    }
    find_best(t, most, place);
    if t == 0u {
        let record = record_of(id.z, id.x);
        put(record + LARGEST, largest[0]);
        mem[record + PLACE] = places[0];
        mem[record + ODD] = atomicLoad(&odd);
    }
}
