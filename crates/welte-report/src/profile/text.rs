//! A profile as plain text.

use super::{COLUMNS, Part, Report, Timed, of_floor, per_ns, percent};
use crate::Floor;
use std::fmt::{self, Write};
use welte_device::Profile;

/// A table for each part.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, report);
    out
}

fn write_text(out: &mut String, report: &Report) -> fmt::Result {
    let gb_s = report.floor.speed / 1e9;
    writeln!(
        out,
        "memory floor: {gb_s:.1} GB/s, measured on {}\n",
        report.device
    )?;
    for part in &report.parts {
        writeln!(out, "{}", part.summary(report.floor))?;
        match &part.timed {
            Timed::Ops(ops) => write_ops(out, report.floor, ops, part.ns())?,
            Timed::Whole { .. } => write_kinds(out, part)?,
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_ops(out: &mut String, floor: Floor, ops: &[Profile], total: u64) -> fmt::Result {
    writeln!(
        out,
        "{:<22} {:>8} {:>11} {:>10} {:>8} {:>8} {:>9} {:>7}",
        "command", "calls", "time ms", "MB", "GB/s", "of floor", "Gflop/s", "share"
    )?;
    for op in ops {
        let share = percent(op.ns, total);
        let of_floor = of_floor(floor, op);
        writeln!(
            out,
            "{:<22} {:>8} {:>11.3} {:>10.1} {:>8.1} {of_floor:>8} {:>9.1} {share:>5.1} % {}",
            op.op.name(),
            op.calls,
            op.ns as f64 / 1e6,
            op.bytes as f64 / 1e6,
            per_ns(op.bytes, op.ns),
            per_ns(op.flops, op.ns),
            bar(share),
        )?;
    }
    Ok(())
}

fn write_kinds(out: &mut String, part: &Part) -> fmt::Result {
    writeln!(out, "{}: {}", part.how, part.step_title())?;
    writeln!(
        out,
        "{:<34} {:>5} {:>7} {:>9} {:>11} {:>10} {:>9} {:>8} {:>7}",
        "command", "calls", "blocks", "time us", "waiting us", "spread us", "MB", "GB/s", "share"
    )?;
    let kinds = part.kinds();
    let total = kinds.iter().map(|kind| kind.ns).sum();
    for kind in kinds {
        let share = percent(kind.ns, total);
        writeln!(
            out,
            "{:<34} {:>5} {:>7} {:>9.1} {:>11.1} {:>10.2} {:>9.1} {:>8.1} {share:>5.1} % {}",
            kind.name,
            kind.calls,
            kind.lanes,
            kind.ns as f64 / 1e3,
            kind.waiting_ns as f64 / 1e3,
            kind.spread_us(),
            kind.bytes as f64 / 1e6,
            kind.gb_s(),
            bar(share),
        )?;
    }
    writeln!(out, "({COLUMNS})")
}

fn bar(share: f64) -> String {
    "█".repeat((share / 4.0).round() as usize)
}
