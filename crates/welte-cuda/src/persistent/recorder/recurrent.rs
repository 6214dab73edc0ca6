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
        let more = self.instruction(Variant::More);
        Ok(Some(Instruction {
            layer: conv.layer,
            weight: command.weights[0].into(),
            ..more.with([command.weights[1], NO_WEIGHT])
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
        let [before, conv, after] =
            self.take_run(&GATED_CONV, index, "a gate that nothing takes over")?;
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
        let instruction = self.instruction(Variant::GatedConv(constants));
        let instruction = Instruction {
            layer: p.layer,
            weight: conv.weights[0].into(),
            ..instruction.with([conv.weights[1], NO_WEIGHT])
        };
        self.with_state(index + 1, (v.buffer, y), instruction)
    }

    /// Records an instruction with a state, which reads parts of a vector and writes another one.
    fn with_state(
        &mut self,
        index: usize,
        (from, to): (u32, BufferRef),
        instruction: Instruction,
    ) -> Result<(), String> {
        let whole = BufferRef {
            buffer: from,
            offset: 0,
        };
        let read = self.read(whole)?;
        // Attention may write rows of another width to the same buffer.
        let width = self.pass.commands[index].word("y_stride");
        self.set_row_width(to, width.unwrap_or(0));
        let write = self.write(to)?;
        self.staged = None;
        self.push_unshared(index, instruction.reading(read).writing(write));
        Ok(())
    }

    /// The gated delta rule, with the norm of each head and the gate that follow.
    pub(super) fn gated_delta(&mut self, index: usize) -> Result<(), String> {
        if self.pass.commands[index].word("by_channel") != Some(0) {
            return Err("states whose channels decay apart".to_string());
        }
        let missing = "a delta rule whose results are not normed and gated";
        let [rule, norm, gate] = self.take_run(&GATED_DELTA, index, missing)?;
        let p = params::GatedDelta::of(&rule.params);
        let [x, gates, ..] = rule.buffers;
        let start = self.convolved_input(x, gates)?;
        let keys = p.key_heads * p.key_dim;
        let states = variants::Recurrent {
            cache: self.state_of(rule)?,
            key_heads: p.key_heads,
            heads: p.heads,
            key_dim: p.key_dim,
            value_dim: p.value_dim,
            tiled: p.tiled != 0,
            eps: p.eps,
            norm: true,
            norm_eps: params::Norm::of(&norm.params).eps,
            query_at: start,
            key_at: start + keys,
            value_at: start + 2 * keys,
            gate_at: self.silu_gate(gate, x)?,
            rate_at: gates.offset / 4,
            time_at: gates.offset / 4 + p.heads,
            ..variants::Recurrent::default()
        };
        let weights = [rule.weights[0], rule.weights[1], norm.weights[0]];
        self.recurrent(index, states, p.layer, weights)
    }

    /// The state space model of Mamba-2, with the gate that follows.
    pub(super) fn mamba2(&mut self, index: usize) -> Result<(), String> {
        if self.pass.commands[index].word("by_channel") != Some(0) {
            return Err("states whose columns have time steps of their own".to_string());
        }
        let missing = "a state space model that is not gated";
        let [model, gate] = self.take_run(&GATED_MAMBA, index, missing)?;
        let p = params::Mamba2::of(&model.params);
        let [x, dt, ..] = model.buffers;
        let start = self.convolved_input(x, dt)?;
        let values = p.heads * p.value_dim;
        let states = variants::Recurrent {
            cache: self.state_of(model)?,
            key_heads: p.groups,
            heads: p.heads,
            key_dim: p.key_dim,
            value_dim: p.value_dim,
            mamba: true,
            value_at: start,
            key_at: start + values,
            query_at: start + values + p.groups * p.key_dim,
            gate_at: self.silu_gate(gate, x)?,
            time_at: dt.offset / 4,
            ..variants::Recurrent::default()
        };
        self.recurrent(index, states, p.layer, model.weights)
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
        let within = |conv: &Convolved| conv.output == x && conv.input.buffer == by.buffer;
        let conv = self.convolved.filter(within);
        conv.map(|_| by.offset / 4)
            .ok_or_else(|| "a state whose results are not gated".to_string())
    }

    /// Records a layer with states. The error names states that threads cannot hold.
    fn recurrent(
        &mut self,
        index: usize,
        states: variants::Recurrent,
        layer: u32,
        [decay, bias, third]: [WeightId; 3],
    ) -> Result<(), String> {
        let (keys, values) = (states.key_dim, states.value_dim);
        if keys.div_ceil(PARTS) * values.div_ceil(COLUMNS) > MOST_FLOATS {
            return Err(format!("states of {keys} x {values}"));
        }
        let conv = self.convolved.ok_or("a state without a convolution")?;
        let operands = 2 * keys + 2 * values + 2;
        let scratchpad = &mut self.needs.scratchpad.any;
        *scratchpad = (*scratchpad).max(4 * operands);
        let instruction = self.instruction(Variant::Recurrent(states));
        let instruction = Instruction {
            layer,
            weight: decay.into(),
            ..instruction.with([bias, third])
        };
        let to = self.pass.commands[index].buffers[2];
        self.with_state(index, (conv.input.buffer, to), instruction)
    }
}
