//! The profile as a self-contained HTML page: no script, no outside file.

use crate::picture;
use crate::profile::{COLUMNS, Measured, Part};
use std::fmt::Write;

const STYLE: &str = "\
:root{--ink:#1c2430;--soft:#5d6b7c;--line:#dde3ea;--paper:#fbfcfd;--c0:#3867c8;--c1:#d9822b}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#93a1b3;--line:#303a47;--paper:#151a21;--c0:#7fa4f0;--c1:#eda55b}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:70rem;padding:2.5rem 1.5rem;background:var(--paper);color:var(--ink);\
font:15px/1.5 system-ui,sans-serif}h1{font-size:1.6rem;margin:0 0 .3rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:1.4rem 0 .5rem}\
.sub{color:var(--soft);margin:0 0 .8rem}svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}\
.grid{stroke:var(--line)}.floor{stroke:var(--ink);stroke-width:2;fill:none}.p0{fill:var(--c0)}.p1{fill:var(--c1)}svg text.name{fill:var(--ink)}\
table{border-collapse:collapse;width:100%;font-size:.9rem}th{text-align:left;color:var(--soft);font-weight:500}\
td,th{padding:.3rem .6rem;border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;white-space:nowrap}\
.bar{display:inline-block;height:.7rem;border-radius:.2rem;vertical-align:middle}.b0{background:var(--c0)}.b1{background:var(--c1)}";

/// The drawing's size, and its margins to the left and below.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 60.0;
const BELOW: f64 = 45.0;

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The page: the roofline, then each part's commands.
pub(crate) fn html(measured: &Measured) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut out, measured);
    out
}

fn write_page(out: &mut String, measured: &Measured) -> std::fmt::Result {
    let (title, floor) = (escape(&measured.source), measured.floor);
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Profile of {title}</title><style>{STYLE}{}</style></head><body>\n<h1>{title}</h1>\n\
         <p class=\"sub\">Where a token's time goes. {} threads read {floor:.1} GB/s from memory, measured in the same run: \
         the line that no command working from memory can cross. Commands that are timed one by one run a little \
         slower than otherwise.</p>",
        picture::style(),
        measured.threads
    )?;
    if measured.parts.iter().any(|part| !part.lines.is_empty()) {
        writeln!(out, "<h2>Roofline</h2>")?;
        write_roofline(out, measured)?;
    }
    for (i, part) in measured.parts.iter().enumerate() {
        write_part(out, part, floor, i)?;
    }
    writeln!(out, "</body></html>")
}

/// A logarithmic axis over whole decades.
struct Axis {
    from: i32,
    to: i32,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Axis {
        let logs = values.filter(|v| *v > 0.0 && v.is_finite()).map(f64::log10);
        let (low, high) = logs.fold((0.0f64, 1.0f64), |(low, high), v| (low.min(v), high.max(v)));
        Axis {
            from: low.floor() as i32,
            to: high.ceil() as i32,
        }
    }

    /// Where a value lies, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from)
    }
}

fn x_of(axis: &Axis, value: f64) -> f64 {
    LEFT + (WIDTH - LEFT - 20.0) * axis.at(value)
}

fn y_of(axis: &Axis, value: f64) -> f64 {
    (HEIGHT - BELOW) - (HEIGHT - BELOW - 15.0) * axis.at(value)
}

