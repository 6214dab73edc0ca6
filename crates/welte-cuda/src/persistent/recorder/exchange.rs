//! Exchanges between ranks: instructions publish to all of them what an exchange completes (`kernels/persistent/exchange.cuh`).

use super::state::Recorder;
use welte_table::{BufferRef, Command, Deal, Op, Pass, params};

/// Of a model on several GPUs; else 1.
pub(super) fn ranks(pass: &Pass) -> u32 {
    let exchange = pass.commands.iter().find(|c| c.op == Op::Exchange);
    exchange.map_or(1, |c| params::Exchange::of(&c.params).ranks)
}

/// Where an instruction's results lie in what all ranks have after an exchange.
pub(super) struct Exchanged {
    /// This rank's part of the first vector.
    pub(super) at: BufferRef,
    /// Vectors of a row, floats of each, and floats from one row to the next.
    pub(super) vectors: u32,
    pub(super) width: u32,
    pub(super) stride: u32,
    pub(super) deal: Deal,
}

impl Recorder<'_> {
    /// The exchange of what the instruction of a command leaves at `part`, if one follows. The instruction then takes it over.
    pub(super) fn exchange_after(
        &mut self,
        index: usize,
        part: BufferRef,
    ) -> Result<Option<Exchanged>, String> {
        // The instruction has taken these over.
        let in_place = |c: &Command| matches!(c.op, Op::Bias | Op::Act | Op::Scale);
        let mut rest = self.pass.commands.iter().enumerate().skip(index + 1);
        let next = rest.find(|(_, c)| !(in_place(c) && c.buffers[0].buffer == part.buffer));
        let next = next.filter(|(_, c)| c.op == Op::Exchange && c.buffers[0] == part);
        let Some((at, command)) = next else {
            return Ok(None);
        };
        if self.budget.is_step {
            return Err("exchanges in steps of several rows".to_string());
        }
        let p = params::Exchange::of(&command.params);
        let y = command.buffers[1];
        self.exchanged = Some(at);
        Ok(Some(Exchanged {
            at: BufferRef {
                offset: y.offset + 4 * p.part(p.rank).start,
                ..y
            },
            vectors: p.vectors,
            width: p.deal().width(),
            stride: p.y_stride,
            deal: p.deal(),
        }))
    }
}
