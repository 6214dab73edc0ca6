// The next token of each row, from what sample_adjust.wgsl and sample_gather.wgsl have found in its parts: a workgroup per row. Then the
// row becomes that of the next step.
//
// Choices are the host's. Where rounding could make a difference, the row stays as it is and reports UNDECIDED.
//
// Top-k finds the last element that it keeps, digit by digit. Top-p draws among all, then adds up the weights before the drawn
// element. If these reach the share that top-p asks for, the element is not kept, and the draw is repeated among those before it.

const UNDECIDED = 0xfffffff0u;
// Sums of weights differ from the host's by less than this part of the whole.
const WEIGHT_MARGIN = 6.103515625e-5;

// Elements in the order of their ranks, then of their places: those up to this one.
struct Limit { order: u32, place: u32 }

var<workgroup> slot_at_hand: u32;
var<workgroup> is_odd: atomic<u32>;
var<workgroup> begins: array<u32, PARTS + 1u>;
var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> sums: array<u32, 16>;
var<workgroup> limit: Limit;
// Of the digits that are known: a bit each, and their values.
var<workgroup> known: u32;
var<workgroup> digits: u32;
var<workgroup> wanted: u32;
var<workgroup> verdict: u32;

const GO_ON = 0u;
const TAKE = 1u;
const LEAVE = 2u;

// The elements to choose from: those listed, or all.
struct Elements { row: u32, all: bool, count: u32, logits: u32, best: f32 }

fn place_of(elements: Elements, nth: u32) -> u32 {
    if elements.all {
        return nth;
    }
    var part = 0u;
    for (var step = PARTS / 2u; step > 0u; step /= 2u) {
        if part + step < command.at.splits && begins[part + step] <= nth {
            part += step;
        }
    }
    return mem[list_of(elements.row, part) + nth - begins[part]];
}

fn below_best(elements: Elements, place: u32) -> f32 {
    return float_at(elements.logits + place) - elements.best;
}

fn is_within(order: u32, place: u32) -> bool {
    return order != NEVER && (order < limit.order || (order == limit.order && place <= limit.place));
}

