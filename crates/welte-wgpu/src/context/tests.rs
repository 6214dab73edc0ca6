//! Sampling on the GPU: its choices are the host's, and it leaves few to it.

use super::WgpuContext;
use super::samplers::{UNDECIDED, are_known};
use crate::adapter::{self, Api};
use crate::gpu::{Abilities, Gpu, binding};
use crate::kernels;
use crate::launch::Choice;
use crate::load::Weights;
use crate::plan::{ROW_WORDS, STATE_HEAD};
use std::sync::Arc;
use welte_conformance::made::Numbers;
use welte_conformance::model::Model;
use welte_conformance::program::make;
use welte_device::{ChainStart, Context as _, SlotState, noise};
use welte_table::{Op, Sampling};
use wgpu::BufferUsages;

/// Verified programs begin with their decode pass.
const DECODE: usize = 0;

const SLOTS: u32 = 8;

/// None on a machine without an adapter, unless `WELTE_GPU_REQUIRED` is set.
fn gpu(barriers: Option<bool>) -> Option<Arc<Gpu>> {
    let abilities = Abilities {
        barriers,
        ..Abilities::ALL
    };
    let opened = adapter::open(Api::Gpu, 0)
        .and_then(|adapter| Gpu::open(Api::Gpu.id(0), adapter, abilities));
    match opened {
        Ok(gpu) => Some(Arc::new(gpu)),
        Err(why) if std::env::var_os("WELTE_GPU_REQUIRED").is_none() => {
            eprintln!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// A context whose program does little but choose from `vocab` logits.
fn context(gpu: Arc<Gpu>, vocab: u32) -> WgpuContext {
    let model = Model {
        layers: Vec::new(),
        dim: 32,
        vocab,
        slots: SLOTS,
        decode_rows: SLOTS,
        ..Model::small(1)
    };
    let (program, made) = make(&model);
    let weights = Weights::load(gpu, Arc::new(program), &made, &mut |_| ()).expect("loaded");
    WgpuContext::new(Arc::new(weights)).expect("a context")
}

impl WgpuContext {
    /// What the GPU chooses for every slot from these logits, and what the host would choose.
    fn choices(&mut self, logits: &[Vec<f32>], positions: &[u32]) -> [Vec<u32>; 2] {
        let program = self.weights.program.clone();
        let pass = &program.passes[DECODE];
        self.live.clear();
        self.live.extend((0..SLOTS).map(|slot| ChainStart {
            slot,
            token: 0,
            position: positions[slot as usize],
            steps: 1,
            shift: 0,
        }));
        self.begin_live(DECODE);
        self.update_samplers();
        let bytes: Vec<u8> = logits
            .iter()
            .flatten()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        let (buffer, first) = (pass.result.buffer, pass.result.offset);
        self.write_bytes(buffer, first.into(), &bytes)
            .expect("logits");
        let sample = pass.commands.iter().position(|c| c.op == Op::Sample);
        let sample = sample.expect("the pass chooses");
        let mut encoder = self.encoder();
        self.record(
            &mut encoder,
            &(sample..usize::MAX),
            Some(Choice::Sampler),
            1,
        );
        let (report, bytes) = (self.sizes.scratch, u64::from(SLOTS) * 4);
        encoder.copy_buffer_to_buffer(&self.arena, report, &self.tokens[0], 0, bytes);
        let index = self.gpu().submit(encoder);
        self.read_tokens(0, index).expect("tokens");
        let chosen = self.step.tokens.clone();
        let mut wanted = Vec::new();
        for (slot, row) in (0..SLOTS).zip(0..) {
            let (state, position) = (&self.slots[row], positions[row] + 1);
            let token = self
                .scratch
                .choose(state, &self.masks, slot, &logits[row], position);
            wanted.push(token);
            // The GPU has appended the token by itself.
            self.slots[row].remember(token);
            if chosen[row] == UNDECIDED {
                self.samplers.forget_history(slot);
            }
        }
        [chosen, wanted]
    }
}

/// Logits as models have them: most are far below the largest, and the likely ones are crowded in some places.
fn logits_of_a_model(n: &mut Numbers, vocab: u32, spread: f32) -> Vec<f32> {
    let mut values: Vec<f32> = (0..vocab)
        .map(|_| spread * (n.float() + n.float() + n.float() + n.float()))
        .collect();
    if n.below(4) == 0 {
        // One likely token, and many far below it.
        values.iter_mut().for_each(|value| *value *= 0.1);
        values[n.below(vocab) as usize] += 13.5;
        return values;
    }
    let from = n.below(vocab) as usize;
    for value in values.iter_mut().skip(from).take(30) {
        *value += 3.0 * spread * n.float();
    }
    values
}

/// Settings that the kernels know.
fn settings(n: &mut Numbers) -> Sampling {
    Sampling {
        temperature: n.pick(&[0.7, 0.0, 0.3, 1.0, 60.0, 1e-6]),
        top_k: n.pick(&[0, 0, 1, 2, 40, 64, 300, 100_000]),
        top_p: n.pick(&[1.0, 1.0, 0.95, 0.5, 0.0, 0.999]),
        min_p: n.pick(&[0.0, 0.0, 0.05, 0.5, 2.0]),
        repeat_penalty: n.pick(&[1.0, 1.3, 0.9]),
        frequency_penalty: n.pick(&[0.0, 0.3, -0.2]),
        presence_penalty: n.pick(&[0.0, 0.5]),
        repeat_last_n: n.pick(&[0, 5, 64, 1000]),
        seed: n.next() << 20 ^ n.next(),
        ..Sampling::default()
    }
}

/// Steps of random settings. How many choices were left to the host, of how many.
fn compare(context: &mut WgpuContext, turns: u32, seed: u64, made: bool) -> (usize, usize) {
    let n = &mut Numbers(seed);
    let vocab = context.weights.program.vocab;
    let mut left = 0;
    for turn in 0..turns {
        let mut described = Vec::new();
        let mut logits = Vec::new();
        for slot in 0..SLOTS {
            let sampling = settings(n);
            let below = n.pick(&[4, vocab]);
            let history: Vec<u32> = (0..n.below(90)).map(|_| n.below(below)).collect();
            let bias: Vec<(u32, f32)> = (0..n.pick(&[0, 0, 3, 60]))
                .map(|_| {
                    (
                        n.below(vocab.min(50)),
                        n.pick(&[2.0, -1.5, f32::NEG_INFINITY]),
                    )
                })
                .collect();
            let state = SlotState {
                sampling,
                bias: &bias,
                history: &history,
                ..SlotState::default()
            };
            context.set_slot(slot, &state).expect("a valid state");
            assert!(are_known(&context.slots[slot as usize]), "{sampling:?}");
            let spread = n.pick(&[0.5, 2.0, 6.0]);
            logits.push(if made {
                n.logits(vocab)
            } else {
                logits_of_a_model(n, vocab, spread)
            });
            described.push((sampling, bias, history));
        }
        let positions: Vec<u32> = (0..SLOTS).map(|_| n.below(100)).collect();
        // The second step has the history of the first one.
        for round in 0..2 {
            let [chosen, wanted] = context.choices(&logits, &positions);
            for (slot, (got, want)) in chosen.iter().zip(&wanted).enumerate() {
                if *got == UNDECIDED {
                    left += 1;
                } else {
                    let state = &described[slot];
                    assert_eq!(
                        got, want,
                        "turn {turn}, round {round}, slot {slot}: {state:?}"
                    );
                }
            }
        }
    }
    (left, (turns * SLOTS * 2) as usize)
}

#[test]
fn choices_are_those_of_the_host() {
    // Workgroups of this adapter, and those of hardware.
    let cases = [
        (None, 1, 4),
        (None, 70, 40),
        (None, 1000, 40),
        (None, 40_001, 3),
        (Some(true), 3000, 3),
    ];
    for (barriers, vocab, turns) in cases {
        let Some(gpu) = gpu(barriers) else { return };
        let mut context = context(gpu, vocab);
        let (left, all) = compare(&mut context, turns, 7 + u64::from(vocab), false);
        assert!(left * 100 <= all, "{left} of {all} are left to the host");
        // Infinities, NaN, ties.
        compare(&mut context, turns, 9, true);
    }
}

#[test]
fn top_p_reaches_elements_that_are_not_listed() {
    const VOCAB: usize = 40_001;
    let Some(gpu) = gpu(None) else { return };
    let mut context = context(gpu, VOCAB as u32);
    for slot in 0..SLOTS {
        // The others have 5 % of the weight. So hot a choice takes any that is kept.
        let sampling = Sampling {
            temperature: 1e6,
            top_p: 0.97,
            seed: slot.into(),
            ..Sampling::default()
        };
        let state = SlotState {
            sampling,
            ..SlotState::default()
        };
        context.set_slot(slot, &state).expect("a valid state");
    }
    let mut logits = vec![0.0; VOCAB];
    logits[33] = 13.5;
    let [chosen, wanted] = context.choices(&vec![logits; SLOTS as usize], &[5; SLOTS as usize]);
    assert_eq!(chosen, wanted);
    assert!(chosen.iter().all(|token| *token != 33), "{chosen:?}");
}

/// What the GPU makes of the first numbers, from 0 on. `function` is the source of `function_of`.
fn mapped(gpu: &Gpu, function: &'static str, count: u32) -> Vec<f32> {
    let (bytes, both) = (
        u64::from(count) * 4,
        BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
    );
    let numbers = gpu.buffer("numbers", bytes, BufferUsages::STORAGE | both);
    let numbers = numbers.expect("memory");
    let read = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
    let staging = gpu.buffer("results", bytes, read).expect("memory");
    let given: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
    gpu.queue.write_buffer(&numbers, 0, &given);
    let pipeline = gpu.pipeline(&kernels::mapped(function)).expect("a kernel");
    let bind = gpu.bind(&[(binding::MEM, numbers.as_entire_binding())]);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &bind, &[]);
    pass.dispatch_workgroups(count.div_ceil(kernels::WORKGROUP), 1, 1);
    drop(pass);
    encoder.copy_buffer_to_buffer(&numbers, 0, &staging, 0, bytes);
    let index = gpu.submit(encoder);
    let floats = |bytes: &[u8]| {
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|word| f32::from_ne_bytes(*word)).collect()
    };
    gpu.mapped(&staging, bytes, index, floats).expect("results")
}

#[test]
fn noise_is_the_hosts_within_the_margin() {
    let Some(gpu) = gpu(None) else { return };
    let function =
        "fn function_of(token: u32) -> f32 { return noise(noise_key(vec2(9u, 5u), 77u), token); }";
    for (token, got) in (0..).zip(mapped(&gpu, function, 1 << 20)) {
        let want = noise(5 << 32 | 9, 77, token);
        // A third of what `draw.wgsl` allows for a key.
        assert!((got - want).abs() < 1e-5, "{token}: {got}, {want}");
    }
}

#[test]
fn quotients_are_rounded_as_on_the_host() {
    let Some(gpu) = gpu(None) else { return };
    // Numerators of any digits, and all denominators between 0.5 and 2 in steps.
    let function = "fn function_of(i: u32) -> f32 {
        let x = bitcast<f32>(0x40000000u + ((i * 2654435761u) >> 4u) % 0x2000000u);
        return rounded_quotient(x, 0.5 + f32(i) * 0.0000019073486328125);
    }";
    for (i, got) in (0u32..).zip(mapped(&gpu, function, 3 << 18)) {
        let digits = (i.wrapping_mul(2_654_435_761) >> 4) % 0x200_0000;
        let (x, y) = (
            f32::from_bits(0x4000_0000 + digits),
            0.5 + i as f32 / (1 << 19) as f32,
        );
        assert_eq!(got.to_bits(), (x / y).to_bits(), "{x} / {y}");
    }
}

