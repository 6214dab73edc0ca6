//! The decode table for steps of several rows (`kernels/persistent_rows.cu`), and which tables such a step may stand for.

use super::{Inputs, Roll, Room, record};
use welte_table::{Command, Op, Shape, Table};

/// Rows that go through the kernel together, where shared memory has room for so many.
pub(crate) const MOST_ROWS: u32 = 8;
/// Bytes that are gone through together at most: of tiles that are not full, a part of the arithmetic is for nothing.
const TOGETHER: [u32; 3] = [80 << 10, 40 << 10, 20 << 10];
/// Rows of a step that are worth full tiles.
const ENOUGH: u32 = 4;
/// Rows of a matrix whose results may wait, for each row of the step.
const OUTPUTS: u32 = 32;

/// Records a decode table for as many rows as there is room for, at least two.
pub(crate) fn record_rows(cx: &Inputs<'_>, table: &Table) -> Result<Roll, String> {
    let rows = |roll: &Result<Roll, String>| roll.as_ref().map_or(0, |roll| roll.rows);
    let mut best = Err(String::new());
    for together in TOGETHER {
        let roll = most_rows(cx, table, together);
        if best.is_err() || rows(&roll) > rows(&best) {
            best = roll;
        }
        if rows(&best) >= ENOUGH {
            break;
        }
    }
    best
}

/// The same where so many bytes may be gone through together.
fn most_rows(cx: &Inputs<'_>, table: &Table, together: u32) -> Result<Roll, String> {
    let mut why = String::new();
    for rows in (2..=MOST_ROWS).rev() {
        let room = Room {
            rows,
            outputs: OUTPUTS,
            together,
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

#[cfg(test)]
mod tests {
    use super::*;
    use welte_formats::synthetic::Synthetic;
    use welte_table::Program;

    fn example(shape: &str) -> Program {
        let checkpoint = Synthetic::parse(shape).unwrap();
        let spec = welte_models::spec(&checkpoint).unwrap();
        let options = welte_models::CompileOptions {
            context: 256,
            ..Default::default()
        };
        welte_models::compile(&spec, &checkpoint, &options).unwrap()
    }

    #[test]
    fn tables_of_a_model_say_the_same_of_many_rows() {
        let program = example("qwen3-0.6b:q4_0");
        let [decode, prompt, batch] = &program.tables[..] else {
            panic!("three tables");
        };
        assert!(takes(decode, prompt) && takes(decode, batch));
        assert!(!takes(decode, decode));
        let changed = |change: &dyn Fn(&mut Table)| {
            let mut table = batch.clone();
            change(&mut table);
            takes(decode, &table)
        };
        assert!(changed(&|_| {}));
        assert!(!changed(&|t| t.commands[1].weights[0] += 1));
        // The width of a product; where its rows lie is the table's affair.
        assert_eq!(batch.commands[1].op, Op::NormMatmul);
        assert!(!changed(&|t| t.commands[1].params[0] += 1));
        assert!(changed(&|t| t.commands[1].params[3] += 1));
        assert!(!changed(&|t| t.commands.truncate(9)));
        assert!(!changed(&|t| t.shape = Shape::Prefill(16)));
    }
}
