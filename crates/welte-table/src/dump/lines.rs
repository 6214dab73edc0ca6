//! A program as lines of plain text that read back to an equal program.
//!
//! One thing a line: a keyword, then fields with single spaces. Texts have everything but letters, digits and `._-`
//! as `%hex;`. Floats are their bits in hex, so that nothing is lost.

use crate::{
    BufferRef, BufferSpec, Class, Command, Format, KvLayout, Op, Part, Patch, Program, Shape,
    Source, Table, Usage, WeightSpec,
};
use std::fmt::Write;
use std::str::SplitAsciiWhitespace;

/// The first line of every such text.
const HEAD: &str = "welte-program 1";

const USAGES: [(Usage, &str); 4] = [
    (Usage::Matrix, "matrix"),
    (Usage::Lookup, "lookup"),
    (Usage::Both, "both"),
    (Usage::Vector, "vector"),
];

/// Writes a program.
pub fn to_lines(program: &Program) -> String {
    let mut out = format!("{HEAD}\n");
    // Writing to a string cannot fail.
    let _ = write_program(&mut out, program);
    out
}

fn write_program(out: &mut String, program: &Program) -> std::fmt::Result {
    let kv = &program.kv;
    writeln!(out, "vocab {}\ntokens {}", program.vocab, program.tokens)?;
    writeln!(
        out,
        "kv {} {} {} {} {} {} {} {}",
        kv.format.name(),
        kv.layers,
        kv.kv_heads,
        kv.head_dim,
        kv.page,
        kv.pages,
        kv.sequences,
        kv.context
    )?;
    for b in &program.buffers {
        writeln!(
            out,
            "buffer {} {} {}",
            escape(&b.name),
            escape(b.class.name()),
            b.bytes
        )?;
    }
    for w in &program.weights {
        let usage = USAGES.iter().find(|u| u.0 == w.usage).map_or("", |u| u.1);
        writeln!(
            out,
            "weight {} {} {} {} {usage} {:08x}",
            escape(&w.name),
            w.format.name(),
            w.n,
            w.k,
            w.add.to_bits()
        )?;
        match &w.source {
            Source::Parts(parts) => {
                for part in parts {
                    writeln!(
                        out,
                        "part {} {} {}",
                        escape(&part.tensor),
                        part.first_row,
                        part.rows
                    )?;
                }
            }
            Source::Constant(values) => {
                write!(out, "constant")?;
                for v in values {
                    write!(out, " {:08x}", v.to_bits())?;
                }
                writeln!(out)?;
            }
        }
    }
    for t in &program.tables {
        writeln!(out, "table {} {}", t.shape.name(), t.shape.rows())?;
        for (c, label) in t.commands.iter().zip(&t.labels) {
            write!(
                out,
                "{} {} {}",
                c.op.name(),
                c.patch.name(),
                c.format.name()
            )?;
            for w in c.weights {
                write!(out, " {w}")?;
            }
            for b in c.buffers {
                write!(out, " {} {}", b.buffer, b.offset)?;
            }
            for w in c.params {
                write!(out, " {w:x}")?;
            }
            writeln!(out, " {} {} {}", c.bytes, c.flops, escape(label))?;
        }
    }
    Ok(())
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            out.push(c);
        } else {
            let _ = write!(out, "%{:x};", c as u32);
        }
    }
    if out.is_empty() { "%;".into() } else { out }
}

fn unescape(text: &str) -> Option<String> {
    if text == "%;" {
        return Some(String::new());
    }
    let mut pieces = text.split('%');
    let mut out = pieces.next()?.to_string();
    for piece in pieces {
        let (code, rest) = piece.split_once(';')?;
        out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        out.push_str(rest);
    }
    Some(out)
}

