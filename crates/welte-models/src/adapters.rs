//! Adapters of a model: which products have banks, and what an adapter's file puts into them.

use crate::arch::Architecture;
use crate::names::{self, Names};
use crate::{Error, ModelSpec};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use welte_formats::quant;
use welte_formats::{AdapterFile, AdapterTensor, Dialect};
use welte_table::{
    AdaptOptions, Adapters, BankSpec, BufferId, Command, Format, ModelPart, Op, Program, SetRows,
    Source, WeightSpec,
};

/// What one adapter puts into its place of the banks.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterData {
    /// The highest rank of its pairs.
    pub rank: u32,
    /// What a place of each bank holds. Banks without an entry hold zeros: the adapter leaves their matrices as they are.
    pub places: Vec<(BufferId, Vec<u8>)>,
}

impl AdapterData {
    /// The same as bytes: equal for equal adapters of one program.
    pub fn content(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|(_, bytes)| bytes.as_slice())
    }
}

/// Gives a program passes with adapters ([`welte_table::adapt`]): for all projections of its layers but those of experts, and for whatever
/// else the files change.
pub fn adapt(
    program: &mut Program,
    spec: &ModelSpec,
    dialect: Dialect,
    files: &[AdapterFile],
    (places, rank): (u32, u32),
) -> Result<(), Error> {
    let model = Model::of(program, spec, dialect)?;
    let mut touched = HashSet::new();
    for file in files {
        for tensor in &file.tensors {
            let pieces = model.pieces(file, tensor)?;
            touched.extend(pieces.into_iter().map(|piece| piece.tensor));
        }
    }
    let wanted = |command: &Command, weight: &WeightSpec, lookup: bool| {
        let usual = matches!(
            command.part,
            ModelPart::Attention
                | ModelPart::Recurrent
                | ModelPart::FeedForward
                | ModelPart::SharedExpert
        );
        let mut names = parts_of(weight).map(|name| model.target(name, lookup));
        usual && !lookup || names.any(|name| touched.contains(&name))
    };
    let options = AdaptOptions {
        places,
        rank,
        wanted: &wanted,
    };
    welte_table::adapt(program, &options).map_err(|problem| Error::Option {
        option: "adapters",
        problem,
    })
}

/// What an adapter's file puts into the banks of a program.
pub fn adapter_data(
    program: &Program,
    spec: &ModelSpec,
    dialect: Dialect,
    file: &AdapterFile,
) -> Result<AdapterData, Error> {
    let Some(adapters) = &program.adapters else {
        return Err(Error::Option {
            option: "adapters",
            problem: "the model was loaded without room for any".into(),
        });
    };
    let model = Model::of(program, spec, dialect)?;
    model.check_architecture(file)?;
    let banks = Banks::of(&model, program, adapters);
    let mut places: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    for tensor in &file.tensors {
        if tensor.rank as u32 > adapters.rank {
            let (rank, most) = (tensor.rank, adapters.rank);
            return Err(wrong(
                file,
                &tensor.target,
                format!(
                    "has rank {rank}; there is room for rank {most}: load with --max-rank {rank}"
                ),
            ));
        }
        let pieces = model.pieces(file, tensor)?;
        for piece in &pieces {
            banks.check(file, tensor, piece)?;
        }
        let values = file.values(tensor)?;
        for piece in &pieces {
            banks.put(tensor, piece, &values, &mut places);
        }
    }
    Ok(AdapterData {
        rank: file.rank(),
        places: (places.into_iter())
            .map(|(bank, bytes)| (adapters.banks[bank].buffer, bytes))
            .collect(),
    })
}

fn wrong(file: &AdapterFile, tensor: &str, problem: String) -> Error {
    Error::Tensor {
        origin: file.path().display().to_string(),
        name: tensor.to_string(),
        problem,
    }
}

/// The tensors that a weight is joined of.
fn parts_of(weight: &WeightSpec) -> impl Iterator<Item = &str> {
    let parts = match &weight.source {
        Source::Parts(parts) => parts.as_slice(),
        _ => &[],
    };
    parts.iter().map(|part| part.tensor.as_str())
}

