//! Checks that a program is sound: operands in range, shapes consistent, every row inside its buffer.

use crate::{
    Access, BufferRef, Class, Command, Extent, Format, NO_BUFFER, NO_WEIGHT, Op, Program, Shape,
    Source, Table, Usage, WeightSpec, accesses, cost, params as p,
};

/// Refuses a program that a device could not run safely. The error names the table, the command and the fault.
pub fn verify(program: &Program) -> Result<(), String> {
    check_kv(program)?;
    for w in &program.weights {
        check_weight(w).map_err(|e| format!("weight '{}': {e}", w.name))?;
    }
    let tokens = buffer(program, program.tokens).ok_or("the tokens buffer does not exist")?;
    let most_rows = program
        .tables
        .iter()
        .map(|t| t.shape.rows())
        .max()
        .unwrap_or(0);
    if tokens.class != Class::Tables || tokens.bytes < 4 * u64::from(most_rows) {
        return Err(format!(
            "the tokens buffer must be of class tables and hold {most_rows} tokens"
        ));
    }
    if program
        .tables
        .first()
        .is_none_or(|t| t.shape != Shape::Decode)
    {
        return Err("the first table must be decode".into());
    }
    for table in &program.tables {
        let name = table.shape.name();
        check_table(program, table).map_err(|e| format!("{name}: {e}"))?;
        for (i, c) in table.commands.iter().enumerate() {
            let fault = |e| format!("{name}, command {i} ({}): {e}", c.op.name());
            check_operands(program, c).map_err(fault)?;
            check_params(program, c).map_err(fault)?;
            check_ranges(program, c, table.rows_at(i), table.shape.rows()).map_err(fault)?;
            let cost = cost::of(c, &program.weights);
            if (cost.bytes, cost.flops) != (c.bytes, c.flops) {
                return Err(fault(format!(
                    "its cost is {} bytes and {} flops",
                    cost.bytes, cost.flops
                )));
            }
        }
    }
    Ok(())
}

fn ensure(ok: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(problem()) }
}

fn buffer(program: &Program, id: u32) -> Option<&crate::BufferSpec> {
    program.buffers.get(id as usize)
}

fn check_kv(program: &Program) -> Result<(), String> {
    let kv = &program.kv;
    let needed = kv.bytes().ok_or_else(|| {
        format!(
            "kv: heads of {} cannot be stored as {}, or the cache is too large",
            kv.head_dim,
            kv.format.name()
        )
    })?;
    ensure(matches!(kv.format, Format::F16 | Format::Q8_0), || {
        format!("kv: no format {}", kv.format.name())
    })?;
    let least = u64::from(kv.context.div_ceil(kv.page.max(1))) * u64::from(kv.sequences);
    ensure(
        kv.page > 0 && kv.context > 0 && u64::from(kv.pages) >= least,
        || {
            format!(
                "kv: {} pages of {} do not hold {} sequences of {}",
                kv.pages, kv.page, kv.sequences, kv.context
            )
        },
    )?;
    let mut caches = program.buffers.iter().filter(|b| b.class == Class::Kv);
    let cache = caches.next().ok_or("kv: no buffer")?;
    ensure(caches.next().is_none(), || {
        "kv: more than one buffer".into()
    })?;
    ensure(cache.bytes == needed, || {
        format!(
            "kv: the buffer has {} bytes, the layout {needed}",
            cache.bytes
        )
    })
}

fn check_weight(w: &WeightSpec) -> Result<(), String> {
    ensure(w.n > 0 && w.k > 0, || format!("{} x {} is empty", w.n, w.k))?;
    ensure(w.format.bytes(w.k as usize).is_some(), || {
        format!(
            "rows of {} are no whole number of {} blocks",
            w.k,
            w.format.name()
        )
    })?;
    ensure(
        w.usage != Usage::Vector || (w.n == 1 && w.format == Format::F32),
        || "a vector is one row of F32".into(),
    )?;
    ensure(w.add.is_finite(), || "what is added is not finite".into())?;
    match &w.source {
        Source::Parts(parts) => {
            ensure(
                !parts.is_empty() && parts.iter().all(|p| p.rows > 0),
                || "an empty part".into(),
            )?;
            let rows = parts
                .iter()
                .map(|p| u64::from(p.rows))
                .fold(0, u64::saturating_add);
            ensure(w.usage == Usage::Vector || rows == u64::from(w.n), || {
                format!("its parts have {rows} rows, it has {}", w.n)
            })
        }
        Source::Constant(values) => {
            ensure(
                values.len() as u64 == u64::from(w.n) * u64::from(w.k),
                || format!("{} values for {} x {}", values.len(), w.n, w.k),
            )?;
            ensure(
                w.format == Format::F32 && values.iter().all(|v| v.is_finite()),
                || "constants are finite F32".into(),
            )
        }
    }
}

