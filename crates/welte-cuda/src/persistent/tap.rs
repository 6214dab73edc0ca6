//! The command of a decode pass that leaves hidden states for a draft pass. The kernels do not run it: its input stays in the exchange,
//! and it is launched after them. Chains have no use for it.

use super::recorder::Recorder;
use welte_table::{Access, BufferId, BufferRef, Extent, Op, PassKind, Program, accesses, params};

/// Where such a command finds its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tap {
    /// The command.
    pub(crate) command: usize,
    /// Its input: floats of a row, and from one row to the next.
    pub(crate) x: BufferRef,
    pub(crate) n: u32,
    pub(crate) stride: u32,
    /// The floats of the exchange where the input begins, once it is recorded.
    pub(crate) start: u32,
}

/// The command whose result the decode pass itself does not read, if there is a draft pass.
pub(super) fn tap_of(program: &Program) -> Result<Option<Tap>, String> {
    let (Some(pass), Some(_)) = (program.passes.first(), program.pass(PassKind::Draft)) else {
        return Ok(None);
    };
    let all = || pass.commands.iter().flat_map(accesses);
    let is_read = |buffer: BufferId| all().any(|one| !one.writes && one.at.buffer == buffer);
    let leaves =
        |one: &Access| one.writes && one.extent != Extent::Cache && !is_read(one.at.buffer);
    let mut commands = pass.commands.iter().enumerate();
    let found = commands.find(|(_, c)| c.op != Op::Sample && accesses(c).iter().any(leaves));
    let Some((command, c)) = found else {
        return Ok(None);
    };
    let p = params::Norm::of(&c.params);
    if c.op != Op::Norm || p.groups != 1 {
        return Err("a draft head that reads hidden states of several layers".to_string());
    }
    Ok(Some(Tap {
        command,
        x: c.buffers[0],
        n: p.dim,
        stride: p.x_stride,
        start: 0,
    }))
}

impl Recorder<'_> {
    /// Notes where the input is, if the command at `index` is that one.
    pub(super) fn tapped(&mut self, index: usize) -> Result<bool, String> {
        let Some(tap) = self.tap.filter(|tap| tap.command == index) else {
            return Ok(false);
        };
        let (local, (start, _)) = self.read_or_own(tap.x)?;
        if local {
            return Err("hidden states in shared memory for a draft pass".to_string());
        }
        self.tap = Some(Tap { start, ..tap });
        Ok(true)
    }
}