fn write_roofline(out: &mut String, measured: &Measured) -> std::fmt::Result {
    let points = || {
        measured
            .parts
            .iter()
            .enumerate()
            .flat_map(|(i, part)| part.lines.iter().map(move |l| (i, l)))
            .filter(|(_, l)| l.flops > 0 && l.bytes > 0)
            .map(|(i, l)| (i, l, l.flops as f64 / l.bytes as f64))
    };
    let x = Axis::of(points().map(|p| p.2));
    let y = Axis::of(points().map(|p| p.1.gflop_s()));
    write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Gflop/s over flops per byte\">"
    )?;
    let (bottom, right) = (HEIGHT - BELOW, WIDTH - 20.0);
    for decade in x.from..=x.to {
        let value = 10f64.powi(decade);
        let at = x_of(&x, value);
        write!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"15\" x2=\"{at:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
            bottom + 16.0
        )?;
    }
    for decade in y.from..=y.to {
        let value = 10f64.powi(decade);
        let at = y_of(&y, value);
        write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT - 6.0,
            at + 4.0
        )?;
    }
    // The floor as a line, cut where it leaves the drawing.
    let (low, high) = (10f64.powi(y.from), 10f64.powi(y.to));
    let (first, last) = (10f64.powi(x.from), 10f64.powi(x.to));
    let from = first.max(low / measured.floor);
    let to = last.min(high / measured.floor);
    if from < to {
        write!(
            out,
            "<line class=\"floor\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            x_of(&x, from),
            y_of(&y, from * measured.floor),
            x_of(&x, to),
            y_of(&y, to * measured.floor)
        )?;
    }
    for (i, line, intensity) in points() {
        let (cx, cy) = (x_of(&x, intensity), y_of(&y, line.gflop_s()));
        write!(
            out,
            "<circle class=\"p{i}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"6\"><title>{} ({}): {:.1} GB/s, {:.1} Gflop/s, {intensity:.2} flops per \
             byte</title></circle><text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            line.name,
            measured.parts[i].name,
            line.gb_s(),
            line.gflop_s(),
            cx + 9.0,
            cy + 4.0,
            line.name
        )?;
    }
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">flops per byte</text><text x=\"{:.1}\" y=\"12\">Gflop/s</text></svg>\
         <p class=\"sub\"><i class=\"bar b0\" style=\"width:.7rem\"></i> prompt &nbsp; <i class=\"bar b1\" style=\"width:.7rem\"></i> \
         generation &nbsp; line: {:.1} GB/s</p>",
        right,
        HEIGHT - 8.0,
        LEFT + 6.0,
        measured.floor
    )
}

fn write_part(out: &mut String, part: &Part, floor: f64, index: usize) -> std::fmt::Result {
    writeln!(
        out,
        "<h2>{}: {} tokens, {:.3} ms per token</h2><p class=\"sub\">{:.1} GB/s, {:.0} % of the floor; {}</p>",
        part.name,
        part.tokens,
        part.ms_per_token(),
        part.gb_s(),
        100.0 * part.gb_s() / floor,
        escape(&part.how)
    )?;
    if part.whole.is_some() {
        write_instructions(out, part, index)?;
    } else {
        write_commands(out, part, floor, index)?;
    }
    if part.step.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h3>{}</h3>", escape(&part.title()))?;
    picture::svg(out, &part.step, 0..part.step.length(), part.lane)?;
    if let Some((layer, time)) = picture::middle_layer(&part.step) {
        writeln!(out, "<h3>Layer {layer} of it</h3>")?;
        picture::svg(out, &part.step, time, part.lane)?;
    }
    picture::legend(out, &part.step.kinds())
}

/// The instructions of a kernel that runs all of them.
fn write_instructions(out: &mut String, part: &Part, index: usize) -> std::fmt::Result {
    writeln!(
        out,
        "<table><tr><th>instruction<th class=\"n\">calls<th class=\"n\">blocks<th class=\"n\">time us<th class=\"n\">waiting us\
         <th class=\"n\">spread us<th class=\"n\">MB<th class=\"n\">GB/s<th class=\"n\">share<th></tr>"
    )?;
    for (kind, share) in part.shares() {
        writeln!(
            out,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{:.1}<td class=\"n\">{:.1}<td class=\"n\">{:.2}\
             <td class=\"n\">{:.1}<td class=\"n\">{:.1}<td class=\"n\">{share:.1} %<td><i class=\"bar b{index}\" style=\"width:{:.2}rem\"></i></tr>",
            escape(&kind.name),
            kind.calls,
            kind.lanes,
            kind.ns as f64 / 1e3,
            kind.waiting_ns as f64 / 1e3,
            kind.spread_us(),
            kind.bytes as f64 / 1e6,
            kind.gb_s(),
            share / 8.0
        )?;
    }
    writeln!(out, "</table><p class=\"sub\">{COLUMNS}.</p>")
}

