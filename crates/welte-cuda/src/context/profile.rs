//! Profiling: each command of a step between two events.

use super::CudaContext;
use crate::Error;
use crate::gpu::Event;
use std::ops::Range;
use welte_device::Profile;
use welte_device::timeline::Timeline;
use welte_table::{Op, Row};

impl CudaContext {
    /// Switches profiling on (from zero) or off. Profiled steps are slower, because every command is timed.
    pub(super) fn switch_profiling(&mut self, on: bool) -> Result<(), Error> {
        let passes = self.loaded.program.passes.iter();
        let most = passes.map(|pass| pass.commands.len()).max();
        while on && self.events.len() <= most.unwrap_or(0) {
            self.events.push(Event::new(&self.gpu)?);
        }
        self.profile = on.then(Profile::zeros);
        self.last_step = Timeline::default();
        Ok(())
    }

    /// Adds the times between the events of a profiled replay. The last step is one lane, without the gaps between commands.
    pub(super) fn read_events(
        &mut self,
        pass: usize,
        commands: &Range<usize>,
        sample: bool,
        rows: &[Row],
        outputs: usize,
    ) -> Result<(), Error> {
        let Some(profile) = &mut self.profile else {
            return Ok(());
        };
        let program = &self.loaded.program;
        let outputs_from = self.passes[pass].outputs_from;
        let mut ran: Vec<(u32, u64, u64)> = Vec::with_capacity(self.events.len());
        for (index, command) in program.passes[pass].commands.iter().enumerate() {
            let live = if index < outputs_from {
                rows.len()
            } else {
                outputs
            };
            if !commands.contains(&index) || (command.op == Op::Sample && !sample) || live == 0 {
                continue;
            }
            let [before, after] = &self.events[index..index + 2] else {
                continue;
            };
            after.wait()?;
            let entry = &mut profile[command.op as usize];
            let ns = after.since(before)?;
            entry.count(program, command, rows, live);
            entry.ns += ns;
            let begin = ran.last().map_or(0, |ran| ran.2);
            ran.push((index as u32, begin, begin + ns));
        }
        self.last_step = Timeline::in_order(program, pass, rows, &ran);
        Ok(())
    }
}
