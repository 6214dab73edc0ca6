//! Masks: a token that the mask does not allow never wins, whatever the settings are, and a choice waits for its mask.

use super::case::{Case, chain, set_slot, start, step_choosing, tokens_of};
use super::made::Numbers;
use super::sampling::{choose_plainly, random_state};
use std::sync::mpsc;
use welte_device::{
    Choice, Context, Control, Device, MaskBoard, NO_MASK, NO_TOKEN, SKIPPED, SlotState, StepOptions,
};
use welte_table::{Row, Sampling};

/// Random masks, logits and settings against the plain sampler, whose forbidden logits are minus infinity.
pub fn masks(device: &dyn Device, _oracle: &dyn Device) {
    let n = &mut Numbers(11);
    for vocab in [1u32, 3, 70, 1000] {
        let table: Vec<Vec<f32>> = (0..vocab.min(40)).map(|_| n.logits(vocab)).collect();
        let table: Vec<Vec<f32>> = (0..vocab as usize)
            .map(|t| table[t % table.len()].clone())
            .collect();
        let case = Case::look_up(device, &table, 2, 1000);
        let mut context = case.open(device);
        for turn in 0..60 {
            let row = Row::new(n.below(vocab), n.below(900), 1);
            context.step_rows(0, &[row], &[]).expect("a valid step");
            let (sampling, bias, history) = random_state(n, vocab);
            let state = SlotState {
                sampling,
                bias: &bias,
                history: &history,
                masked: true,
                ..SlotState::default()
            };
            set_slot(context.as_mut(), 1, state);
            let mask = random_mask(n, vocab);
            let position = row.position + 1;
            context.masks().allow(1, position, &mask);
            let mut logits = table[row.token() as usize].clone();
            for (token, logit) in logits.iter_mut().enumerate() {
                if mask[token / 32] >> (token % 32) & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
            let token = choose_plainly(&logits, &sampling, &bias, &history, position);
            // The plain sampler returns a token of no weight where there is none.
            let value = logits[token as usize] + biases_of(&bias, token);
            let want = if value > f32::NEG_INFINITY {
                token
            } else {
                NO_TOKEN
            };
            let got = pick(context.as_mut(), 1, position);
            assert_eq!(got, want, "vocabulary {vocab}, turn {turn}: {state:?}");
        }
    }
}

fn biases_of(bias: &[(u32, f32)], token: u32) -> f32 {
    let of_token = bias.iter().filter(|(t, _)| *t == token);
    of_token.map(|(_, bias)| bias).sum()
}

/// Few tokens, about half of them, or all but a few.
fn random_mask(n: &mut Numbers, vocab: u32) -> Vec<u32> {
    let rarity = n.pick(&[1, 2, 2, 30, 200, 100_000]);
    let inverted = n.below(4) == 0;
    let bit = |n: &mut Numbers| u32::from((n.below(rarity) == 0) != inverted);
    let words = (0..vocab.div_ceil(32)).map(|_| (0..32).map(|at| bit(n) << at).sum());
    words.collect()
}

/// One choice of a slot from the first output row of the last step.
fn pick(context: &mut dyn Context, slot: u32, position: u32) -> u32 {
    let pick = Choice {
        output: 0,
        slot,
        position,
        draft: None,
    };
    let mut token = [0];
    context.sample(&[pick], &mut token).expect("a valid pick");
    token[0]
}

/// What a mask does to chains: those of one step, those that wait for each mask, and those whose mask does not come.
pub fn masks_in_chains(device: &dyn Device, _oracle: &dyn Device) {
    let logits = vec![0.0, 3.0, 2.0, 1.0];
    let table = vec![logits; 4];
    let case = Case::look_up(device, &table, 3, 400);
    let mut context = case.open(device);
    let context = context.as_mut();
    let masks = context.masks();
    let masked = SlotState {
        masked: true,
        ..SlotState::default()
    };
    for sampling in [Sampling::default(), cold()] {
        let state = SlotState { sampling, ..masked };
        set_slot(context, 0, state);
        // Chains of one step, each with its mask.
        for (position, bits, want) in [(1, 0b1111, 1), (2, 0b1100, 2), (3, 0b0001, 0)] {
            masks.allow(0, position, &[bits]);
            let emitted = chain(context, &[start(0, 0, position - 1, 1)]);
            assert_eq!(tokens_of(&emitted, 0, position), [want]);
        }
        // A mask without tokens ends the chain, and so does one whose only tokens are forbidden.
        masks.allow(0, 4, &[0]);
        let emitted = chain(context, &[start(0, 0, 3, 9)]);
        assert_eq!(tokens_of(&emitted, 0, 4), [NO_TOKEN]);
        // A state takes the mask away.
        masks.allow(0, 4, &[0b1111]);
        set_slot(context, 0, state);
        let emitted = chain(context, &[start(0, 0, 3, 9)]);
        assert_eq!(tokens_of(&emitted, 0, 4), [NO_MASK]);
        // The step may be repeated.
        masks.allow(0, 4, &[0b0100]);
        let emitted = chain(context, &[start(0, 0, 3, 1)]);
        assert_eq!(tokens_of(&emitted, 0, 4), [2]);
    }
    history(context);
    from_another_thread(context);
    beside_others(context);
}

/// Rows of guesses, each with a mask of its own: every token is chosen within the mask of its position.
pub fn masks_of_guesses(device: &dyn Device, _oracle: &dyn Device) {
    const SLOTS: u32 = 2;
    const MOST: u32 = MaskBoard::DEPTH as u32;
    let n = &mut Numbers(12);
    let vocab = 70;
    // Without negative zeros: a device's sums need not keep them, and a sort would tell them from others.
    let mut row = |_| n.logits(vocab).into_iter().map(|v| v + 0.0).collect();
    let table: Vec<Vec<f32>> = (0..vocab).map(&mut row).collect();
    let case = Case::look_up(device, &table, SLOTS * MOST, 1000);
    let mut context = case.open(device);
    let masks = context.masks();
    let (mut whole, mut none) = (0, 0);
    for turn in 0..60 {
        let (mut rows, mut picks, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for slot in 0..SLOTS {
            let (mut sampling, bias, mut history) = random_state(n, vocab);
            if turn % 2 == 0 {
                sampling.repeat_last_n = 0;
            }
            let state = SlotState {
                sampling,
                bias: &bias,
                history: &history,
                masked: true,
                ..SlotState::default()
            };
            set_slot(context.as_mut(), slot, state);
            let mut row = Row::new(n.below(vocab), n.below(900), slot);
            let count = 1 + n.below(MOST);
            let mut agrees = true;
            for nth in 1..=count {
                let position = row.position + 1;
                let mask = match n.below(16) {
                    0 => vec![0],
                    1 => random_mask(n, vocab),
                    _ => (0..vocab.div_ceil(32)).map(|_| n.next() as u32).collect(),
                };
                let only = n.below(vocab);
                let allowed = |token: u32| match nth % 3 {
                    0 => token == only,
                    _ => mask
                        .get(token as usize / 32)
                        .is_some_and(|w| w >> (token % 32) & 1 == 1),
                };
                match nth % 3 {
                    0 => masks.allow_only(slot, position, only),
                    _ => masks.allow(slot, position, &mask),
                }
                let mut logits = table[row.token() as usize].clone();
                for (token, logit) in (0..).zip(&mut logits) {
                    if !allowed(token) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                let token = choose_plainly(&logits, &sampling, &bias, &history, position);
                let value = logits[token as usize] + biases_of(&bias, token);
                let chosen = if value > f32::NEG_INFINITY {
                    token
                } else {
                    NO_TOKEN
                };
                let guess = match n.below(12) {
                    0 => n.below(vocab),
                    _ => token,
                };
                let draft = (nth < count).then_some(guess);
                picks.push(Choice {
                    output: rows.len() as u32,
                    slot,
                    position,
                    draft,
                });
                rows.push(row);
                wanted.push(if agrees { chosen } else { SKIPPED });
                if agrees && chosen != NO_TOKEN {
                    history.push(chosen);
                }
                none += u32::from(agrees && chosen == NO_TOKEN);
                agrees &= chosen == guess;
                row = Row::new(guess, position, slot);
            }
            whole += u32::from(agrees && count > 1);
        }
        let mut tokens = vec![0; picks.len()];
        let step = step_choosing(&rows, &picks);
        let done = context.step(&step, StepOptions::tokens(&mut tokens));
        done.expect("a valid step");
        assert_eq!(tokens, wanted, "turn {turn}: {picks:?}");
    }
    assert!(whole > 20 && none > 5, "{whole} {none}");
}

fn cold() -> Sampling {
    Sampling {
        temperature: 1e-3,
        ..Sampling::default()
    }
}

/// Only tokens join the history.
fn history(context: &mut dyn Context) {
    let masks = context.masks();
    let state = SlotState {
        sampling: Sampling {
            presence_penalty: 9.0,
            repeat_last_n: 1,
            ..Sampling::default()
        },
        masked: true,
        ..SlotState::default()
    };
    set_slot(context, 0, state);
    for (position, bits, want) in [(1, 0b1111, 1), (2, 0, NO_TOKEN), (2, 0b1111, 2)] {
        masks.allow(0, position, &[bits]);
        let emitted = chain(context, &[start(0, 0, position - 1, 1)]);
        assert_eq!(tokens_of(&emitted, 0, position), [want]);
    }
}

/// Another thread writes each mask once it has seen the token before. The chain goes on.
fn from_another_thread(context: &mut dyn Context) {
    let masks = context.masks();
    let state = SlotState {
        masked: true,
        ..SlotState::default()
    };
    set_slot(context, 2, state);
    let (seen, tokens) = mpsc::channel::<(u32, u32)>();
    let mut emitted = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            masks.allow(2, 1, &[1]);
            while let Ok((position, token)) = tokens.recv() {
                // Only the token after this one.
                masks.allow(2, position + 1, &[1 << ((token + 1) % 4)]);
            }
        });
        let mut emit = |one: welte_device::Emitted| {
            emitted.push(one.token);
            seen.send((one.position, one.token)).is_ok()
        };
        let starts = [start(2, 0, 0, 40)];
        let ran = context.chain(&starts, &Control::default(), &mut emit);
        ran.expect("a valid chain");
        drop(seen);
    });
    // A thread may be late on a busy machine. Until then the tokens follow each other.
    let in_time = emitted.iter().take_while(|token| **token != NO_MASK);
    let tokens: Vec<u32> = in_time.copied().collect();
    let want: Vec<u32> = (0..tokens.len() as u32).map(|i| i % 4).collect();
    assert_eq!(tokens, want);
    assert!(tokens.len() == 40 || emitted.len() == tokens.len() + 1);
}

/// Slots with and without a mask do not change each other.
fn beside_others(context: &mut dyn Context) {
    let masks = context.masks();
    let masked = SlotState {
        masked: true,
        ..SlotState::default()
    };
    let slots = context.chain_slots().min(3);
    for slot in 0..slots as u32 {
        let state = match slot {
            1 => SlotState::default(),
            _ => masked,
        };
        set_slot(context, slot, state);
    }
    masks.allow(0, 8, &[0b1000]);
    let starts = [start(0, 0, 7, 1), start(1, 0, 3, 3), start(2, 0, 5, 2)];
    let emitted = chain(context, &starts[..slots]);
    assert_eq!(tokens_of(&emitted, 0, 8), [3]);
    if slots > 1 {
        assert_eq!(tokens_of(&emitted, 1, 4), [1, 1, 1]);
    }
    if slots > 2 {
        assert_eq!(tokens_of(&emitted, 2, 6), [NO_MASK]);
    }
}
