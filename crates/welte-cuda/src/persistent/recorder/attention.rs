//! Attention, with what comes before and after it: rope, the append to the cache, and a gate (`kernels/persistent/attend.cuh`).

use super::super::MAX_ROPES;
use super::super::arrangement::AttentionJobs;
use super::super::instruction::Instruction;
use super::super::variants::{self, NO_LAYER, Variant};
use super::exchange::Exchanged;
use super::shared::SIGMOID;
use super::state::Recorder;
use crate::ops::kv;
use welte_table::{BufferRef, Command, Format, NO_WEIGHT, Op, Params, Run, WeightId, params, step};

/// How queries and keys are turned and normed before attention.
#[derive(Clone, Copy)]
struct Turn {
    rot: u32,
    interleaved: u32,
    magnitude: f32,
    eps: f32,
    /// By a coordinate that may differ from the position.
    by_axes: bool,
}

/// Neither norm nor rope.
const NOT_TURNED: Turn = Turn {
    rot: 0,
    interleaved: 0,
    magnitude: 1.0,
    eps: 0.0,
    by_axes: false,
};

/// What happens to queries, keys and values before attention.
struct Prepared {
    turn: Turn,
    /// The norms of queries and keys.
    norms: [WeightId; 2],
    /// Keys and values are those of an earlier layer, so this is about queries alone.
    shares: bool,
    /// Whether values are normed, and whether they are made from keys.
    value_norm: bool,
    values_are_keys: bool,
}

/// A norm of the values before attention, or one that makes them from the keys.
const VALUE_NORM: Run = Run {
    steps: &[
        step!(Norm [none] [_, values] { dim: head_dim, groups: kv_heads, eps }),
        step!(RopeAppend [_, _, _] [qkv, _] { heads, kv_heads, head_dim, eps }),
    ],
    relate: |b| {
        let (qkv, dim) = (b.place("qkv")?, b.word("head_dim")?);
        let offset = qkv.offset + 4 * (b.word("heads")? + b.word("kv_heads")?) * dim;
        let values = BufferRef { offset, ..qkv };
        (b.weight("none") == NO_WEIGHT && b.place("values") == Some(values)).then_some(())
    },
};

/// The norm of the queries of a layer without keys of its own.
const QUERY_NORM: Run = Run {
    steps: &[
        step!(Norm [_] [q, q] { dim: head_dim, groups: heads }),
        step!(Rope [_] [q] { heads, head_dim }),
    ],
    relate: |_| Some(()),
};

/// The append before attention over `qkv`, if it is of the same layer. Without rope nothing is turned.
fn appended(append: &Command, a: &params::Attention, qkv: BufferRef) -> Option<Turn> {
    let is_of = |layer, kv_heads, head_dim| {
        (layer, kv_heads, head_dim) == (a.layer, a.kv_heads, a.head_dim)
    };
    if append.op == Op::RopeAppend {
        let r = params::RopeAppend::of(&append.params);
        let same = append.buffers[0] == qkv && r.heads == a.heads;
        return (same && is_of(r.layer, r.kv_heads, r.head_dim)).then_some(Turn {
            rot: r.rot,
            interleaved: r.interleaved,
            magnitude: r.magnitude,
            eps: r.eps,
            by_axes: r.sections != 0,
        });
    }
    let p = params::KvAppend::of(&append.params);
    let [k, v, ..] = append.buffers;
    let in_order = k == after(a, qkv, a.heads) && v == after(a, qkv, a.heads + a.kv_heads);
    (in_order && is_of(p.layer, p.kv_heads, p.head_dim)).then_some(NOT_TURNED)
}

/// The place after a number of heads.
fn after(a: &params::Attention, qkv: BufferRef, heads: u32) -> BufferRef {
    BufferRef {
        offset: qkv.offset + 4 * heads * a.head_dim,
        ..qkv
    }
}

/// A command's parameters without the number of the layer, with the frequencies of a rope.
fn without_layer(command: &Command) -> (Op, Params, WeightId) {
    let mut words = command.params;
    let names = command.op.params();
    if let Some(layer) = names.iter().position(|name| *name == "layer") {
        words[layer] = 0;
    }
    let freqs = match command.op {
        Op::Attention | Op::KvAppend => NO_WEIGHT,
        _ => command.weights[0],
    };
    (command.op, words, freqs)
}

/// Where the attention of a command stands among those with the same parameters.
struct AttentionKind {
    /// Its number among them, counted from 1.
    nth: u32,
    /// How many there are.
    count: u32,
    /// Other kinds that came before.
    before: u32,
}