/// A stretch of a tensor of the model that an adapter's tensor changes.
#[derive(Debug)]
struct Piece {
    /// The tensor, without the prefix of its checkpoint.
    tensor: String,
    /// Its first row there. The stretch has all rows of B.
    first: u32,
    /// Which matrix of the adapter's stack.
    matrix: usize,
    /// Rows of heads that the other dialect has in another order.
    order: Option<Order>,
}

/// How rows of heads are ordered: pairs of rope lie together in GGUF, and half a head apart elsewhere.
#[derive(Clone, Copy, Debug)]
struct Order {
    head: usize,
    rot: usize,
    to_gguf: bool,
}

impl Order {
    /// The row of the adapter that belongs to a row of the model.
    fn row(self, at: usize) -> usize {
        let (start, within) = (at - at % self.head, at % self.head);
        let half = self.rot / 2;
        if within >= self.rot {
            at
        } else if self.to_gguf {
            start + within % 2 * half + within / 2
        } else {
            start + within % half * 2 + within / half
        }
    }
}

/// The model as its adapters know it.
struct Model<'a> {
    spec: &'a ModelSpec,
    arch: &'static Architecture,
    dialect: Dialect,
    /// All tensors of its program, without prefixes.
    tensors: HashSet<String>,
    /// The tensor that `embed` looks up.
    table: String,
}

/// A tensor's name without what stands before the language model's parts.
fn bare(name: &str) -> &str {
    let prefixes = names::LANGUAGE_MODEL
        .into_iter()
        .chain(["language_model.", "model."]);
    let mut rest = prefixes.filter_map(|prefix| name.strip_prefix(prefix));
    rest.next().unwrap_or(name)
}