// Makes the last of the first `count` elements the limit.
fn keep_first(t: u32, elements: Elements, count: u32) {
    if t == 0u {
        known = 0u;
        digits = 0u;
        wanted = count;
    }
    // The digits of the rank, then, on a tie, those of the place.
    for (var nth = 0u; nth < 8u; nth++) {
        let shift = 24u - 8u * (nth % 4u);
        if t == 0u && nth == 4u {
            limit.order = digits;
            known = 0u;
            digits = 0u;
        }
        for (var bin = t; bin < 256u; bin += WG) {
            atomicStore(&bins[bin], 0u);
        }
        workgroupBarrier();
        for (var e = t; e < elements.count; e += WG) {
            let place = place_of(elements, e);
            var word = order_of(below_best(elements, place));
            if word == NEVER || (nth >= 4u && word != limit.order) {
                continue;
            }
            if nth >= 4u {
                word = place;
            }
            if (word & known) == digits {
                atomicAdd(&bins[(word >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if t < 16u {
            sums[t] = 0u;
            for (var bin = 16u * t; bin < 16u * t + 16u; bin++) {
                sums[t] += atomicLoad(&bins[bin]);
            }
        }
        workgroupBarrier();
        if t == 0u {
            var bin = 0u;
            while bin < 256u && wanted > sums[bin / 16u] {
                wanted -= sums[bin / 16u];
                bin += 16u;
            }
            while bin < 256u && wanted > atomicLoad(&bins[bin]) {
                wanted -= atomicLoad(&bins[bin]);
                bin++;
            }
            verdict = TAKE;
            // Fewer elements than wanted: all are kept.
            if bin < 256u {
                known |= 255u << shift;
                digits |= bin << shift;
                if atomicLoad(&bins[bin]) > wanted {
                    verdict = GO_ON;
                } else if nth < 4u {
                    limit = Limit(digits | ~known, NEVER);
                } else {
                    limit.place = digits | ~known;
                }
            }
        }
        if workgroupUniformLoad(&verdict) == TAKE {
            return;
        }
    }
}

// The weights of the elements before one.
fn weights_before(t: u32, elements: Elements, order: u32, place: u32) -> f32 {
    var sum = 0.0;
    var some = 0.0;
    var count = 0u;
    for (var e = t; e < elements.count; e += WG) {
        let i = place_of(elements, e);
        let below = below_best(elements, i);
        let rank = order_of(below);
        if rank < order || (rank == order && i < place) {
            some += exp(below);
        }
        // Short chains of additions keep the rounding errors small.
        count++;
        if count % 16u == 0u {
            sum += some;
            some = 0.0;
        }
    }
    return sum_of_all(t, sum + some);
}

// Draws from the elements that the filters leave.
fn filtered(t: u32, slot: u32, elements: Elements, whole: f32, first: u32) -> Draw {
    if t == 0u {
        limit = Limit(NEVER - 1u, NEVER);
    }
    workgroupBarrier();
    let top_k = setting(slot, TOP_K);
    var weight = whole;
    if top_k > 0u {
        keep_first(t, elements, top_k);
    }
    let top_p = float_setting(slot, TOP_P);
    if top_p < 1.0 && top_k > 0u {
        // Up to the last kept one.
        let behind = limit.place + u32(limit.place != NEVER);
        weight = weights_before(t, elements, limit.order, behind);
    }
    let temperature = float_setting(slot, TEMPERATURE);
    let least = float_setting(slot, LEAST);
    let seed = vec2(setting(slot, SEED), setting(slot, SEED + 1u));
    let key = noise_key(seed, next[ROWS_AT + ROW * elements.row + 1u] + 1u);
    var draw = NO_DRAW;
    for (var round = 0u; round <= command.p.n; round++) {
        draw = NO_DRAW;
        for (var e = t; e < elements.count; e += WG) {
            let place = place_of(elements, e);
            let below = below_best(elements, place);
            if is_within(order_of(below), place) && below >= least {
                draw = with_token(draw, key, temperature, below, place);
            }
        }
        draw = best_draw(t, draw);
        if top_p >= 1.0 {
            return draw;
        }
        let found = draw.token;
        var order = 0u;
        if found != NOWHERE {
            order = order_of(below_best(elements, found));
        }
        let before = weights_before(t, elements, order, found);
        if t == 0u {
            let share = max(top_p, 0.0) * weight;
            let margin = WEIGHT_MARGIN * weight;
            if found == first || (found != NOWHERE && before < share - margin) {
                verdict = TAKE;
            } else if found != NOWHERE && before > share + margin {
                verdict = GO_ON;
                if found > 0u {
                    limit = Limit(order, found - 1u);
                } else {
                    limit = Limit(order - 1u, NEVER);
                }
            } else {
                verdict = LEAVE;
            }
        }
        let what = workgroupUniformLoad(&verdict);
        if what == TAKE {
            return draw;
        }
        if what == LEAVE {
            return NO_DRAW;
        }
    }
    return NO_DRAW;
}

// A row that has a token goes on to it.
fn finish(row: u32, slot: u32, token: u32) {
    mem[command.at.first + row] = token;
    if token == UNDECIDED {
        return;
    }
    mem[command.at.b + row] = token;
    advance(row, token);
    if setting(slot, LAST_N) > 0u {
        let entries = command.at.entries;
        let history = command.at.lists + slot * (entries + 2u);
        let head = next[history];
        next[history + 2u + head] = token;
        next[history] = (head + 1u) % entries;
        next[history + 1u] = min(next[history + 1u] + 1u, entries);
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = id.z;
    if t == 0u {
        slot_at_hand = next[ROWS_AT + ROW * row + 2u];
        atomicStore(&is_odd, 0u);
    }
    let slot = workgroupUniformLoad(&slot_at_hand);
    let parts = command.at.splits;
    let record = record_of(row, min(t, parts - 1u));
    var own = 0.0;
    var place = NOWHERE;
    if t < parts {
        own = float_at(record + LARGEST);
        place = mem[record + PLACE];
        if mem[record + ODD] == 1u {
            atomicStore(&is_odd, 1u);
        }
    }
    find_best(t, own, place);
    workgroupBarrier();
    let best = largest[0];
    let first = places[0];
    var token = first;
    if token == NOWHERE {
        token = 0u;
    }
    if float_setting(slot, TEMPERATURE) > 0.0 {
        var draw = NO_DRAW;
        if has_filters(slot) {
            var whole = 0.0;
            var near = 0.0;
            var count = 0u;
            if t < parts {
                whole = float_at(record + WHOLE);
                near = float_at(record + LISTED);
                count = mem[record + COUNT];
                begins[t + 1u] = count;
            }
            let all_whole = sum_of_all(t, whole);
            let all_near = sum_of_all(t, near);
            let overflows = max_of_all(t, f32(count)) > f32(CAPACITY);
            if t == 0u {
                begins[0] = 0u;
                for (var part = 0u; part < parts; part++) {
                    begins[part + 1u] += begins[part];
                }
            }
            workgroupBarrier();
            var elements = Elements(row, false, begins[parts], logits_of(row, slot), best);
            let top_k = setting(slot, TOP_K);
            let share = float_setting(slot, TOP_P) + 2.0 * WEIGHT_MARGIN;
            if overflows || (top_k > 0u && elements.count < top_k) || (top_k == 0u && all_near < share * all_whole) {
                elements.all = true;
                elements.count = command.p.n;
            }
            if !is_finite(best) {
                elements.count = 0u;
            }
            draw = filtered(t, slot, elements, all_whole, first);
        } else {
            if t < parts {
                draw = Draw(mem[record + TOKEN], float_at(record + KEY), float_at(record + SECOND));
            }
            draw = best_draw(t, draw);
        }
        if is_finite(best) {
            token = draw.token;
            if token == NOWHERE || draw.key - draw.second <= KEY_MARGIN {
                token = UNDECIDED;
            }
        }
    }
    if t == 0u {
        if atomicLoad(&is_odd) == 1u {
            token = UNDECIDED;
        }
        finish(row, slot, token);
    }
}