fn check_table(program: &Program, table: &Table) -> Result<(), String> {
    ensure(table.commands.len() == table.labels.len(), || {
        "labels and commands differ in number".into()
    })?;
    ensure(table.shape.rows() > 0, || "no rows".into())?;
    ensure(
        table.shape != Shape::Decode || table.commands.last().is_some_and(|c| c.op == Op::Sample),
        || "decode must end in sample".into(),
    )?;
    let samples = table.commands.iter().filter(|c| c.op == Op::Sample).count();
    ensure(samples == usize::from(table.shape == Shape::Decode), || {
        format!("{samples} sample commands")
    })?;
    let copies = table
        .commands
        .iter()
        .filter(|c| c.op == Op::CopyLast)
        .count();
    ensure(
        copies == usize::from(matches!(table.shape, Shape::Prefill(_))),
        || format!("{copies} copy_last commands"),
    )?;
    ensure(program.vocab > 0, || "no vocabulary".into())
}

fn check_operands(program: &Program, c: &Command) -> Result<(), String> {
    let used = c.op.weights().len();
    for (i, id) in c.weights.iter().enumerate() {
        let optional = match c.op {
            Op::RopeAppend | Op::ExpertsActMul | Op::ExpertsAdd => i > 0,
            Op::Attention => true,
            _ => false,
        };
        match (i < used, *id) {
            (false, NO_WEIGHT) => {}
            (false, _) => return Err(format!("it has no weight {i}")),
            (true, NO_WEIGHT) if optional => {}
            (true, id) => ensure((id as usize) < program.weights.len(), || {
                format!("weight '{}' ({id}) does not exist", c.op.weights()[i])
            })?,
        }
    }
    let format = weight(program, c, 0).map_or(Format::F32, |w| w.format);
    ensure(c.format == format, || {
        format!(
            "its format is {}, its weight's {}",
            c.format.name(),
            format.name()
        )
    })?;
    let list = accesses(c);
    for b in &c.buffers[list.len()..] {
        ensure(*b == BufferRef::NONE, || "a buffer too many".into())?;
    }
    for a in &list {
        let spec =
            buffer(program, a.at.buffer).ok_or_else(|| format!("'{}' has no buffer", a.role))?;
        let wanted = match a.extent {
            Extent::Tokens => a.at.buffer == program.tokens,
            Extent::Kv => spec.class == Class::Kv,
            _ => {
                a.at.buffer != program.tokens
                    && matches!(spec.class, Class::ScratchDecode | Class::ScratchPrefill)
            }
        };
        ensure(a.at.buffer != NO_BUFFER && wanted, || {
            format!("'{}' cannot be in '{}'", a.role, spec.name)
        })?;
    }
    check_overlap(c, &list)
}

/// What is read must not be what is written, but for a norm in place.
fn check_overlap(c: &Command, list: &[Access]) -> Result<(), String> {
    for r in list.iter().filter(|a| !a.writes) {
        for w in list
            .iter()
            .filter(|a| a.writes && a.at.buffer == r.at.buffer)
        {
            let in_place = c.op == Op::Norm && r.at == w.at && r.extent == w.extent;
            ensure(in_place, || {
                format!("'{}' and '{}' are in the same buffer", r.role, w.role)
            })?;
        }
    }
    Ok(())
}

