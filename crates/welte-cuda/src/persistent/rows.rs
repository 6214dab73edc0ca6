//! The decode pass for steps of several rows (`kernels/persistent_rows.cu`), and the passes that such a step can stand for.

use super::memory::SharedMemoryBudget;
use super::{Inputs, Recording, record};
use welte_table::{Command, Op, Pass, PassKind};

/// The most rows of a step.
pub(crate) const MAX_ROWS: u32 = 8;
/// The fewest rows for which shared memory must have room. Staged inputs and the ring of weights share it. In the figures of
/// docs/lab/2026-11-22-h200-persistent.md (steps of 2, 4 and 8 rows) every model with room for three rows or more is faster than by
/// launched kernels, for every number of rows that fits: from 1.07 times (Llama-8B in Q4_K_M, two rows) to 2.1 times (Llama-1B
/// in Q4_0, eight). The one with room for two (Llama-8B in BF16) takes 1.8 times as long, because its ring holds too little.
///
/// This rule and not a measurement at load decides which kernels compute a step: their sums differ in the last bits, and the
/// bits that a model gives must not depend on timing.
const MIN_ROWS: u32 = 3;
/// The tries for the most bytes of the ring that are multiplied together: tiles that are not full waste arithmetic.
const BYTES_AT_ONCE: [u32; 3] = [80 << 10, 40 << 10, 20 << 10];
/// Room for so many rows is worth full tiles: no smaller tiles are tried.
const ENOUGH_ROWS: u32 = 4;
/// Rows of a matrix whose results may wait, for each row of the step.
const OUTPUTS: u32 = 32;

/// Records the decode pass for as many rows as there is room for, at least [`MIN_ROWS`].
pub(crate) fn record_rows(cx: &Inputs<'_>) -> Result<Recording, String> {
    let passes = &cx.program.passes;
    let decode = passes.first().ok_or("no pass")?;
    if !passes.iter().any(|pass| can_stand_for(decode, pass)) {
        return Err("no pass of several rows has the decode pass's commands".to_string());
    }
    let rows = |recording: &Result<Recording, String>| recording.as_ref().map_or(0, |r| r.rows);
    let mut best = Err(String::new());
    for bytes_at_once in BYTES_AT_ONCE {
        let recording = most_rows(cx, bytes_at_once);
        if best.is_err() || rows(&recording) > rows(&best) {
            best = recording;
        }
        if rows(&best) >= ENOUGH_ROWS {
            break;
        }
    }
    best
}

/// The same with a limit on the bytes that are multiplied together.
fn most_rows(cx: &Inputs<'_>, bytes_at_once: u32) -> Result<Recording, String> {
    let mut why = String::new();
    for rows in (MIN_ROWS..=MAX_ROWS).rev() {
        let budget = SharedMemoryBudget {
            rows,
            outputs: OUTPUTS,
            bytes_at_once,
        };
        match record(cx, budget) {
            Ok(recording) => return Ok(recording),
            Err(other) => why = other,
        }
    }
    Err(why)
}

/// Whether the decode pass, recorded for several rows, can stand for a pass: both have the same commands with the same
/// weights. A prompt pass also has a `select_rows`.
pub(crate) fn can_stand_for(decode: &Pass, pass: &Pass) -> bool {
    match pass.kind {
        PassKind::Decode => return pass.rows > 1,
        PassKind::Embed => return false,
        PassKind::Prompt => {}
    }
    let compared = |c: &&Command| !matches!(c.op, Op::SelectRows | Op::Sample);
    let count = |pass: &Pass| pass.commands.iter().filter(compared).count();
    let pairs = decode.commands.iter().filter(compared);
    let mut pairs = pairs.zip(pass.commands.iter().filter(compared));
    count(decode) == count(pass) && pairs.all(|(a, b)| same(a, b))
}

/// Whether two commands are equal, except for the distance of rows.
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
    fn the_decode_pass_stands_for_the_prompt_pass_of_its_model() {
        let program = example("qwen3-0.6b:q4_0");
        let [decode, prompt] = &program.passes[..] else {
            panic!("two passes");
        };
        assert!(can_stand_for(decode, decode) && can_stand_for(decode, prompt));
        let changed = |change: &dyn Fn(&mut Pass)| {
            let mut pass = prompt.clone();
            change(&mut pass);
            can_stand_for(decode, &pass)
        };
        assert!(changed(&|_| {}));
        assert!(!changed(&|p| p.commands[1].weights[0] += 1));
        // A product's width counts; the distance of its rows does not.
        assert_eq!(prompt.commands[1].op, Op::NormMatmul);
        assert!(!changed(&|p| p.commands[1].params[0] += 1));
        assert!(changed(&|p| p.commands[1].params[3] += 1));
        assert!(!changed(&|p| p.commands.truncate(9)));
        assert!(!changed(&|p| p.kind = PassKind::Embed));
        // Of a decode pass, only the number of rows counts.
        assert!(!changed(&|p| (p.kind, p.rows) = (PassKind::Decode, 1)));
        assert!(changed(&|p| (p.kind, p.rows) = (PassKind::Decode, 2)));
    }
}
