//! Ops that know positions: rope, caches, attention, convolution.

use super::{Lowered, Lowering, scratch_too_small};
use crate::dispatch::Phase;
use crate::kernels::Kernel;
use crate::ops::attention::{self, Attention};
use crate::ops::choose_positions::{self, ChoosePositions};
use crate::ops::encode_attention::{self, EncodeAttention};
use crate::ops::encode_conv::EncodeConv;
use crate::ops::gated_delta::{self, GatedDelta};
use crate::ops::mamba2::Mamba2;
use crate::ops::positions::AddPosition;
use crate::ops::rope::{KvAppend, Rope, RopeAppend, RopeTable};
use crate::ops::short_conv::ShortConv;
use crate::ops::{FloatRows, attention_plain, attention_prompt};
use crate::scratch::{experts_of, matrix_of, rope_of};
use crate::unsupported;
use welte_device::Error;
use welte_table::{Op, Sections, params};

impl Lowering<'_> {
    pub(super) fn rope(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Rope::of(&l.command.params);
        let width = p.heads as usize * p.head_dim as usize;
        if p.rot > p.head_dim {
            return Err(unsupported("rope of more elements than a head has"));
        }
        let angles = self.angles(l)?;
        l.phases.push(Phase::Rope(Rope {
            y: self.float_rows(l.command.buffers[0], p.y_stride, width, l.rows)?,
            heads: p.heads as usize,
            head_dim: p.head_dim as usize,
            half: p.rot as usize / 2,
            interleaved: p.interleaved != 0,
            angles,
        }));
        Ok(())
    }

    pub(super) fn kv_append(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::KvAppend::of(&l.command.params);
        let width = p.kv_heads as usize * p.head_dim as usize;
        let [k, v, ..] = l.command.buffers;
        l.phases.push(Phase::KvAppend(KvAppend {
            k: self.float_rows(k, p.k_stride, width, l.rows)?,
            v: self.float_rows(v, p.v_stride, width, l.rows)?,
            layer: p.layer as usize,
            cache: self.kv_cache(l.command, p.layer, p.kv_heads, p.head_dim)?,
        }));
        Ok(())
    }

    pub(super) fn rope_append(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::RopeAppend::of(&l.command.params);
        let (heads, kv_heads, head_dim) =
            (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
        if p.rot > p.head_dim || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(unsupported(
                "rope_append with heads that do not fit each other",
            ));
        }
        let width = (heads + 2 * kv_heads) * head_dim;
        let angles = self.angles(l)?;
        l.phases.push(Phase::RopeAppend(RopeAppend {
            qkv: self.float_rows(l.command.buffers[0], p.qkv_stride, width, l.rows)?,
            heads,
            kv_heads,
            head_dim,
            half: p.rot as usize / 2,
            interleaved: p.interleaved != 0,
            eps: p.eps,
            angles,
            q_norm: self.floats(l.command.weights[1], head_dim)?,
            k_norm: self.floats(l.command.weights[2], head_dim)?,
            layer: p.layer as usize,
            cache: self.kv_cache(l.command, p.layer, p.kv_heads, p.head_dim)?,
        }));
        Ok(())
    }

    pub(super) fn attention(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let (p, positions) = attention::params_of(l.command);
        let (used, chosen) = match l.command.op {
            Op::SparseAttention => {
                let p = params::SparseAttention::of(&l.command.params);
                let (used, at) = (p.used as usize, l.command.buffers[2]);
                let chosen = self.float_rows(at, p.chosen_stride, used, l.rows)?;
                (used, chosen)
            }
            _ => (0, FloatRows::NONE),
        };
        let (heads, kv_heads, head_dim) =
            (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
        let cache = self.kv_cache(l.command, p.layer, p.kv_heads, p.head_dim)?;
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(unsupported(
                "attention with heads that do not fit each other",
            ));
        }
        let splits = attention::splits_of(self.program().context as usize);
        let floats = attention::partial_floats(head_dim);
        let mut needed = attention::scratch_floats(heads / kv_heads, head_dim, splits);
        if l.prompt {
            needed = needed.max(attention_prompt::scratch_floats(head_dim));
        }
        if needed * 4 > self.scratch.per_thread {
            return Err(scratch_too_small());
        }
        let (isa, group) = (self.inner.isa, heads / kv_heads);
        let prompt = attention_prompt::prompt_for(cache.format, isa, group, self.rounds());
        let (q, y) = (
            l.command.buffers[0],
            l.command.buffers[l.command.op.reads().len()],
        );
        let attention = Attention {
            q: self.float_rows(q, p.q_stride, heads * head_dim, l.rows)?,
            y: self.float_rows(y, p.y_stride, heads * head_dim, l.rows)?,
            layer: p.layer as usize,
            cache,
            heads,
            kv_heads,
            head_dim,
            scale: p.scale,
            window: p.window as usize,
            chunked: p.chunked != 0,
            positions,
            used,
            chosen,
            causal: p.causal != 0,
            softcap: p.softcap,
            sinks: self.floats(l.command.weights[0], heads)?,
            partials: self.scratch_rows(&self.scratch.partials, 0, floats, heads * splits)?,
            run: attention_plain::run_for(cache.format, head_dim, isa),
            threads: self.inner.team.threads(),
            // Those functions see neighbouring positions.
            prompt: prompt.filter(|_| l.prompt && used == 0),
        };
        l.phases.push(Phase::Attention(attention));
        l.phases.push(Phase::Merge(attention));
        Ok(())
    }

    pub(super) fn encode_attention(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::EncodeAttention::of(&l.command.params);
        let (heads, kv_heads, head_dim) =
            (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(unsupported(
                "attention with heads that do not fit each other",
            ));
        }
        let places = p.places as usize;
        if encode_attention::scratch_floats(head_dim, places) * 4 > self.scratch.per_thread {
            return Err(scratch_too_small());
        }
        let plain = (heads + 2 * kv_heads) * head_dim;
        let width = plain + heads * p.of_places() as usize;
        let [qkv, y, ..] = l.command.buffers;
        l.phases.push(Phase::EncodeAttention(EncodeAttention {
            qkv: self.float_rows(qkv, p.qkv_stride, width, l.rows)?,
            y: self.float_rows(y, p.y_stride, heads * head_dim, l.rows)?,
            heads,
            kv_heads,
            head_dim,
            scale: p.scale,
            window: p.window as usize,
            by_axis: p.by_axis != 0,
            unseen: p.unseen as usize,
            by_reach: p.by_reach != 0,
            softcap: p.softcap,
            places,
            absent: self.floats(l.command.weights[0], plain)?,
            slopes: self.floats(l.command.weights[1], heads)?,
            kernel: encode_attention::kernel_for(self.inner.isa),
        }));
        Ok(())
    }

    pub(super) fn choose_positions(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::ChoosePositions::of(&l.command.params);
        let (heads, dim, used) = (p.heads as usize, p.head_dim as usize, p.used as usize);
        let context = self.program().context as usize;
        if heads == 0 || used == 0 || dim % 2 > 0 || dim > 2 * attention::MAX_HEAD_DIM {
            return Err(unsupported("a choice of positions of this shape"));
        }
        if context * 4 > self.scratch.per_thread {
            return Err(scratch_too_small());
        }
        let cache = self.kv_cache(l.command, p.layer, 1, p.head_dim / 2)?;
        let [q, _, gates, y] = l.command.buffers;
        let choose = ChoosePositions {
            q: self.float_rows(q, p.q_stride, heads * dim, l.rows)?,
            gates: self.float_rows(gates, p.gates_stride, heads, l.rows)?,
            y: self.float_rows(y, p.y_stride, used, l.rows)?,
            layer: p.layer as usize,
            cache,
            heads,
            head_dim: dim,
            used,
            scores: self.scratch_rows(&self.scratch.partials, 0, context, 1)?,
            score: choose_positions::score_for(dim, self.inner.isa),
        };
        l.phases.push(Phase::ScorePositions(choose));
        l.phases.push(Phase::ChoosePositions(choose));
        Ok(())
    }

    pub(super) fn encode_conv(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::EncodeConv::of(&l.command.params);
        let (n, taps, before) = (p.n as usize, p.taps as usize, p.before as usize);
        if before >= taps {
            return Err(unsupported("a convolution whose taps all lie before a row"));
        }
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::EncodeConv(EncodeConv {
            x: self.float_rows(x, p.x_stride, n, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, l.rows)?,
            kernel: self.floats(l.command.weights[0], n * taps)?,
            bias: self.floats(l.command.weights[1], n)?,
            n,
            taps,
            before,
        }));
        Ok(())
    }

    pub(super) fn add_position(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AddPosition::of(&l.command.params);
        let (k, period, offset) = (p.k as usize, p.period as usize, p.offset as usize);
        if period == 0 {
            return Err(unsupported("positions without a period"));
        }
        let types = (self.program().context as usize).div_ceil(period);
        l.phases.push(Phase::AddPosition(AddPosition {
            x: self.float_rows(l.command.buffers[0], p.x_stride, k, l.rows)?,
            k,
            period,
            offset,
            positions: self.floats(l.command.weights[0], (period + offset) * k)?,
            types: self.floats(l.command.weights[1], types * k)?,
        }));
        Ok(())
    }

    pub(super) fn short_conv(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::ShortConv::of(&l.command.params);
        let (n, taps) = (p.n as usize, p.taps as usize);
        if taps < 2 {
            return Err(unsupported("a convolution of fewer than two taps"));
        }
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::ShortConv(ShortConv {
            x: self.float_rows(x, p.x_stride, n, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, l.rows)?,
            kernel: self.floats(l.command.weights[0], n * taps)?,
            bias: self.floats(l.command.weights[1], n)?,
            n,
            taps,
            silu: p.act == 1,
            layer: p.layer as usize,
            cache: self.state_cache(l.command, p.layer, (taps - 1) * n)?,
        }));
        Ok(())
    }

    pub(super) fn gated_delta(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::GatedDelta::of(&l.command.params);
        let (key_heads, heads) = (p.key_heads as usize, p.heads as usize);
        let (key_dim, value_dim) = (p.key_dim as usize, p.value_dim as usize);
        let values = heads * value_dim;
        let [x, gates, y, _] = l.command.buffers;
        let width = 2 * key_heads * key_dim + values;
        let by_channel = p.by_channel == 1;
        if gated_delta::scratch_floats(key_dim, by_channel) * 4 > self.scratch.per_thread {
            return Err(scratch_too_small());
        }
        let decays = heads * p.decays() as usize;
        l.phases.push(Phase::GatedDelta(GatedDelta {
            x: self.float_rows(x, p.x_stride, width, l.rows)?,
            gates: self.float_rows(gates, p.gates_stride, heads + decays, l.rows)?,
            y: self.float_rows(y, p.y_stride, values, l.rows)?,
            decay: self.floats(l.command.weights[0], heads)?,
            dt_bias: self.floats(l.command.weights[1], decays)?,
            by_channel,
            key_heads,
            heads,
            key_dim,
            value_dim,
            tiled: p.tiled == 1,
            eps: p.eps,
            layer: p.layer as usize,
            cache: self.state_cache(l.command, p.layer, values * key_dim)?,
        }));
        Ok(())
    }

    pub(super) fn mamba2(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Mamba2::of(&l.command.params);
        let (groups, heads) = (p.groups as usize, p.heads as usize);
        let (key_dim, value_dim) = (p.key_dim as usize, p.value_dim as usize);
        let values = heads * value_dim;
        let [x, dt, y, _] = l.command.buffers;
        let by_channel = p.by_channel == 1;
        let times = heads * p.times() as usize;
        let decays = if by_channel { times * key_dim } else { heads };
        let weight = |role: usize, n: usize| self.floats(l.command.weights[role], n);
        l.phases.push(Phase::Mamba2(Mamba2 {
            x: self.float_rows(x, p.x_stride, values + 2 * groups * key_dim, l.rows)?,
            dt: self.float_rows(dt, p.dt_stride, times, l.rows)?,
            y: self.float_rows(y, p.y_stride, values, l.rows)?,
            decay: weight(0, decays)?,
            dt_bias: weight(1, times)?,
            skip: weight(2, times)?,
            by_channel,
            groups,
            heads,
            key_dim,
            value_dim,
            layer: p.layer as usize,
            cache: self.state_cache(l.command, p.layer, values * key_dim)?,
        }));
        Ok(())
    }

    /// Where the angles of the command's rope lie. The first command with this kind of rope computes them.
    fn angles(&self, l: &mut Lowered<'_>) -> Result<FloatRows, Error> {
        let kind = rope_of(l.command).ok_or_else(|| unsupported("no rope"))?;
        if let Some((_, place)) = l.angles.known.iter().find(|(k, _)| *k == kind) {
            return Ok(*place);
        }
        let rot = kind.rot as usize;
        let y = self.scratch_rows(&self.scratch.angles, l.angles.floats, rot, l.rows)?;
        l.angles.floats += l.rows * rot;
        l.angles.known.push((kind, y));
        l.phases.push(Phase::Angles(RopeTable {
            freqs: self.floats(kind.freqs, rot / 2)?,
            half: rot / 2,
            magnitude: f32::from_bits(kind.magnitude),
            sections: Sections::of(kind.sections),
            y,
        }));
        Ok(y)
    }

    /// True if every matrix rounds its activations in prompts: then attention may round them as well.
    fn rounds(&self) -> bool {
        let commands = self.program().passes.iter().flat_map(|p| &p.commands);
        commands
            .filter(|c| matrix_of(c).is_some() || experts_of(c).is_some())
            .all(|c| Kernel::for_prompt(c.format, self.inner.isa).rounds())
    }
}
