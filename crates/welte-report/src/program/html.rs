//! A program as a self-contained HTML page.

use super::{
    Header, cache_content, context_title, fold, fold_title, format_name, operands, parameters,
    pass_title,
};
use crate::page::{escape, page};
use crate::{count, human};
use std::fmt::{self, Write};
use welte_table::{Class, Pass, Program};

const STYLE: &str = "\
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:.7rem;margin:1.2rem 0 0}\
dl div{border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem}dt{color:var(--soft);font-size:.8rem}dd{margin:0;font-weight:600}\
.bar{display:flex;height:2.2rem;border-radius:.5rem;overflow:hidden;border:1px solid var(--line)}.bar i{display:block;min-width:2px}\
.keys{display:flex;flex-wrap:wrap;gap:.4rem 1.6rem;margin:.7rem 0 0;padding:0;list-style:none}.keys b{font-weight:600}\
.keys span{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.4rem}\
tr.f td{background:color-mix(in srgb,var(--c0) 10%,transparent);font-weight:600}\
.p{color:var(--soft)}.w{position:relative}.w i{position:absolute;left:0;bottom:0;height:3px;background:var(--c0)}";

/// Facts, memory as a bar, caches, and every pass with repeated layers folded.
pub fn html(program: &Program, header: &Header) -> String {
    page(&header.title, &header.title, STYLE, |out| {
        write_facts(out, header)?;
        write_memory(out, header)?;
        write_caches(out, program)?;
        let mut passes = program.passes.iter().enumerate();
        passes.try_for_each(|(i, pass)| write_pass(out, program, pass, i == 0))
    })
}

fn write_facts(out: &mut String, header: &Header) -> fmt::Result {
    write!(
        out,
        "<div class=\"sub\">The compiled forward pass, as Welte replays it for every token.</div>\n<dl>"
    )?;
    for (name, value) in &header.facts {
        let (name, value) = (escape(name), escape(value));
        write!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>")?;
    }
    writeln!(out, "</dl>")
}

fn write_memory(out: &mut String, header: &Header) -> fmt::Result {
    let total = header.plan.total();
    let whole = header.available.unwrap_or(0).max(total).max(1) as f64;
    write!(out, "<h2>Memory: {}", human(total))?;
    if let Some(available) = header.available {
        write!(out, " of {}", human(available))?;
    }
    write!(out, "</h2>\n<div class=\"bar\">")?;
    for (i, class) in Class::ALL.iter().enumerate() {
        let bytes = header.plan.bytes(*class);
        if bytes > 0 {
            let width = 100.0 * bytes as f64 / whole;
            write!(
                out,
                "<i style=\"width:{width:.3}%;background:var(--c{i})\" title=\"{} {}\"></i>",
                class.name(),
                human(bytes)
            )?;
        }
    }
    write!(out, "</div>\n<ul class=\"keys\">")?;
    for (i, class) in Class::ALL.iter().enumerate() {
        write!(
            out,
            "<li><span style=\"background:var(--c{i})\"></span>{} <b>{}</b></li>",
            class.name(),
            human(header.plan.bytes(*class))
        )?;
    }
    writeln!(
        out,
        "</ul>\n<details><summary>Every buffer</summary><table><tr><th>name<th>class<th class=\"n\">size</tr>"
    )?;
    for entry in &header.plan.entries {
        writeln!(
            out,
            "<tr><td>{}<td>{}<td class=\"n\">{}</tr>",
            escape(&entry.name),
            entry.class.name(),
            human(entry.bytes)
        )?;
    }
    writeln!(out, "</table></details>")
}

fn write_caches(out: &mut String, program: &Program) -> fmt::Result {
    let title = context_title(program);
    writeln!(
        out,
        "<h2>Caches: {title}</h2>\n<table><tr><th>cache<th>holds<th class=\"n\">pages<th class=\"n\">size</tr>"
    )?;
    for cache in &program.caches {
        writeln!(
            out,
            "<tr><td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
            escape(&cache.name),
            cache_content(cache),
            count(cache.pages.into(), "page"),
            human(cache.bytes(program.page).unwrap_or(0))
        )?;
    }
    writeln!(out, "</table>")
}

fn write_pass(out: &mut String, program: &Program, pass: &Pass, open: bool) -> fmt::Result {
    let bytes = pass.commands.iter().map(|command| command.bytes);
    let most = bytes.max().unwrap_or(0).max(1) as f64;
    writeln!(
        out,
        "<details{}><summary>{}</summary>\n<table><tr><th class=\"n\">#<th>part<th>op\
         <th>format<th>reads → writes<th>parameters<th class=\"n\">bytes<th class=\"n\">MFLOP</tr>",
        if open { " open" } else { "" },
        pass_title(pass)
    )?;
    for f in fold(pass) {
        if let Some(title) = fold_title(pass, &f) {
            writeln!(out, "<tr class=\"f\"><td colspan=\"8\">{title}</tr>")?;
        }
        for i in f.first..f.first + f.len {
            let command = &pass.commands[i];
            writeln!(
                out,
                "<tr><td class=\"n\">{i}<td>{}<td><code>{}</code><td>{}<td><code>{}</code><td class=\"p\">{}\
                 <td class=\"n w\">{}<i style=\"width:{:.1}%\"></i><td class=\"n\">{:.2}</tr>",
                escape(pass.label(i)),
                command.op.name(),
                format_name(program, command),
                escape(&operands(program, command)),
                parameters(command),
                human(command.bytes),
                100.0 * command.bytes as f64 / most,
                command.flops as f64 / 1e6
            )?;
        }
    }
    writeln!(out, "</table></details>")
}
