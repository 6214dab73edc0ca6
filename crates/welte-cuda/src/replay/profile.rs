//! Profiling: each command of a step between two events.

use super::Session;
use crate::Error;
use crate::gpu::Event;
use welte_table::{Op, Row, params};

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
        Ok(())
    }

    /// What each op did since profiling was switched on; empty if it is off.
    pub fn profile(&self) -> &[Profile] {
        self.profile.as_deref().unwrap_or(&[])
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
        let kv = &program.kv;
        let per_position = kv.position_bytes().unwrap_or(0) / u64::from(kv.layers.max(1));
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
            entry.ns += after.since(before)?;
            entry.bytes += command.bytes;
            entry.flops += command.flops * u64::from(table.rows_at(index).min(rows.len() as u32));
            if command.op == Op::Attention {
                let p = params::Attention::of(&command.params);
                let positions: u64 = rows.iter().map(|r| u64::from(r.position) + 1).sum();
                entry.bytes += positions * per_position;
                entry.flops += positions * 4 * u64::from(p.heads) * u64::from(p.head_dim);
            }
        }
        Ok(())
    }
}
