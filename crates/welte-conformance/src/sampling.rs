//! Choosing tokens: literal expectations over a tiny vocabulary, and random settings against a plain sampler.

use super::case::{Case, chain, set_slot, start, step_choosing, tokens_of};
use super::made::Numbers;
use welte_device::{ChainStart, Choice, Context, Device, SKIPPED, SlotState, StepOptions, noise};
use welte_table::{Row, Sampling};

/// Logits that favour 2, then 1, then 3, then 0, whatever the last token is. A chain shows how choices change.
const LOGITS: [f32; 4] = [-1.0, 2.0, 3.0, 1.5];

/// One choice of slot 0 over [`LOGITS`], for position 1.
fn choose(context: &mut dyn Context, state: SlotState<'_>) -> u32 {
    set_slot(context, 0, state);
    let row = Row::default();
    context.step_rows(0, &[row], &[]).expect("a valid step");
    let pick = Choice {
        output: 0,
        slot: 0,
        position: 1,
        draft: None,
    };
    let mut token = [u32::MAX];
    context.sample(&[pick], &mut token).expect("a valid pick");
    token[0]
}

/// What is tested, settings, biases, history, and the token that must be chosen.
type Expected = (
    &'static str,
    Sampling,
    &'static [(u32, f32)],
    &'static [u32],
    u32,
);