fn check_ranges(program: &Program, c: &Command, rows: u32, table_rows: u32) -> Result<(), String> {
    for a in accesses(c) {
        let Some(spec) = buffer(program, a.at.buffer) else {
            continue;
        };
        let offset = u64::from(a.at.offset);
        // `copy_last` reads any live row.
        let rows = if c.op == Op::CopyLast {
            table_rows
        } else {
            rows
        };
        let end = match a.extent {
            Extent::Tokens | Extent::Kv => {
                ensure(offset == 0, || format!("'{}' starts at {offset}", a.role))?;
                continue;
            }
            Extent::One { width } => width,
            Extent::Rows { width, stride } => {
                let column = if stride == 0 { 0 } else { offset / 4 % stride };
                ensure(rows == 1 || column.saturating_add(width) <= stride, || {
                    format!(
                        "'{}': rows of {width} do not fit a stride of {stride}",
                        a.role
                    )
                })?;
                u64::from(rows - 1)
                    .saturating_mul(stride)
                    .saturating_add(width)
            }
        };
        ensure(offset.is_multiple_of(4), || {
            format!("'{}': offset {offset} is no multiple of 4", a.role)
        })?;
        let end = end.saturating_mul(4).saturating_add(offset);
        ensure(end > offset && end <= spec.bytes, || {
            format!(
                "'{}' ends at byte {end} of '{}', which has {}",
                a.role, spec.name, spec.bytes
            )
        })?;
    }
    Ok(())
}

fn weight<'a>(program: &'a Program, c: &Command, i: usize) -> Option<&'a WeightSpec> {
    program.weights.get(*c.weights.get(i)? as usize)
}

fn check_params(program: &Program, c: &Command) -> Result<(), String> {
    let words = &c.params;
    let used = c.op.show_params(words).len();
    ensure(words[used..].iter().all(|w| *w == 0), || {
        "unused parameter words are not zero".into()
    })?;
    match c.op {
        Op::Embed => {
            let q = p::Embed::of(words);
            let w = weight(program, c, 0).ok_or("no table")?;
            ensure(w.usage != Usage::Matrix && w.usage != Usage::Vector, || {
                "its table is no lookup".into()
            })?;
            shape(w, q.n, q.k)?;
            ensure(q.n == program.vocab, || {
                format!("{} tokens, the vocabulary has {}", q.n, program.vocab)
            })?;
            finite(&[q.scale])
        }
        Op::Norm => {
            let q = p::Norm::of(words);
            vector(program, c, 0, q.dim)?;
            ensure(q.dim > 0 && q.groups > 0, || "an empty norm".into())?;
            finite(&[q.eps])
        }
        Op::Matmul => {
            let q = p::Matmul::of(words);
            matrix(program, c, q.n, q.k)
        }
        Op::MatmulAdd => {
            let q = p::MatmulAdd::of(words);
            matrix(program, c, q.n, q.k)
        }
        Op::NormMatmul => {
            let q = p::NormMatmul::of(words);
            matrix(program, c, q.n, q.k)?;
            vector(program, c, 1, q.k)?;
            finite(&[q.eps])
        }
        Op::NormMatmulActMul => {
            let q = p::NormMatmulActMul::of(words);
            matrix(program, c, q.n.checked_mul(2).ok_or("n is too large")?, q.k)?;
            vector(program, c, 1, q.k)?;
            act(q.act)?;
            finite(&[q.eps])
        }
        Op::Route => {
            let q = p::Route::of(words);
            experts(q.experts, q.used)?;
            ensure(q.renormalise <= 1, || {
                format!("renormalise is {}", q.renormalise)
            })?;
            finite(&[q.scale])
        }
        Op::ExpertsActMul => {
            let q = p::ExpertsActMul::of(words);
            experts(q.experts, q.used)?;
            act(q.act)?;
            let each = q.n.checked_mul(2);
            let n = each.and_then(|n| n.checked_mul(q.experts));
            let n = n.ok_or("n is too large")?;
            matrix(program, c, n, q.k)?;
            optional_vector(program, c, 1, n)
        }
        Op::ExpertsAdd => {
            let q = p::ExpertsAdd::of(words);
            experts(q.experts, q.used)?;
            let n = q.n.checked_mul(q.experts).ok_or("n is too large")?;
            matrix(program, c, n, q.k)?;
            optional_vector(program, c, 1, n)
        }
        Op::Bias => vector(program, c, 0, p::Bias::of(words).n),
        Op::ActMul => act(p::ActMul::of(words).act),
        Op::Scale => {
            let q = p::Scale::of(words);
            finite(&[q.scale, q.cap])
        }
        Op::Rope => {
            let q = p::Rope::of(words);
            rope(program, c, q.head_dim, q.rot, q.interleaved, q.magnitude)
        }
        Op::RopeAppend => {
            let q = p::RopeAppend::of(words);
            rope(program, c, q.head_dim, q.rot, q.interleaved, q.magnitude)?;
            for i in [1, 2] {
                optional_vector(program, c, i, q.head_dim)?;
            }
            finite(&[q.eps])?;
            kv(program, q.layer, q.heads, q.kv_heads, q.head_dim)
        }
        Op::KvAppend => {
            let q = p::KvAppend::of(words);
            kv(program, q.layer, q.kv_heads, q.kv_heads, q.head_dim)
        }
        Op::Attention => {
            let q = p::Attention::of(words);
            finite(&[q.scale, q.softcap])?;
            optional_vector(program, c, 0, q.heads)?;
            kv(program, q.layer, q.heads, q.kv_heads, q.head_dim)
        }
        Op::Sample => {
            let n = p::Sample::of(words).n;
            ensure(n == program.vocab, || {
                format!("{n} logits, the vocabulary has {}", program.vocab)
            })
        }
        Op::Add | Op::CopyLast => Ok(()),
    }
}

