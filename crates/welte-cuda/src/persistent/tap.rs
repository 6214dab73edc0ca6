//! What a decode pass leaves for a draft pass. The kernels do not run the commands that make it: their input stays in the exchange, and
//! they are launched after a step. Chains have no use for it.

use super::recorder::Recorder;
use super::variants::{Copy, Variant};
use std::ops::Range;
use welte_table::{
    Access, BufferId, BufferRef, Command, Extent, NO_WEIGHT, Op, PassKind, Program, accesses,
    params,
};

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

impl Recorder<'_> {
    /// Notes where the input is, if the command at `index` is one of those.
    pub(super) fn tapped(&mut self, index: usize) -> Result<bool, String> {
        let Some(tap) = self.tap.clone() else {
            return Ok(false);
        };
        if tap.commands.start == index {
            let start = self.shared_vector(tap.x)?;
            self.tap = Some(Tap {
                start,
                ..tap.clone()
            });
        }
        Ok(tap.commands.contains(&index))
    }

    /// Records a copy of a vector for those commands.
    pub(super) fn keep(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let p = params::Multiply::of(&command.params);
        let [from, to, ..] = command.buffers;
        let wanted = self.tap.as_ref().map(|tap| tap.x.buffer);
        if command.weights[0] != NO_WEIGHT || wanted != Some(to.buffer) {
            return Err(format!(
                "{} is not among its instructions",
                command.op.name()
            ));
        }
        self.shared_vector(from)?;
        let (read, write) = (self.read(from)?, self.write(to)?);
        let instruction = self.instruction(Variant::Copy(Copy { n: p.n }));
        self.push_unshared(index, instruction.reading(read).writing(write));
        Ok(())
    }

    /// The floats of the exchange where a vector begins.
    fn shared_vector(&mut self, at: BufferRef) -> Result<u32, String> {
        match self.read_or_own(at)? {
            (false, (start, _)) => Ok(start),
            (true, _) => Err("hidden states in shared memory, for a draft pass".to_string()),
        }
    }
}
