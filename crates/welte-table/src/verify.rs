//! Checks that a program is sound: operands in range, shapes consistent, every row inside its buffer.

mod attention;
mod weights;

use crate::access::apart;
use crate::{
    Access, Bank, Block, BufferRef, CacheKind, CacheSpec, Class, Command, Extent, Format,
    NO_BUFFER, NO_WEIGHT, Op, Pass, PassKind, Program, Source, Usage, WeightSpec, accesses, cost,
    params as p,
};
use attention::{attention_cache, rope, sections};
use weights::{ensure, finite, matrix, optional_vector, shape, vector, weight};

/// The most ranks of a program.
pub const MOST_RANKS: u32 = 64;

/// The most parts of a feature after the first one.
const MOST_PARTS: u32 = 64;

/// Refuses a program that a device could not run safely. The error names the pass, the command and the fault.
pub fn verify(program: &Program) -> Result<(), String> {
    check_caches(program)?;
    for w in &program.weights {
        check_weight(w).map_err(|e| format!("weight '{}': {e}", w.name))?;
    }
    let tokens = buffer(program, program.tokens).ok_or("the tokens buffer does not exist")?;
    let most_rows = program.most_rows();
    if tokens.class != Class::Tables || tokens.bytes < 4 * u64::from(most_rows) {
        return Err(format!(
            "the tokens buffer must be of class tables and hold {most_rows} tokens"
        ));
    }
    let kinds: Vec<PassKind> = program.passes.iter().map(|p| p.kind).collect();
    if kinds.first() != Some(&PassKind::Decode) && kinds != [PassKind::Embed] {
        return Err("the first pass must be decode, unless there is an embed pass only".into());
    }
    for (kind, adapted) in PassKind::ALL
        .into_iter()
        .flat_map(|k| [(k, false), (k, true)])
    {
        let passes = program.passes.iter();
        let count = passes.filter(|p| (p.kind, p.adapted) == (kind, adapted));
        let count = count.count();
        ensure(count <= 1, || format!("{count} {} passes", kind.name()))?;
        ensure(count == 0 || !adapted || program.adapters.is_some(), || {
            format!("a {} pass with adapters, of which it has none", kind.name())
        })?;
    }
    check_adapters(program)?;
    if let Some(Block { size, mask }) = program.block {
        let rows = program.pass(PassKind::Draft);
        let rows = rows.map_or(0, |pass| program.passes[pass].rows);
        ensure((2..=rows).contains(&size) && mask < program.vocab, || {
            format!("blocks of {size} rows, with the token {mask} as mask")
        })?;
    }
    for pass in &program.passes {
        let name = pass.kind.name();
        check_pass(program, pass).map_err(|e| format!("{name}: {e}"))?;
        for (i, c) in pass.commands.iter().enumerate() {
            let fault = |e| format!("{name}, command {i} ({}): {e}", c.op.name());
            check_operands(program, c).map_err(fault)?;
            check_params(program, c).map_err(fault)?;
            check_ranges(program, c, pass.rows_at(i), pass).map_err(fault)?;
            let cost = cost::of(c, &program.weights);
            if (cost.bytes, cost.flops) != (c.bytes, c.flops) {
                return Err(fault(format!(
                    "its cost is {} bytes and {} flops",
                    cost.bytes, cost.flops
                )));
            }
        }
    }
    check_features(program)
}

fn check_adapters(program: &Program) -> Result<(), String> {
    let Some(adapters) = &program.adapters else {
        return Ok(());
    };
    ensure(adapters.places > 0 && adapters.rank > 0, || {
        "adapters without places or rank".into()
    })?;
    let slots = buffer(program, adapters.slots);
    let fits = slots.is_some_and(|slots| slots.bytes == 8 * u64::from(program.slots));
    ensure(fits, || "no place for the adapters of slots".into())?;
    for spec in &adapters.banks {
        let bank = buffer(program, spec.buffer).ok_or("a bank has no buffer")?;
        let bytes = spec.bank.place_bytes();
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(adapters.places.into()));
        let fits = bytes == Some(bank.bytes) && spec.bank.rank == adapters.rank;
        ensure(fits && bank.class == Class::Adapters, || {
            format!("bank '{}' does not have the size of its shape", bank.name)
        })?;
        if spec.weight == NO_WEIGHT {
            // That of a rank.
            continue;
        }
        let weight = program.weights.get(spec.weight as usize);
        let weight = weight.ok_or("a bank is of no weight")?;
        let Bank { n, k, experts, .. } = spec.bank;
        let rows = n.checked_mul(experts);
        let shape = if spec.lookup { (Some(k), n) } else { (rows, k) };
        ensure(shape == (Some(weight.n), weight.k), || {
            format!("bank '{}' does not fit its weight", bank.name)
        })?;
    }
    Ok(())
}

