//! What steps leave for a draft pass (`kernels/persistent/copy.cuh`).

use super::super::tap::Tap;
use super::super::variants::{Copy, Variant};
use super::state::Recorder;
use welte_table::{BufferRef, Command, NO_WEIGHT, params};

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