/// Each setting alone, with the token that it must choose.
pub fn choices(device: &dyn Device, _oracle: &dyn Device) {
    let table = vec![LOGITS.to_vec(); 4];
    let case = Case::look_up(device, &table, 3, 100);
    let mut context = case.open(device);
    let greedy = Sampling::default();
    let repeat = |repeat_penalty| Sampling {
        repeat_penalty,
        ..greedy
    };
    let frequency = |frequency_penalty| Sampling {
        frequency_penalty,
        ..greedy
    };
    let presence = |presence_penalty| Sampling {
        presence_penalty,
        ..greedy
    };
    let last = |repeat_last_n, sampling| Sampling {
        repeat_last_n,
        ..sampling
    };
    let cold = |sampling| Sampling {
        temperature: 1e-3,
        ..sampling
    };
    let dry = |dry_allowed_length| Sampling {
        dry_multiplier: 0.5,
        dry_base: 4.0,
        dry_allowed_length,
        ..greedy
    };
    let none: &'static [(u32, f32)] = &[];
    let cases: [Expected; 36] = [
        ("greedy", greedy, none, &[2, 2, 2], 2),
        ("a bias", greedy, &[(0, 4.5)], &[], 0),
        ("a bias below the best", greedy, &[(0, 3.9)], &[], 2),
        ("a bias against the best", greedy, &[(2, -1.1)], &[], 1),
        (
            "two biases of one token",
            greedy,
            &[(3, 1.0), (3, 1.0)],
            &[],
            3,
        ),
        (
            "a forbidden token",
            greedy,
            &[(2, f32::NEG_INFINITY)],
            &[],
            1,
        ),
        ("a bias beyond the vocabulary", greedy, &[(4, 9.0)], &[], 2),
        ("a bias, cold", cold(greedy), &[(0, 4.5)], &[], 0),
        // 3 / 1.4 = 2.14, 3 / 1.6 = 1.88.
        ("a small repeat penalty", repeat(1.4), none, &[2], 2),
        ("a repeat penalty", repeat(1.6), none, &[2], 1),
        (
            "it counts no repetitions",
            repeat(1.4),
            none,
            &[2, 2, 2, 2],
            2,
        ),
        ("of both", repeat(2.5), none, &[2, 1], 3),
        // A logit below 0 is multiplied: -1 * 8 is less than 3 - 9.
        (
            "a negative logit",
            repeat(8.0),
            &[(1, -9.0), (2, -9.0), (3, -9.0)],
            &[0],
            2,
        ),
        // 3 - 2 * 0.4 = 2.2, 3 - 3 * 0.4 = 1.8.
        ("a frequency twice", frequency(0.4), none, &[2, 0, 2], 2),
        ("a frequency thrice", frequency(0.4), none, &[2, 2, 0, 2], 1),
        (
            "a negative frequency penalty",
            frequency(-0.5),
            none,
            &[1, 1, 1],
            1,
        ),
        (
            "a small presence penalty",
            presence(0.9),
            none,
            &[2, 2, 2],
            2,
        ),
        ("a presence penalty", presence(1.1), none, &[2], 1),
        // Penalties look at the last tokens only.
        ("the last one", last(1, presence(9.0)), none, &[2, 1], 2),
        ("the last two", last(2, presence(9.0)), none, &[2, 1], 3),
        ("none", last(0, presence(9.0)), none, &[2, 1], 2),
        (
            "more than there are",
            last(50, presence(9.0)),
            none,
            &[2, 1],
            3,
        ),
        (
            "the top 1",
            Sampling {
                temperature: 5.0,
                top_k: 1,
                ..greedy
            },
            none,
            &[],
            2,
        ),
        (
            "a top-p of the best alone",
            Sampling {
                temperature: 1.0,
                top_p: 0.1,
                ..greedy
            },
            none,
            &[],
            2,
        ),
        (
            "a min-p of the best alone",
            Sampling {
                temperature: 1.0,
                min_p: 1.0,
                ..greedy
            },
            none,
            &[],
            2,
        ),
        // Penalties come before the filters: with 2 and 1 gone, 3 is the best.
        (
            "penalties, then the top 1",
            Sampling {
                temperature: 5.0,
                top_k: 1,
                ..presence(9.0)
            },
            none,
            &[2, 1],
            3,
        ),
        // 2 followed 0 1 before. 3 - 0.5 * 4 ^ (2 - 2) = 2.5, 3 - 0.5 * 4 ^ (2 - 1) = 1.
        ("DRY, a short run", dry(2), none, &[0, 1, 2, 3, 0, 1], 2),
        ("DRY, a run too long", dry(1), none, &[0, 1, 2, 3, 0, 1], 1),
        ("DRY, no run", dry(1), none, &[0, 1, 2, 3, 0, 3], 2),
        (
            "DRY, the longest run",
            dry(1),
            none,
            &[1, 2, 0, 1, 2, 0, 1],
            1,
        ),
        (
            "DRY looks at the last tokens only",
            Sampling {
                dry_penalty_last_n: 5,
                ..dry(1)
            },
            none,
            &[0, 1, 2, 3, 0, 1],
            2,
        ),
        (
            "DRY needs no temperature and comes before the top 1",
            Sampling {
                temperature: 5.0,
                top_k: 1,
                ..dry(1)
            },
            none,
            &[0, 1, 2, 3, 0, 1],
            1,
        ),
        // The deviation of the logits is 1.47.
        (
            "a sigma",
            Sampling {
                temperature: 9.0,
                top_n_sigma: 0.6,
                ..greedy
            },
            none,
            &[],
            2,
        ),
        // Their probabilities are 0.01, 0.23, 0.62, 0.14; their entropy is 0.96, next to 2's surprise of 0.48 and 1's of 1.48.
        (
            "the most typical token",
            Sampling {
                temperature: 9.0,
                typical_p: 0.1,
                ..greedy
            },
            none,
            &[],
            2,
        ),
        (
            "XTC leaves the last of the top choices",
            Sampling {
                temperature: 1e-3,
                xtc_probability: 1.0,
                xtc_threshold: 0.1,
                ..greedy
            },
            none,
            &[],
            3,
        ),
        (
            "XTC changes no greedy choice",
            Sampling {
                xtc_probability: 1.0,
                ..greedy
            },
            none,
            &[],
            2,
        ),
    ];
    for (what, sampling, bias, history, want) in cases {
        let state = SlotState {
            sampling,
            bias,
            history,
            ..SlotState::default()
        };
        assert_eq!(choose(context.as_mut(), state), want, "{what}");
    }
    histories(context.as_mut());
    draws(context.as_mut());
}

/// Chosen tokens join the history of their slot only.
fn histories(context: &mut dyn Context) {
    let sampling = Sampling {
        presence_penalty: 9.0,
        repeat_last_n: 3,
        ..Sampling::default()
    };
    let state = |history| SlotState {
        sampling,
        history,
        ..SlotState::default()
    };
    set_slot(context, 0, state(&[]));
    set_slot(context, 1, state(&[2]));
    // Each of the last three tokens is out: 2, 1, 3, then 0, then 2 again.
    let emitted = chain(context, &[start(0, 0, 0, 8)]);
    assert_eq!(tokens_of(&emitted, 0, 1), [2, 1, 3, 0, 2, 1, 3, 0]);
    let emitted = chain(context, &[start(1, 0, 0, 5)]);
    assert_eq!(tokens_of(&emitted, 1, 1), [1, 3, 0, 2, 1]);
    // Several picks of one step, in order, each for its own slot.
    set_slot(context, 0, state(&[]));
    set_slot(context, 2, state(&[1, 2]));
    let rows = [0, 1, 2].map(|slot| Row::new(0, 0, slot));
    context.step_rows(0, &rows, &[]).expect("a valid step");
    let pick = |output, slot| Choice {
        output,
        slot,
        position: 1,
        draft: None,
    };
    let picks = [pick(1, 0), pick(0, 0), pick(2, 2), pick(2, 0)];
    let mut tokens = [u32::MAX; 4];
    context.sample(&picks, &mut tokens).expect("valid picks");
    assert_eq!(tokens, [2, 1, 3, 3]);
    // A new state forgets.
    set_slot(context, 0, SlotState::default());
    let emitted = chain(context, &[start(0, 0, 0, 2)]);
    assert_eq!(tokens_of(&emitted, 0, 1), [2, 2]);
}

