//! A program as plain text.

use super::{
    Header, cache_content, context_title, fold, fold_title, format_name, operands, parameters,
    pass_title,
};
use crate::{count, human};
use std::fmt::{self, Write};
use welte_table::{Class, Pass, Program};

/// Facts, memory plan, caches, and passes with repeated layers folded.
pub fn text(program: &Program, header: &Header) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, program, header);
    out
}

fn write_text(out: &mut String, program: &Program, header: &Header) -> fmt::Result {
    writeln!(out, "{}\n", header.title)?;
    let names = header.facts.iter().map(|fact| fact.0.chars().count());
    let width = names.max().unwrap_or(0);
    for (name, value) in &header.facts {
        writeln!(out, "  {name:width$}  {value}")?;
    }
    writeln!(out, "\nmemory")?;
    for class in Class::ALL {
        let bytes = human(header.plan.bytes(class));
        writeln!(out, "  {:16}{bytes:>12}", class.name())?;
    }
    write!(out, "  {:16}{:>12}", "total", human(header.plan.total()))?;
    match header.available {
        Some(bytes) => writeln!(out, "  of {}", human(bytes))?,
        None => writeln!(out)?,
    }
    writeln!(out, "\n{}", context_title(program))?;
    for cache in &program.caches {
        let bytes = human(cache.bytes(program.page).unwrap_or(0));
        let pages = count(cache.pages.into(), "page");
        writeln!(
            out,
            "  {:16}{bytes:>12}  {pages}: {}",
            cache.name,
            cache_content(cache)
        )?;
    }
    for pass in &program.passes {
        write_pass(out, program, pass)?;
    }
    Ok(())
}

fn write_pass(out: &mut String, program: &Program, pass: &Pass) -> fmt::Result {
    writeln!(out, "\n{}", pass_title(pass))?;
    for f in fold(pass) {
        let title = fold_title(pass, &f);
        if let Some(title) = &title {
            writeln!(out, "  {title}")?;
        }
        let indent = if title.is_some() { "    " } else { "  " };
        for i in f.first..f.first + f.len {
            let command = &pass.commands[i];
            let line = format!(
                "{i:>5}  {:22} {:20} {:5} {:>10}  {}  [{}]",
                pass.label(i),
                command.op.name(),
                format_name(program, command),
                human(command.bytes),
                operands(program, command),
                parameters(command)
            );
            writeln!(out, "{indent}{}", line.trim_end())?;
        }
    }
    Ok(())
}