fn finite(values: &[f32]) -> Result<(), String> {
    ensure(values.iter().all(|v| v.is_finite()), || {
        "a parameter is not finite".into()
    })
}

fn experts(experts: u32, used: u32) -> Result<(), String> {
    ensure(used > 0 && used <= experts, || {
        format!("{used} of {experts} experts")
    })
}

fn act(act: u32) -> Result<(), String> {
    ensure(act <= 3, || format!("activation {act} is unknown"))
}

fn shape(w: &WeightSpec, n: u32, k: u32) -> Result<(), String> {
    ensure((w.n, w.k) == (n, k), || {
        format!(
            "weight '{}' is {} x {}, the command wants {n} x {k}",
            w.name, w.n, w.k
        )
    })
}

fn matrix(program: &Program, c: &Command, n: u32, k: u32) -> Result<(), String> {
    let w = weight(program, c, 0).ok_or("no matrix")?;
    ensure(matches!(w.usage, Usage::Matrix | Usage::Both), || {
        format!("weight '{}' is no matrix", w.name)
    })?;
    shape(w, n, k)
}

fn vector(program: &Program, c: &Command, i: usize, k: u32) -> Result<(), String> {
    let w = weight(program, c, i).ok_or("no vector")?;
    ensure(w.usage == Usage::Vector, || {
        format!("weight '{}' is no vector", w.name)
    })?;
    shape(w, 1, k)
}

fn optional_vector(program: &Program, c: &Command, i: usize, k: u32) -> Result<(), String> {
    match c.weights[i] {
        NO_WEIGHT => Ok(()),
        _ => vector(program, c, i, k),
    }
}

fn rope(
    program: &Program,
    c: &Command,
    dim: u32,
    rot: u32,
    interleaved: u32,
    magnitude: f32,
) -> Result<(), String> {
    ensure(rot > 0 && rot <= dim && rot.is_multiple_of(2), || {
        format!("cannot rotate {rot} of {dim}")
    })?;
    ensure(interleaved <= 1, || format!("interleaved is {interleaved}"))?;
    finite(&[magnitude])?;
    vector(program, c, 0, rot / 2)
}

fn kv(
    program: &Program,
    layer: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
) -> Result<(), String> {
    let kv = &program.kv;
    ensure(layer < kv.layers, || {
        format!("layer {layer} of {}", kv.layers)
    })?;
    ensure((kv_heads, head_dim) == (kv.kv_heads, kv.head_dim), || {
        format!(
            "{kv_heads} heads of {head_dim}, the cache has {} of {}",
            kv.kv_heads, kv.head_dim
        )
    })?;
    ensure(kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
        format!("{heads} heads over {kv_heads}")
    })
}