#[test]
fn powers_of_two_bring_numbers_into_the_range_of_f16() {
    let Some(gpu) = gpu(None) else { return };
    const FUNCTION: &str = concat!(
        include_str!("../../shaders/power.wgsl"),
        "fn function_of(i: u32) -> f32 {
            let most = bitcast<f32>(i << 15u);
            return power_of(inverse_for(most)) * most;
        }"
    );
    for (i, got) in (0u32..).zip(mapped(&gpu, FUNCTION, 1 << 16)) {
        let most = f32::from_bits(i << 15);
        match i >> 8 {
            // A GPU may flush such numbers.
            0 => {}
            255 => assert!(got.is_nan() || got == f32::INFINITY, "{most} became {got}"),
            exponent => {
                let factor = f64::from(141 - exponent.max(15) as i32).exp2();
                assert_eq!(f64::from(got), f64::from(most) * factor, "{most}");
                assert!(got < 32768.0 && (exponent < 15 || got >= 16384.0), "{got}");
            }
        }
    }
}

#[test]
fn an_undecided_row_stays_and_the_others_go_on() {
    let Some(gpu) = gpu(None) else { return };
    let mut context = context(gpu, 300);
    let sampling = Sampling {
        temperature: 1.0,
        presence_penalty: 0.5,
        ..Sampling::default()
    };
    for slot in 0..SLOTS {
        let state = SlotState {
            sampling,
            history: &[3, 5],
            ..SlotState::default()
        };
        context.set_slot(slot, &state).expect("a valid state");
    }
    let mut logits = vec![vec![1.0; 300]; SLOTS as usize];
    // Numbers that a GPU may flush to zero.
    (logits[1][299], logits[4][7]) = (1e-40, -0.0);
    let [chosen, wanted] = context.choices(&logits, &[20; SLOTS as usize]);
    let histories = u64::from(context.sizes.histories);
    for (row, (got, want)) in chosen.iter().zip(wanted).enumerate() {
        let mut bytes = [0; 12];
        let read = |at: u64, bytes: &mut [u8]| context.read(&context.state, 4 * at, bytes);
        read((STATE_HEAD + ROW_WORDS * row) as u64, &mut bytes).expect("a row");
        let words = bytes.as_chunks::<4>().0;
        let [token, position, _] = [0, 1, 2].map(|i| u32::from_ne_bytes(words[i]));
        let history = histories + row as u64 * (u64::from(context.program().context) + 2);
        read(history, &mut bytes).expect("a history");
        let kept = u32::from_ne_bytes(bytes.as_chunks::<4>().0[1]);
        match row {
            1 | 4 => assert_eq!((*got, token, position, kept), (UNDECIDED, 0, 20, 2)),
            _ => assert_eq!((*got, token, position, kept), (want, want, 21, 3)),
        }
    }
}
