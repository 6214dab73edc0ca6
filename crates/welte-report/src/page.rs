//! A self-contained HTML page: no script, no outside file.

use crate::views::{fold_title, format_name, operands, parameters};
use crate::{Header, fold, human};
use std::fmt::Write;
use welte_table::{Class, Pass, Program};

const STYLE: &str = "\
:root{--ink:#1c2430;--soft:#5d6b7c;--line:#dde3ea;--paper:#fbfcfd;--c0:#3867c8;--c1:#d9822b;--c2:#2b9d7c;--c3:#8957c7;--c4:#b8475f}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#93a1b3;--line:#303a47;--paper:#151a21}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:78rem;padding:2.5rem 1.5rem;background:var(--paper);color:var(--ink);\
font:15px/1.5 system-ui,sans-serif}h1{font-size:1.7rem;margin:0 0 .3rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.4rem 0 .8rem}\
.sub{color:var(--soft)}dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:.7rem;margin:1.2rem 0 0}\
dl div{border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem}dt{color:var(--soft);font-size:.8rem}dd{margin:0;font-weight:600}\
.bar{display:flex;height:2.2rem;border-radius:.5rem;overflow:hidden;border:1px solid var(--line)}.bar i{display:block;min-width:2px}\
.keys{display:flex;flex-wrap:wrap;gap:.4rem 1.6rem;margin:.7rem 0 0;padding:0;list-style:none}.keys b{font-weight:600}\
.keys span{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.4rem}\
table{border-collapse:collapse;width:100%;font-size:.86rem}th{text-align:left;color:var(--soft);font-weight:500}\
td,th{padding:.28rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right;white-space:nowrap}\
tr.f td{background:color-mix(in srgb,var(--c0) 10%,transparent);font-weight:600}code{font:.84em ui-monospace,monospace}\
.p{color:var(--soft)}.w{position:relative}.w i{position:absolute;left:0;bottom:0;height:3px;background:var(--c0)}\
details{margin-top:1rem;overflow-x:auto}summary{cursor:pointer;font-weight:600}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The page: facts, memory as a bar, every table with repeated layers folded.
pub fn html(program: &Program, header: &Header) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut out, program, header);
    out
}

fn write_page(out: &mut String, program: &Program, header: &Header) -> std::fmt::Result {
    let title = escape(&header.title);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <div class=\"sub\">The compiled forward pass, as Welte replays it for every token.</div>\n<dl>"
    )?;
    for (name, value) in &header.facts {
        write!(
            out,
            "<div><dt>{}</dt><dd>{}</dd></div>",
            escape(name),
            escape(value)
        )?;
    }
    writeln!(out, "</dl>")?;
    write_memory(out, header)?;
    for (i, table) in program.passes.iter().enumerate() {
        write_table(out, program, table, i == 0)?;
    }
    writeln!(out, "</body></html>")
}

fn write_memory(out: &mut String, header: &Header) -> std::fmt::Result {
    let total = header.plan.total();
    let whole = header.available.unwrap_or(0).max(total).max(1) as f64;
    write!(out, "<h2>Memory: {}", human(total))?;
    if let Some(have) = header.available {
        write!(out, " of {}", human(have))?;
    }
    write!(out, "</h2>\n<div class=\"bar\">")?;
    for (i, class) in Class::ALL.iter().enumerate() {
        let bytes = header.plan.bytes(*class);
        if bytes > 0 {
            let width = 100.0 * bytes as f64 / whole;
            let title = class.name();
            write!(
                out,
                "<i style=\"width:{width:.3}%;background:var(--c{i})\" title=\"{title} {}\"></i>",
                human(bytes)
            )?;
        }
    }
    write!(out, "</div>\n<ul class=\"keys\">")?;
    for (i, class) in Class::ALL.iter().enumerate() {
        let bytes = human(header.plan.bytes(*class));
        write!(
            out,
            "<li><span style=\"background:var(--c{i})\"></span>{} <b>{bytes}</b></li>",
            class.name()
        )?;
    }
    writeln!(
        out,
        "</ul>\n<details><summary>Every buffer</summary><table><tr><th>name<th>class<th class=\"n\">size</tr>"
    )?;
    for e in &header.plan.entries {
        writeln!(
            out,
            "<tr><td>{}<td>{}<td class=\"n\">{}</tr>",
            escape(&e.name),
            e.class.name(),
            human(e.bytes)
        )?;
    }
    writeln!(out, "</table></details>")
}

fn write_table(out: &mut String, program: &Program, pass: &Pass, open: bool) -> std::fmt::Result {
    let bytes = pass.row_bytes();
    let most = pass
        .commands
        .iter()
        .map(|c| c.bytes)
        .max()
        .unwrap_or(0)
        .max(1) as f64;
    writeln!(
        out,
        "<details{}><summary>{}: up to {} row{}, {} commands, {} for one row</summary>\n<table><tr><th class=\"n\">#<th>what<th>op\
         <th>format<th>reads → writes<th>parameters<th class=\"n\">bytes<th class=\"n\">MFLOP</tr>",
        if open { " open" } else { "" },
        pass.kind.name(),
        pass.rows,
        if pass.rows == 1 { "" } else { "s" },
        pass.commands.len(),
        human(bytes)
    )?;
    for f in fold(pass) {
        if let Some(title) = fold_title(pass, &f) {
            writeln!(
                out,
                "<tr class=\"f\"><td colspan=\"8\">{}</tr>",
                escape(&title)
            )?;
        }
        for i in f.first..f.first + f.len {
            let c = &pass.commands[i];
            writeln!(
                out,
                "<tr><td class=\"n\">{i}<td>{}<td><code>{}</code><td>{}<td><code>{}</code><td class=\"p\">{}\
                 <td class=\"n w\">{}<i style=\"width:{:.1}%\"></i><td class=\"n\">{:.2}</tr>",
                escape(pass.part_of(i)),
                c.op.name(),
                format_name(program, c),
                escape(&operands(program, c)),
                escape(&parameters(c)),
                human(c.bytes),
                100.0 * c.bytes as f64 / most,
                c.flops as f64 / 1e6
            )?;
        }
    }
    writeln!(out, "</table></details>")
}