impl Recorder<'_> {
    /// Where the gate of attention's results begins in its input, if one follows.
    fn attention_gate(&self, index: usize, qkv: BufferRef) -> Result<Option<u32>, String> {
        let attention = &self.pass.commands[index];
        let next = self.pass.commands.get(index + 1);
        let next = next.filter(|c| c.op == Op::Gate && c.buffers[1] == attention.buffers[2]);
        let Some(gate) = next else { return Ok(None) };
        let (a, p) = (
            params::Attention::of(&attention.params),
            params::Gate::of(&gate.params),
        );
        let whole = p.n == a.heads * a.head_dim && p.gates == p.n && p.act == SIGMOID;
        let from = gate.buffers[0];
        let at = from.offset.checked_sub(qkv.offset);
        let at = at.filter(|at| from.buffer == qkv.buffer && at.is_multiple_of(16) && whole);
        if self.budget.is_step {
            return Err("gated attention in steps of several rows".to_string());
        }
        let at = at.ok_or("a gate of attention from elsewhere")?;
        Ok(Some(at / 4))
    }

    /// Whether a norm is one of the values before attention, or makes them from the keys.
    pub(super) fn is_value_norm(&self, index: usize) -> bool {
        VALUE_NORM.at(&self.pass.commands, index).is_some()
    }

    /// Whether a norm is one of the queries of a layer without keys of its own.
    pub(super) fn is_query_norm(&self, index: usize) -> bool {
        QUERY_NORM.at(&self.pass.commands, index).is_some()
    }

    /// What happens to queries, keys and values before the attention of a command.
    fn prepared(&mut self, a: &params::Attention, qkv: BufferRef) -> Result<Prepared, String> {
        let index = self.rope.take().ok_or("attention without rope")?;
        let rope = &self.pass.commands[index];
        let value_norm = self.value_norm.take();
        let refused = "attention over something else than what was appended";
        if rope.op != Op::Rope {
            let turn = appended(rope, a, qkv).ok_or(refused)?;
            let source = value_norm.map(|norm| self.pass.commands[norm].buffers[0]);
            let values_are_keys = source.is_some_and(|from| from == after(a, qkv, a.heads));
            let values = after(a, qkv, a.heads + a.kv_heads);
            if !values_are_keys && source.is_some_and(|from| from != values) {
                return Err(refused.to_string());
            }
            return Ok(Prepared {
                turn,
                norms: [rope.weights[1], rope.weights[2]],
                shares: false,
                value_norm: source.is_some(),
                values_are_keys,
            });
        }
        let r = params::Rope::of(&rope.params);
        if rope.buffers[0] != qkv || (r.heads, r.head_dim) != (a.heads, a.head_dim) {
            return Err(refused.to_string());
        }
        let norm = index.checked_sub(1).filter(|i| self.is_query_norm(*i));
        let norm = norm.map(|i| &self.pass.commands[i]);
        let eps = norm.map_or(0.0, |norm| params::Norm::of(&norm.params).eps);
        Ok(Prepared {
            turn: Turn {
                rot: r.rot,
                interleaved: r.interleaved,
                magnitude: r.magnitude,
                eps,
                by_axes: r.sections != 0,
            },
            norms: [norm.map_or(NO_WEIGHT, |norm| norm.weights[0]), NO_WEIGHT],
            shares: true,
            value_norm: false,
            values_are_keys: false,
        })
    }

    /// The number of a rope among those of the model, and where its angles begin.
    fn rope_of(&mut self, freqs: WeightId, turn: &Turn) -> Result<(usize, u32), String> {
        let rope = (freqs, turn.by_axes);
        let known = self.ropes.iter().position(|(known, _)| *known == rope);
        let which = match known {
            Some(which) => which,
            None if turn.rot == 0 => return Ok((0, 0)),
            None => {
                self.ropes.push((rope, self.needs.angles));
                self.needs.angles += turn.rot / 2;
                self.ropes.len() - 1
            }
        };
        if which >= MAX_ROPES {
            return Err("more than four ropes".to_string());
        }
        Ok((which, self.ropes[which].1))
    }

    /// The layer of a cache that other layers attend to, and where in the exchange it publishes this turn's keys and values.
    fn source(&mut self, cache: BufferRef, a: &params::Attention) -> Result<(u32, u32), String> {
        let pairs = self.pass.commands.windows(2);
        let mut shared = pairs.filter_map(|pair| {
            let shares = pair[0].op == Op::Rope && pair[1].op == Op::Attention;
            let same = pair[1].buffers[1] == cache;
            (shares && same).then(|| params::Attention::of(&pair[1].params).layer)
        });
        let Some(layer) = shared.next() else {
            return Ok((NO_LAYER, 0));
        };
        if shared.any(|other| other != layer) {
            return Err("two layers of a cache that others share".to_string());
        }
        // The cache's buffer has no other vector.
        self.widths
            .insert(cache.buffer, u64::from(2 * a.kv_heads * a.head_dim));
        Ok((layer, self.vector(cache.buffer)?.start))
    }

    pub(super) fn attention(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let a = params::Attention::of(&command.params);
        let [qkv, kv, out, _] = command.buffers;
        let rope = self.rope.ok_or("attention without rope")?;
        let rope = &self.pass.commands[rope];
        let prepared = self.prepared(&a, qkv)?;
        let turn = prepared.turn;
        let gate = self.attention_gate(index, qkv)?;
        let whole = self.exchange_after(index + usize::from(gate.is_some()), out)?;
        if whole
            .as_ref()
            .is_some_and(|whole| whole.vectors != 1 || whole.at != out)
        {
            return Err("an exchange into another vector than that of attention".to_string());
        }
        let exchanged = whole.is_some();
        if a.chunked != 0 {
            return Err("attention within chunks".to_string());
        }
        let of_heads = |heads: u32, kv_heads: u32| {
            let a = params::Attention {
                heads,
                kv_heads,
                ..a
            };
            AttentionJobs::of(&a, turn.rot, self.usual_blocks, self.several_sizes)
        };
        let mut jobs = of_heads(a.heads, a.kv_heads)?;
        if let Some(Exchanged { deal, .. }) = whole.filter(|whole| whole.deal.unit == a.head_dim) {
            // As one GPU splits a context.
            jobs.splits = of_heads(deal.groups * deal.per, deal.groups)?.splits;
        }
        let is_new = prepared.shares || prepared.value_norm || jobs.team > 1;
        if self.budget.is_step && is_new {
            return Err("attention of Gemma 4 in steps of several rows".to_string());
        }
        let (which, angles) = self.rope_of(rope.weights[0], &turn)?;
        let (source_layer, shared_at) = self.source(kv, &a)?;
        if gate.is_some() {
            self.next = index + 2;
        }
        let read = self.read(qkv)?;
        self.set_row_width(out, a.y_stride);
        let write = self.write(out)?;
        let kind = self.attention_kind(index);
        // Each kind has its own place for the results of its splits. A context that a window cuts off may have fewer splits than
        // another; with a shared place, results that it does not overwrite would look fresh.
        if kind.nth == 1 {
            self.split_starts.push(self.split_floats);
            self.split_floats += a.heads * jobs.splits * (a.head_dim + 4);
        }
        let scratchpad = &mut self.needs.scratchpad;
        // A key and a value before they are rounded.
        let unrounded = match self.kv_format {
            Format::Q8_0 => 2 * a.head_dim * 4,
            _ => 0,
        };
        scratchpad.any = scratchpad.any.max(jobs.scratchpad + unrounded);
        let cache = kv::index(self.cx.program, command).ok_or("attention without a cache")?;
        if !prepared.shares && kv::index(self.cx.program, rope) != Some(cache) {
            return Err("attention over another cache than what was appended".to_string());
        }
        let constants = variants::Attention {
            cache: cache as u32,
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            rot: turn.rot,
            interleaved: turn.interleaved,
            magnitude: turn.magnitude,
            eps: turn.eps,
            scale: a.scale,
            window: a.window,
            softcap: a.softcap,
            sinks: command.weights[0] != NO_WEIGHT,
            gated: gate.is_some(),
            gate_at: gate.unwrap_or(0),
            angles,
            by_axes: turn.by_axes,
            // Relative to the end of all vectors, until that is known.
            splits_start: self.split_starts[kind.before as usize],
            max_unsplit: jobs.max_unsplit,
            split_positions: jobs.split_positions,
            splits: jobs.splits,
            queries: jobs.queries,
            query_groups: jobs.query_groups,
            team: jobs.team,
            value_norm: prepared.value_norm,
            values_are_keys: prepared.values_are_keys,
            shares: prepared.shares,
            // A layer that shares it publishes nothing.
            source_layer: if prepared.shares {
                NO_LAYER
            } else {
                source_layer
            },
            shared_at,
            exchanged,
        };
        let variant = self.variants.add(Variant::Attention(constants));
        if turn.rot > 0 {
            self.variants.know_rope(which, variant);
        }
        let instruction = Instruction {
            layer: a.layer,
            flags: kind.count << 16 | kind.nth,
            weight: command.weights[0].into(),
            ..Instruction::of(variant).with(prepared.norms)
        };
        self.staged = None;
        self.push_unshared(index, instruction.reading(read).writing(write));
        Ok(())
    }

    /// Where the attention of a command stands among those with the same parameters.
    fn attention_kind(&self, index: usize) -> AttentionKind {
        let attends = |at: &usize| self.pass.commands[*at].op == Op::Attention;
        let all = (1..self.pass.commands.len()).filter(attends);
        let kind = |at: usize| [at - 1, at].map(|at| without_layer(&self.pass.commands[at]));
        let all: Vec<_> = all.map(|at| (at, kind(at))).collect();
        let mine = kind(index.max(1));
        let mut before = Vec::new();
        for (_, kind) in all.iter().take_while(|(_, kind)| *kind != mine) {
            if !before.contains(&kind) {
                before.push(kind);
            }
        }
        let same = || all.iter().filter(|(_, kind)| *kind == mine);
        AttentionKind {
            nth: same().filter(|(at, _)| *at <= index).count() as u32,
            count: same().count() as u32,
            before: before.len() as u32,
        }
    }
}
