//! Layers with a state: short convolutions, the gated delta rule, and the state space model of Mamba-2 (`kernels/persistent/conv.cuh`,
//! `recurrent.cuh`).

use super::super::instruction::Instruction;
use super::super::variants::{self, Variant};
use super::state::{Convolved, Product, Recorder, after_parts};
use crate::ops::kv;
use welte_table::{Bound, BufferRef, Command, NO_WEIGHT, Op, Pass, Run, WeightId, params, step};

/// Activations of gates: SiLU, and none.
const SILU: u32 = 0;
const NO_ACT: u32 = 5;
/// Floats of a state that a thread can hold, and columns that the threads of a block take at once.
const MOST_FLOATS: u32 = 64;
const COLUMNS: u32 = 64;
const PARTS: u32 = 4;

/// A convolution between two gates, which are parts of the same vector as its values.
const GATED_CONV: Run = Run {
    steps: &[
        step!(Gate [] [before, v] { n, gates: n, act = NO_ACT }),
        step!(ShortConv [_, _] [v, y, _] { n }),
        step!(Gate [] [after, y] { n, gates: n, act = NO_ACT }),
    ],
    relate: |b| {
        let vector = |name| Some(b.place(name)?.buffer);
        (vector("before") == vector("v") && vector("after") == vector("v")).then_some(())
    },
};

/// The delta rule, with the norm of each head and the gate that follow.
const GATED_DELTA: Run = Run {
    steps: &[
        step!(GatedDelta [_, _] [_, _, y, _] { heads, value_dim }),
        step!(Norm [norm] [y, y] { dim: value_dim, groups: heads }),
        step!(Gate [] [_, y] { n: values, gates: values, act = SILU }),
    ],
    relate: |b| (b.weight("norm") != NO_WEIGHT && is_whole(b)?).then_some(()),
};

/// The state space model of Mamba-2, with the gate that follows.
const GATED_MAMBA: Run = Run {
    steps: &[
        step!(Mamba2 [_, _, _] [_, _, y, _] { heads, value_dim }),
        step!(Gate [] [_, y] { n: values, gates: values, act = SILU }),
    ],
    relate: |b| is_whole(b)?.then_some(()),
};

/// Whether the gate is as wide as all heads.
fn is_whole(b: &Bound) -> Option<bool> {
    let all = b.word("heads")?.checked_mul(b.word("value_dim")?);
    Some(all == b.word("values"))
}

/// A layer with states, as its command says.
struct States {
    key_heads: u32,
    heads: u32,
    key_dim: u32,
    value_dim: u32,
    layer: u32,
}

/// Whether a product fills a smaller part of a vector than another one that follows or precedes it, and is then convolved. Blocks may
/// have no rows of it.
pub(super) fn is_small_part(pass: &Pass, index: usize) -> bool {
    let of = |command: &Command| match command.op {
        Op::Matmul | Op::NormMatmul => Some((command.buffers[1].buffer, command.word("n")?)),
        _ => None,
    };
    let Some((buffer, n)) = of(&pass.commands[index]) else {
        return false;
    };
    let mut largest = n;
    let (before, from) = pass.commands.split_at(index);
    let part = |command: &Command| of(command).filter(|(to, _)| *to == buffer);
    for (_, n) in before.iter().rev().map_while(part) {
        largest = largest.max(n);
    }
    let parts = from.iter().map_while(part);
    let count = parts.inspect(|(_, n)| largest = largest.max(*n)).count();
    let convolves = |c: &Command| c.op == Op::ShortConv && c.buffers[0].buffer == buffer;
    n < largest && from.get(count).is_some_and(convolves)
}

