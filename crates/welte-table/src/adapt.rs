//! Adapters: low-rank matrices that are added to products, chosen by slot.
//!
//! [`adapt`] gives a program of fine ops a second decode and prompt pass, in which products have their low-rank parts beside them. A
//! step in which no slot has an adapter runs the first ones, so its rows keep their bits and their speed.
//!
//! Every adapted matrix has a *bank*: a buffer with a *place* for each adapter that may be loaded. [`Bank`] is the one that knows how a
//! place is laid out.

use crate::bank::{rows_of, table_rows};
use crate::{
    Adapters, Bank, BankSpec, BufferId, BufferRef, BufferSpec, Class, Command, Format, NO_WEIGHT,
    Op, Pass, PassKind, Program, Source, Usage, WeightId, WeightSpec, cost, params as p,
};
use std::collections::BTreeMap;

/// Which parts of a model may have adapters, and how many.
pub struct AdaptOptions<'a> {
    /// Adapters that may be loaded at a time.
    pub places: u32,
    /// Their highest rank.
    pub rank: u32,
    /// Whether a product has a bank: its command, its weight, and whether it is a look-up.
    pub wanted: &'a dyn Fn(&Command, &WeightSpec, bool) -> bool,
}

/// Gives a program of fine ops passes with adapters, and their banks.
pub fn adapt(program: &mut Program, options: &AdaptOptions<'_>) -> Result<(), String> {
    let mut maker = Maker {
        options,
        banks: Vec::new(),
        numbers: BTreeMap::new(),
        parts: Vec::new(),
        low: BTreeMap::new(),
        wide: BTreeMap::new(),
    };
    let kinds = [PassKind::Decode, PassKind::Prompt];
    for kind in kinds {
        let Some(at) = program.pass(kind) else {
            continue;
        };
        let pass = program.passes[at].clone();
        let pass = maker.pass(program, pass)?;
        program.passes.push(pass);
    }
    if maker.banks.is_empty() {
        return Err("none of its matrices can have adapters".into());
    }
    let bytes = 8 * u64::from(program.slots);
    let slots = add(program, "adapters of slots".into(), Class::Tables, bytes);
    program.adapters = Some(Adapters {
        places: options.places,
        rank: options.rank,
        slots,
        banks: maker.banks,
    });
    cost::fill(program);
    Ok(())
}

struct Maker<'a> {
    options: &'a AdaptOptions<'a>,
    banks: Vec<BankSpec>,
    /// By weight and whether it is looked up.
    numbers: BTreeMap<(WeightId, bool), Option<usize>>,
    /// Vectors of parts that exist already.
    parts: Vec<(Vec<f32>, WeightId)>,
    /// By class: the buffers of low-rank values and of experts' outputs without activation.
    low: BTreeMap<Class, BufferId>,
    wide: BTreeMap<Class, BufferId>,
}

