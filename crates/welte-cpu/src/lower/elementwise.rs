//! Embedding, norms and elementwise ops; choice of rows and sampling.
#![allow(unsafe_code)]

use super::{Lowered, Lowering, scratch_too_small};
use crate::dispatch::Phase;
use crate::kernels::Kernel;
use crate::ops::basic::{
    Act, ActMul, Add, Bias, Embed, Gate, LayerNorm, Norm, PositionScale, Scale, Spread,
};
use crate::ops::exchange::Exchange;
use crate::ops::heads::{self, HeadsMatmul};
use crate::ops::output_rows::{Pool, Pooling, SelectRows};
use crate::ops::positions::AddFeature;
use crate::ops::sample::{self, Sample};
use crate::ops::{Bytes, FloatRows};
use crate::unsupported;
use welte_device::Error;
use welte_table::{BufferRef, Command, Usage, params};

impl Lowering<'_> {
    /// A part of all features, of `n` values each.
    fn feature_part(&self, part: u32, n: usize) -> Result<FloatRows, Error> {
        let program = self.program();
        let at = BufferRef {
            buffer: program.features,
            offset: 4 * part * n as u32,
        };
        let (stride, count) = (program.feature_width() as u32, program.feature_count());
        self.float_rows(at, stride, n, count as usize)
    }

    /// The features that an `embed` gives to rows.
    fn features(&self, command: &Command, k: usize) -> Result<Option<FloatRows>, Error> {
        let takes = self.program().takes_features(command);
        takes.then(|| self.feature_part(0, k)).transpose()
    }

    pub(super) fn add_feature(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AddFeature::of(&l.command.params);
        let n = p.n as usize;
        l.phases.push(Phase::AddFeature(AddFeature {
            x: self.float_rows(l.command.buffers[0], p.x_stride, n, l.rows)?,
            features: self.feature_part(p.part, n)?,
            n,
        }));
        Ok(())
    }

    pub(super) fn embed(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Embed::of(&l.command.params);
        let (n, k) = (p.n as usize, p.k as usize);
        let id = l.command.weights[0] as usize;
        let spec = self
            .program()
            .weights
            .get(id)
            .ok_or_else(|| unsupported("embed without a table"))?;
        let layout = self.inner.layouts[id];
        let at = layout
            .lookup
            .or(layout.matrix)
            .filter(|_| (spec.n as usize, spec.k as usize) == (n, k));
        let at = at.ok_or_else(|| {
            unsupported(format!(
                "weight '{}' is not a table of {n} x {k}",
                spec.name
            ))
        })?;
        let tiles = layout
            .matrix
            .map(|_| Kernel::for_format(spec.format, self.inner.isa));
        let row_bytes = spec.format.bytes(k).unwrap_or(0);
        let bytes = tiles.map_or(n * row_bytes, |kernel| {
            n.div_ceil(kernel.tile_rows) * kernel.tile_bytes(k)
        });
        if p.n < self.program().vocab || spec.usage == Usage::Matrix {
            return Err(unsupported(
                "the embedding has fewer rows than the vocabulary",
            ));
        }
        // SAFETY: the layout lies in the arena.
        let table = Bytes(unsafe { self.inner.arena.ptr().add(at) });
        l.phases.push(Phase::Embed(Embed {
            table,
            bytes,
            tiles,
            format: spec.format,
            row_bytes,
            k,
            scale: p.scale,
            tokens: self.tokens(l.rows)?,
            features: self.features(l.command, k)?,
            y: self.float_rows(l.command.buffers[1], p.x_stride, k, l.rows)?,
        }));
        Ok(())
    }

    pub(super) fn norm(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Norm::of(&l.command.params);
        let (dim, groups) = (p.dim as usize, p.groups as usize);
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::Norm(Norm {
            x: self.float_rows(x, p.x_stride, dim * groups, l.rows)?,
            y: self.float_rows(y, p.y_stride, dim * groups, l.rows)?,
            dim,
            groups,
            eps: p.eps,
            weight: self.floats(l.command.weights[0], dim)?,
        }));
        Ok(())
    }

    pub(super) fn layer_norm(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::LayerNorm::of(&l.command.params);
        let (dim, groups) = (p.dim as usize, p.groups as usize);
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::LayerNorm(LayerNorm {
            x: self.float_rows(x, p.x_stride, dim * groups, l.rows)?,
            y: self.float_rows(y, p.y_stride, dim * groups, l.rows)?,
            dim,
            groups,
            eps: p.eps,
            weight: self.floats(l.command.weights[0], dim)?,
            bias: self.floats(l.command.weights[1], dim)?,
        }));
        Ok(())
    }

    pub(super) fn heads_matmul(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::HeadsMatmul::of(&l.command.params);
        let [heads, n, k, tail] = [p.heads, p.n, p.k, p.tail].map(|v| v as usize);
        let (x_head, y_head) = (p.x_head as usize, p.y_head as usize);
        let [x, y, ..] = l.command.buffers;
        if heads == 0 || k + tail > x_head || tail + n > y_head {
            return Err(unsupported("heads that overlap"));
        }
        let width = |values: usize, distance: usize| (heads - 1) * distance + values + tail;
        let (mut kernel, tiles) = self.tiles(l.command, heads * n, k)?;
        if l.prompt {
            kernel = Kernel::for_prompt(kernel.format, self.inner.isa);
        }
        if heads::scratch_bytes(&kernel, k) > self.scratch.per_thread {
            return Err(scratch_too_small());
        }
        l.phases.push(Phase::HeadsMatmul(HeadsMatmul {
            kernel,
            x: self.float_rows(x, p.x_stride, width(k, x_head), l.rows)?,
            y: self.float_rows(y, p.y_stride, width(n, y_head), l.rows)?,
            tiles,
            heads,
            n,
            k,
            tail,
            x_head,
            y_head,
        }));
        Ok(())
    }

    pub(super) fn act(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Act::of(&l.command.params);
        let n = p.n as usize;
        l.phases.push(Phase::Act(Act {
            y: self.float_rows(l.command.buffers[0], p.y_stride, n, l.rows)?,
            n,
            act: p.act,
            constants: [p.a, p.b, p.c, p.d],
        }));
        Ok(())
    }

    pub(super) fn position_scale(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::PositionScale::of(&l.command.params);
        let n = p.n as usize;
        l.phases.push(Phase::PositionScale(PositionScale {
            y: self.float_rows(l.command.buffers[0], p.y_stride, n, l.rows)?,
            n,
            beta: p.beta,
            original: p.original,
            ahead: p.ahead,
        }));
        Ok(())
    }

    pub(super) fn bias(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Bias::of(&l.command.params);
        let n = p.n as usize;
        l.phases.push(Phase::Bias(Bias {
            y: self.float_rows(l.command.buffers[0], p.y_stride, n, l.rows)?,
            n,
            bias: self.floats(l.command.weights[0], n)?,
        }));
        Ok(())
    }

    pub(super) fn spread(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Spread::of(&l.command.params);
        let (n, k) = (p.n as usize, p.k as usize);
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::Spread(Spread {
            x: self.float_rows(x, p.x_stride, k, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, l.rows)?,
            k,
            n,
            map: self.floats(l.command.weights[0], n)?,
        }));
        Ok(())
    }

    pub(super) fn act_mul(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::ActMul::of(&l.command.params);
        let n = p.n as usize;
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::ActMul(ActMul {
            x: self.float_rows(x, p.x_stride, 2 * n, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, l.rows)?,
            n,
            act: p.act,
        }));
        Ok(())
    }

    pub(super) fn gate(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Gate::of(&l.command.params);
        let (n, gates) = (p.n as usize, p.gates as usize);
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::Gate(Gate {
            x: self.float_rows(x, p.x_stride, gates, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, l.rows)?,
            n,
            gates,
            act: p.act,
        }));
        Ok(())
    }

    pub(super) fn add(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Add::of(&l.command.params);
        let n = p.n as usize;
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::Add(Add {
            x: self.float_rows(x, p.x_stride, n, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, l.rows)?,
            n,
        }));
        Ok(())
    }

    pub(super) fn exchange(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Exchange::of(&l.command.params);
        let seat = self
            .seat
            .filter(|seat| (seat.rank(), seat.ranks()) == (p.rank, p.ranks));
        let seat = seat.ok_or_else(|| unsupported("the context is not of the program's rank"))?;
        let vectors = p.vectors as usize;
        let (own, all) = (
            vectors * p.part(p.rank).len(),
            vectors * p.deal().width() as usize,
        );
        let [part, whole, ..] = l.command.buffers;
        l.phases.push(Phase::Exchange(Exchange {
            seat: seat.clone(),
            part: self.float_rows(part, p.part_stride, own, l.rows)?,
            whole: self.float_rows(whole, p.y_stride, all, l.rows)?,
            params: p,
        }));
        Ok(())
    }

    pub(super) fn scale(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Scale::of(&l.command.params);
        let n = p.n as usize;
        l.phases.push(Phase::Scale(Scale {
            y: self.float_rows(l.command.buffers[0], p.y_stride, n, l.rows)?,
            n,
            scale: p.scale,
            cap: p.cap,
        }));
        Ok(())
    }

    pub(super) fn select_rows(&self, l: &mut Lowered<'_>, outputs: usize) -> Result<(), Error> {
        let p = params::SelectRows::of(&l.command.params);
        let n = p.n as usize;
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::SelectRows(SelectRows {
            x: self.float_rows(x, p.x_stride, n, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, outputs)?,
            n,
        }));
        Ok(())
    }

    pub(super) fn pool(&self, l: &mut Lowered<'_>, outputs: usize) -> Result<(), Error> {
        let p = params::Pool::of(&l.command.params);
        let n = p.n as usize;
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::Pool(Pool {
            x: self.float_rows(x, p.x_stride, n, l.rows)?,
            y: self.float_rows(y, p.y_stride, p.width() as usize, outputs)?,
            n,
            group: p.group as usize,
            pooling: match p.kind {
                0 => Pooling::Last,
                1 => Pooling::Mean,
                2 => Pooling::First,
                3 => Pooling::Rows,
                5 => Pooling::Largest,
                _ => Pooling::Columns,
            },
            normalise: p.normalise != 0,
        }));
        Ok(())
    }

    pub(super) fn sample(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Sample::of(&l.command.params);
        let n = p.n as usize;
        if p.n != self.program().vocab {
            return Err(unsupported("sample over other values than the vocabulary"));
        }
        let sample = Sample {
            logits: self.float_rows(l.command.buffers[0], p.logits_stride, n, l.rows)?,
            n,
            partials: self.scratch_rows(
                &self.scratch.argmax,
                0,
                2,
                l.rows * n.div_ceil(sample::CHUNK),
            )?,
            tokens: self.tokens(l.rows)?,
        };
        l.phases.push(Phase::Scan(sample));
        l.phases.push(Phase::Choose(sample));
        Ok(())
    }
}
