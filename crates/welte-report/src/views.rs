//! Text, JSON and dot.

use crate::{Fold, Header, fold};
use std::fmt::Write;
use welte_table::{Access, Class, Command, NO_WEIGHT, Pass, Program, Source, WeightSpec, accesses};

/// Bytes as a person reads them.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// `decode.qkv+4096`: where an operand is.
pub(super) fn operand(program: &Program, a: &Access) -> String {
    let name = program
        .buffers
        .get(a.at.buffer as usize)
        .map_or("?", |b| b.name.as_str());
    match a.at.offset {
        0 => name.to_string(),
        offset => format!("{name}+{offset}"),
    }
}

/// `a, b → c`
pub(super) fn operands(program: &Program, c: &Command) -> String {
    let list = accesses(c);
    let side = |writes| {
        let names: Vec<String> = list
            .iter()
            .filter(|a| a.writes == writes)
            .map(|a| operand(program, a))
            .collect();
        names.join(", ")
    };
    format!("{} → {}", side(false), side(true))
        .trim_start()
        .to_string()
}

/// The parameters that say most: sizes and what differs from nothing.
pub(super) fn parameters(c: &Command) -> String {
    let shown =
        c.op.show_params(&c.params)
            .into_iter()
            .filter(|(name, value)| {
                !name.ends_with("_stride") && *name != "layer" && !(value == "0" || value == "0.0")
            });
    let list: Vec<String> = shown
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    list.join(" ")
}

pub(super) fn format_name(program: &Program, c: &Command) -> &'static str {
    match program.weights.get(c.weights[0] as usize) {
        Some(_) => c.format.name(),
        None => "",
    }
}

/// How a fold is headed, if it is a layer or a run of them.
pub(super) fn fold_title(pass: &Pass, f: &Fold) -> Option<String> {
    let first = pass.layer_of(f.first)?;
    Some(match f.times {
        1 => format!("layer {first}"),
        n => format!(
            "layers {first} to {} ({n} times)",
            u64::from(first) + n as u64 - 1
        ),
    })
}

/// Plain text: facts, memory plan, tables with repeated layers folded.
pub fn text(program: &Program, header: &Header) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, program, header);
    out
}

fn write_text(out: &mut String, program: &Program, header: &Header) -> std::fmt::Result {
    writeln!(out, "{}\n", header.title)?;
    let width = header
        .facts
        .iter()
        .map(|f| f.0.chars().count())
        .max()
        .unwrap_or(0);
    for (name, value) in &header.facts {
        writeln!(out, "  {name:width$}  {value}")?;
    }
    writeln!(out, "\nmemory")?;
    for class in Class::ALL {
        writeln!(
            out,
            "  {:16}{:>12}",
            class.name(),
            human(header.plan.bytes(class))
        )?;
    }
    write!(out, "  {:16}{:>12}", "total", human(header.plan.total()))?;
    match header.available {
        Some(have) => writeln!(out, "  of {}", human(have))?,
        None => writeln!(out)?,
    }
    for pass in &program.passes {
        let bytes = pass.row_bytes();
        let flops = pass.row_flops();
        writeln!(
            out,
            "\n{}: up to {} row{}, {} commands, {} and {:.2} GFLOP for one row",
            pass.kind.name(),
            pass.rows,
            if pass.rows == 1 { "" } else { "s" },
            pass.commands.len(),
            human(bytes),
            flops as f64 / 1e9
        )?;
        for f in fold(pass) {
            let title = fold_title(pass, &f);
            if let Some(title) = &title {
                writeln!(out, "  {title}")?;
            }
            for i in f.first..f.first + f.len {
                let c = &pass.commands[i];
                let line = format!(
                    "{:>5}  {:22} {:20} {:5} {:>10}  {}  [{}]",
                    i,
                    pass.part_of(i),
                    c.op.name(),
                    format_name(program, c),
                    human(c.bytes),
                    operands(program, c),
                    parameters(c)
                );
                writeln!(
                    out,
                    "  {}{}",
                    if title.is_some() { "  " } else { "" },
                    line.trim_end()
                )?;
            }
        }
    }
    Ok(())
}

/// A JSON string.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn list(items: impl Iterator<Item = String>, open: char, close: char) -> String {
    let items: Vec<String> = items.collect();
    format!("{open}{}{close}", items.join(","))
}

/// A number if JSON can say it, else a string.
fn number_or_quote(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(v) if v.is_finite() => value.to_string(),
        _ => quote(value),
    }
}

