//! What a decode pass leaves for a draft pass. The kernels do not run the commands that make it: their input stays in the exchange, and
//! they are launched after a step. Chains have no use for it.

use std::ops::Range;
use welte_table::{Access, BufferId, BufferRef, Extent, Op, PassKind, Program, accesses};

/// Commands that are launched after a step.
#[derive(Clone, Debug)]
pub(crate) struct Tap {
    pub(crate) commands: Range<usize>,
    /// Their input: floats of a row, and from one row to the next.
    pub(crate) x: BufferRef,
    pub(crate) n: u32,
    pub(crate) stride: u32,
    /// The floats of the exchange where the input begins, once it is recorded.
    pub(crate) start: u32,
}

/// If there is a draft pass, the command whose result the decode pass itself does not read, and a norm in place before it.
pub(super) fn tap_of(program: &Program) -> Result<Option<Tap>, String> {
    let (Some(pass), Some(_)) = (program.passes.first(), program.pass(PassKind::Draft)) else {
        return Ok(None);
    };
    let all = || pass.commands.iter().flat_map(accesses);
    let is_read = |buffer: BufferId| all().any(|one| !one.writes && one.at.buffer == buffer);
    let leaves =
        |one: &Access| one.writes && one.extent != Extent::Cache && !is_read(one.at.buffer);
    let commands = pass.commands.iter().enumerate();
    let mut found = commands.filter(|(_, c)| c.op != Op::Sample && accesses(c).iter().any(leaves));
    let (Some((last, c)), None) = (found.next(), found.next()) else {
        return Err("a draft pass without hidden states, or with several".to_string());
    };
    let x = c.buffers[0];
    let before = last.checked_sub(1).filter(|before| {
        let norm = &pass.commands[*before];
        norm.op == Op::Norm && norm.buffers[..2] == [x; 2]
    });
    let read = accesses(c).into_iter().find(|one| one.at == x);
    let Some(Extent::Rows { width, stride }) = read.map(|one| one.extent) else {
        return Err(format!("{} leaves hidden states", c.op.name()));
    };
    Ok(Some(Tap {
        commands: before.unwrap_or(last)..last + 1,
        x,
        n: width as u32,
        stride: stride as u32,
        start: 0,
    }))
}
