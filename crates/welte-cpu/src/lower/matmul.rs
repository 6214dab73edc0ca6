//! Matrices and experts.

use super::{Lowered, Lowering, scratch_too_small};
use crate::dispatch::Phase;
use crate::kernels::Kernel;
use crate::ops::basic::ActMul;
use crate::ops::experts::{
    self, Combine, ExpertsMatmul, Groups, MOST_EXPERTS, PrepareEntries, Route,
};
use crate::ops::matmul::{Epilogue, FUSED_COLUMNS, Matmul, Prepare, scratch_bytes};
use crate::ops::{Bytes, Floats};
use crate::scratch::{experts_of, matrix_of};
use crate::unsupported;
use welte_device::Error;
use welte_table::{Op, params};

impl Lowering<'_> {
    pub(super) fn matmul(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let words = &l.command.params;
        let (strides, eps, epilogue) = match l.command.op {
            Op::MatmulAdd => {
                let p = params::MatmulAdd::of(words);
                ((p.x_stride, p.y_stride), None, Epilogue::Accumulate)
            }
            Op::NormMatmul => {
                let p = params::NormMatmul::of(words);
                ((p.x_stride, p.y_stride), Some(p.eps), Epilogue::Store)
            }
            Op::NormMatmulActMul => {
                let p = params::NormMatmulActMul::of(words);
                (
                    (p.x_stride, p.y_stride),
                    Some(p.eps),
                    Epilogue::ActMul(p.act),
                )
            }
            _ => {
                let p = params::Matmul::of(words);
                ((p.x_stride, p.y_stride), None, Epilogue::Store)
            }
        };
        let (x_stride, y_stride) = strides;
        let (n, k) = matrix_of(l.command).ok_or_else(|| unsupported("no matrix"))?;
        let norm = match eps {
            Some(eps) => Some((self.floats(l.command.weights[1], k)?, eps)),
            None => None,
        };
        let (mut kernel, tiles) = self.tiles(l.command, n, k)?;
        if l.prompt {
            kernel = Kernel::for_prompt(kernel.format, self.inner.isa);
        }
        let many_scratch = scratch_bytes(&kernel, k);
        if l.rows * kernel.acts_bytes(k) > self.scratch.acts.len()
            || (norm.is_some() && k * 4 > self.scratch.per_thread)
            || (l.rows >= kernel.many_rows && many_scratch > self.scratch.per_thread)
        {
            return Err(scratch_too_small());
        }
        let acts = Bytes(self.scratch.acts.ptr());
        let [x, y, ..] = l.command.buffers;
        let prepare = Prepare {
            kernel,
            x: self.float_rows(x, x_stride, k, l.rows)?,
            k,
            norm,
            acts,
        };
        l.phases.push(Phase::Prepare(prepare));
        let threads = self.inner.team.threads();
        let matmul = |n, y, epilogue| Matmul::new(prepare, tiles, n, y, epilogue, threads);
        let Epilogue::ActMul(act) = epilogue else {
            let y = self.float_rows(y, y_stride, n, l.rows)?;
            l.phases.push(Phase::Matmul(matmul(n, y, epilogue)));
            return Ok(());
        };
        let half = n / 2;
        let y = self.float_rows(y, y_stride, half, l.rows)?;
        if half % kernel.tile_rows == 0 && kernel.tile_rows <= FUSED_COLUMNS {
            l.phases.push(Phase::Matmul(matmul(half, y, epilogue)));
        } else {
            let wide = self.scratch_rows(&self.scratch.wide, 0, n, l.rows)?;
            l.phases
                .push(Phase::Matmul(matmul(n, wide, Epilogue::Store)));
            l.phases.push(Phase::ActMul(ActMul {
                x: wide,
                y,
                n: half,
                act,
            }));
        }
        Ok(())
    }

    pub(super) fn route(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Route::of(&l.command.params);
        let (experts, used) = (p.experts as usize, p.used as usize);
        if used == 0 || used > experts || experts > MOST_EXPERTS {
            return Err(unsupported(format!(
                "route to {used} of {experts} experts; there may be {MOST_EXPERTS}"
            )));
        }
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::Route(Route {
            x: self.float_rows(x, p.x_stride, experts, l.rows)?,
            y: self.float_rows(y, p.y_stride, 2 * used, l.rows)?,
            experts,
            used,
            renormalise: p.renormalise != 0,
            scale: p.scale,
            scales: self.floats(l.command.weights[1], experts)?,
            sigmoid: p.scoring == 1,
            margin: (p.scoring == 2).then_some(p.margin),
            bias: self.floats(l.command.weights[0], experts)?,
            groups: p.groups as usize,
            used_groups: p.used_groups as usize,
            group_top: p.group_top as usize,
        }));
        Ok(())
    }

    /// Experts with gate and up, or experts whose outputs are added up.
    pub(super) fn experts(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let words = &l.command.params;
        let (strides, epilogue) = match l.command.op {
            Op::ExpertsActMul => {
                let p = params::ExpertsActMul::of(words);
                let epilogue = match p.matrices() {
                    _ if p.act >= 5 => experts::Epilogue::Plain,
                    1 => experts::Epilogue::SquaredRelu,
                    _ => experts::Epilogue::ActMul(p.act),
                };
                ([p.x_stride, p.choice_stride, p.y_stride], epilogue)
            }
            _ => {
                let p = params::ExpertsAdd::of(words);
                let strides = [p.x_stride, p.choice_stride, p.y_stride];
                (strides, experts::Epilogue::Keep)
            }
        };
        let [x_stride, choice_stride, y_stride] = strides;
        let e = experts_of(l.command).ok_or_else(|| unsupported("no experts"))?;
        let (kernel, tiles) = self.tiles(l.command, e.n * e.experts, e.k)?;
        let n = e.outputs;
        if e.used == 0 || e.used > e.experts || !n.is_multiple_of(kernel.tile_rows) {
            return Err(unsupported(format!(
                "experts of {n} outputs, which is not a multiple of {}",
                kernel.tile_rows
            )));
        }
        let rows = l.rows;
        let (entries, acts_bytes) = (rows * e.used, kernel.acts_bytes(e.k));
        if entries * acts_bytes > self.scratch.acts.len()
            || Groups::bytes(e.experts, e.used, rows) > self.scratch.groups.len()
        {
            return Err(scratch_too_small());
        }
        let groups = Groups {
            start: Bytes(self.scratch.groups.ptr()),
            experts: e.experts,
            used: e.used,
            entries,
        };
        let [x, choice, y, _] = l.command.buffers;
        let choice = self.float_rows(choice, choice_stride, 2 * e.used, rows)?;
        let own = matches!(epilogue, experts::Epilogue::Keep);
        let width = if own { e.used * e.k } else { e.k };
        let acts = Bytes(self.scratch.acts.ptr());
        let bias = self.floats(l.command.weights[1], e.n * e.experts)?;
        l.phases.push(Phase::Group(groups, choice));
        l.phases.push(Phase::PrepareEntries(PrepareEntries {
            kernel,
            groups,
            x: self.float_rows(x, x_stride, width, rows)?,
            k: e.k,
            own,
            acts,
            acts_bytes,
        }));
        let out = if own {
            self.scratch_rows(&self.scratch.wide, 0, n, entries)?
        } else {
            self.float_rows(y, y_stride, e.used * n, rows)?
        };
        l.phases.push(Phase::ExpertsMatmul(ExpertsMatmul {
            kernel,
            groups,
            tiles,
            n,
            k: e.k,
            acts,
            acts_bytes,
            y: out,
            epilogue,
            bias: if own { Floats::NONE } else { bias },
        }));
        if own {
            l.phases.push(Phase::Combine(Combine {
                groups,
                choice,
                parts: out,
                y: self.float_rows(y, y_stride, n, rows)?,
                n,
                bias,
            }));
        }
        Ok(())
    }
}