impl<'a> Model<'a> {
    fn of(program: &Program, spec: &'a ModelSpec, dialect: Dialect) -> Result<Model<'a>, Error> {
        let arch = Architecture::by_name(&spec.architecture);
        let arch = arch.ok_or_else(|| Error::Option {
            option: "adapters",
            problem: format!("{} has no adapters", spec.architecture),
        })?;
        let tensors = program.weights.iter().flat_map(parts_of);
        let tensors = tensors.map(|name| bare(name).to_string()).collect();
        let mut commands = program.passes.iter().flat_map(|pass| &pass.commands);
        let embed = commands.find(|c| c.op == Op::Embed);
        let table = embed.and_then(|c| program.weights.get(c.weights[0] as usize));
        let table = table.and_then(|weight| parts_of(weight).next().map(str::to_string));
        Ok(Model {
            spec,
            arch,
            dialect,
            tensors,
            table: table.map_or(String::new(), |name| bare(&name).to_string()),
        })
    }

    /// The name under which adapters know a tensor. A head that has the embedding's tensor has a name of its own.
    fn target(&self, tensor: &str, lookup: bool) -> String {
        let name = bare(tensor);
        if !lookup && name == self.table {
            let head = self.arch.names(self.dialect).head;
            return names::weight(head, 0);
        }
        name.to_string()
    }

    fn check_architecture(&self, file: &AdapterFile) -> Result<(), Error> {
        let Some(said) = &file.architecture else {
            return Ok(());
        };
        if self.arch.gguf.contains(&said.as_str()) {
            return Ok(());
        }
        Err(Error::Key {
            origin: file.path().display().to_string(),
            key: "general.architecture".into(),
            problem: format!(
                "is '{said}'; the model is of architecture '{}'",
                self.spec.architecture
            ),
        })
    }

    /// What a tensor of an adapter changes.
    fn pieces(&self, file: &AdapterFile, tensor: &AdapterTensor) -> Result<Vec<Piece>, Error> {
        let name = bare(&tensor.target);
        let same = file.dialect == self.dialect;
        let found = if same {
            self.stacked(name, tensor)
        } else {
            self.translated(name, tensor)
        };
        match found {
            Some(pieces) if !pieces.is_empty() => Ok(pieces),
            _ => Err(wrong(
                file,
                &tensor.target,
                format!(
                    "is not a matrix of this model that can have an adapter ({})",
                    self.spec.architecture
                ),
            )),
        }
    }

    fn knows(&self, name: &str) -> bool {
        let head = names::weight(self.arch.names(self.dialect).head, 0);
        self.tensors.contains(name) || name == head
    }

    /// The pieces of a tensor of this dialect: a matrix, or all matrices of a stack.
    fn stacked(&self, name: &str, tensor: &AdapterTensor) -> Option<Vec<Piece>> {
        self.knows(name).then(|| {
            let each = (0..tensor.stack).map(|matrix| Piece {
                tensor: name.to_string(),
                first: (matrix * tensor.n) as u32,
                matrix,
                order: None,
            });
            each.collect()
        })
    }

    /// The pieces of a tensor of the other dialect.
    fn translated(&self, name: &str, tensor: &AdapterTensor) -> Option<Vec<Piece>> {
        let (hf, gguf) = (&self.arch.hugging_face_names, &self.arch.gguf_names);
        let to_gguf = self.dialect == Dialect::Gguf;
        for (of_hf, of_gguf) in pairs(hf, gguf) {
            let (from, to) = if to_gguf {
                (bare(of_hf), of_gguf)
            } else {
                (of_gguf, bare(of_hf))
            };
            let stem = name.strip_suffix(".weight").unwrap_or(name);
            let Some((layer, expert)) = matched(from, stem) else {
                continue;
            };
            let to = to.replace("{}", &layer.to_string());
            let interleaves = self.arch.gguf_interleaved
                && self.spec.rope.interleaved == to_gguf
                && [hf.q, hf.k].contains(&of_hf);
            let shape = self.spec.shape(layer as usize);
            let order = interleaves.then_some(Order {
                head: shape.head_dim as usize,
                rot: self.spec.rope.rot as usize,
                to_gguf,
            });
            // One tensor per expert there, one for all here; or the other way round.
            let pieces: Option<Vec<Piece>> = (0..tensor.stack)
                .map(|matrix| {
                    let number = expert.unwrap_or(matrix as u32);
                    let stacks = !to.contains("[]");
                    let name = to.replace("[]", &number.to_string());
                    let rows = u32::try_from(tensor.n).ok()?;
                    let before = if stacks { number } else { 0 };
                    Some(Piece {
                        tensor: format!("{name}.weight"),
                        // The number is that of the tensor's name.
                        first: before.checked_mul(rows)?,
                        matrix,
                        order,
                    })
                })
                .collect();
            let Some(pieces) = pieces else {
                continue;
            };
            if pieces.iter().all(|piece| self.knows(&piece.tensor)) {
                return Some(pieces);
            }
        }
        None
    }
}

/// Names of matrices in both dialects.
fn pairs(
    hf: &'static Names,
    gguf: &'static Names,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = |names: &'static Names| {
        let single = [
            names.embed,
            names.q,
            names.k,
            names.v,
            names.qkv,
            names.o,
            names.gate,
            names.up,
            names.gate_up,
            names.down,
            names.router,
            names.shared_gate,
            names.head,
        ];
        let more = names.conv.into_iter().step_by(2).chain(names.shared_expert);
        let more = more.chain(names.expert_latent).chain(names.experts);
        single.into_iter().chain(more)
    };
    of(hf).zip(of(gguf))
}

/// The numbers of the layer and the expert if a name follows a template: `{}` is a layer, `[]` an expert.
fn matched(template: &str, name: &str) -> Option<(u32, Option<u32>)> {
    let number = |rest: &mut &str| -> Option<u32> {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        *rest = after;
        number.parse().ok()
    };
    let (mut rest, mut layer, mut expert) = (name, 0, None);
    let mut pattern = template;
    loop {
        let next = pattern.find(['{', '[']);
        let (plain, mark) = pattern.split_at(next.unwrap_or(pattern.len()));
        rest = rest.strip_prefix(plain)?;
        if mark.is_empty() {
            return rest.is_empty().then_some((layer, expert));
        }
        let value = number(&mut rest)?;
        if mark.starts_with('{') {
            layer = value;
        } else {
            expert = Some(value);
        }
        pattern = &mark[2..];
    }
}

/// The banks of a program by the tensors that their matrices are joined of.
struct Banks<'a> {
    specs: &'a [BankSpec],
    rows: BTreeMap<String, Vec<(usize, SetRows)>>,
}

