//! The decode table for steps of several rows (`kernels/persistent_rows.cu`), and which tables such a step may stand for.

use super::{Inputs, Roll, Room, record};
use welte_table::{Command, Op, Shape, Table};

/// Rows that go through the kernel together, where shared memory has room for so many.
pub(crate) const MOST_ROWS: u32 = 8;
/// Bytes of a slot: smaller than for one row, because the rows' inputs need room.
const SLOT: u32 = 16 << 10;
/// Rows of a matrix whose results may wait, for each row of the step.
const OUTPUTS: u32 = 64;

/// Records a decode table for as many rows as there is room for, at least two.
pub(crate) fn record_rows(cx: &Inputs<'_>, table: &Table) -> Result<Roll, String> {
    let mut why = String::new();
    for rows in (2..=MOST_ROWS).rev() {
        let room = Room {
            rows,
            slot: SLOT,
            outputs: OUTPUTS,
        };
        match record(cx, table, room) {
            Ok(roll) => return Ok(roll),
            Err(other) => why = other,
        }
    }
    Err(why)
}

/// Whether a table says of its rows what the decode table says of one, so that the decode table, recorded for several rows,
/// can stand for it: the same commands with the same weights. A prompt's takes the last row before its head.
pub(crate) fn takes(decode: &Table, table: &Table) -> bool {
    let last = match table.shape {
        Shape::Decode => return false,
        Shape::Batch(_) => 0,
        Shape::Prefill(_) => 1,
    };
    let copies = table.commands.iter().filter(|c| c.op == Op::CopyLast);
    let passes = |table: &'_ Table| table.commands.iter().filter(|c| !is_aside(c)).count();
    let pairs = decode.commands.iter().filter(|c| !is_aside(c));
    let mut pairs = pairs.zip(table.commands.iter().filter(|c| !is_aside(c)));
    copies.count() == last && passes(decode) == passes(table) && pairs.all(|(a, b)| same(a, b))
}

/// What differs between the tables by their nature.
fn is_aside(command: &Command) -> bool {
    matches!(command.op, Op::CopyLast | Op::Sample)
}

/// But for where rows lie.
fn same(a: &Command, b: &Command) -> bool {
    let params = |command: &Command| {
        let named = command.op.show_params(&command.params).into_iter();
        named
            .filter(|(name, _)| !name.ends_with("_stride"))
            .collect::<Vec<_>>()
    };
    a.op == b.op && a.weights == b.weights && params(a) == params(b)
}
