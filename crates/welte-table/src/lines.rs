//! A program as lines of plain text that read back to an equal program.
//!
//! One thing a line: a keyword, then fields with single spaces. Texts have everything but letters, digits and `._-`
//! as `%hex;`. Floats are their bits in hex, so that nothing is lost.

use crate::{
    Adapters, Bank, BankSpec, Block, BufferRef, BufferSpec, CacheKind, CacheSpec, Chosen, Class,
    Command, Format, ModelPart, NO_BUFFER, Op, Part, Pass, PassKind, Program, Source, Usage,
    WeightSpec,
};
use std::fmt::Write;
use std::str::SplitAsciiWhitespace;

/// The first line of every such text.
const HEAD: &str = "welte-program 4";

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

fn write_source(out: &mut String, source: &Source) -> std::fmt::Result {
    match source {
        Source::Parts(parts) => write_parts(out, "part", parts),
        Source::Transposed(parts) => write_parts(out, "transposed", parts),
        Source::Constant(values) => {
            write!(out, "constant")?;
            for v in values {
                write!(out, " {:08x}", v.to_bits())?;
            }
            writeln!(out)
        }
        Source::Chosen(chosen) => {
            write_source(out, &chosen.of)?;
            write!(out, "chosen {}", chosen.rows)?;
            for range in &chosen.ranges {
                write!(out, " {} {}", range.start, range.end)?;
            }
            writeln!(out)
        }
    }
}

fn write_parts(out: &mut String, keyword: &str, parts: &[Part]) -> std::fmt::Result {
    for part in parts {
        let tensor = escape(&part.tensor);
        writeln!(out, "{keyword} {tensor} {} {}", part.first_row, part.rows)?;
    }
    Ok(())
}

