//! Choices on the host beside the reference's.

use std::collections::BTreeSet;
use welte_device::{HostScratch, HostSlot, MaskBoard, SlotState, argmax, noise};
use welte_table::Sampling;

/// Chooses from logits, for positions, as a slot in this state does that keeps the last `context` tokens.
fn sampler(vocab: usize, context: usize, state: SlotState<'_>) -> impl FnMut(&[f32], u32) -> u32 {
    let mut slot = HostSlot::new(vocab, context);
    slot.set(&state);
    let mut scratch = HostScratch::new(vocab, context);
    let masks = MaskBoard::new(1, vocab);
    move |logits, position| scratch.choose(&slot, &masks, 0, logits, position)
}

fn state(sampling: Sampling) -> SlotState<'static> {
    SlotState {
        sampling,
        ..SlotState::default()
    }
}

#[test]
fn fast_and_plain_choose_the_same() {
    let mut numbers = 1u64;
    let mut below = |n: u64| {
        numbers = numbers.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (numbers >> 33) % n
    };
    let mut chosen = BTreeSet::new();
    for case in 0..400u64 {
        let n = [3, 70, 1000][case as usize % 3];
        let mut pick = |of: &[f32]| of[below(of.len() as u64) as usize];
        let sampling = Sampling {
            temperature: pick(&[0.0, 0.3, 1.0, 2.5]),
            top_k: pick(&[0.0, 1.0, 2.0, 40.0, 2000.0]) as u32,
            top_p: pick(&[1.0, 0.95, 0.5, 0.0]),
            min_p: pick(&[0.0, 0.05, 0.5]),
            repeat_penalty: pick(&[1.0, 1.3]),
            frequency_penalty: pick(&[0.0, 0.5]),
            presence_penalty: pick(&[0.0, 0.5]),
            repeat_last_n: pick(&[0.0, 5.0, 64.0]) as u32,
            seed: case,
            ..Sampling::default()
        };
        let logits: Vec<f32> = (0..n).map(|_| below(1 << 24) as f32 / 1e6 - 8.0).collect();
        let history: Vec<u32> = (0..case % 90).map(|_| below(n + 2) as u32).collect();
        let bias = [(1, 2.0), (2, -f32::INFINITY), (5000, 1.0)];
        let state = SlotState {
            sampling,
            bias: &bias[..case as usize % 4],
            history: &history,
            ..SlotState::default()
        };
        let want = welte_reference::choose(&logits, &state, case as u32);
        let mut fast = sampler(n as usize, 80, state);
        assert_eq!(fast(&logits, case as u32), want, "{state:?}");
        chosen.insert(want);
    }
    assert!(chosen.len() > 40);
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [0.0f32, 1.0, 2.0, -1.0];
    let sampling = Sampling {
        temperature: 1.0,
        seed: 7,
        ..Sampling::default()
    };
    let mut choose = sampler(4, 8, state(sampling));
    let mut counts = [0u32; 4];
    for position in 0..20_000 {
        counts[choose(&logits, position) as usize] += 1;
    }
    let total: f32 = logits.iter().map(|l| l.exp()).sum();
    for (count, logit) in counts.iter().zip(logits) {
        assert!(
            (*count as f32 / 20_000.0 - logit.exp() / total).abs() < 0.015,
            "{counts:?}"
        );
    }
}

#[test]
fn odd_logits_are_no_trouble() {
    for temperature in [0.0, 1.0, f32::NAN, 1e-30] {
        let sampling = Sampling {
            temperature,
            top_p: 0.9,
            ..Sampling::default()
        };
        let history = &[9, 1];
        let mut choose = sampler(
            3,
            4,
            SlotState {
                history,
                ..state(sampling)
            },
        );
        assert_eq!(choose(&[f32::NAN, 2.0, f32::NEG_INFINITY], 1), 1);
        assert_eq!(choose(&[f32::NAN; 3], 1), 0);
        assert_eq!(choose(&[1.0, f32::INFINITY, f32::INFINITY], 1), 1);
        assert_eq!(choose(&[f32::NEG_INFINITY; 3], 1), 0);
    }
}

#[test]
fn ties_go_to_the_lowest() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0]).1, 1);
    assert_eq!(argmax(&[f32::NAN; 2]).1, 0);
    assert!((0..1000).all(|i| noise(3, 4, i).is_finite()));
}

// Expected values written out: a comparison with the reference would not notice a fault that both share.

const GREEDY: Sampling = Sampling::GREEDY;
const DRAW: Sampling = Sampling {
    temperature: 1.0,
    ..GREEDY
};

