// Chooses the experts of a row: a workgroup per row.
struct Params { experts: u32, used: u32, renormalise: u32, scale: f32, x_stride: u32, y_stride: u32, scoring: u32, groups: u32, used_groups: u32, group_top: u32, margin: f32 }

var<workgroup> scores: array<f32, MOST_EXPERTS>;
// What decides the choice. An expert that cannot be chosen has NO_CHOICE.
var<workgroup> choice: array<f32, MOST_EXPERTS>;
// By group; later by chosen expert.
var<workgroup> ratings: array<f32, MOST_EXPERTS>;
const NO_CHOICE = -3.4e38;

// Whether expert i is chosen before one of this number and choice.
fn is_before(i: u32, other: u32, choice_of_other: f32) -> bool {
    return choice[i] > choice_of_other || (choice[i] == choice_of_other && i < other);
}

// SparseMixer: the sum over the experts not chosen before whose logits are within the margin of the best one's.
fn near(best: u32) -> f32 {
    let most = choice[best];
    var sum = 0.0;
    for (var i = 0u; i < command.p.experts; i++) {
        let logit = choice[i];
        if !is_before(i, best, most) && most - logit <= command.p.margin * max(abs(logit), most) {
            sum += exp(logit - most);
        }
    }
    return sum;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let p = command.p;
    let x = command.at.a + id.z * p.x_stride;
    let y = command.at.b + id.z * p.y_stride;
    var most = LOWEST;
    for (var i = t; i < p.experts; i += WG) {
        most = max(most, float_at(x + i));
    }
    most = max_of_all(t, most);
    var all = 0.0;
    for (var i = t; i < p.experts; i += WG) {
        all += exp(float_at(x + i) - most);
    }
    all = sum_of_all(t, all);
    for (var i = t; i < p.experts; i += WG) {
        let logit = float_at(x + i);
        var score = sigmoid(logit);
        if p.scoring == 0u {
            score = exp(logit - most) / all;
        }
        scores[i] = score;
        // Scores may round to the same value where logits differ.
        var value = score;
        if has(0u) {
            value = score + vector0(i);
        } else if p.groups == 1u {
            value = logit;
        }
        // So that every expert has a rank of its own.
        choice[i] = select(value, NO_CHOICE, is_nan(value));
    }
    workgroupBarrier();
    if p.groups > 1u {
        let size = p.experts / p.groups;
        for (var group = t; group < p.groups; group += WG) {
            var first = NO_CHOICE;
            var second = NO_CHOICE;
            for (var i = group * size; i < (group + 1u) * size; i++) {
                let value = choice[i];
                if value > first {
                    second = first;
                    first = value;
                } else if value > second {
                    second = value;
                }
            }
            if p.group_top == 2u && size > 1u {
                first += second;
            }
            ratings[group] = first;
        }
        workgroupBarrier();
        // A group is open if fewer than `used_groups` are better.
        for (var i = t; i < p.experts; i += WG) {
            let own = ratings[i / size];
            var better = 0u;
            for (var other = 0u; other < p.groups; other++) {
                let rating = ratings[other];
                if rating > own || (rating == own && other < i / size) {
                    better++;
                }
            }
            if better >= p.used_groups {
                choice[i] = NO_CHOICE;
            }
        }
        workgroupBarrier();
    }
    // An expert's rank is the number of those that are chosen before it.
    for (var i = t; i < p.experts; i += WG) {
        let own = choice[i];
        var rank = 0u;
        for (var other = 0u; other < p.experts; other++) {
            rank += u32(is_before(other, i, own));
        }
        if rank < p.used {
            mem[y + rank] = i;
            ratings[rank] = scores[i];
            if p.scoring == 2u && !is_nan(scores[i]) {
                ratings[rank] = 1.0 / near(i);
            }
        }
    }
    workgroupBarrier();
    storageBarrier();
    if t == 0u {
        var sum = 0.0;
        for (var nth = 0u; nth < p.used; nth++) {
            sum += ratings[nth];
        }
        sum = select(max(sum, 1e-20), 1.0, p.renormalise == 0u);
        for (var nth = 0u; nth < p.used; nth++) {
            let expert = mem[y + nth];
            var share = ratings[nth] / sum * p.scale;
            if has(1u) {
                share *= weight1[expert];
            }
            put(y + p.used + nth, share);
        }
    }
}
