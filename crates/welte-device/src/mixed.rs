//! Mixed steps: generated rows and prompt rows in one pass over the weights.

use welte_table::{Op, PassKind, Program, Row};

/// The rows of a mixed step: see [`Context::step_mixed`](crate::Context::step_mixed).
#[derive(Clone, Copy, Debug)]
pub struct MixedStep<'a> {
    /// The prompt pass.
    pub pass: usize,
    /// Generated rows, then prompt rows.
    pub rows: &'a [Row],
    /// How many of the rows are generated.
    pub generated: usize,
    /// The prompt rows that are outputs, by their numbers among all rows, ascending. Every generated row is an output.
    pub outputs: &'a [u32],
}

/// Whether a program's decode pass and prompt pass compute a row by the same commands. Without that, no step can mix them.
pub fn same_commands(program: &Program) -> bool {
    let ops = |kind: PassKind| {
        let pass = program.pass(kind)?;
        let commands = program.passes[pass].commands.iter();
        let ops = commands.map(|command| (command.op, command.weights));
        Some(ops.filter(|(op, _)| !matches!(op, Op::SelectRows | Op::Sample)))
    };
    match (ops(PassKind::Decode), ops(PassKind::Prompt)) {
        (Some(decode), Some(prompt)) => decode.eq(prompt),
        _ => false,
    }
}
