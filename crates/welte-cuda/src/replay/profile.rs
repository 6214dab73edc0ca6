//! Profiling: each command of a step between two events.

use super::Session;
use crate::Error;
use crate::gpu::Event;
use welte_table::timeline::Timeline;
use welte_table::{Op, Row, cost};

/// What one op did since profiling was switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Which op.
    pub op: Op,
    /// How often it ran.
    pub calls: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
    /// Bytes that it had to move at least: weights, activations, and the KV it read.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

impl Session {
    /// Switches profiling on (from zero) or off. Profiled steps are slower: each command is timed.
    pub fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        let zero = |op: &Op| Profile {
            op: *op,
            calls: 0,
            ns: 0,
            bytes: 0,
            flops: 0,
        };
        let most = self.tables.iter().map(|t| t.commands.len()).max();
        while on && self.events.len() <= most.unwrap_or(0) {
            self.events.push(Event::new(&self.gpu)?);
        }
        self.profile = on.then(|| Op::ALL.iter().map(zero).collect());
        self.last_step = Timeline::default();
        Ok(())
    }

    /// What each op did since profiling was switched on; empty if it is off.
    pub fn profile(&self) -> &[Profile] {
        self.profile.as_deref().unwrap_or(&[])
    }

    /// When the commands of the last step ran, if it was profiled: one lane. What lies between two commands is left out.
    pub fn last_step(&self) -> &Timeline {
        &self.last_step
    }

    /// Adds up what the events of a profiled replay say.
    pub(super) fn read_events(
        &mut self,
        table: usize,
        commands: usize,
        sample: bool,
        rows: &[Row],
    ) -> Result<(), Error> {
        let Some(profile) = &mut self.profile else {
            return Ok(());
        };
        let program = &self.model.inner.program;
        let mut ran: Vec<(u32, u64, u64)> = Vec::with_capacity(self.events.len());
        let table = &program.tables[table];
        for (index, command) in table.commands.iter().enumerate().take(commands) {
            if command.op == Op::Sample && !sample {
                continue;
            }
            let [before, after] = &self.events[index..index + 2] else {
                continue;
            };
            after.wait()?;
            let entry = &mut profile[command.op as usize];
            entry.calls += 1;
            let ns = after.since(before)?;
            let context = cost::of_context(command, &program.kv, rows);
            let live = table.rows_at(index).min(rows.len() as u32);
            entry.ns += ns;
            entry.bytes += command.bytes + context.bytes;
            entry.flops += command.flops * u64::from(live) + context.flops;
            let begin = ran.last().map_or(0, |ran| ran.2);
            ran.push((index as u32, begin, begin + ns));
        }
        self.last_step = Timeline::in_order(table, &program.kv, rows, &ran);
        Ok(())
    }
}