/// Checks that a command's bank is one of the program's, and has the command's shape.
fn low_rank(program: &Program, c: &Command) -> Result<(), String> {
    let roles = c.op.reads().iter().chain(c.op.writes());
    let at = roles.zip(c.buffers).find(|(role, _)| **role == "bank");
    let buffer = at.map_or(NO_BUFFER, |(_, at)| at.buffer);
    let banks = program.adapters.iter().flat_map(|a| &a.banks);
    let spec = banks.into_iter().find(|spec| spec.buffer == buffer);
    ensure(spec.map(|spec| spec.bank) == Bank::of(c), || {
        "its bank has another shape".into()
    })?;
    if matches!(c.op, Op::AdaptUp | Op::AdaptExpertsUp) {
        let parts = c.word("parts").unwrap_or(1);
        ensure(parts == 1 || c.weights[0] != NO_WEIGHT, || {
            "it does not know the parts of its rows".into()
        })?;
        optional_vector(program, c, 0, c.word("n").unwrap_or(0))?;
    }
    match (c.word("experts"), c.word("used")) {
        (Some(all), Some(used)) => experts(all, used),
        _ => Ok(()),
    }
}

fn check_features(program: &Program) -> Result<(), String> {
    if program.features == NO_BUFFER {
        return Ok(());
    }
    let features = buffer(program, program.features);
    let features = features.ok_or("the buffer of features does not exist")?;
    let each = 4 * program.feature_width();
    let whole = each > 0 && features.bytes.is_multiple_of(each);
    ensure(whole && features.class != Class::Tables, || {
        "the buffer of features must hold whole features".into()
    })
}

fn buffer(program: &Program, id: u32) -> Option<&crate::BufferSpec> {
    program.buffers.get(id as usize)
}

fn check_caches(program: &Program) -> Result<(), String> {
    ensure(
        program.page > 0 && program.context > 0 && program.slots > 0,
        || "no page size, no context or no slots".into(),
    )?;
    for (i, cache) in program.caches.iter().enumerate() {
        let name = &cache.name;
        check_cache(program, cache).map_err(|e| format!("cache '{name}': {e}"))?;
        ensure(
            program.caches[..i].iter().all(|c| c.buffer != cache.buffer),
            || format!("cache '{name}': another cache has its buffer"),
        )?;
    }
    let cached = program.buffers.iter().filter(|b| b.class == Class::Cache);
    ensure(cached.count() == program.caches.len(), || {
        "a buffer of class cache belongs to no cache".into()
    })
}

fn check_cache(program: &Program, cache: &CacheSpec) -> Result<(), String> {
    match cache.kind {
        CacheKind::Attention {
            format,
            layers,
            kv_heads,
            head_dim,
            ..
        } => {
            ensure(matches!(format, Format::F16 | Format::Q8_0), || {
                format!("no format {}", format.name())
            })?;
            ensure(layers > 0 && kv_heads > 0 && head_dim > 0, || {
                "no layers or no heads".into()
            })?;
        }
        CacheKind::Recurrent { layers, floats } => {
            ensure(layers > 0 && floats > 0, || "no layers or no state".into())?;
        }
    }
    ensure(cache.pages > 0, || "no pages".into())?;
    let needed = cache.bytes(program.page).ok_or_else(|| match cache.kind {
        CacheKind::Attention {
            format, head_dim, ..
        } if cache.head_bytes().is_none() => {
            format!("heads of {head_dim} cannot be stored as {}", format.name())
        }
        _ => "it is too large".into(),
    })?;
    let spec = buffer(program, cache.buffer).ok_or("it has no buffer")?;
    ensure(spec.class == Class::Cache, || {
        format!("its buffer '{}' is not of class cache", spec.name)
    })?;
    ensure(spec.bytes == needed, || {
        format!("its buffer has {} bytes, its layout {needed}", spec.bytes)
    })
}

