//! Attention, with what comes before and after it: rope, the append to the cache, and a gate (`kernels/persistent/attend.cuh`).

use super::super::MAX_ROPES;
use super::super::arrangement::{AttentionJobs, MAX_UNSPLIT, SPLIT_ELEMENTS};
use super::super::instruction::Instruction;
use super::super::variants::{self, Variant};
use super::Recorder;
use super::shared::SIGMOID;
use crate::ops::kv;
use welte_table::{BufferRef, Command, Format, NO_WEIGHT, Op, params};

/// The append before attention over `qkv`, if it is of the same layer. Without rope nothing is turned.
fn appended(append: &Command, a: &params::Attention, qkv: BufferRef) -> Option<params::RopeAppend> {
    if append.op == Op::RopeAppend {
        let r = params::RopeAppend::of(&append.params);
        let same = append.buffers[0] == qkv && (r.layer, r.heads) == (a.layer, a.heads);
        return same.then_some(r);
    }
    let p = params::KvAppend::of(&append.params);
    let behind = |heads: u32| BufferRef {
        offset: qkv.offset + 4 * heads * a.head_dim,
        ..qkv
    };
    let [k, v, ..] = append.buffers;
    let in_order = k == behind(a.heads) && v == behind(a.heads + a.kv_heads);
    let same = (p.layer, p.kv_heads, p.head_dim) == (a.layer, a.kv_heads, a.head_dim);
    (in_order && same).then_some(params::RopeAppend {
        layer: p.layer,
        heads: a.heads,
        kv_heads: a.kv_heads,
        head_dim: a.head_dim,
        rot: 0,
        interleaved: 0,
        magnitude: 1.0,
        eps: 0.0,
        qkv_stride: p.k_stride,
    })
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

    pub(super) fn attention(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let rope = self.rope.take().ok_or("attention without rope")?;
        let rope = &self.pass.commands[rope];
        let a = params::Attention::of(&command.params);
        let [qkv, _, out, _] = command.buffers;
        let r = appended(rope, &a, qkv);
        let r = r.ok_or("attention over something else than what was appended")?;
        let jobs = AttentionJobs::of(&a, r.rot, self.blocks)?;
        let freqs = rope.weights[0];
        let which = match self.freqs.iter().position(|known| *known == freqs) {
            Some(which) => which,
            None if r.rot == 0 => 0,
            None => {
                self.freqs.push(freqs);
                self.needs.angles += r.rot / 2;
                self.freqs.len() - 1
            }
        };
        if which >= MAX_ROPES {
            return Err("more than four ropes".to_string());
        }
        let gate = self.attention_gate(index, qkv)?;
        if gate.is_some() {
            self.next = index + 2;
        }
        let (input, reads) = self.read(qkv)?;
        let (output, writes) = self.write(out)?;
        let kind = self.attention_kind(index);
        // Each kind has its own place for the results of its splits. A context that a window cuts off may have fewer splits than
        // another; with a shared place, results that it does not overwrite would look fresh.
        let split_floats = a.heads * jobs.splits * (a.head_dim + 4);
        self.split_floats = self.split_floats.max((kind.before + 1) * split_floats);
        let scratchpad = &mut self.needs.scratchpad;
        // A key and a value before they are rounded.
        let unrounded = match self.kv_format {
            Format::Q8_0 => 2 * a.head_dim * 4,
            _ => 0,
        };
        scratchpad.any = scratchpad.any.max(jobs.scratchpad + unrounded);
        let caches = [command, rope].map(|c| kv::index(self.cx.program, c));
        let [Some(cache), Some(appended)] = caches else {
            return Err("attention without a cache".to_string());
        };
        if cache != appended {
            return Err("attention over another cache than what was appended".to_string());
        }
        let constants = variants::Attention {
            cache: cache as u32,
            heads: r.heads,
            kv_heads: r.kv_heads,
            head_dim: r.head_dim,
            rot: r.rot,
            interleaved: r.interleaved,
            magnitude: r.magnitude,
            eps: r.eps,
            scale: a.scale,
            window: a.window,
            softcap: a.softcap,
            sinks: command.weights[0] != NO_WEIGHT,
            gated: gate.is_some(),
            gate_at: gate.unwrap_or(0),
            // Ropes of one model have the same width, if they turn anything.
            angles: which as u32 * (r.rot / 2),
            // Relative to the end of all vectors, until that is known.
            splits_start: kind.before * split_floats,
            max_unsplit: MAX_UNSPLIT,
            split_positions: SPLIT_ELEMENTS / a.head_dim,
            splits: jobs.splits,
            queries: jobs.queries,
            query_groups: jobs.query_groups,
        };
        let variant = self.variants.add(Variant::Attention(constants));
        if r.rot > 0 {
            self.variants.know_rope(which, variant);
        }
        let instruction = Instruction {
            layer: a.layer,
            input,
            output,
            reads,
            writes,
            flags: kind.count << 16 | kind.nth,
            weight: command.weights[0].into(),
            vectors: [rope.weights[1].into(), rope.weights[2].into()],
            ..Instruction::of(variant)
        };
        self.staged = None;
        self.push_unshared(index, instruction);
        Ok(())
    }

    /// Where the attention of a command stands among those with the same parameters.
    fn attention_kind(&self, index: usize) -> AttentionKind {
        let commands = self.pass.commands.windows(2).enumerate();
        let all = commands.filter(|(_, pair)| pair[1].op == Op::Attention);
        let all = all.map(|(i, pair)| {
            let mut a = params::Attention::of(&pair[1].params);
            let mut r = params::RopeAppend::of(&pair[0].params);
            (a.layer, r.layer) = (0, 0);
            (i + 1, (a.words(), r.words(), pair[0].weights[0]))
        });
        let all: Vec<_> = all.collect();
        let mut before = Vec::new();
        let Some((_, mine)) = all.iter().find(|(i, _)| *i == index) else {
            return AttentionKind {
                nth: 1,
                count: 1,
                before: 0,
            };
        };
        for (_, kind) in all.iter().take_while(|(_, kind)| kind != mine) {
            if !before.contains(&kind) {
                before.push(kind);
            }
        }
        let same = || all.iter().filter(|(_, kind)| kind == mine);
        AttentionKind {
            nth: same().filter(|(i, _)| *i <= index).count() as u32,
            count: same().count() as u32,
            before: before.len() as u32,
        }
    }
}