/// The commands that were timed one by one, by op.
fn write_commands(out: &mut String, part: &Part, floor: f64, index: usize) -> std::fmt::Result {
    writeln!(
        out,
        "<table><tr><th>command<th class=\"n\">calls<th class=\"n\">time ms<th class=\"n\">MB<th class=\"n\">GB/s\
         <th class=\"n\">of floor<th class=\"n\">Gflop/s<th class=\"n\">share<th></tr>"
    )?;
    let total = part.nanoseconds().max(1) as f64;
    for l in &part.lines {
        let share = 100.0 * l.nanoseconds as f64 / total;
        writeln!(
            out,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{:.3}<td class=\"n\">{:.1}<td class=\"n\">{:.1}<td class=\"n\">{:.0} %\
             <td class=\"n\">{:.1}<td class=\"n\">{share:.1} %<td><i class=\"bar b{index}\" style=\"width:{:.2}rem\"></i></tr>",
            l.name,
            l.calls,
            l.nanoseconds as f64 / 1e6,
            l.bytes as f64 / 1e6,
            l.gb_s(),
            100.0 * l.gb_s() / floor,
            l.gflop_s(),
            share / 8.0
        )?;
    }
    writeln!(out, "</table>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::tests::made;
    use crate::profile::Line;
    use welte_table::timeline::Timeline;

    fn line(name: &str, flops: u64) -> Line {
        Line {
            name: name.to_string(),
            calls: 3,
            nanoseconds: 2_000_000,
            bytes: 40_000_000,
            flops,
        }
    }

    fn part(name: &'static str) -> Part {
        Part {
            name,
            tokens: 4,
            how: "commands <timed>".to_string(),
            lines: vec![line("matmul", 80_000_000), line("copy", 0)],
            whole: None,
            step: Timeline::default(),
            lane: "commands",
        }
    }

    fn page(parts: [Part; 2]) -> String {
        html(&Measured {
            source: "<model>".to_string(),
            threads: 2,
            floor: 30.0,
            parts,
        })
    }

    #[test]
    fn every_command_is_in_table_and_roofline() {
        let page = page([part("prompt"), part("generation")]);
        assert_eq!(page.matches("<circle").count(), 2);
        assert_eq!(page.matches("<td>matmul").count(), 2);
        assert_eq!(page.matches("<td>copy").count(), 2);
        assert!(page.contains("&lt;model&gt;") && page.contains("20.0") && page.contains("40.0"));
        assert!(page.contains("&lt;timed&gt;") && !page.contains("<path"));
    }

    #[test]
    fn a_kernel_that_runs_all_has_its_instructions_and_its_picture() {
        let kernel = Part {
            how: "persistent kernel".to_string(),
            lines: Vec::new(),
            whole: Some((8_000_000, 160_000_000)),
            step: made(132, 36),
            lane: "block",
            ..part("generation")
        };
        assert_eq!(kernel.ms_per_token(), 2.0);
        assert_eq!(kernel.gb_s(), 20.0);
        assert_eq!(
            kernel.title(),
            "the token at position 9 by the clocks of 132 blocks, 54.0 us"
        );
        let page = page([part("prompt"), kernel]);
        assert_eq!(page.matches("<td>norm_matmul qkv").count(), 1);
        // The roofline, the token and a layer of it.
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("Layer 18 of it") && page.contains("block 0"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.len() < 2_000_000, "{}", page.len());
    }
}