impl<'a> Banks<'a> {
    fn of(model: &Model<'_>, program: &Program, adapters: &'a Adapters) -> Banks<'a> {
        let mut rows: BTreeMap<String, Vec<(usize, SetRows)>> = BTreeMap::new();
        for (number, spec) in adapters.banks.iter().enumerate() {
            for row in spec.rows(&program.weights) {
                let name = model.target(&row.tensor, spec.lookup);
                rows.entry(name).or_default().push((number, row));
            }
        }
        Banks {
            specs: &adapters.banks,
            rows,
        }
    }

    fn of_piece(&self, piece: &Piece) -> &[(usize, SetRows)] {
        self.rows.get(&piece.tensor).map_or(&[], Vec::as_slice)
    }

    /// Refuses a tensor whose matrix has no bank or another shape.
    fn check(
        &self,
        file: &AdapterFile,
        tensor: &AdapterTensor,
        piece: &Piece,
    ) -> Result<(), Error> {
        let known = self.of_piece(piece);
        let Some((first, _)) = known.first() else {
            return Err(wrong(
                file,
                &tensor.target,
                "has no room: start with this adapter among --lora, or with one that changes the same matrices".into(),
            ));
        };
        let spec = &self.specs[*first];
        let (rows, columns) = match spec.lookup {
            true => (spec.bank.n as usize, spec.bank.k as usize),
            false => {
                let rows = known.iter().map(|(_, row)| row.from.len()).sum();
                (rows, spec.bank.k as usize)
            }
        };
        let experts: BTreeSet<u32> = known.iter().map(|(_, row)| row.expert).collect();
        // The whole tensor, or the rows of one expert.
        let fits = columns == tensor.k
            && [rows, rows / experts.len()].contains(&tensor.n)
            && piece.first as usize + tensor.n <= rows;
        if fits && spec.lookup == tensor.table {
            return Ok(());
        }
        let what = if spec.lookup == tensor.table {
            "matrix"
        } else {
            "table"
        };
        Err(wrong(
            file,
            &tensor.target,
            format!(
                "is for a {what} of {} x {}; the model's is {rows} x {columns}: the adapter belongs to another model",
                tensor.n * tensor.stack,
                tensor.k
            ),
        ))
    }

    /// Writes a piece into the places of its banks.
    fn put(
        &self,
        tensor: &AdapterTensor,
        piece: &Piece,
        [a, b]: &[Vec<f32>; 2],
        places: &mut BTreeMap<usize, Vec<u8>>,
    ) {
        let (rank, n, k) = (tensor.rank, tensor.n, tensor.k);
        let a = &a[piece.matrix * rank * k..][..rank * k];
        let b = &b[piece.matrix * n * rank..][..n * rank];
        for (number, rows) in self.of_piece(piece) {
            let spec = &self.specs[*number];
            let bank = &spec.bank;
            let first = piece.first as usize;
            let from = rows.from.start as usize..rows.from.end as usize;
            let (own, to) = match spec.lookup {
                true => (0..n, 0),
                false if from.start < first || from.end > first + n => continue,
                false => (from.start - first..from.end - first, rows.to as usize),
            };
            let bytes = bank.place_bytes().unwrap_or(0) as usize;
            let place = places.entry(*number).or_insert_with(|| vec![0; bytes]);
            let set = (rows.expert * bank.parts + rows.part) as usize;
            place[8 * set..][..4].copy_from_slice(&(rank as u32).to_ne_bytes());
            place[8 * set + 4..][..4].copy_from_slice(&tensor.scale.to_ne_bytes());
            let a_at = bank.head_bytes() as usize + set * bank.a_bytes() as usize;
            let most = bank.rank as usize;
            if spec.lookup {
                for (row, values) in a.chunks(rank).enumerate() {
                    put_halves(&mut place[a_at + 2 * row * most..], values);
                }
            } else {
                put_halves(&mut place[a_at..], a);
            }
            let b_at = bank.b_at(rows.expert) as usize;
            for (at, row) in own.enumerate() {
                let row = piece.order.map_or(row, |order| order.row(row));
                let values = &b[row * rank..][..rank];
                put_halves(&mut place[b_at + 2 * (to + at) * most..], values);
            }
        }
    }
}

fn put_halves(to: &mut [u8], values: &[f32]) {
    quant::encode(Format::F16, values, &mut to[..2 * values.len()]);
}