/// JSON: everything, unfolded.
pub fn json(program: &Program, header: &Header) -> String {
    let facts = list(
        header
            .facts
            .iter()
            .map(|(k, v)| format!("{}:{}", quote(k), quote(v))),
        '{',
        '}',
    );
    let mut memory: Vec<String> = Class::ALL
        .iter()
        .map(|c| format!("{}:{}", quote(c.name()), header.plan.bytes(*c)))
        .collect();
    memory.push(format!("\"total\":{}", header.plan.total()));
    if let Some(have) = header.available {
        memory.push(format!("\"available\":{have}"));
    }
    let buffers = list(
        program.buffers.iter().map(|b| {
            format!(
                "{{\"name\":{},\"class\":{},\"bytes\":{}}}",
                quote(&b.name),
                quote(b.class.name()),
                b.bytes
            )
        }),
        '[',
        ']',
    );
    let weights = list(program.weights.iter().map(json_weight), '[', ']');
    let passes = list(
        program.passes.iter().map(|p| json_pass(program, p)),
        '[',
        ']',
    );
    format!(
        "{{\"title\":{},\"facts\":{facts},\"memory\":{},\"vocab\":{},\"buffers\":{buffers},\"weights\":{weights},\"passes\":{passes}}}\n",
        quote(&header.title),
        list(memory.into_iter(), '{', '}'),
        program.vocab
    )
}

fn json_weight(w: &WeightSpec) -> String {
    let source = match &w.source {
        Source::Parts(parts) => list(
            parts.iter().map(|p| {
                format!(
                    "{{\"tensor\":{},\"first_row\":{},\"rows\":{}}}",
                    quote(&p.tensor),
                    p.first_row,
                    p.rows
                )
            }),
            '[',
            ']',
        ),
        Source::Constant(_) => "\"constant\"".into(),
    };
    format!(
        "{{\"name\":{},\"format\":{},\"n\":{},\"k\":{},\"usage\":{},\"source\":{source}}}",
        quote(&w.name),
        quote(w.format.name()),
        w.n,
        w.k,
        quote(&format!("{:?}", w.usage).to_lowercase())
    )
}

fn json_pass(program: &Program, pass: &Pass) -> String {
    let commands = pass.commands.iter().zip(&pass.labels).map(|(c, label)| {
        let weights = c.weights.iter().filter(|w| **w != NO_WEIGHT).map(u32::to_string);
        let params =
            c.op.show_params(&c.params).into_iter().map(|(k, v)| format!("{}:{}", quote(k), number_or_quote(&v)));
        let buffers = accesses(c).into_iter().map(|a| {
            format!(
                "{{\"role\":{},\"buffer\":{},\"offset\":{},\"writes\":{}}}",
                quote(a.role),
                quote(program.buffers.get(a.at.buffer as usize).map_or("?", |b| b.name.as_str())),
                a.at.offset,
                a.writes
            )
        });
        format!(
            "{{\"label\":{},\"op\":{},\"format\":{},\"weights\":{},\"buffers\":{},\"params\":{},\"bytes\":{},\"flops\":{}}}",
            quote(label),
            quote(c.op.name()),
            quote(format_name(program, c)),
            list(weights, '[', ']'),
            list(buffers, '[', ']'),
            list(params, '{', '}'),
            c.bytes,
            c.flops
        )
    });
    format!(
        "{{\"pass\":{},\"rows\":{},\"commands\":{}}}",
        quote(pass.kind.name()),
        pass.rows,
        list(commands, '[', ']')
    )
}

/// A dot graph of the decode table, repeated layers folded: commands as boxes, buffers as edges between them.
pub fn dot(program: &Program, header: &Header) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_dot(&mut out, program, header);
    out
}

fn write_dot(out: &mut String, program: &Program, header: &Header) -> std::fmt::Result {
    writeln!(
        out,
        "digraph welte {{\n  label={};\n  node [shape=box, fontname=\"sans-serif\"];",
        quote(&header.title)
    )?;
    let Some(pass) = program.passes.first() else {
        return writeln!(out, "}}");
    };
    let mut last_writer = vec![None; program.buffers.len()];
    for (n, f) in fold(pass).iter().enumerate() {
        let title = fold_title(pass, f);
        if let Some(title) = &title {
            writeln!(out, "  subgraph cluster_{n} {{ label={};", quote(title))?;
        }
        for i in f.first..f.first + f.len {
            let c = &pass.commands[i];
            let label = format!(
                "{}\n{} {}\n{}",
                pass.part_of(i),
                c.op.name(),
                format_name(program, c),
                human(c.bytes)
            );
            writeln!(
                out,
                "    c{i} [label={}];",
                quote(&label).replace("\\u000a", "\\n")
            )?;
        }
        if title.is_some() {
            writeln!(out, "  }}")?;
        }
        for i in f.first..f.first + f.len {
            for a in accesses(&pass.commands[i]) {
                let Some(slot) = last_writer.get_mut(a.at.buffer as usize) else {
                    continue;
                };
                if let Some(from) = *slot
                    && from != i
                {
                    writeln!(
                        out,
                        "  c{from} -> c{i} [label={}];",
                        quote(&operand(program, &a))
                    )?;
                }
                if a.writes {
                    *slot = Some(i);
                }
            }
        }
    }
    writeln!(out, "}}")
}
