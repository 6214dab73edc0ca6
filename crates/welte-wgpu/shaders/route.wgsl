// Chooses the experts of a row: a workgroup per row.
struct Params { experts: u32, used: u32, renormalise: u32, scale: f32, x_stride: u32, y_stride: u32, scoring: u32, groups: u32, used_groups: u32, group_top: u32, margin: f32 }

var<workgroup> scores: array<f32, MOST_EXPERTS>;
// What decides the choice. An expert that cannot be chosen any more has NO_CHOICE.
var<workgroup> choice: array<f32, MOST_EXPERTS>;
// By group; later by chosen expert.
var<workgroup> ratings: array<f32, MOST_EXPERTS>;
var<workgroup> best: array<u32, WG>;

const NO_CHOICE = -3.4e38;

// The best expert among every WG-th.
fn best_of(t: u32, count: u32) -> u32 {
    var found = t;
    for (var i = t + WG; i < count; i += WG) {
        if choice[i] > choice[found] {
            found = i;
        }
    }
    return found;
}

// SparseMixer: the sum over the experts not yet chosen whose logits are within the margin of the best one's.
fn near(best: u32) -> f32 {
    let most = choice[best];
    var sum = 0.0;
    for (var i = 0u; i < command.p.experts; i++) {
        let logit = choice[i];
        if logit != NO_CHOICE && most - logit <= command.p.margin * max(abs(logit), most) {
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
        if has(0u) {
            choice[i] = score + vector0(i);
        } else if p.groups == 1u {
            choice[i] = logit;
        } else {
            choice[i] = score;
        }
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
    var sum = 0.0;
    for (var nth = 0u; nth < p.used; nth++) {
        best[t] = best_of(t, p.experts);
        workgroupBarrier();
        if t == 0u {
            var found = best[0];
            for (var i = 1u; i < min(WG, p.experts); i++) {
                let other = best[i];
                if choice[other] > choice[found] || (choice[other] == choice[found] && other < found) {
                    found = other;
                }
            }
            mem[y + nth] = found;
            ratings[nth] = scores[found];
            if p.scoring == 2u {
                ratings[nth] = 1.0 / near(found);
            }
            sum += ratings[nth];
            choice[found] = NO_CHOICE;
        }
        workgroupBarrier();
    }
    if t == 0u {
        if p.renormalise == 0u {
            sum = 1.0;
        }
        sum = max(sum, 1e-20);
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