impl Maker<'_> {
    fn pass(&mut self, program: &mut Program, from: Pass) -> Result<Pass, String> {
        let mut pass = Pass {
            adapted: true,
            commands: Vec::new(),
            labels: Vec::new(),
            ..from.clone()
        };
        for (index, (command, label)) in from.commands.iter().zip(&from.labels).enumerate() {
            let mut out = Out {
                pass: &mut pass,
                like: command,
                label,
            };
            let rows = from.rows_at(index);
            let place = (from.kind.scratch(), rows);
            match command.op {
                Op::Matmul => {
                    out.push(*command);
                    self.product(program, command, place, &mut out)?;
                }
                Op::Embed => {
                    out.push(*command);
                    self.look_up(program, command, place, &mut out)?;
                }
                Op::ExpertsAdd => {
                    out.push(*command);
                    self.sum(program, command, place, &mut out)?;
                }
                Op::ExpertsActMul => self.gated(program, command, place, &mut out)?,
                _ => out.push(*command),
            }
        }
        Ok(pass)
    }

    /// The bank of a command's matrix, if it has one.
    fn bank(
        &mut self,
        program: &mut Program,
        command: &Command,
        lookup: bool,
        experts: u32,
    ) -> Result<Option<BankSpec>, String> {
        let id = command.weights[0];
        if let Some(known) = self.numbers.get(&(id, lookup)) {
            return Ok(known.map(|at| self.banks[at].clone()));
        }
        let weight = &program.weights[id as usize];
        let shape = if lookup {
            let bank = Bank {
                n: weight.k,
                k: weight.n,
                parts: 1,
                rank: self.options.rank,
                experts: 1,
            };
            (table_rows(weight).len() == 1).then_some(bank)
        } else {
            rows_of(weight, experts).map(|rows| Bank {
                n: weight.n / experts,
                k: weight.k,
                parts: 1 + rows.iter().map(|row| row.part).max().unwrap_or(0),
                rank: self.options.rank,
                experts,
            })
        };
        let shape = shape.filter(|_| (self.options.wanted)(command, weight, lookup));
        let Some(bank) = shape else {
            self.numbers.insert((id, lookup), None);
            return Ok(None);
        };
        let name = format!("adapters of {}", weight.name);
        let bytes = bank.place_bytes();
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(self.options.places.into()));
        let bytes = bytes.ok_or_else(|| format!("{name} are too large"))?;
        let buffer = add(program, name, Class::Adapters, bytes);
        self.numbers.insert((id, lookup), Some(self.banks.len()));
        self.banks.push(BankSpec {
            buffer,
            weight: id,
            lookup,
            bank,
        });
        Ok(self.banks.last().cloned())
    }

    /// A buffer for the low-rank values of all commands of a scratch set.
    fn low(
        &mut self,
        program: &mut Program,
        (name, class): (&str, Class),
        floats: u64,
    ) -> BufferRef {
        grown(
            program,
            &mut self.low,
            format!("{name}.adapted"),
            class,
            floats,
        )
    }

    /// The part of each row of a matrix, or [`NO_WEIGHT`] if it has one.
    fn parts(&mut self, program: &mut Program, spec: &BankSpec) -> WeightId {
        if spec.bank.parts == 1 {
            return NO_WEIGHT;
        }
        let mut values = vec![0.0; spec.bank.n as usize];
        for row in spec.rows(&program.weights).iter().filter(|r| r.expert == 0) {
            let to = row.to as usize;
            values[to..to + row.from.len()].fill(row.part as f32);
        }
        let known = self.parts.iter().find(|(known, _)| *known == values);
        if let Some((_, id)) = known {
            return *id;
        }
        let id = program.weights.len() as WeightId;
        program.weights.push(WeightSpec {
            name: format!("parts of {}", program.weights[spec.weight as usize].name),
            format: Format::F32,
            n: 1,
            k: spec.bank.n,
            usage: Usage::Vector,
            add: 0.0,
            source: Source::Constant(values.clone()),
        });
        self.parts.push((values, id));
        id
    }

    fn product(
        &mut self,
        program: &mut Program,
        c: &Command,
        (scratch, rows): ((&str, Class), u32),
        out: &mut Out<'_>,
    ) -> Result<(), String> {
        let Some(spec) = self.bank(program, c, false, 1)? else {
            return Ok(());
        };
        let q = p::Matmul::of(&c.params);
        let Bank {
            n, k, parts, rank, ..
        } = spec.bank;
        let stride = parts * rank;
        let low = self.low(program, scratch, u64::from(rows) * u64::from(stride));
        let down = p::AdaptDown {
            n,
            k,
            parts,
            rank,
            x_stride: q.x_stride,
            h_stride: stride,
        };
        let bank = whole(spec.buffer);
        let [x, y, ..] = c.buffers;
        out.add(
            "to low rank",
            Op::AdaptDown,
            &[],
            &[x, bank, low],
            down.words(),
        );
        let up = p::AdaptUp {
            n,
            k,
            parts,
            rank,
            h_stride: stride,
            y_stride: q.y_stride,
        };
        let names = [self.parts(program, &spec)];
        out.add(
            "from low rank",
            Op::AdaptUp,
            &names,
            &[low, bank, y],
            up.words(),
        );
        Ok(())
    }

    fn look_up(
        &mut self,
        program: &mut Program,
        c: &Command,
        (scratch, rows): ((&str, Class), u32),
        out: &mut Out<'_>,
    ) -> Result<(), String> {
        let Some(spec) = self.bank(program, c, true, 1)? else {
            return Ok(());
        };
        let q = p::Embed::of(&c.params);
        let Bank { n, k, rank, .. } = spec.bank;
        let low = self.low(program, scratch, u64::from(rows) * u64::from(rank));
        let down = p::AdaptLookup {
            n,
            k,
            rank,
            scale: q.scale,
            h_stride: rank,
        };
        let bank = whole(spec.buffer);
        let [tokens, x, ..] = c.buffers;
        out.add(
            "to low rank",
            Op::AdaptLookup,
            &[],
            &[tokens, bank, low],
            down.words(),
        );
        let up = p::AdaptUp {
            n,
            k,
            parts: 1,
            rank,
            h_stride: rank,
            y_stride: q.x_stride,
        };
        out.add(
            "from low rank",
            Op::AdaptUp,
            &[NO_WEIGHT],
            &[low, bank, x],
            up.words(),
        );
        Ok(())
    }

    /// Experts whose outputs are added up.
    fn sum(
        &mut self,
        program: &mut Program,
        c: &Command,
        (scratch, rows): ((&str, Class), u32),
        out: &mut Out<'_>,
    ) -> Result<(), String> {
        let q = p::ExpertsAdd::of(&c.params);
        let Some(spec) = self.bank(program, c, false, q.experts)? else {
            return Ok(());
        };
        let [x, choice, y, ..] = c.buffers;
        let shape = ExpertsShape {
            used: q.used,
            own: 1,
            x_stride: q.x_stride,
            choice_stride: q.choice_stride,
            y_stride: q.y_stride,
        };
        self.experts(program, &spec, shape, [x, choice, y], scratch, rows, out);
        Ok(())
    }

    /// Experts before their activation: without it, with the low-rank part, then the activation of each. Where their activations are
    /// commands of their own, these follow anyway.
    fn gated(
        &mut self,
        program: &mut Program,
        c: &Command,
        (scratch, rows): ((&str, Class), u32),
        out: &mut Out<'_>,
    ) -> Result<(), String> {
        let q = p::ExpertsActMul::of(&c.params);
        let Some(spec) = self.bank(program, c, false, q.experts)? else {
            out.push(*c);
            return Ok(());
        };
        let [x, choice, y, ..] = c.buffers;
        let shape = |y_stride: u32| ExpertsShape {
            used: q.used,
            own: 0,
            x_stride: q.x_stride,
            choice_stride: q.choice_stride,
            y_stride,
        };
        if matches!(q.act, 5 | 6) {
            out.push(*c);
            let buffers = [x, choice, y];
            self.experts(
                program,
                &spec,
                shape(q.y_stride),
                buffers,
                scratch,
                rows,
                out,
            );
            return Ok(());
        }
        let width = q.n * q.matrices();
        let stride = q.used * width;
        let (name, class) = scratch;
        let floats = u64::from(rows) * u64::from(stride);
        let wide = grown(
            program,
            &mut self.wide,
            format!("{name}.experts"),
            class,
            floats,
        );
        let plain = p::ExpertsActMul {
            act: if q.matrices() == 2 { 5 } else { 6 },
            y_stride: stride,
            ..q
        };
        out.push(Command {
            params: plain.words(),
            ..Command::new(c.op, c.format, &c.weights[..2], &[x, choice, wide], [0; 16])
        });
        let buffers = [x, choice, wide];
        self.experts(program, &spec, shape(stride), buffers, scratch, rows, out);
        for used in 0..q.used {
            let from = at(wide, used * width);
            let to = at(y, used * q.n);
            if q.matrices() == 2 {
                let act = p::ActMul {
                    n: q.n,
                    act: q.act,
                    x_stride: stride,
                    y_stride: q.y_stride,
                };
                out.add("activation", Op::ActMul, &[], &[from, to], act.words());
            } else {
                let copy = p::Multiply {
                    n: q.n,
                    x_stride: stride,
                    y_stride: q.y_stride,
                };
                out.add(
                    "activation",
                    Op::Multiply,
                    &[NO_WEIGHT],
                    &[from, to],
                    copy.words(),
                );
                let act = p::Act {
                    n: q.n,
                    act: 4,
                    a: 0.0,
                    b: 0.0,
                    c: 0.0,
                    d: 0.0,
                    y_stride: q.y_stride,
                };
                out.add("activation", Op::Act, &[], &[to], act.words());
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn experts(
        &mut self,
        program: &mut Program,
        spec: &BankSpec,
        e: ExpertsShape,
        [x, choice, y]: [BufferRef; 3],
        scratch: (&str, Class),
        rows: u32,
        out: &mut Out<'_>,
    ) {
        let Bank {
            n,
            k,
            parts,
            rank,
            experts,
        } = spec.bank;
        let stride = e.used * parts * rank;
        let low = self.low(program, scratch, u64::from(rows) * u64::from(stride));
        let down = p::AdaptExpertsDown {
            n,
            k,
            parts,
            rank,
            experts,
            used: e.used,
            own: e.own,
            x_stride: e.x_stride,
            choice_stride: e.choice_stride,
            h_stride: stride,
        };
        let bank = whole(spec.buffer);
        let reads = [x, choice, bank, low];
        out.add(
            "to low rank",
            Op::AdaptExpertsDown,
            &[],
            &reads,
            down.words(),
        );
        let up = p::AdaptExpertsUp {
            n,
            k,
            parts,
            rank,
            experts,
            used: e.used,
            sum: e.own,
            h_stride: stride,
            choice_stride: e.choice_stride,
            y_stride: e.y_stride,
        };
        let names = [self.parts(program, spec)];
        let reads = [low, choice, bank, y];
        out.add(
            "from low rank",
            Op::AdaptExpertsUp,
            &names,
            &reads,
            up.words(),
        );
    }
}

/// How the experts of a command lie.
struct ExpertsShape {
    used: u32,
    own: u32,
    x_stride: u32,
    choice_stride: u32,
    y_stride: u32,
}

/// Where commands go, and the command beside which they are.
struct Out<'a> {
    pass: &'a mut Pass,
    like: &'a Command,
    label: &'a str,
}

impl Out<'_> {
    fn push(&mut self, command: Command) {
        self.pass.commands.push(Command {
            part: self.like.part,
            layer: self.like.layer,
            ..command
        });
        self.pass.labels.push(self.label.to_string());
    }

    fn add(
        &mut self,
        what: &str,
        op: Op,
        weights: &[WeightId],
        buffers: &[BufferRef],
        params: crate::Params,
    ) {
        self.push(Command::new(op, Format::F32, weights, buffers, params));
        if let Some(label) = self.pass.labels.last_mut() {
            *label = format!("{} {what}", self.label);
        }
    }
}

fn whole(buffer: BufferId) -> BufferRef {
    BufferRef { buffer, offset: 0 }
}

fn at(place: BufferRef, floats: u32) -> BufferRef {
    BufferRef {
        offset: place.offset + 4 * floats,
        ..place
    }
}

fn add(program: &mut Program, name: String, class: Class, bytes: u64) -> BufferId {
    program.buffers.push(BufferSpec { name, class, bytes });
    (program.buffers.len() - 1) as BufferId
}

/// The buffer of a class with room for these floats.
fn grown(
    program: &mut Program,
    known: &mut BTreeMap<Class, BufferId>,
    name: String,
    class: Class,
    floats: u64,
) -> BufferRef {
    let id = *known
        .entry(class)
        .or_insert_with(|| add(program, name, class, 0));
    let spec = &mut program.buffers[id as usize];
    spec.bytes = spec.bytes.max(4 * floats);
    whole(id)
}