fn check_weight(w: &WeightSpec) -> Result<(), String> {
    ensure(w.n > 0 && w.k > 0, || format!("{} x {} is empty", w.n, w.k))?;
    ensure(w.format.bytes(w.k as usize).is_some(), || {
        format!(
            "rows of {} are not a whole number of {} blocks",
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
        Source::Chosen(chosen) => {
            ensure(!matches!(chosen.of, Source::Chosen(_)), || {
                "a part of a part".into()
            })?;
            let known = chosen
                .ranges
                .iter()
                .all(|r| r.start < r.end && r.end <= chosen.rows);
            let rows = chosen
                .ranges
                .iter()
                .map(|r| u64::from(r.end) - u64::from(r.start));
            let vector = w.usage == Usage::Vector;
            let own = if vector { w.k } else { w.n };
            ensure(known && rows.sum::<u64>() == u64::from(own), || {
                format!("its parts of {} rows do not make {own}", chosen.rows)
            })?;
            let (n, k) = if vector {
                (1, chosen.rows)
            } else {
                (chosen.rows, w.k)
            };
            check_weight(&WeightSpec {
                source: chosen.of.clone(),
                n,
                k,
                ..w.clone()
            })
        }
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
        Source::Transposed(parts) => {
            let each = w.n / (parts.len() as u32).max(1);
            let whole = u64::from(each) * parts.len() as u64 == u64::from(w.n) && each > 0;
            ensure(whole && parts.iter().all(|p| p.rows == w.k), || {
                format!(
                    "transposed, its {} parts do not make {} rows of {}",
                    parts.len(),
                    w.n,
                    w.k
                )
            })?;
            ensure(w.usage == Usage::Matrix && !w.format.is_quantised(), || {
                "what is transposed is not a matrix of floats".into()
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

fn check_pass(program: &Program, pass: &Pass) -> Result<(), String> {
    ensure(pass.commands.len() == pass.labels.len(), || {
        "labels and commands differ in number".into()
    })?;
    ensure(program.vocab > 0, || "no vocabulary".into())?;
    ensure(pass.rows > 0, || "no rows".into())?;
    ensure(pass.outputs <= pass.rows, || {
        format!("{} outputs of {} rows", pass.outputs, pass.rows)
    })?;
    let count = |op: Op| pass.commands.iter().filter(|c| c.op == op).count();
    let (samples, selects, pools) = (count(Op::Sample), count(Op::SelectRows), count(Op::Pool));
    let wanted = match pass.kind {
        _ if pass.is_middle() => (0, 0, 0),
        PassKind::Decode => (1, 0, 0),
        PassKind::Prompt | PassKind::Draft => (0, 1, 0),
        PassKind::Embed => (0, 0, 1),
    };
    ensure((samples, selects, pools) == wanted, || {
        format!("{samples} sample, {selects} select_rows and {pools} pool commands")
    })?;
    if pass.is_middle() {
        return ensure(pass.width == 0 && pass.result == BufferRef::NONE, || {
            "without outputs it has no result".into()
        });
    }
    if pass.kind == PassKind::Decode {
        ensure(
            pass.commands.last().is_some_and(|c| c.op == Op::Sample),
            || "decode must end in sample".into(),
        )?;
        ensure(pass.outputs == pass.rows, || {
            format!("{} outputs of {} rows", pass.outputs, pass.rows)
        })?;
    }
    if pass.kind != PassKind::Embed {
        ensure(pass.width == program.vocab, || {
            format!(
                "{} logits, the vocabulary has {}",
                pass.width, program.vocab
            )
        })?;
    }
    let from = pass.outputs_from().unwrap_or(pass.commands.len());
    let late = pass.commands[from..].iter().find(|c| c.op.needs_position());
    if let Some(c) = late {
        return Err(format!("{} on output rows", c.op.name()));
    }
    let result = buffer(program, pass.result.buffer).ok_or("its result has no buffer")?;
    let last = pass.commands.iter().rev().find(|c| c.op != Op::Sample);
    let written = last.is_some_and(|c| {
        let list = accesses(c);
        list.iter().any(|a| a.writes && a.at == pass.result)
    });
    ensure(written, || {
        "its result is not what its last command writes".into()
    })?;
    let end = u64::from(pass.outputs)
        .saturating_mul(pass.width.into())
        .saturating_mul(4)
        .saturating_add(pass.result.offset.into());
    ensure(pass.width > 0 && end <= result.bytes, || {
        format!("its result ends at {end} of {} bytes", result.bytes)
    })
}

fn check_operands(program: &Program, c: &Command) -> Result<(), String> {
    let used = c.op.weights().len();
    for (i, id) in c.weights.iter().enumerate() {
        let optional = match c.op {
            Op::LayerNorm
            | Op::AddPosition
            | Op::RopeAppend
            | Op::ExpertsActMul
            | Op::ExpertsAdd
            | Op::EncodeConv
            | Op::ShortConv => i > 0,
            Op::Attention
            | Op::EncodeAttention
            | Op::Norm
            | Op::Route
            | Op::Multiply
            | Op::AdaptUp
            | Op::AdaptExpertsUp => true,
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
            Extent::Cache => spec.class == Class::Cache,
            Extent::Bank => spec.class == Class::Adapters,
            _ => {
                a.at.buffer != program.tokens
                    && matches!(spec.class, Class::ScratchDecode | Class::ScratchPrompt)
            }
        };
        ensure(a.at.buffer != NO_BUFFER && wanted, || {
            format!("'{}' cannot be in '{}'", a.role, spec.name)
        })?;
    }
    check_overlap(c, &list)
}

fn exchange(q: &p::Exchange) -> Result<(), String> {
    ensure(q.ranks > 1 && q.rank < q.ranks, || {
        format!("rank {} of {}", q.rank, q.ranks)
    })?;
    ensure(q.ranks <= MOST_RANKS, || {
        format!("{} ranks; there may be {MOST_RANKS}", q.ranks)
    })?;
    let width = [q.groups, q.per, q.unit, q.vectors]
        .into_iter()
        .try_fold(1u32, u32::checked_mul);
    ensure(width.is_some_and(|width| width > 0), || {
        "nothing or too much is exchanged".into()
    })
}

/// What is read must not be what is written, but for norms and factors in place. Different columns of the same rows may be.
pub(crate) fn check_overlap(c: &Command, list: &[Access]) -> Result<(), String> {
    for r in list.iter().filter(|a| !a.writes) {
        for w in list
            .iter()
            .filter(|a| a.writes && a.at.buffer == r.at.buffer)
        {
            let free = matches!(c.op, Op::Norm | Op::LayerNorm | Op::Multiply);
            let in_place = free && r.at == w.at && r.extent == w.extent;
            let own_part = c.op == Op::Exchange && is_own_part(&p::Exchange::of(&c.params), r, w);
            ensure(in_place || own_part || apart(r, w), || {
                format!("'{}' and '{}' are in the same buffer", r.role, w.role)
            })?;
        }
    }
    Ok(())
}

/// Whether the part that an exchange reads lies at its own place in what it writes.
fn is_own_part(q: &p::Exchange, part: &Access, whole: &Access) -> bool {
    let at = u64::from(whole.at.offset) + 4 * u64::from(q.part(q.rank).start);
    q.vectors == 1 && q.part_stride == q.y_stride && u64::from(part.at.offset) == at
}

fn check_ranges(program: &Program, c: &Command, rows: u32, pass: &Pass) -> Result<(), String> {
    for a in accesses(c) {
        let Some(spec) = buffer(program, a.at.buffer) else {
            continue;
        };
        let offset = u64::from(a.at.offset);
        let (rows, width, stride) = match a.extent {
            Extent::Tokens | Extent::Cache | Extent::Bank => {
                ensure(offset == 0, || format!("'{}' starts at {offset}", a.role))?;
                continue;
            }
            Extent::Rows { width, stride } => (rows, width, stride),
            Extent::Outputs { width, stride } => (pass.outputs, width, stride),
        };
        let column = if stride == 0 { 0 } else { offset / 4 % stride };
        ensure(rows == 1 || column.saturating_add(width) <= stride, || {
            format!(
                "'{}': rows of {width} do not fit a stride of {stride}",
                a.role
            )
        })?;
        let end = u64::from(rows - 1)
            .saturating_mul(stride)
            .saturating_add(width);
        ensure(offset.is_multiple_of(4), || {
            format!("'{}': offset {offset} is not a multiple of 4", a.role)
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
                "its table is not a lookup".into()
            })?;
            shape(w, q.n, q.k)?;
            ensure(q.n == program.vocab, || {
                format!("{} tokens, the vocabulary has {}", q.n, program.vocab)
            })?;
            finite(&[q.scale])
        }
        Op::Norm => {
            let q = p::Norm::of(words);
            optional_vector(program, c, 0, q.dim)?;
            ensure(q.dim > 0 && q.groups > 0, || "an empty norm".into())?;
            finite(&[q.eps])
        }
        Op::LayerNorm => {
            let q = p::LayerNorm::of(words);
            vector(program, c, 0, q.dim)?;
            optional_vector(program, c, 1, q.dim)?;
            ensure(q.dim > 0 && q.groups > 0, || "an empty norm".into())?;
            finite(&[q.eps])
        }
        Op::HeadsMatmul => {
            let q = p::HeadsMatmul::of(words);
            let rows = q.heads.checked_mul(q.n).ok_or("n is too large")?;
            matrix(program, c, rows, q.k)?;
            ensure(q.heads > 0, || "no heads".into())?;
            let apart = |values: u32, distance: u32| {
                u64::from(values) + u64::from(q.tail) <= u64::from(distance)
            };
            ensure(apart(q.k, q.x_head) && apart(q.n, q.y_head), || {
                format!(
                    "heads of {} and {} values and a tail of {} overlap",
                    q.k, q.n, q.tail
                )
            })
        }
        Op::PositionScale => {
            let q = p::PositionScale::of(words);
            ensure(q.original > 0, || "no original length".into())?;
            finite(&[q.beta])
        }
        Op::Act => {
            let q = p::Act::of(words);
            ensure(matches!(q.act, 0..=2 | 4..=7), || {
                format!("activation {} needs a gate or is unknown", q.act)
            })?;
            let constants = [q.a, q.b, q.c, q.d];
            finite(&constants)?;
            ensure(q.act != 7 || q.a <= q.b, || {
                format!("limits of {} to {}", q.a, q.b)
            })?;
            ensure(matches!(q.act, 5 | 7) || constants == [0.0; 4], || {
                "its activation has no constants".into()
            })
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
            ensure(q.scoring <= 2, || {
                format!("scoring {} is unknown", q.scoring)
            })?;
            let plain = c.weights[0] == NO_WEIGHT && q.groups == 1 && q.renormalise == 0;
            ensure(q.scoring != 2 || plain, || {
                "scoring 2 with a bias, groups or renormalise".into()
            })?;
            optional_vector(program, c, 0, q.experts)?;
            optional_vector(program, c, 1, q.experts)?;
            route_groups(&q)?;
            finite(&[q.scale, q.margin])
        }
        Op::ExpertsActMul => {
            let q = p::ExpertsActMul::of(words);
            experts(q.experts, q.used)?;
            ensure(q.act <= 6, || format!("activation {} is unknown", q.act))?;
            let each = q.n.checked_mul(q.matrices());
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
        Op::Multiply => optional_vector(program, c, 0, p::Multiply::of(words).n),
        Op::Cutoff => {
            let q = p::Cutoff::of(words);
            ensure(q.n > 0, || "no values".into())?;
            finite(&[q.deviations])
        }
        Op::MatchSquares => {
            let q = p::MatchSquares::of(words);
            ensure(q.dim > 0 && q.groups > 0, || "no values".into())
        }
        Op::AltUpPredict => {
            let q = p::AltUpPredict::of(words);
            streams(q.streams)?;
            vector(program, c, 0, q.streams * q.streams * q.streams)?;
            finite(&[q.scale])
        }
        Op::AltUpCorrect => {
            let q = p::AltUpCorrect::of(words);
            streams(q.streams)?;
            vector(program, c, 0, q.streams * q.streams)?;
            finite(&[q.scale])
        }
        Op::ActMul => act(p::ActMul::of(words).act),
        Op::Scale => {
            let q = p::Scale::of(words);
            finite(&[q.scale, q.cap])
        }
        Op::Rope => {
            let q = p::Rope::of(words);
            sections(q.sections, q.rot)?;
            rope(program, c, q.head_dim, q.rot, q.interleaved, q.magnitude)
        }
        Op::RopeAppend => {
            let q = p::RopeAppend::of(words);
            sections(q.sections, q.rot)?;
            rope(program, c, q.head_dim, q.rot, q.interleaved, q.magnitude)?;
            for i in [1, 2] {
                optional_vector(program, c, i, q.head_dim)?;
            }
            finite(&[q.eps])?;
            attention_cache(program, c, q.layer, q.heads, q.kv_heads, q.head_dim)?;
            Ok(())
        }
        Op::KvAppend => {
            let q = p::KvAppend::of(words);
            attention_cache(program, c, q.layer, q.kv_heads, q.kv_heads, q.head_dim)?;
            Ok(())
        }
        Op::Attention => {
            let q = p::Attention::of(words);
            finite(&[q.scale, q.softcap])?;
            ensure(q.causal <= 1, || format!("causal is {}", q.causal))?;
            let parts = q.chunked == 0 || q.chunked == 1 && q.window > 0;
            ensure(parts, || format!("chunked is {}", q.chunked))?;
            optional_vector(program, c, 0, q.heads)?;
            let window = attention_cache(program, c, q.layer, q.heads, q.kv_heads, q.head_dim)?;
            ensure(window == 0 || (1..=window).contains(&q.window), || {
                format!("a window of {}, the cache keeps {window}", q.window)
            })
        }
        Op::CrossAttention => {
            let q = p::CrossAttention::of(words);
            finite(&[q.scale])?;
            let window = attention_cache(program, c, q.layer, q.heads, q.kv_heads, q.head_dim)?;
            ensure(window == 0, || format!("a cache with a window of {window}"))?;
            ensure((1..=program.context).contains(&q.positions), || {
                format!(
                    "{} positions, the context is {}",
                    q.positions, program.context
                )
            })
        }
        Op::ChoosePositions => {
            let q = p::ChoosePositions::of(words);
            ensure(q.heads > 0 && q.head_dim.is_multiple_of(2), || {
                format!("{} heads of {}", q.heads, q.head_dim)
            })?;
            ensure(q.used > 0, || "no positions".into())?;
            let window = attention_cache(program, c, q.layer, q.heads, 1, q.head_dim / 2)?;
            ensure(window == 0, || format!("a cache with a window of {window}"))
        }
        Op::SparseAttention => {
            let q = p::SparseAttention::of(words);
            finite(&[q.scale])?;
            ensure(q.used > 0, || "no positions".into())?;
            let window = attention_cache(program, c, q.layer, q.heads, q.kv_heads, q.head_dim)?;
            ensure(window == 0, || format!("a cache with a window of {window}"))
        }
        Op::EncodeAttention => {
            let q = p::EncodeAttention::of(words);
            ensure(q.kv_heads > 0 && q.heads.is_multiple_of(q.kv_heads), || {
                format!("{} heads over {}", q.heads, q.kv_heads)
            })?;
            ensure(q.heads > 0 && q.head_dim > 0, || "no heads".into())?;
            ensure(q.by_axis <= 1, || format!("by_axis is {}", q.by_axis))?;
            ensure(q.unseen == 0 || q.window == 0, || {
                "rows that none sees within a window".into()
            })?;
            ensure(q.by_reach <= 1, || format!("by_reach is {}", q.by_reach))?;
            ensure(q.places <= 1 << 10, || format!("places is {}", q.places))?;
            ensure(q.places == 0 || q.window == 0, || {
                "places within a window".into()
            })?;
            if c.weights[0] != NO_WEIGHT {
                let whole = q.unseen == 0 && q.by_reach == 0;
                ensure(q.places > 0 && whole, || {
                    "absent rows without places, or beside unseen ones".into()
                })?;
                let width =
                    (u64::from(q.heads) + 2 * u64::from(q.kv_heads)) * u64::from(q.head_dim);
                let width = u32::try_from(width).map_err(|_| "heads are too large")?;
                vector(program, c, 0, width)?;
            }
            ensure(c.weights[1] == NO_WEIGHT || q.places == 0, || {
                "slopes beside places".into()
            })?;
            optional_vector(program, c, 1, q.heads)?;
            ensure(q.softcap >= 0.0, || format!("softcap is {}", q.softcap))?;
            finite(&[q.scale, q.softcap])
        }
        Op::EncodeConv => {
            let q = p::EncodeConv::of(words);
            ensure(q.taps >= 1 && q.before < q.taps, || {
                format!("{} of {} taps before a row", q.before, q.taps)
            })?;
            let values = q.n.checked_mul(q.taps).ok_or("n is too large")?;
            vector(program, c, 0, values)?;
            optional_vector(program, c, 1, q.n)
        }
        Op::AddPosition => {
            let q = p::AddPosition::of(words);
            let entries = q.period.checked_add(q.offset);
            let values = entries.and_then(|entries| entries.checked_mul(q.k));
            vector(program, c, 0, values.ok_or("k is too large")?)?;
            let types = match c.weights[1] {
                NO_WEIGHT => 1,
                _ => program.context.div_ceil(q.period.max(1)),
            };
            optional_vector(
                program,
                c,
                1,
                q.k.checked_mul(types).ok_or("k is too large")?,
            )?;
            ensure(
                u64::from(program.context) <= u64::from(q.period) * u64::from(types),
                || {
                    format!(
                        "a period of {}, the context is {}",
                        q.period, program.context
                    )
                },
            )
        }
        Op::AddFeature => {
            let q = p::AddFeature::of(words);
            let (n, part) = (q.n, q.part);
            ensure(program.features != NO_BUFFER, || "no features".into())?;
            ensure(n == program.embedding(), || {
                let width = program.embedding();
                format!("{n} values; an embedding has {width}")
            })?;
            ensure((1..=MOST_PARTS).contains(&part), || {
                format!("part {part} of a feature; from 1 to {MOST_PARTS}")
            })
        }
        Op::Sample => {
            let n = p::Sample::of(words).n;
            ensure(n == program.vocab, || {
                format!("{n} logits, the vocabulary has {}", program.vocab)
            })
        }
        Op::Pool => {
            let q = p::Pool::of(words);
            let kinds = if q.group > 0 { 4 } else { 2 };
            let known = q.kind <= kinds || q.kind == 5 && q.group == 0;
            ensure(known, || format!("pooling {} is unknown", q.kind))?;
            ensure(q.normalise <= 1, || format!("normalise is {}", q.normalise))
        }
        Op::ShortConv => {
            let q = p::ShortConv::of(words);
            ensure(q.taps >= 2, || format!("{} taps; at least 2", q.taps))?;
            ensure(q.act <= 1, || format!("activation {} is unknown", q.act))?;
            vector(
                program,
                c,
                0,
                q.n.checked_mul(q.taps).ok_or("n is too large")?,
            )?;
            optional_vector(program, c, 1, q.n)?;
            let floats = u64::from(q.taps - 1) * u64::from(q.n);
            recurrent_cache(program, c, q.layer, Some(floats))
        }
        Op::Gate => {
            let q = p::Gate::of(words);
            ensure(q.gates > 0 && q.n.is_multiple_of(q.gates), || {
                format!("{} gates for {} values", q.gates, q.n)
            })?;
            ensure(q.act <= 6 && q.act != 3, || {
                format!("activation {} does not gate", q.act)
            })
        }
        Op::GatedDelta => {
            let q = p::GatedDelta::of(words);
            ensure(
                q.key_heads > 0 && q.heads.is_multiple_of(q.key_heads),
                || format!("{} value heads over {} key heads", q.heads, q.key_heads),
            )?;
            ensure(q.heads > 0 && q.key_dim > 0 && q.value_dim > 0, || {
                "an empty head".into()
            })?;
            ensure(q.tiled <= 1, || format!("tiled is {}", q.tiled))?;
            ensure(q.by_channel <= 1, || {
                format!("by_channel is {}", q.by_channel)
            })?;
            finite(&[q.eps])?;
            vector(program, c, 0, q.heads)?;
            let biases = q.heads.checked_mul(q.decays());
            vector(program, c, 1, biases.ok_or("a head is too large")?)?;
            let keys = u64::from(q.heads) * u64::from(q.key_dim);
            let floats = keys.checked_mul(q.value_dim.into());
            recurrent_cache(program, c, q.layer, floats)
        }
        Op::Mamba2 => {
            let q = p::Mamba2::of(words);
            ensure(q.groups > 0 && q.heads.is_multiple_of(q.groups), || {
                format!("{} heads in {} groups", q.heads, q.groups)
            })?;
            ensure(q.heads > 0 && q.key_dim > 0 && q.value_dim > 0, || {
                "an empty head".into()
            })?;
            ensure(q.by_channel <= 1, || {
                format!("by_channel is {}", q.by_channel)
            })?;
            let times = q.heads.checked_mul(q.times());
            let times = times.ok_or("a head is too large")?;
            let rows = if q.by_channel == 1 { q.key_dim } else { 1 };
            let decays = times.checked_mul(rows).ok_or("a head is too large")?;
            for (weight, n) in [decays, times, times].into_iter().enumerate() {
                vector(program, c, weight, n)?;
            }
            let keys = u64::from(q.heads) * u64::from(q.key_dim);
            let floats = keys.checked_mul(q.value_dim.into());
            recurrent_cache(program, c, q.layer, floats)
        }
        Op::AdaptDown | Op::AdaptUp | Op::AdaptExpertsDown | Op::AdaptExpertsUp => {
            low_rank(program, c)
        }
        Op::AdaptLookup => {
            finite(&[p::AdaptLookup::of(words).scale])?;
            low_rank(program, c)
        }
        Op::Exchange => exchange(&p::Exchange::of(words)),
        Op::Spread => {
            let q = p::Spread::of(words);
            vector(program, c, 0, q.n)?;
            let map = weight(program, c, 0).map(|w| &w.source);
            let place = |v: &f32| *v == -1.0 || (0.0..q.k as f32).contains(v) && v.fract() == 0.0;
            let known = matches!(map, Some(Source::Constant(map)) if map.iter().all(place));
            ensure(known, || format!("a map that leads out of {} values", q.k))
        }
        Op::Add | Op::SelectRows => Ok(()),
    }
}

/// Checks that the command's state is in a recurrent cache of this shape. `floats` is `None` if it overflows.
fn recurrent_cache(
    program: &Program,
    c: &Command,
    layer: u32,
    floats: Option<u64>,
) -> Result<(), String> {
    let floats = floats.ok_or("its state is too large")?;
    match program.cache_of(c).map(|cache| cache.kind) {
        Some(CacheKind::Recurrent {
            layers,
            floats: known,
        }) => {
            ensure(layer < layers, || format!("layer {layer} of {layers}"))?;
            ensure(floats == u64::from(known), || {
                format!("a state of {floats} floats, the cache has {known}")
            })
        }
        _ => Err("its state is not in a recurrent cache".into()),
    }
}

/// The most streams of AltUp. Devices keep a value of each in registers.
const MOST_STREAMS: u32 = 8;

fn streams(count: u32) -> Result<(), String> {
    ensure((1..=MOST_STREAMS).contains(&count), || {
        format!("{count} streams; there may be {MOST_STREAMS}")
    })
}

/// Groups have one size, and those that are used hold enough experts.
fn route_groups(q: &p::Route) -> Result<(), String> {
    if q.groups == 1 {
        return ensure((q.used_groups, q.group_top) == (1, 1), || {
            "one group, of which one is used by its best expert".into()
        });
    }
    let fits = (2..=64).contains(&q.groups)
        && q.experts.is_multiple_of(q.groups)
        && (1..=q.groups).contains(&q.used_groups);
    ensure(fits, || {
        format!(
            "{} of {} groups of {} experts",
            q.used_groups, q.groups, q.experts
        )
    })?;
    let size = q.experts / q.groups;
    ensure((1..=size.min(2)).contains(&q.group_top), || {
        format!("groups of {size} rated by {} experts", q.group_top)
    })?;
    ensure(q.used <= size * q.used_groups, || {
        format!("{} experts of {} groups of {size}", q.used, q.used_groups)
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
