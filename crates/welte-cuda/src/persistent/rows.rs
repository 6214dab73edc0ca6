//! The decode pass for steps (`kernels/persistent_rows.cu`).

use super::memory::{STEP_OUTPUTS, SharedMemoryBudget};
use super::variants::Variant;
use super::{Inputs, Recording, record};

/// The most rows of a launch. A step with more rows takes several.
const MAX_ROWS: u32 = 8;
/// The fewest rows for which shared memory must have room, if there are as many slots. Staged inputs and the ring of weights share
/// it. With few rows per launch a step of many reads the weights too often, and launched kernels are faster.
///
/// This rule and not a measurement at load decides which kernels decode: their sums differ in the last bits, and the bits that a model
/// gives must not depend on timing.
const MIN_ROWS: u32 = 4;
/// The most slots. Steps of as many rows take few launches, and one row is fastest here. With more slots the products of
/// launched kernels read the weights once for all rows (`ops/batched_matmul.rs`). A rule for the same reason as `MIN_ROWS`.
const MOST_SLOTS: u32 = 16;
/// The tries for the rows of the matrix whose results wait together: more, if as many rows of the step still fit.
const OUTPUTS: [u32; 2] = [2 * STEP_OUTPUTS, STEP_OUTPUTS];
/// The tries for the most bytes of the ring that are multiplied together: tiles that are not full waste arithmetic.
const BYTES_AT_ONCE: [u32; 3] = [80 << 10, 40 << 10, 20 << 10];
/// From this number of rows on full tiles are kept, and no smaller ones are tried.
const ENOUGH_ROWS: u32 = 4;

/// Records the decode pass for steps of any number of rows, if launched kernels are not faster for those of all slots.
pub(crate) fn record_rows(cx: &Inputs<'_>) -> Result<Recording, String> {
    let slots = cx.program.slots;
    if slots > MOST_SLOTS {
        return Err(format!(
            "{slots} slots, and launched kernels are faster for more than {MOST_SLOTS}"
        ));
    }
    match record_few_rows(cx) {
        Ok(recording) if recording.rows < fewest_rows(&recording, slots) => Err(format!(
            "{slots} slots, and shared memory has room for {} at a time",
            recording.rows
        )),
        other => other,
    }
}

/// Records the decode pass for steps, with as many rows per launch as there is room for.
pub(crate) fn record_few_rows(cx: &Inputs<'_>) -> Result<Recording, String> {
    let decode = cx.program.passes.first().ok_or("no pass")?;
    let max_rows = decode.rows.clamp(1, MAX_ROWS);
    let mut best = most_rows(cx, max_rows, BYTES_AT_ONCE[0]);
    let rows = |recording: &Result<Recording, String>| recording.as_ref().map_or(0, |r| r.rows);
    for bytes_at_once in &BYTES_AT_ONCE[1..] {
        if rows(&best) >= ENOUGH_ROWS.min(max_rows) {
            break;
        }
        let recording = most_rows(cx, max_rows, *bytes_at_once);
        if best.is_err() || rows(&recording) > rows(&best) {
            best = recording;
        }
    }
    best
}

/// The rows for which shared memory must have room. If all weights are BF16, launched kernels are faster as soon as a step of all slots
/// takes a second launch.
fn fewest_rows(recording: &Recording, slots: u32) -> u32 {
    let mut variants = recording.variants.all.iter();
    let in_one_launch = variants.all(|v| !matches!(v, Variant::Product(_, p) if p.chunks == 0));
    if in_one_launch {
        slots
    } else {
        MIN_ROWS.min(slots)
    }
}

/// The same with a limit on the bytes that are multiplied together.
fn most_rows(cx: &Inputs<'_>, max_rows: u32, bytes_at_once: u32) -> Result<Recording, String> {
    let mut why = String::new();
    let tries = (1..=max_rows)
        .rev()
        .flat_map(|rows| OUTPUTS.map(|outputs| (rows, outputs)));
    for (rows, outputs) in tries {
        let budget = SharedMemoryBudget {
            is_step: true,
            rows,
            outputs,
            bytes_at_once,
        };
        match record(cx, budget) {
            Ok(recording) => return Ok(recording),
            Err(other) => why = other,
        }
    }
    Err(why)
}
