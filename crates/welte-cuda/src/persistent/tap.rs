//! What a decode pass leaves for a draft pass. The kernels do not run the commands that make it: their input stays in the exchange, and
//! they are launched after a step. Chains of one slot
//! have no use for it; those of several launch it for a drafter of blocks.

use std::ops::Range;
use welte_table::{BufferRef, Command, Extent, ModelPart, Op, PassKind, Program, accesses};

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

/// If there is a draft pass, the commands of the decode pass that are for it alone. They follow each other, and all but the first read what
/// others of them have made.
pub(super) fn tap_of(program: &Program) -> Result<Option<Tap>, String> {
    let (Some(pass), Some(_)) = (program.passes.first(), program.pass(PassKind::Draft)) else {
        return Ok(None);
    };
    let is_own = |c: &&Command| c.part == ModelPart::Draft;
    let own = pass.commands.iter().skip_while(|c| !is_own(c));
    let count = own.take_while(is_own).count();
    let Some(first) = pass.commands.iter().position(|c| is_own(&c)) else {
        return Err("a draft pass without hidden states".to_string());
    };
    if pass.commands.iter().filter(is_own).count() > count {
        return Err("hidden states for a draft pass in several places".to_string());
    }
    let commands = first..first + count;
    if pass.commands[commands.clone()]
        .iter()
        .any(|c| c.op == Op::Exchange)
    {
        return Err("exchanges among what is left for a draft pass".to_string());
    }
    let c = &pass.commands[first];
    let x = c.buffers[0];
    let read = accesses(c).into_iter().find(|one| one.at == x);
    let Some(Extent::Rows { width, stride }) = read.map(|one| one.extent) else {
        return Err(format!("{} leaves hidden states", c.op.name()));
    };
    Ok(Some(Tap {
        commands,
        x,
        n: width as u32,
        stride: stride as u32,
        start: 0,
    }))
}