/// The token that both samplers choose; they must agree.
#[track_caller]
fn choice(
    logits: &[f32],
    settings: &Sampling,
    bias: &[(u32, f32)],
    history: &[u32],
    position: u32,
) -> u32 {
    let state = SlotState {
        sampling: *settings,
        bias,
        history,
        ..SlotState::default()
    };
    let fast = sampler(logits.len(), 8, state)(logits, position);
    let plain = welte_reference::choose(logits, &state, position);
    assert_eq!(fast, plain, "the samplers disagree");
    fast
}

/// Every token drawn at 2000 positions.
fn drawn(logits: &[f32], settings: &Sampling) -> BTreeSet<u32> {
    (0..2000)
        .map(|position| choice(logits, settings, &[], &[], position))
        .collect()
}

#[test]
fn penalties_decide_between_two_tokens() {
    let choose = |logits: [f32; 2], settings: Sampling, history: &[u32]| {
        choice(&logits, &settings, &[], history, 0)
    };
    let repeat = |repeat_penalty| Sampling {
        repeat_penalty,
        ..GREEDY
    };
    // 3 / 2 is below 2; 3 / 1.4 is not.
    assert_eq!(choose([3.0, 2.0], repeat(2.0), &[0]), 1);
    assert_eq!(choose([3.0, 2.0], repeat(1.4), &[0]), 0);
    // -1 * 2 is below -1.5.
    assert_eq!(choose([-1.0, -1.5], repeat(2.0), &[0]), 1);
    // A penalty below 1 favours repetition.
    assert_eq!(choose([2.0, 3.0], repeat(0.5), &[0]), 0);
    let frequency = |frequency_penalty| Sampling {
        frequency_penalty,
        ..GREEDY
    };
    assert_eq!(choose([3.0, 2.0], frequency(0.4), &[0, 0]), 0);
    assert_eq!(choose([3.0, 2.0], frequency(0.4), &[0, 0, 0]), 1);
    // Both tokens lose 0.4 per occurrence: 3 - 1.6 is below 2 - 0.4.
    assert_eq!(choose([3.0, 2.0], frequency(0.4), &[0, 1, 0, 0, 0]), 1);
    let presence = |presence_penalty| Sampling {
        presence_penalty,
        ..GREEDY
    };
    assert_eq!(choose([3.0, 2.0], presence(0.4), &[0, 0, 0]), 0);
    assert_eq!(choose([3.0, 2.0], presence(1.1), &[0]), 1);
    // Tokens outside the vocabulary are ignored.
    assert_eq!(choose([3.0, 2.0], presence(1.1), &[2, u32::MAX]), 0);
}

#[test]
fn penalties_look_back_as_far_as_they_are_told() {
    let presence = |repeat_last_n| Sampling {
        presence_penalty: 5.0,
        repeat_last_n,
        ..GREEDY
    };
    let logits = [3.0, 2.0, 1.0];
    // Token 0 was chosen three tokens ago.
    for (last_n, expected) in [(0, 0), (1, 0), (2, 0), (3, 1), (64, 1)] {
        let got = choice(&logits, &presence(last_n), &[], &[0, 2, 2], 0);
        assert_eq!(got, expected, "the last {last_n}");
    }
}

#[test]
fn a_bias_is_added_before_penalties_and_temperature() {
    assert_eq!(choice(&[3.0, 2.0], &GREEDY, &[(1, 1.5)], &[], 0), 1);
    assert_eq!(choice(&[3.0, 2.0], &GREEDY, &[(1, 0.5)], &[], 0), 0);
    assert_eq!(
        choice(&[3.0, 2.0], &GREEDY, &[(1, 0.6), (1, 0.6)], &[], 0),
        1
    );
    // Tokens outside the vocabulary are ignored.
    let outside = [(2, 9.0), (u32::MAX, 9.0)];
    assert_eq!(choice(&[3.0, 2.0], &GREEDY, &outside, &[], 0), 0);
    let forbid = [(0, f32::NEG_INFINITY)];
    assert_eq!(choice(&[3.0, 2.0], &GREEDY, &forbid, &[], 0), 1);
    // (-1 + 4) / 2 is 1.5. Penalised before the bias it would be -2 + 4.
    let repeat = Sampling {
        repeat_penalty: 2.0,
        ..GREEDY
    };
    assert_eq!(choice(&[-1.0, 1.4], &repeat, &[(0, 4.0)], &[0], 0), 0);
    assert_eq!(choice(&[-1.0, 1.6], &repeat, &[(0, 4.0)], &[0], 0), 1);
}

