//! What each op did.

use welte_table::{Command, Op, Program, Row, cost};

/// What one op did since profiling was switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Which op.
    pub op: Op,
    /// How often it ran.
    pub calls: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
    /// Bytes that it had to move at least: weights, activations, and the cached positions it read.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
}

impl Profile {
    /// An entry for every op, all zero.
    pub fn zeros() -> Vec<Profile> {
        let zero = |op: &Op| Profile {
            op: *op,
            calls: 0,
            ns: 0,
            bytes: 0,
            flops: 0,
        };
        Op::ALL.iter().map(zero).collect()
    }

    /// Counts one call of a command in a step with these rows, `live` of which it ran over. The time is added by the
    /// caller.
    pub fn count(&mut self, program: &Program, command: &Command, rows: &[Row], live: usize) {
        let context = cost::of_context(command, program, rows);
        self.calls += 1;
        self.bytes += command.bytes + context.bytes;
        self.flops += command.flops * live as u64 + context.flops;
    }
}
