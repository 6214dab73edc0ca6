//! Ops of several streams of hidden states.

use super::{Lowered, Lowering};
use crate::dispatch::Phase;
use crate::ops::altup::{AltUp, Cutoff, MOST_STREAMS, MatchSquares, Multiply};
use welte_device::Error;
use welte_table::params;

impl Lowering<'_> {
    pub(super) fn multiply(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Multiply::of(&l.command.params);
        let n = p.n as usize;
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::Multiply(Multiply {
            x: self.float_rows(x, p.x_stride, n, l.rows)?,
            y: self.float_rows(y, p.y_stride, n, l.rows)?,
            n,
            weight: self.floats(l.command.weights[0], n)?,
        }));
        Ok(())
    }

    pub(super) fn cutoff(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::Cutoff::of(&l.command.params);
        let n = p.n as usize;
        l.phases.push(Phase::Cutoff(Cutoff {
            y: self.float_rows(l.command.buffers[0], p.y_stride, n, l.rows)?,
            n,
            deviations: p.deviations,
        }));
        Ok(())
    }

    pub(super) fn match_squares(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::MatchSquares::of(&l.command.params);
        let (dim, groups) = (p.dim as usize, p.groups as usize);
        let [x, y, ..] = l.command.buffers;
        l.phases.push(Phase::MatchSquares(MatchSquares {
            x: self.float_rows(x, p.x_stride, dim, l.rows)?,
            y: self.float_rows(y, p.y_stride, dim * groups, l.rows)?,
            dim,
            groups,
        }));
        Ok(())
    }

    pub(super) fn altup_predict(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AltUpPredict::of(&l.command.params);
        let (dim, streams) = (p.dim as usize, p.streams as usize);
        let [x, y, ..] = l.command.buffers;
        self.altup(
            l,
            AltUp {
                now: None,
                x: self.float_rows(x, p.x_stride, streams, l.rows)?,
                y: self.float_rows(y, p.y_stride, streams * dim, l.rows)?,
                dim,
                streams,
                scale: p.scale,
                coefficients: self.floats(l.command.weights[0], streams * streams * streams)?,
            },
        )
    }

    pub(super) fn altup_correct(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AltUpCorrect::of(&l.command.params);
        let (dim, streams) = (p.dim as usize, p.streams as usize);
        let [now, x, y, _] = l.command.buffers;
        self.altup(
            l,
            AltUp {
                now: Some(self.float_rows(now, p.now_stride, dim, l.rows)?),
                x: self.float_rows(x, p.x_stride, streams, l.rows)?,
                y: self.float_rows(y, p.y_stride, streams * dim, l.rows)?,
                dim,
                streams,
                scale: p.scale,
                coefficients: self.floats(l.command.weights[0], streams * streams)?,
            },
        )
    }

    fn altup(&self, l: &mut Lowered<'_>, phase: AltUp) -> Result<(), Error> {
        if phase.streams > MOST_STREAMS {
            let streams = phase.streams;
            return Err(super::unsupported(format!(
                "{streams} streams; there may be {MOST_STREAMS}"
            )));
        }
        l.phases.push(Phase::AltUp(phase));
        Ok(())
    }
}