#[test]
fn filters_keep_the_documented_tokens() {
    // Their probabilities are 1/2, 1/4, 1/8 and 1/8.
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    let kept = |settings: Sampling| -> Vec<u32> { drawn(&logits, &settings).into_iter().collect() };
    assert_eq!(kept(DRAW), [0, 1, 2, 3]);
    for (top_k, expected) in [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4)] {
        let count = kept(Sampling { top_k, ..DRAW });
        assert_eq!(count, (0..expected).collect::<Vec<_>>(), "top_k {top_k}");
    }
    for (top_p, expected) in [
        (0.3, 1),
        (0.49, 1),
        (0.51, 2),
        (0.74, 2),
        (0.76, 3),
        (0.9, 4),
    ] {
        let count = kept(Sampling { top_p, ..DRAW });
        assert_eq!(count, (0..expected).collect::<Vec<_>>(), "top_p {top_p}");
    }
    for (min_p, expected) in [(0.2, 4), (0.3, 2), (0.49, 2), (0.51, 1), (1.0, 1)] {
        let count = kept(Sampling { min_p, ..DRAW });
        assert_eq!(count, (0..expected).collect::<Vec<_>>(), "min_p {min_p}");
    }
    // Top-p is a share of what top-k left: 1/2 of 3/4 is more than 0.6.
    let both = Sampling {
        top_k: 2,
        top_p: 0.6,
        ..DRAW
    };
    assert_eq!(kept(both), [0]);
    // Temperature comes last: the second has half of the first's share, whatever the temperature.
    for (temperature, min_p, expected) in [(2.0, 0.6, 1), (2.0, 0.4, 2), (0.5, 0.4, 2)] {
        let settings = Sampling {
            temperature,
            min_p,
            ..DRAW
        };
        let expected: Vec<u32> = (0..expected).collect();
        assert_eq!(kept(settings), expected, "temperature {temperature}");
    }
}

#[test]
fn noise_and_draws_are_those_of_the_definition() {
    // Computed in double precision by an independent script.
    for ((seed, position, index), expected) in [
        ((0, 0, 0), -0.466_273_5),
        ((0, 0, 1), 0.663_424_4),
        ((0, 1, 0), -0.868_375_3),
        ((1, 0, 0), -0.261_928_6),
        ((7, 1234, 151_935), 0.665_509_8),
        ((u64::MAX, u32::MAX, u32::MAX), 0.157_482_64),
        // The least and the largest of six million.
        ((0, 0, 1_093_813), -2.761_730_6),
        ((0, 0, 4_601_702), 14.492_942),
    ] {
        let got = noise(seed, position, index);
        assert!((got - expected).abs() < 1e-6, "{got} {expected}");
    }
    let draws = |temperature, seed| -> [u32; 16] {
        let settings = Sampling {
            temperature,
            seed,
            ..GREEDY
        };
        std::array::from_fn(|position| {
            choice(&[0.0, 0.5, 1.0, -0.5], &settings, &[], &[], position as u32)
        })
    };
    assert_eq!(
        draws(1.0, 0),
        [2, 2, 2, 2, 2, 1, 0, 0, 2, 3, 2, 0, 2, 0, 1, 2]
    );
    assert_eq!(
        draws(1.0, 9),
        [0, 2, 2, 2, 2, 2, 2, 1, 1, 2, 1, 1, 2, 3, 1, 2]
    );
    assert_eq!(
        draws(0.5, 9),
        [0, 2, 2, 2, 2, 2, 2, 1, 2, 2, 1, 2, 2, 3, 1, 2]
    );
}

#[test]
fn only_a_greedy_choice_without_bias_or_penalty_is_a_plain_argmax() {
    let plain = |settings: Sampling, bias: &[(u32, f32)]| {
        let mut slot = HostSlot::new(4, 4);
        let state = SlotState {
            sampling: settings,
            bias,
            history: &[1],
            ..SlotState::default()
        };
        slot.set(&state);
        slot.is_plain_argmax()
    };
    let repeat = Sampling {
        repeat_penalty: 1.1,
        ..GREEDY
    };
    assert!(plain(GREEDY, &[]));
    assert!(!plain(DRAW, &[]));
    assert!(!plain(GREEDY, &[(1, 1.0)]));
    assert!(!plain(repeat, &[]));
    let none = Sampling {
        repeat_last_n: 0,
        ..repeat
    };
    assert!(plain(none, &[]));
    for settings in [
        Sampling {
            frequency_penalty: 0.1,
            ..GREEDY
        },
        Sampling {
            presence_penalty: -0.1,
            ..GREEDY
        },
    ] {
        assert!(!plain(settings, &[]), "{settings:?}");
    }
}

#[test]
fn top_p_keeps_a_long_tail_that_carries_the_mass() {
    // One token of weight 1, and 5000 with 7.52 together: top-p 0.9 needs most of these.
    let mut logits = vec![-6.5; 5001];
    logits[0] = 0.0;
    let settings = Sampling { top_p: 0.9, ..DRAW };
    let draws = (0..300).map(|position| choice(&logits, &settings, &[], &[], position));
    let first = draws.filter(|token| *token == 0).count();
    // 13 % of 300 draws on average.
    assert!((15..70).contains(&first), "{first}");
}
