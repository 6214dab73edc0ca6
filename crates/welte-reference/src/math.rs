//! Functions of vectors, in f32.

use welte_table::params;

/// `x / sqrt(mean(x^2) + eps) * weight`
pub(crate) fn norm(x: &[f32], weight: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    let weight = |i: usize| weight.map_or(1.0, |w| w[i]);
    let normed = x.iter().enumerate().map(|(i, v)| v * scale * weight(i));
    normed.collect()
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias`
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    let centred: Vec<f32> = x.iter().map(|v| v - mean).collect();
    biased(norm(&centred, Some(weight), eps), bias)
}

/// The ids of the best experts as bits, then their weights.
pub(crate) fn route(
    logits: &[f32],
    p: &params::Route,
    bias: Option<&[f32]>,
    scales: Option<&[f32]>,
) -> Vec<f32> {
    if p.scoring == 2 {
        return mixed(logits, p, scales);
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|x| (x - largest).exp()).collect();
    let all: f32 = exps.iter().sum();
    let scores: Vec<f32> = match p.scoring {
        0 => exps.iter().map(|e| e / all).collect(),
        _ => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
    };
    // Without a bias and groups the order is that of the logits, which scores may round to the same value.
    let by_logits = bias.is_none() && p.groups == 1;
    let choice = if by_logits {
        logits.to_vec()
    } else {
        biased(scores.clone(), bias)
    };
    let size = logits.len() / p.groups as usize;
    let rating = |group: usize| {
        let best = descending(&choice[group * size..][..size]);
        let best = best.iter().take(p.group_top as usize);
        best.map(|&i| choice[group * size + i]).sum::<f32>()
    };
    let ratings: Vec<f32> = (0..p.groups as usize).map(rating).collect();
    let mut open = descending(&ratings);
    open.truncate(p.used_groups as usize);
    let mut order = descending(&choice);
    order.retain(|i| open.contains(&(i / size)));
    order.truncate(p.used as usize);
    let sum: f32 = match p.renormalise {
        0 => 1.0,
        _ => order.iter().map(|&i| scores[i]).sum::<f32>().max(1e-20),
    };
    let ids = order.iter().map(|&i| f32::from_bits(i as u32));
    let scaled = |i: usize| scales.map_or(p.scale, |scales| p.scale * scales[i]);
    let shares = order.iter().map(|&i| scores[i] / sum * scaled(i));
    ids.chain(shares).collect()
}

/// `route` by SparseMixer.
fn mixed(logits: &[f32], p: &params::Route, scales: Option<&[f32]>) -> Vec<f32> {
    let order = descending(logits);
    let share = |(place, &chosen): (usize, &usize)| {
        let best = logits[chosen];
        let open = order[place..].iter().map(|&i| logits[i]);
        let near = open.filter(|x| best - x <= p.margin * x.abs().max(best));
        let own = scales.map_or(1.0, |scales| scales[chosen]);
        p.scale * own / near.map(|x| (x - best).exp()).sum::<f32>()
    };
    let chosen = &order[..p.used as usize];
    let ids = chosen.iter().map(|&i| f32::from_bits(i as u32));
    ids.chain(chosen.iter().enumerate().map(share)).collect()
}

/// The indices of the values, largest first, the lowest first on a tie.
fn descending(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// One dot product per row of the matrix.
pub(crate) fn multiply(matrix: &[f32], x: &[f32]) -> Vec<f32> {
    matrix.chunks(x.len()).map(|row| dot(row, x)).collect()
}

pub(crate) fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The values plus the bias, if there is one.
pub(crate) fn biased(values: Vec<f32>, bias: Option<&[f32]>) -> Vec<f32> {
    match bias {
        Some(bias) => add(&values, bias),
        None => values,
    }
}

/// `act(gate) * up`, the first half of `x` being the gate and the second half up.
pub(crate) fn act_mul(act: u32, x: &[f32]) -> Vec<f32> {
    let (gate, up) = x.split_at(x.len() / 2);
    let pairs = gate.iter().zip(up);
    pairs.map(|(&gate, &up)| gated(act, gate, up)).collect()
}

fn gated(act: u32, gate: f32, up: f32) -> f32 {
    match act {
        0 => silu(gate) * up,
        1 => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        2 => 0.5 * gate * (1.0 + erf(gate / std::f32::consts::SQRT_2)) * up,
        _ => {
            let gate = gate.min(7.0);
            gate / (1.0 + (-1.702 * gate).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
        }
    }
}

/// An activation without a gate. `constants` are those of xIELU and of limits.
pub(crate) fn act(act: u32, x: f32, [a, b, c, d]: [f32; 4]) -> f32 {
    match act {
        4 => x.max(0.0).powi(2),
        5 if x > 0.0 => a * x * x + c * x,
        5 => b * (x.min(d).exp_m1() - x) + c * x,
        6 => x.tanh(),
        7 => x.clamp(a, b),
        _ => gated(act, x, 1.0),
    }
}

pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`, without overflow.
pub(crate) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// What a gate multiplies by: activations 0, 1 and 2, 4 sigmoid, 5 none, 6 softplus.
pub(crate) fn gate_value(act: u32, x: f32) -> f32 {
    match act {
        4 => sigmoid(x),
        5 => x,
        6 => softplus(x),
        _ => gated(act, x, 1.0),
    }
}

/// The vector divided by `sqrt(sum of squares + eps)`.
pub(crate) fn scaled(x: &[f32], eps: f32) -> Vec<f32> {
    let length = (dot(x, x) + eps).sqrt();
    x.iter().map(|v| v / length).collect()
}

/// The error function: its integral by Simpson's rule. Beyond 6 it is 1 in f32.
fn erf(x: f32) -> f32 {
    const INTERVALS: u32 = 400;
    let end = f64::from(x.abs()).min(6.0);
    let width = end / f64::from(INTERVALS);
    let value = |i: u32| (-(f64::from(i) * width).powi(2)).exp();
    let inner = (1..INTERVALS).map(|i| value(i) * if i % 2 == 1 { 4.0 } else { 2.0 });
    let integral = width / 3.0 * (value(0) + inner.sum::<f64>() + value(INTERVALS));
    (integral * std::f64::consts::FRAC_2_SQRT_PI) as f32 * x.signum()
}

/// What exceeds the mean by this many standard deviations.
pub(crate) fn cutoff(x: &[f32], deviations: f32) -> Vec<f32> {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    let centred: Vec<f32> = x.iter().map(|v| v - mean).collect();
    let limit = deviations * mean_square(&centred).sqrt();
    centred.iter().map(|v| (v - limit).max(0.0)).collect()
}

pub(crate) fn mean_square(x: &[f32]) -> f32 {
    dot(x, x) / x.len() as f32
}

/// `tanh(scale * x)`
pub(crate) fn squashed(x: &[f32], scale: f32) -> Vec<f32> {
    x.iter().map(|v| (scale * v).tanh()).collect()
}

/// The vector divided by its Euclidean length, which counts as 1e-12 if it is smaller.
pub(crate) fn unit(x: &[f32]) -> Vec<f32> {
    let length = dot(x, x).sqrt().max(1e-12);
    x.iter().map(|v| v / length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_tables() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (2.4, 0.999_311_5),
            (9.0, 1.0),
        ] {
            assert!((erf(x) - want).abs() < 1e-7, "{x}: {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
    }

    #[test]
    fn activations_match_tables() {
        for (act, gate, up, want) in [
            (0, 1.0, 2.0, 1.462_117_2),
            (1, 1.0, 2.0, 1.682_384),
            (2, 1.0, 2.0, 1.682_689_5),
            // Both operands beyond the limit of 7.
            (3, 9.0, 10.0, 55.999_63),
            (3, 1.0, -8.0, -5.074_77),
        ] {
            let got = act_mul(act, &[gate, up])[0];
            assert!((got - want).abs() < 1e-5, "{act}: {got}, not {want}");
        }
    }

    #[test]
    fn gates_match_tables() {
        for (act, want) in [
            (0, 0.731_058_6),
            (4, 0.731_058_6),
            (5, 1.0),
            (6, 1.313_261_7),
        ] {
            assert!((gate_value(act, 1.0) - want).abs() < 1e-6, "{act}");
        }
        assert!((gate_value(4, -2.0) - 0.119_202_9).abs() < 1e-6);
        for (x, want) in [
            (0.0, std::f32::consts::LN_2),
            (-30.0, 9.357_623e-14),
            (90.0, 90.0),
        ] {
            assert!((softplus(x) - want).abs() <= 1e-6 * want, "{x}");
        }
        assert_eq!(scaled(&[3.0, 0.0], 16.0), [0.6, 0.0]);
    }

    #[test]
    fn what_stands_out_is_kept() {
        // The mean is 1, the standard deviation 2.
        assert_eq!(cutoff(&[-1.0, 3.0], 0.5), [0.0, 1.0]);
        assert_eq!(cutoff(&[-1.0, 3.0], -2.0), [2.0, 6.0]);
    }

    #[test]
    fn experts_are_ranked() {
        let bits = |values: &[f32]| values[..2].iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let plain = params::Route {
            experts: 4,
            used: 2,
            renormalise: 1,
            scale: 2.0,
            x_stride: 4,
            y_stride: 4,
            scoring: 0,
            groups: 1,
            used_groups: 1,
            group_top: 1,
            margin: 0.0,
        };
        let logits = [1.0, 3.0, 3.0, 0.0];
        let chosen = route(&logits, &plain, None, None);
        assert_eq!(bits(&chosen), [1, 2]);
        assert_eq!(chosen[2..], [1.0, 1.0]);
        let scaled = route(&logits, &plain, None, Some(&[9.0, 4.0, 0.5, 9.0]));
        assert_eq!(scaled[2..], [4.0, 0.5]);
        let all = params::Route {
            renormalise: 0,
            scale: 1.0,
            ..plain
        };
        let shares = route(&[0.0, 0.0, 0.0, 0.0], &all, None, None);
        assert_eq!(bits(&shares), [0, 1]);
        assert_eq!(shares[2..], [0.25, 0.25]);
        // The second is within the margin of the first, the third within that of the second.
        let mixer = params::Route {
            scoring: 2,
            margin: 0.25,
            ..all
        };
        let shares = route(&[2.0, 4.0, 3.0, 0.0], &mixer, None, None);
        assert_eq!(bits(&shares), [1, 2]);
        assert_eq!(shares[2], 1.0 / (1.0 + (-1.0f32).exp()));
        assert_eq!(shares[3], 1.0);
        // The bias decides the choice, not the shares.
        let sigmoid = params::Route { scoring: 1, ..all };
        let biased = route(&[0.0; 4], &sigmoid, Some(&[0.0, 0.1, 0.0, 0.2]), None);
        assert_eq!(bits(&biased), [3, 1]);
        assert_eq!(biased[2..], [0.5, 0.5]);
        // The best expert is in group 0, but group 1 has the larger sum.
        let grouped = params::Route {
            groups: 2,
            group_top: 2,
            margin: 0.0,
            ..sigmoid
        };
        let chosen = route(&[9.0, -9.0, 1.0, 2.0], &grouped, None, None);
        assert_eq!(bits(&chosen), [3, 2]);
        let best = params::Route {
            group_top: 1,
            margin: 0.0,
            ..grouped
        };
        assert_eq!(
            bits(&route(&[9.0, -9.0, 1.0, 2.0], &best, None, None)),
            [0, 1]
        );
    }

    #[test]
    fn a_zero_vector_stays_zero() {
        assert_eq!(unit(&[3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(unit(&[0.0, 0.0]), [0.0, 0.0]);
    }
}