fn write_program(out: &mut String, program: &Program) -> std::fmt::Result {
    let Program {
        vocab,
        context,
        page,
        slots,
        tokens,
        ..
    } = program;
    writeln!(out, "program {vocab} {context} {page} {slots} {tokens}")?;
    if program.features != NO_BUFFER {
        writeln!(out, "features {}", program.features)?;
    }
    if let Some(block) = program.block {
        writeln!(out, "block {} {}", block.size, block.mask)?;
    }
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
        write_source(out, &w.source)?;
    }
    if let Some(adapters) = &program.adapters {
        let Adapters {
            places,
            rank,
            slots,
            ..
        } = adapters;
        writeln!(out, "adapters {places} {rank} {slots}")?;
        for spec in &adapters.banks {
            let Bank {
                n,
                k,
                parts,
                rank,
                experts,
            } = spec.bank;
            let (buffer, weight, lookup) = (spec.buffer, spec.weight, u8::from(spec.lookup));
            writeln!(
                out,
                "bank {buffer} {weight} {lookup} {n} {k} {parts} {rank} {experts}"
            )?;
        }
    }
    for cache in &program.caches {
        let (name, buffer, pages) = (escape(&cache.name), cache.buffer, cache.pages);
        match cache.kind {
            CacheKind::Attention {
                format,
                layers,
                kv_heads,
                head_dim,
                window,
            } => writeln!(
                out,
                "cache attention {name} {buffer} {pages} {} {layers} {kv_heads} {head_dim} {window}",
                format.name()
            )?,
            CacheKind::Recurrent { layers, floats } => {
                writeln!(
                    out,
                    "cache recurrent {name} {buffer} {pages} {layers} {floats}"
                )?;
            }
        }
    }
    for p in &program.passes {
        let BufferRef { buffer, offset } = p.result;
        writeln!(
            out,
            "pass {} {} {} {} {} {buffer} {offset}",
            p.kind.name(),
            u8::from(p.adapted),
            p.rows,
            p.outputs,
            p.width
        )?;
        for (c, label) in p.commands.iter().zip(&p.labels) {
            let layer = c.layer.map_or("-".to_string(), |layer| layer.to_string());
            write!(
                out,
                "{} {} {layer} {}",
                c.op.name(),
                c.part.name(),
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
        caches: Vec::new(),
        vocab: 0,
        context: 0,
        page: 0,
        slots: 0,
        tokens: 0,
        features: NO_BUFFER,
        adapters: None,
        block: None,
        passes: Vec::new(),
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
        "program" => {
            program.vocab = f.number()?;
            program.context = f.number()?;
            program.page = f.number()?;
            program.slots = f.number()?;
            program.tokens = f.number()?;
        }
        "features" => program.features = f.number()?,
        "block" => {
            program.block = Some(Block {
                size: f.number()?,
                mask: f.number()?,
            });
        }
        "adapters" => {
            program.adapters = Some(Adapters {
                places: f.number()?,
                rank: f.number()?,
                slots: f.number()?,
                banks: Vec::new(),
            });
        }
        "bank" => program.adapters.as_mut()?.banks.push(BankSpec {
            buffer: f.number()?,
            weight: f.number()?,
            lookup: f.flag()?,
            bank: Bank {
                n: f.number()?,
                k: f.number()?,
                parts: f.number()?,
                rank: f.number()?,
                experts: f.number()?,
            },
        }),
        "cache" => {
            let kind = f.word()?;
            program.caches.push(CacheSpec {
                name: f.text()?,
                buffer: f.number()?,
                pages: f.number()?,
                kind: match kind {
                    "attention" => CacheKind::Attention {
                        format: f.format()?,
                        layers: f.number()?,
                        kv_heads: f.number()?,
                        head_dim: f.number()?,
                        window: f.number()?,
                    },
                    "recurrent" => CacheKind::Recurrent {
                        layers: f.number()?,
                        floats: f.number()?,
                    },
                    _ => return None,
                },
            });
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
            Source::Parts(parts) => parts.push(read_part(f)?),
            _ => return None,
        },
        "transposed" => match &mut program.weights.last_mut()?.source {
            Source::Transposed(parts) => parts.push(read_part(f)?),
            // Until its first part is read, every weight looks like this.
            source if *source == Source::Parts(Vec::new()) => {
                *source = Source::Transposed(vec![read_part(f)?]);
            }
            _ => return None,
        },
        "constant" => {
            let values: Option<Vec<f32>> =
                f.0.by_ref()
                    .map(|w| u32::from_str_radix(w, 16).ok().map(f32::from_bits))
                    .collect();
            program.weights.last_mut()?.source = Source::Constant(values?);
        }
        "chosen" => {
            let weight = program.weights.last_mut()?;
            let rows = f.number()?;
            let ends: Option<Vec<u32>> = f.0.by_ref().map(|word| word.parse().ok()).collect();
            let ends = ends?;
            let (pairs, []) = ends.as_chunks::<2>() else {
                return None;
            };
            let ranges = pairs.iter().map(|[start, end]| *start..*end).collect();
            let of = std::mem::replace(&mut weight.source, Source::Parts(Vec::new()));
            weight.source = Source::Chosen(Box::new(Chosen { of, rows, ranges }));
        }
        "pass" => {
            let name = f.word()?;
            program.passes.push(Pass {
                kind: PassKind::ALL.into_iter().find(|k| k.name() == name)?,
                adapted: f.flag()?,
                rows: f.number()?,
                outputs: f.number()?,
                width: f.number()?,
                result: f.place()?,
                commands: Vec::new(),
                labels: Vec::new(),
            });
        }
        op => {
            let op = Op::from_name(op)?;
            let pass = program.passes.last_mut()?;
            pass.commands.push(read_command(op, f)?);
            pass.labels.push(f.text()?);
        }
    }
    Some(())
}

fn read_part(f: &mut Fields<'_>) -> Option<Part> {
    Some(Part {
        tensor: f.text()?,
        first_row: f.number()?,
        rows: f.number()?,
    })
}

fn read_command(op: Op, f: &mut Fields<'_>) -> Option<Command> {
    let part = f.word()?;
    let part = ModelPart::ALL.into_iter().find(|p| p.name() == part)?;
    let layer = match f.word()? {
        "-" => None,
        layer => Some(layer.parse().ok()?),
    };
    let mut c = Command {
        part,
        layer,
        ..Command::new(op, f.format()?, &[], &[], [0; 16])
    };
    for w in &mut c.weights {
        *w = f.number()?;
    }
    for b in &mut c.buffers {
        *b = f.place()?;
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
    fn flag(&mut self) -> Option<bool> {
        match self.number::<u8>()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
    fn hex(&mut self) -> Option<u32> {
        u32::from_str_radix(self.word()?, 16).ok()
    }
    fn place(&mut self) -> Option<BufferRef> {
        Some(BufferRef {
            buffer: self.number()?,
            offset: self.number()?,
        })
    }
    fn text(&mut self) -> Option<String> {
        unescape(self.word()?)
    }
    fn format(&mut self) -> Option<Format> {
        Format::from_name(self.word()?)
    }
}