impl Recorder<'_> {
    /// The convolution of a product's results, if one follows: the constants, and the instruction that carries the weights.
    pub(super) fn conv_of(
        &mut self,
        index: usize,
        p: &Product,
        constants: &mut variants::Product,
    ) -> Result<Option<Instruction>, String> {
        let Some((place, command)) = after_parts(self.pass, index, p) else {
            return Ok(None);
        };
        let [x, y, ..] = command.buffers;
        if command.op != Op::ShortConv || x.buffer != p.output.buffer {
            return Ok(None);
        }
        let conv = params::ShortConv::of(&command.params);
        let (first, begin) = (x.offset / 4, p.output.offset / 4);
        self.convolved = Some(Convolved {
            command: place,
            input: x,
            output: y,
        });
        if first >= begin + p.n || begin >= first + conv.n {
            return Ok(None);
        }
        (constants.taps, constants.conv_n, constants.conv_act) = (conv.taps, conv.n, conv.act);
        constants.conv_begin = first.wrapping_sub(begin);
        constants.conv_cache = self.state_of(command)?;
        Ok(Some(Instruction {
            layer: conv.layer,
            weight: command.weights[0].into(),
            vectors: [command.weights[1].into(), NO_WEIGHT.into()],
            ..self.more()
        }))
    }

    /// The index of the cache of a command's state.
    fn state_of(&self, command: &Command) -> Result<u32, String> {
        let cache = kv::index(self.cx.program, command).ok_or("a state without a cache")?;
        Ok(cache as u32)
    }

    /// Whether products have taken over a convolution.
    pub(super) fn is_convolved(&self, index: usize) -> bool {
        self.convolved.is_some_and(|conv| conv.command == index)
    }

    /// Records a convolution between two gates.
    pub(super) fn gated_conv(&mut self, index: usize) -> Result<(), String> {
        let refused = || "a gate that nothing takes over".to_string();
        let found = GATED_CONV.at(&self.pass.commands, index);
        let found = found.ok_or_else(refused)?;
        let [before, conv, after] = &self.pass.commands[index..found.end] else {
            return Err(refused());
        };
        let ([b, ..], [v, y, ..]) = (before.buffers, conv.buffers);
        let [c, ..] = after.buffers;
        let p = params::ShortConv::of(&conv.params);
        let constants = variants::GatedConv {
            taps: p.taps,
            conv_cache: self.state_of(conv)?,
            conv_n: p.n,
            conv_act: p.act,
            before_at: b.offset / 4,
            value_at: v.offset / 4,
            after_at: c.offset / 4,
        };
        let variant = self.variants.add(Variant::GatedConv(constants));
        let vectors = [conv.weights[1], NO_WEIGHT];
        self.next = index + 3;
        let step = (v.buffer, y);
        self.with_state(index + 1, step, variant, p.layer, conv.weights[0], vectors)
    }

    /// Records an instruction with a state, which reads parts of a vector and writes another one.
    fn with_state(
        &mut self,
        index: usize,
        (from, to): (u32, BufferRef),
        variant: u32,
        layer: u32,
        weight: WeightId,
        vectors: [WeightId; 2],
    ) -> Result<(), String> {
        let whole = BufferRef {
            buffer: from,
            offset: 0,
        };
        let (input, reads) = self.read(whole)?;
        let (output, writes) = self.write(to)?;
        let instruction = Instruction {
            layer,
            input,
            output,
            reads,
            writes,
            weight: weight.into(),
            vectors: vectors.map(u64::from),
            ..Instruction::of(variant)
        };
        self.staged = None;
        self.push_unshared(index, instruction);
        Ok(())
    }

    /// The gated delta rule, with the norm of each head and the gate that follow.
    pub(super) fn gated_delta(&mut self, index: usize) -> Result<(), String> {
        let refused = || "a delta rule whose results are not normed and gated".to_string();
        let found = GATED_DELTA.at(&self.pass.commands, index);
        let found = found.ok_or_else(refused)?;
        let [rule, norm, gate] = &self.pass.commands[index..found.end] else {
            return Err(refused());
        };
        let p = params::GatedDelta::of(&rule.params);
        let n = params::Norm::of(&norm.params);
        let [x, gates, ..] = rule.buffers;
        let states = States {
            key_heads: p.key_heads,
            heads: p.heads,
            key_dim: p.key_dim,
            value_dim: p.value_dim,
            layer: p.layer,
        };
        let start = self.convolved_input(x, gates)?;
        let keys = p.key_heads * p.key_dim;
        let constants = variants::Recurrent {
            tiled: p.tiled != 0,
            eps: p.eps,
            norm: true,
            norm_eps: n.eps,
            query_at: start,
            key_at: start + keys,
            value_at: start + 2 * keys,
            gate_at: self.silu_gate(gate, x)?,
            rate_at: gates.offset / 4,
            time_at: gates.offset / 4 + p.heads,
            ..self.states(rule, &states)?
        };
        let weights = [rule.weights[0], rule.weights[1], norm.weights[0]];
        self.next = index + 3;
        self.recurrent(index, constants, &states, weights)
    }

    /// The state space model of Mamba-2, with the gate that follows.
    pub(super) fn mamba2(&mut self, index: usize) -> Result<(), String> {
        let refused = || "a state space model that is not gated".to_string();
        let found = GATED_MAMBA.at(&self.pass.commands, index);
        let found = found.ok_or_else(refused)?;
        let [model, gate] = &self.pass.commands[index..found.end] else {
            return Err(refused());
        };
        let p = params::Mamba2::of(&model.params);
        let [x, dt, ..] = model.buffers;
        let states = States {
            key_heads: p.groups,
            heads: p.heads,
            key_dim: p.key_dim,
            value_dim: p.value_dim,
            layer: p.layer,
        };
        let start = self.convolved_input(x, dt)?;
        let values = p.heads * p.value_dim;
        let constants = variants::Recurrent {
            mamba: true,
            value_at: start,
            key_at: start + values,
            query_at: start + values + p.groups * p.key_dim,
            gate_at: self.silu_gate(gate, x)?,
            time_at: dt.offset / 4,
            ..self.states(model, &states)?
        };
        self.next = index + 2;
        self.recurrent(index, constants, &states, model.weights)
    }

    /// Where the convolved input of a layer begins in the vector that products filled; its other input must be in that vector too.
    fn convolved_input(&self, x: BufferRef, other: BufferRef) -> Result<u32, String> {
        let conv = self.convolved.filter(|conv| conv.output == x);
        let conv = conv.ok_or("a state whose input is not convolved by a product")?;
        if other.buffer != conv.input.buffer {
            return Err("a state whose inputs are not in one vector".to_string());
        }
        Ok(conv.input.offset / 4)
    }

    /// Where the gate of all heads begins in that vector.
    fn silu_gate(&self, gate: &Command, x: BufferRef) -> Result<u32, String> {
        let by = gate.buffers[0];
        let conv = self.convolved.filter(|conv| conv.output == x);
        if conv.is_some_and(|conv| conv.input.buffer == by.buffer) {
            Ok(by.offset / 4)
        } else {
            Err("a state whose results are not gated".to_string())
        }
    }

    /// What both kinds of layers have in common. The error names states that threads cannot hold.
    fn states(&self, command: &Command, states: &States) -> Result<variants::Recurrent, String> {
        let floats = states.key_dim.div_ceil(PARTS) * states.value_dim.div_ceil(COLUMNS);
        if floats > MOST_FLOATS {
            return Err(format!(
                "states of {} x {}",
                states.key_dim, states.value_dim
            ));
        }
        Ok(variants::Recurrent {
            cache: self.state_of(command)?,
            key_heads: states.key_heads,
            heads: states.heads,
            key_dim: states.key_dim,
            value_dim: states.value_dim,
            ..variants::Recurrent::default()
        })
    }

    fn recurrent(
        &mut self,
        index: usize,
        constants: variants::Recurrent,
        states: &States,
        [decay, bias, third]: [WeightId; 3],
    ) -> Result<(), String> {
        let conv = self.convolved.ok_or("a state without a convolution")?;
        let operands = 2 * states.key_dim + 2 * states.value_dim + 2;
        let scratchpad = &mut self.needs.scratchpad.any;
        *scratchpad = (*scratchpad).max(4 * operands);
        let variant = self.variants.add(Variant::Recurrent(constants));
        let step = (conv.input.buffer, self.pass.commands[index].buffers[2]);
        self.with_state(index, step, variant, states.layer, decay, [bias, third])
    }
}