/// Reads what [`to_lines`] wrote. The error names the line. The program is not verified.
pub fn from_lines(text: &str) -> Result<Program, String> {
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, l)| l != HEAD) {
        return Err(format!(
            "line 1: not a table dump: it must begin with '{HEAD}'"
        ));
    }
    let mut program = Program {
        weights: Vec::new(),
        buffers: Vec::new(),
        kv: KvLayout {
            format: Format::F16,
            layers: 0,
            kv_heads: 0,
            head_dim: 0,
            page: 0,
            pages: 0,
            sequences: 0,
            context: 0,
        },
        vocab: 0,
        tokens: 0,
        tables: Vec::new(),
    };
    for (i, line) in lines {
        let mut fields = Fields(line.split_ascii_whitespace());
        let read = read_line(&mut program, &mut fields);
        if read.is_none() || fields.0.next().is_some() {
            return Err(format!("line {}: cannot be read", i + 1));
        }
    }
    Ok(program)
}

fn read_line(program: &mut Program, f: &mut Fields<'_>) -> Option<()> {
    match f.word()? {
        "vocab" => program.vocab = f.number()?,
        "tokens" => program.tokens = f.number()?,
        "kv" => {
            program.kv = KvLayout {
                format: f.format()?,
                layers: f.number()?,
                kv_heads: f.number()?,
                head_dim: f.number()?,
                page: f.number()?,
                pages: f.number()?,
                sequences: f.number()?,
                context: f.number()?,
            };
        }
        "buffer" => {
            let name = f.text()?;
            let class = f.text()?;
            let class = Class::ALL.into_iter().find(|c| c.name() == class)?;
            program.buffers.push(BufferSpec {
                name,
                class,
                bytes: f.number()?,
            });
        }
        "weight" => program.weights.push(WeightSpec {
            name: f.text()?,
            format: f.format()?,
            n: f.number()?,
            k: f.number()?,
            usage: {
                let name = f.word()?;
                USAGES.iter().find(|u| u.1 == name)?.0
            },
            add: f32::from_bits(f.hex()?),
            source: Source::Parts(Vec::new()),
        }),
        "part" => match &mut program.weights.last_mut()?.source {
            Source::Parts(parts) => {
                parts.push(Part {
                    tensor: f.text()?,
                    first_row: f.number()?,
                    rows: f.number()?,
                });
            }
            Source::Constant(_) => return None,
        },
        "constant" => {
            let values: Option<Vec<f32>> =
                f.0.by_ref()
                    .map(|w| u32::from_str_radix(w, 16).ok().map(f32::from_bits))
                    .collect();
            program.weights.last_mut()?.source = Source::Constant(values?);
        }
        "table" => {
            let name = f.word()?;
            let rows = f.number()?;
            let shape = [Shape::Decode, Shape::Batch(rows), Shape::Prefill(rows)]
                .into_iter()
                .find(|s| s.name() == name)?;
            program.tables.push(Table {
                shape,
                commands: Vec::new(),
                labels: Vec::new(),
            });
        }
        op => {
            let op = Op::from_name(op)?;
            let table = program.tables.last_mut()?;
            table.commands.push(read_command(op, f)?);
            table.labels.push(f.text()?);
        }
    }
    Some(())
}

fn read_command(op: Op, f: &mut Fields<'_>) -> Option<Command> {
    let patch = f.word()?;
    let mut c = Command {
        op,
        patch: Patch::ALL.into_iter().find(|p| p.name() == patch)?,
        format: f.format()?,
        weights: [0; 3],
        buffers: [BufferRef::NONE; 4],
        params: [0; 16],
        bytes: 0,
        flops: 0,
    };
    for w in &mut c.weights {
        *w = f.number()?;
    }
    for b in &mut c.buffers {
        *b = BufferRef {
            buffer: f.number()?,
            offset: f.number()?,
        };
    }
    for w in &mut c.params {
        *w = f.hex()?;
    }
    (c.bytes, c.flops) = (f.number()?, f.number()?);
    Some(c)
}

/// The fields of a line.
struct Fields<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Fields<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }
    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }
    fn hex(&mut self) -> Option<u32> {
        u32::from_str_radix(self.word()?, 16).ok()
    }
    fn text(&mut self) -> Option<String> {
        unescape(self.word()?)
    }
    fn format(&mut self) -> Option<Format> {
        Format::from_name(self.word()?)
    }
}