/// Draws follow the softmax, and depend on the seed and the position.
fn draws(context: &mut dyn Context) {
    let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
    let mut sequences = Vec::new();
    for seed in [1, 2] {
        let mut counts = [0u32; 4];
        let mut tokens = Vec::new();
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::default()
        };
        let state = SlotState {
            sampling,
            ..SlotState::default()
        };
        set_slot(context, 0, state);
        context
            .step_rows(0, &[Row::default()], &[])
            .expect("a step");
        for position in 0..2000 {
            let pick = Choice {
                output: 0,
                slot: 0,
                position,
                draft: None,
            };
            let mut token = [0];
            context.sample(&[pick], &mut token).expect("a valid pick");
            counts[token[0] as usize] += 1;
            tokens.push(token[0]);
        }
        for (count, logit) in counts.iter().zip(LOGITS) {
            let off = *count as f32 / 2000.0 - logit.exp() / total;
            assert!(off.abs() < 0.04, "{counts:?}");
        }
        sequences.push(tokens);
    }
    assert_ne!(sequences[0], sequences[1], "two seeds");
}

/// Random logits and settings over small and large vocabularies, several slots at a time, against the plain sampler.
pub fn sampling(device: &dyn Device, _oracle: &dyn Device) {
    let n = &mut Numbers(5);
    for vocab in [1u32, 3, 70, 1000] {
        let table: Vec<Vec<f32>> = (0..vocab.min(40)).map(|_| n.logits(vocab)).collect();
        let table: Vec<Vec<f32>> = (0..vocab as usize)
            .map(|t| table[t % table.len()].clone())
            .collect();
        let case = Case::look_up(device, &table, 4, 1000);
        let mut context = case.open(device);
        for turn in 0..60 {
            let rows: Vec<Row> = (0..4)
                .map(|slot| Row::new(n.below(vocab), n.below(900), slot))
                .collect();
            context.step_rows(0, &rows, &[]).expect("a valid step");
            let mut wanted = Vec::new();
            let mut picks = Vec::new();
            let mut described = Vec::new();
            for (output, row) in rows.iter().enumerate() {
                let slot = 3 - row.slot;
                let (sampling, bias, history) = random_state(n, vocab);
                let state = SlotState {
                    sampling,
                    bias: &bias,
                    history: &history,
                    ..SlotState::default()
                };
                set_slot(context.as_mut(), slot, state);
                let position = row.position + 1;
                let row = &table[row.token() as usize];
                wanted.push(choose_plainly(row, &sampling, &bias, &history, position));
                picks.push(Choice {
                    output: output as u32,
                    slot,
                    position,
                    draft: None,
                });
                described.push((sampling, bias, history));
            }
            let mut tokens = vec![u32::MAX; 4];
            context.sample(&picks, &mut tokens).expect("valid picks");
            for (i, (got, want)) in tokens.iter().zip(&wanted).enumerate() {
                let state = &described[i];
                assert_eq!(got, want, "vocabulary {vocab}, turn {turn}: {state:?}");
            }
        }
    }
}

