//! The decode pass as a dot graph: commands as boxes, caches as cylinders, buffers as edges. Repeated layers are folded.

use super::{Header, cache_content, fold, fold_title, format_name, operand};
use crate::human;
use std::fmt::{self, Write};
use welte_table::{CacheKind, CacheSpec, Pass, Program, accesses};

/// The first pass of the program.
pub fn dot(program: &Program, header: &Header) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_dot(&mut out, program, header);
    out
}

fn write_dot(out: &mut String, program: &Program, header: &Header) -> fmt::Result {
    writeln!(
        out,
        "digraph welte {{\n  label={};\n  node [shape=box, fontname=\"sans-serif\"];",
        quote(&header.title)
    )?;
    if let Some(pass) = program.passes.first() {
        for (i, cache) in program.caches.iter().enumerate() {
            let label = format!("{}\n{}", cache.name, cache_content(cache));
            writeln!(out, "  cache{i} [shape=cylinder, label={}];", quote(&label))?;
        }
        write_pass(out, program, pass)?;
    }
    writeln!(out, "}}")
}

fn write_pass(out: &mut String, program: &Program, pass: &Pass) -> fmt::Result {
    // Which command wrote each buffer last.
    let mut writers = vec![None; program.buffers.len()];
    for (n, f) in fold(pass).iter().enumerate() {
        let title = fold_title(pass, f);
        if let Some(title) = &title {
            writeln!(out, "  subgraph cluster_{n} {{ label={};", quote(title))?;
        }
        for i in f.first..f.first + f.len {
            let command = &pass.commands[i];
            let label = format!(
                "{}\n{} {}\n{}",
                pass.label(i),
                command.op.name(),
                format_name(program, command),
                human(command.bytes)
            );
            writeln!(out, "    c{i} [label={}];", quote(&label))?;
        }
        if title.is_some() {
            writeln!(out, "  }}")?;
        }
        for i in f.first..f.first + f.len {
            for access in accesses(&pass.commands[i]) {
                let buffer = access.at.buffer;
                let cache = program.caches.iter().position(|c| c.buffer == buffer);
                match cache {
                    // A command that writes recurrent state also reads it.
                    Some(cache) if access.writes && is_recurrent(&program.caches[cache]) => {
                        writeln!(out, "  c{i} -> cache{cache} [dir=both];")?;
                    }
                    Some(cache) if access.writes => writeln!(out, "  c{i} -> cache{cache};")?,
                    Some(cache) => writeln!(out, "  cache{cache} -> c{i};")?,
                    None => {
                        let Some(writer) = writers.get_mut(buffer as usize) else {
                            continue;
                        };
                        if let Some(from) = writer.filter(|from| *from != i) {
                            let label = quote(&operand(program, &access));
                            writeln!(out, "  c{from} -> c{i} [label={label}];")?;
                        }
                        if access.writes {
                            *writer = Some(i);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn is_recurrent(cache: &CacheSpec) -> bool {
    matches!(cache.kind, CacheKind::Recurrent { .. })
}

/// A dot string. Dot knows the escapes `\"`, `\\` and `\n`; other control characters become spaces.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
