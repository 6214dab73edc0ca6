//! A profile as a self-contained HTML page: the roofline, then a table and a timeline for each part.

use super::{COLUMNS, Part, Report, Timed, of_floor, per_ns, percent, roofline};
use crate::lanes;
use crate::page::{escape, page};
use std::fmt::{self, Write};
use welte_device::Profile;

const STYLE: &str = "\
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}\
.grid{stroke:var(--line)}.floor{stroke:var(--ink);stroke-width:2;fill:none}.p0{fill:var(--c0)}.p1{fill:var(--c1)}.p2{fill:var(--c2)}\
svg text.name{fill:var(--ink)}.leader{stroke:var(--soft);stroke-width:.7}\
.bar{display:inline-block;height:.7rem;border-radius:.2rem;vertical-align:middle}.b0{background:var(--c0)}.b1{background:var(--c1)}.b2{background:var(--c2)}";

/// The page.
pub fn html(report: &Report) -> String {
    let title = format!("Profile of {}", report.model);
    let style = format!("{STYLE}{}", lanes::style());
    page(&title, &report.model, &style, |out| {
        write_intro(out, report)?;
        if report.parts.iter().any(|part| !part.ops().is_empty()) {
            writeln!(out, "<h2>Roofline</h2>")?;
            roofline::write(out, report)?;
        }
        let mut parts = report.parts.iter().enumerate();
        parts.try_for_each(|(i, part)| write_part(out, report, part, i))
    })
}

fn write_intro(out: &mut String, report: &Report) -> fmt::Result {
    write!(
        out,
        "<p class=\"sub\">Where a token's time goes. {} reads {:.1} GB/s from memory, measured in the same run.",
        escape(&report.device),
        report.floor.speed / 1e9
    )?;
    let limit = if report.floor.in_cache {
        "This model fits the cache, so it can be faster than memory."
    } else {
        "No command that works from memory can be faster."
    };
    writeln!(
        out,
        " {limit} Commands that are timed one by one run a little slower than usual.</p>"
    )
}

fn write_part(out: &mut String, report: &Report, part: &Part, index: usize) -> fmt::Result {
    writeln!(
        out,
        "<h2>{}</h2><p class=\"sub\">{}</p>",
        part.summary(report.floor),
        escape(&part.how)
    )?;
    match &part.timed {
        Timed::Ops(ops) => write_ops(out, report, ops, part.ns(), index)?,
        Timed::Whole { .. } => write_kinds(out, part, index)?,
    }
    if part.step.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h3>Last step: {}</h3>", escape(&part.step_title()))?;
    lanes::svg(out, &part.step, 0..part.step.length(), part.lane)?;
    if let Some((layer, time)) = lanes::middle_layer(&part.step) {
        writeln!(out, "<h3>Layer {layer} of this step</h3>")?;
        lanes::svg(out, &part.step, time, part.lane)?;
    }
    lanes::legend(out, &part.step.kinds())
}

fn write_ops(
    out: &mut String,
    report: &Report,
    ops: &[Profile],
    total: u64,
    index: usize,
) -> fmt::Result {
    writeln!(
        out,
        "<table><tr><th>command<th class=\"n\">calls<th class=\"n\">time ms<th class=\"n\">MB<th class=\"n\">GB/s\
         <th class=\"n\">of floor<th class=\"n\">Gflop/s<th class=\"n\">share<th></tr>"
    )?;
    for op in ops {
        let (share, gb_s) = (percent(op.ns, total), per_ns(op.bytes, op.ns));
        let of_floor = of_floor(report.floor, op);
        writeln!(
            out,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{:.3}<td class=\"n\">{:.1}<td class=\"n\">{gb_s:.1}<td class=\"n\">{of_floor}\
             <td class=\"n\">{:.1}<td class=\"n\">{share:.1} %<td>{}</tr>",
            op.op.name(),
            op.calls,
            op.ns as f64 / 1e6,
            op.bytes as f64 / 1e6,
            per_ns(op.flops, op.ns),
            bar(share, index)
        )?;
    }
    writeln!(out, "</table>")
}

fn write_kinds(out: &mut String, part: &Part, index: usize) -> fmt::Result {
    writeln!(
        out,
        "<table><tr><th>command<th class=\"n\">calls<th class=\"n\">blocks<th class=\"n\">time us<th class=\"n\">waiting us\
         <th class=\"n\">spread us<th class=\"n\">MB<th class=\"n\">GB/s<th class=\"n\">share<th></tr>"
    )?;
    let kinds = part.kinds();
    let total = kinds.iter().map(|kind| kind.ns).sum();
    for kind in kinds {
        let share = percent(kind.ns, total);
        writeln!(
            out,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{:.1}<td class=\"n\">{:.1}<td class=\"n\">{:.2}\
             <td class=\"n\">{:.1}<td class=\"n\">{:.1}<td class=\"n\">{share:.1} %<td>{}</tr>",
            escape(&kind.name),
            kind.calls,
            kind.lanes,
            kind.ns as f64 / 1e3,
            kind.waiting_ns as f64 / 1e3,
            kind.spread_us(),
            kind.bytes as f64 / 1e6,
            kind.gb_s(),
            bar(share, index)
        )?;
    }
    writeln!(out, "</table><p class=\"sub\">{COLUMNS}</p>")
}

fn bar(share: f64, index: usize) -> String {
    let width = share / 8.0;
    format!("<i class=\"bar b{index}\" style=\"width:{width:.2}rem\"></i>")
}