/// Random settings of DRY, typical-p, top-n-sigma, XTC and dynamic temperature, mixed with the others, against the oracle:
/// single choices and chains.
pub fn extended_sampling(device: &dyn Device, oracle: &dyn Device) {
    let n = &mut Numbers(9);
    for vocab in [1u32, 3, 70, 1000] {
        // A look-up may lose the sign of zero, which decides ties.
        let positive = |v: f32| if v == 0.0 { 0.0 } else { v };
        let mut row = || n.logits(vocab).into_iter().map(positive).collect();
        let table: Vec<Vec<f32>> = (0..vocab).map(|_| row()).collect();
        let case = Case::look_up(device, &table, 3, 400);
        let (mut context, mut plain) = (case.open(device), case.open(oracle));
        for turn in 0..40 {
            let mut described = Vec::new();
            let mut starts = Vec::new();
            for slot in 0..3 {
                let (mut sampling, bias, history) = random_state(n, vocab);
                // One slot may have common settings only.
                if slot > 0 || turn % 3 == 0 {
                    extend(&mut sampling, n);
                }
                let breakers: Vec<u32> = (0..n.below(vocab.div_ceil(32) + 1))
                    .map(|_| n.below(1 << 16) & n.below(1 << 16))
                    .collect();
                let state = SlotState {
                    sampling,
                    bias: &bias,
                    history: &history,
                    breakers: &breakers,
                    ..SlotState::default()
                };
                set_slot(context.as_mut(), slot, state);
                set_slot(plain.as_mut(), slot, state);
                described.push((sampling, bias, history, breakers));
                starts.push(start(slot, n.below(vocab), n.below(300), 1 + n.below(8)));
            }
            let what = || format!("vocabulary {vocab}, turn {turn}: {described:?}");
            let picked = [context.as_mut(), plain.as_mut()].map(|c| pick_all(c, &starts));
            assert_eq!(picked[0], picked[1], "{}", what());
            let chained = [context.as_mut(), plain.as_mut()].map(|c| {
                let emitted = chain(c, &starts);
                starts
                    .iter()
                    .map(|s| tokens_of(&emitted, s.slot, s.position + 1))
                    .collect::<Vec<_>>()
            });
            assert_eq!(chained[0], chained[1], "{}", what());
        }
    }
}

/// Chains of several slots with common settings of their own, a single step, then chains that go on, against the oracle.
pub fn sampled_chains(device: &dyn Device, oracle: &dyn Device) {
    let n = &mut Numbers(11);
    for vocab in [3u32, 70, 1000] {
        let positive = |v: f32| if v == 0.0 { 0.0 } else { v };
        let mut row = || n.logits(vocab).into_iter().map(positive).collect();
        let table: Vec<Vec<f32>> = (0..vocab).map(|_| row()).collect();
        let case = Case::look_up(device, &table, 4, 400);
        let (mut context, mut plain) = (case.open(device), case.open(oracle));
        for turn in 0..20 {
            let mut described = Vec::new();
            let mut starts = Vec::new();
            for slot in 0..1 + n.below(context.chain_slots().min(4) as u32) {
                let (sampling, bias, history) = random_state(n, vocab);
                let ends = [n.below(vocab), n.below(vocab)];
                let state = SlotState {
                    sampling,
                    bias: &bias,
                    history: &history,
                    // A small vocabulary would have an end at once.
                    ends: if vocab > 3 { &ends } else { &[] },
                    ..SlotState::default()
                };
                set_slot(context.as_mut(), slot, state);
                set_slot(plain.as_mut(), slot, state);
                described.push((sampling, bias, history, ends));
                starts.push(start(slot, n.below(vocab), n.below(300), 1 + n.below(14)));
            }
            let what = || format!("vocabulary {vocab}, turn {turn}: {described:?}");
            for _ in 0..2 {
                let [got, want] = [context.as_mut(), plain.as_mut()].map(|c| {
                    let emitted = chain(c, &starts);
                    let of = |s: &ChainStart| tokens_of(&emitted, s.slot, s.position + 1);
                    starts.iter().map(of).collect::<Vec<_>>()
                });
                assert_eq!(got, want, "{}", what());
                for (start, tokens) in starts.iter_mut().zip(&want) {
                    start.token = *tokens.last().expect("a token");
                    start.position += tokens.len() as u32;
                    start.steps = 5;
                }
                let [got, want] = [context.as_mut(), plain.as_mut()].map(|c| pick_all(c, &starts));
                assert_eq!(got, want, "a step: {}", what());
                for (start, token) in starts.iter_mut().zip(want) {
                    start.token = token;
                    start.position += 1;
                }
            }
        }
    }
}

/// A token for each start, by a step.
fn pick_all(context: &mut dyn Context, starts: &[ChainStart]) -> Vec<u32> {
    let row = |s: &ChainStart| Row::new(s.token, s.position, s.slot);
    let rows: Vec<Row> = starts.iter().map(row).collect();
    context.step_rows(0, &rows, &[]).expect("a valid step");
    let pick = |(output, s): (usize, &ChainStart)| Choice {
        output: output as u32,
        slot: s.slot,
        position: s.position + 1,
        draft: None,
    };
    let picks: Vec<Choice> = starts.iter().enumerate().map(pick).collect();
    let mut tokens = vec![u32::MAX; picks.len()];
    context.sample(&picks, &mut tokens).expect("valid picks");
    tokens
}

/// Switches some of the further settings on.
fn extend(sampling: &mut Sampling, n: &mut Numbers) {
    sampling.typical_p = n.pick(&[1.0, 1.0, 0.9, 0.4, 0.0]);
    sampling.top_n_sigma = n.pick(&[0.0, 0.0, 1.0, 2.5]);
    sampling.xtc_probability = n.pick(&[0.0, 0.5, 1.0]);
    sampling.xtc_threshold = n.pick(&[0.0, 0.02, 0.1, 0.6]);
    sampling.dynatemp_range = n.pick(&[0.0, 0.2, 3.0]);
    sampling.dynatemp_exponent = n.pick(&[1.0, 0.5, 2.0]);
    sampling.dry_multiplier = n.pick(&[0.0, 0.8, 3.0]);
    sampling.dry_base = n.pick(&[1.75, 1.0, 4.0]);
    sampling.dry_allowed_length = n.pick(&[0, 1, 2, 5]);
    sampling.dry_penalty_last_n = n.pick(&[0, 8, 64, u32::MAX]);
}

/// Rows of guessed tokens: each slot's tokens are chosen as one by one up to the first that differs from its guess, and
/// nothing of later rows stays.
pub fn drafts(device: &dyn Device, _oracle: &dyn Device) {
    const SLOTS: u32 = 3;
    const MOST: u32 = 5;
    let n = &mut Numbers(6);
    let vocab = 70;
    // Few likely tokens, so that guesses are often right and penalties matter.
    let table: Vec<Vec<f32>> = (0..vocab)
        .map(|_| {
            let mut row = n.logits(vocab);
            (0..3).for_each(|_| row[n.below(vocab) as usize] += 6.0);
            row
        })
        .collect();
    // The decode pass takes a row per slot.
    let case = Case::look_up(device, &table, SLOTS * MOST, 1000);
    let mut context = case.open(device);
    let mut skipped = 0;
    let mut whole = 0;
    for turn in 0..80 {
        let mut states: Vec<State> = (0..SLOTS).map(|_| random_state(n, vocab)).collect();
        if turn % 3 == 0 {
            // Without penalties.
            states
                .iter_mut()
                .for_each(|state| state.0.repeat_last_n = 0);
        }
        for (slot, (sampling, bias, history)) in (0..).zip(&states) {
            let state = SlotState {
                sampling: *sampling,
                bias,
                history,
                ..SlotState::default()
            };
            set_slot(context.as_mut(), slot, state);
        }
        // The second round shows what the first has left in the histories.
        for round in 0..2u32 {
            let (mut rows, mut picks, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
            for (slot, (sampling, bias, history)) in (0..).zip(&mut states) {
                let first = n.below(400) + 500 * round;
                let mut token = n.below(vocab);
                let mut agrees = true;
                let count = 1 + n.below(MOST);
                for nth in 0..count {
                    let position = first + nth;
                    rows.push(Row::new(token, position, slot));
                    let logits = &table[token as usize];
                    let chosen = choose_plainly(logits, sampling, bias, history, position + 1);
                    let guess = match n.below(4) {
                        0 => n.below(vocab),
                        _ => chosen,
                    };
                    picks.push(Choice {
                        output: rows.len() as u32 - 1,
                        slot,
                        position: position + 1,
                        draft: (nth + 1 < count).then_some(guess),
                    });
                    wanted.push(if agrees { chosen } else { SKIPPED });
                    skipped += u32::from(!agrees);
                    if agrees {
                        history.push(chosen);
                        agrees = guess == chosen;
                    }
                    token = guess;
                }
                whole += u32::from(agrees);
            }
            let mut tokens = vec![0; picks.len()];
            if n.below(2) == 0 {
                context.step_rows(0, &rows, &[]).expect("a valid step");
                context.sample(&picks, &mut tokens).expect("valid picks");
            } else {
                let step = step_choosing(&rows, &picks);
                let done = context.step(&step, StepOptions::tokens(&mut tokens));
                done.expect("a valid step");
            }
            assert_eq!(tokens, wanted, "turn {turn}, round {round}: {states:?}");
        }
    }
    assert!(skipped > 100 && whole > 100, "{skipped} {whole}");
}

/// Settings, biases and history of a slot.
pub(super) type State = (Sampling, Vec<(u32, f32)>, Vec<u32>);

/// Random settings, extreme ones and NaN among them.
pub fn random_settings(n: &mut Numbers) -> Sampling {
    Sampling {
        temperature: n.pick(&[0.0, 0.3, 1.0, 2.5, 1e-6, f32::NAN]),
        top_k: n.pick(&[0, 0, 1, 2, 40, 2000, 100_000]),
        top_p: n.pick(&[1.0, 1.0, 0.95, 0.5, 0.0, 0.999, f32::NAN]),
        min_p: n.pick(&[0.0, 0.0, 0.05, 0.5, 2.0]),
        repeat_penalty: n.pick(&[1.0, 1.3]),
        frequency_penalty: n.pick(&[0.0, 0.5]),
        presence_penalty: n.pick(&[0.0, 0.5]),
        repeat_last_n: n.pick(&[0, 5, 64, 1000]),
        seed: n.next() << 20 ^ n.next(),
        ..Sampling::default()
    }
}

pub(super) fn random_state(n: &mut Numbers, vocab: u32) -> State {
    let sampling = random_settings(n);
    // A history of few tokens has many repetitions. Tokens beyond the vocabulary do no harm.
    let below = n.pick(&[4, vocab + 2]);
    let history = (0..n.below(90)).map(|_| n.below(below)).collect();
    let bias = (0..n.below(3).saturating_sub(1) * n.below(70))
        .map(|_| {
            let bias = n.pick(&[2.0, -1.5, f32::NEG_INFINITY]);
            (n.below(vocab.min(20) + 1), bias)
        })
        .collect();
    (sampling, bias, history)
}

/// The choice as the contract describes it, written for this suite alone.
pub(super) fn choose_plainly(
    logits: &[f32],
    s: &Sampling,
    bias: &[(u32, f32)],
    history: &[u32],
    position: u32,
) -> u32 {
    let mut values = logits.to_vec();
    for (token, bias) in bias {
        if let Some(value) = values.get_mut(*token as usize) {
            *value += bias;
        }
    }
    let recent = &history[history.len().saturating_sub(s.repeat_last_n as usize)..];
    let neutral = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) == (1.0, 0.0, 0.0);
    for (token, value) in values.iter_mut().enumerate() {
        let count = recent.iter().filter(|t| **t as usize == token).count();
        if count == 0 || neutral {
            continue;
        }
        if *value > 0.0 {
            *value /= s.repeat_penalty;
        } else {
            *value *= s.repeat_penalty;
        }
        *value = *value - count as f32 * s.frequency_penalty - s.presence_penalty;
    }
    // The best by value, the lowest index on a tie; NaN never wins.
    let mut best = 0;
    let mut largest = f32::NEG_INFINITY;
    for (token, value) in values.iter().enumerate() {
        if *value > largest {
            (best, largest) = (token as u32, *value);
        }
    }
    let greedy = s.temperature.is_nan() || s.temperature <= 0.0;
    if greedy || !largest.is_finite() {
        return best;
    }
    let mut kept: Vec<(u32, f32)> = Vec::new();
    for (token, value) in values.iter().enumerate() {
        let below = value - largest;
        if !below.is_nan() {
            kept.push((token as u32, below));
        }
    }
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if s.top_k > 0 {
        kept.truncate(s.top_k as usize);
    }
    if s.top_p < 1.0 {
        let weight = |z: f32| f64::from(z).exp();
        let total: f64 = kept.iter().map(|k| weight(k.1)).sum();
        let wanted = f64::from(s.top_p) * total;
        let mut mass = 0.0;
        let mut count = 0;
        for (_, z) in &kept {
            if count > 0 && mass >= wanted {
                break;
            }
            mass += weight(*z);
            count += 1;
        }
        kept.truncate(count);
    }
    if s.min_p > 0.0 {
        let least = s.min_p.min(1.0).ln();
        kept.retain(|k| k.1 >= least);
    }
    let mut chosen = (best, f32::NEG_INFINITY);
    for (token, z) in kept {
        let key = z / s.temperature + noise(s.seed, position, token);
        if key > chosen.1 || key == chosen.1 && token < chosen.0 {
            chosen = (token, key);
        }
    }
    chosen.0
}
