//! Takes tensors from a checkpoint: checks their shapes and joins neighbours.

use crate::arch::has_indexer;
use crate::encoder::is_spare;
use crate::keys::Keys;
use crate::names::{self, Names, bias, weight};
use crate::{Error, ModelSpec, NormKind, Rope, Scaling, rope};
use std::collections::HashSet;
use welte_formats::checkpoint::{Checkpoint, Dialect, TensorInfo};
use welte_table::{Format, Part, Source, Usage, WeightId, WeightSpec};

/// A weight that yields `n` neighbouring outputs, beginning at output `at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputPart {
    pub(crate) weight: WeightId,
    pub(crate) n: u32,
    pub(crate) at: u32,
}

impl OutputPart {
    /// So many rows later.
    fn after(self, rows: u32) -> OutputPart {
        OutputPart {
            at: rows + self.at,
            ..self
        }
    }
}

/// Rows of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The tensor's name.
    pub(crate) tensor: String,
    /// The tensor's rows.
    pub(crate) of: u32,
    /// The first row taken.
    pub(crate) first: u32,
    /// Rows taken.
    pub(crate) rows: u32,
}

impl Rows {
    /// All rows of a tensor.
    pub(crate) fn all(tensor: String, rows: u32) -> Rows {
        Rows {
            tensor,
            of: rows,
            first: 0,
            rows,
        }
    }
}

/// The weights of a norm of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormWeights {
    pub(crate) weight: WeightId,
    /// Of a layer norm with bias.
    pub(crate) bias: Option<WeightId>,
}

/// Rope's constants: inverse frequencies, and the magnitude of rotated pairs.
#[derive(Clone, Copy)]
pub(crate) struct RopeConstants {
    pub(crate) freqs: WeightId,
    pub(crate) magnitude: f32,
}

/// The matrix that llama.cpp's converter puts into rerankers.
const CLASSIFIER: &str = "cls.output";

pub(crate) struct Collector<'a> {
    pub(crate) checkpoint: &'a dyn Checkpoint,
    pub(crate) list: Vec<WeightSpec>,
    used: HashSet<String>,
    /// What the names of layer 0 begin with while the weights of a draft layer are collected.
    pub(crate) draft: Option<String>,
    /// Queries are not joined with keys and values.
    pub(crate) keys_apart: bool,
}

impl Collector<'_> {
    pub(crate) fn new(checkpoint: &dyn Checkpoint) -> Collector<'_> {
        Collector {
            checkpoint,
            list: Vec::new(),
            used: HashSet::new(),
            draft: None,
            keys_apart: false,
        }
    }

    pub(crate) fn push(&mut self, spec: WeightSpec) -> WeightId {
        self.list.push(spec);
        (self.list.len() - 1) as WeightId
    }

    pub(crate) fn is_gguf(&self) -> bool {
        self.checkpoint.dialect() == Dialect::Gguf
    }

    /// The name of a tensor in this checkpoint.
    fn resolve(&self, name: &str) -> String {
        let first = ["blk.0.", "model.layers.0."];
        let rest = first.iter().find_map(|first| name.strip_prefix(first));
        match (&self.draft, rest) {
            (Some(draft), Some(rest)) => names::resolve(self.checkpoint, &format!("{draft}{rest}")),
            _ => names::resolve(self.checkpoint, name),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.columns(name).is_some()
    }

    /// The length of a tensor's rows, if there is one.
    pub(crate) fn columns(&self, name: &str) -> Option<usize> {
        let name = self.resolve(name);
        Some(self.checkpoint.tensor(&name)?.k)
    }

    pub(crate) fn rope_constants(
        &mut self,
        name: &str,
        rope: &Rope,
        context: u32,
    ) -> Result<RopeConstants, Error> {
        self.rope_constants_of(name, rope, self.checkpoint, context)
    }

    /// The same for a rope whose factors are in another checkpoint.
    pub(crate) fn rope_constants_of(
        &mut self,
        name: &str,
        rope: &Rope,
        checkpoint: &dyn Checkpoint,
        context: u32,
    ) -> Result<RopeConstants, Error> {
        let (values, magnitude) = rope::frequencies(rope, checkpoint, context)?;
        let freqs = self.constant(name, values);
        Ok(RopeConstants { freqs, magnitude })
    }

    /// A norm of the stream.
    pub(crate) fn norm(
        &mut self,
        label: &str,
        template: &str,
        layer: u32,
        spec: &ModelSpec,
    ) -> Result<NormWeights, Error> {
        self.norm_plus(label, (template, spec.norm_add), layer, spec)
    }

    /// The same with this added to its weights.
    pub(super) fn norm_plus(
        &mut self,
        label: &str,
        (template, add): (&str, f32),
        layer: u32,
        spec: &ModelSpec,
    ) -> Result<NormWeights, Error> {
        if spec.norm == NormKind::Plain {
            let (weight, bias) = (self.ones(label, spec.dim), None);
            return Ok(NormWeights { weight, bias });
        }
        let tensor = [(weight(template, layer), spec.dim)];
        let shift = [(bias(template, layer), spec.dim)];
        Ok(NormWeights {
            weight: self.vector(label, &tensor, add)?,
            bias: match spec.norm {
                NormKind::Layer { bias: true } => {
                    Some(self.vector(&format!("{label} bias"), &shift, 0.0)?)
                }
                _ => None,
            },
        })
    }

    /// The weight of a norm that has none.
    pub(crate) fn ones(&mut self, label: &str, k: u32) -> WeightId {
        self.constant(label, vec![1.0; k as usize])
    }

    /// A vector of these values.
    pub(crate) fn constant(&mut self, label: &str, values: Vec<f32>) -> WeightId {
        self.push(WeightSpec {
            name: label.into(),
            format: Format::F32,
            n: 1,
            k: values.len() as u32,
            usage: Usage::Vector,
            add: 0.0,
            source: Source::Constant(values),
        })
    }

    /// The weights of norms of heads, each with its own: rows of one tensor, or a tensor for each.
    pub(crate) fn own_norms(
        &mut self,
        label: &str,
        template: &str,
        layer: u32,
        [heads, k]: [u32; 2],
    ) -> Result<WeightId, Error> {
        let rows = weight(template, layer);
        if self.has(&rows) {
            return self.flat(label, &rows, heads, heads, k);
        }
        let own = (0..heads).map(|head| (weight(&format!("{template}.norms.{head}"), layer), k));
        self.vector(label, &own.collect::<Vec<_>>(), 0.0)
    }

    pub(crate) fn fault(&self, name: &str, problem: String) -> Error {
        Error::Tensor {
            origin: self.checkpoint.origin().into(),
            name: name.into(),
            problem,
        }
    }

    /// The tensor of this name, which must have this shape.
    pub(crate) fn tensor(&mut self, name: &str, n: u32, k: u32) -> Result<TensorInfo, Error> {
        let name = &self.resolve(name);
        let info = self
            .checkpoint
            .tensor(name)
            .ok_or_else(|| self.fault(name, format!("is missing ({n} x {k})")))?;
        if (info.n, info.k) != (n as usize, k as usize) {
            let problem = format!(
                "is {} x {}, expected {n} x {k} from the metadata",
                info.n, info.k
            );
            return Err(self.fault(name, problem));
        }
        if info.format.bytes(info.k).is_none() {
            let problem = format!(
                "rows of {k} elements are not whole {} blocks",
                info.format.name()
            );
            return Err(self.fault(name, problem));
        }
        self.used.insert(name.to_string());
        Ok(info.clone())
    }

    pub(crate) fn matrix(
        &mut self,
        label: &str,
        usage: Usage,
        name: &str,
        n: u32,
        k: u32,
    ) -> Result<WeightId, Error> {
        self.first_rows(label, usage, name, [n, n], k)
    }

    /// The first `n` rows of a matrix of so many.
    pub(crate) fn first_rows(
        &mut self,
        label: &str,
        usage: Usage,
        name: &str,
        [of, n]: [u32; 2],
        k: u32,
    ) -> Result<WeightId, Error> {
        let info = self.tensor(name, of, k)?;
        let format = info.format;
        let parts = vec![Part {
            tensor: info.name,
            first_row: 0,
            rows: n,
        }];
        let source = Source::Parts(parts);
        Ok(self.push(WeightSpec {
            name: label.into(),
            format,
            n,
            k,
            usage,
            add: 0.0,
            source,
        }))
    }

    /// The first `used` of `rows` rows of a table, as one vector.
    pub(crate) fn flat(
        &mut self,
        label: &str,
        name: &str,
        rows: u32,
        used: u32,
        k: u32,
    ) -> Result<WeightId, Error> {
        let part = Part {
            tensor: self.tensor(name, rows, k)?.name,
            first_row: 0,
            rows: used.min(rows),
        };
        Ok(self.push(WeightSpec {
            name: label.into(),
            format: Format::F32,
            n: 1,
            k: used.min(rows) * k,
            usage: Usage::Vector,
            add: 0.0,
            source: Source::Parts(vec![part]),
        }))
    }

    /// The checkpoint's classifier of two rows, or two rows of the head.
    pub(crate) fn scores(
        &mut self,
        spec: &ModelSpec,
        names: &Names,
        tokens: [u32; 2],
    ) -> Result<WeightId, Error> {
        let own = weight(CLASSIFIER, 0);
        if self.has(&own) {
            return self.matrix("scores", Usage::Matrix, &own, 2, spec.dim);
        }
        let head = if spec.tied { names.embed } else { names.head };
        let info = self.tensor(&weight(head, 0), spec.vocab, spec.dim)?;
        let part = |token| Part {
            tensor: info.name.clone(),
            first_row: token,
            rows: 1,
        };
        Ok(self.push(WeightSpec {
            name: "scores".into(),
            format: info.format,
            n: 2,
            k: spec.dim,
            usage: Usage::Matrix,
            add: 0.0,
            source: Source::Parts(tokens.map(part).to_vec()),
        }))
    }

    /// Concatenated vectors, with `add` added to each value.
    pub(crate) fn vector(
        &mut self,
        label: &str,
        tensors: &[(String, u32)],
        add: f32,
    ) -> Result<WeightId, Error> {
        let mut parts = Vec::new();
        for (name, k) in tensors {
            parts.push(Part {
                tensor: self.tensor(name, 1, *k)?.name,
                first_row: 0,
                rows: 1,
            });
        }
        Ok(self.push(WeightSpec {
            name: label.into(),
            format: Format::F32,
            n: 1,
            k: tensors.iter().map(|t| t.1).sum(),
            usage: Usage::Vector,
            add,
            source: Source::Parts(parts),
        }))
    }

    /// Stacked matrices. Neighbours of one format become one weight.
    pub(crate) fn joined(
        &mut self,
        label: &str,
        tensors: &[(String, u32)],
        k: u32,
    ) -> Result<Vec<OutputPart>, Error> {
        let rows = tensors.iter().map(|(name, n)| Rows::all(name.clone(), *n));
        self.joined_rows(label, &rows.collect::<Vec<_>>(), k)
    }

    /// Stacked rows of matrices. Neighbours of one format become one weight.
    pub(crate) fn joined_rows(
        &mut self,
        label: &str,
        rows: &[Rows],
        k: u32,
    ) -> Result<Vec<OutputPart>, Error> {
        let mut pieces: Vec<OutputPart> = Vec::new();
        let mut at = 0;
        for rows in rows {
            let n = &rows.rows;
            let info = self.tensor(&rows.tensor, rows.of, k)?;
            let format = info.format;
            let part = Part {
                tensor: info.name,
                first_row: rows.first,
                rows: *n,
            };
            let previous = pieces
                .last_mut()
                .map(|p| (&mut self.list[p.weight as usize], p));
            match previous {
                Some((spec, piece)) if spec.format == format => {
                    if let Source::Parts(parts) = &mut spec.source {
                        parts.push(part);
                    }
                    spec.n += n;
                    piece.n += n;
                }
                _ => {
                    let source = Source::Parts(vec![part]);
                    let (name, usage) = (label.to_string(), Usage::Matrix);
                    let weight = self.push(WeightSpec {
                        name,
                        format,
                        n: *n,
                        k,
                        usage,
                        add: 0.0,
                        source,
                    });
                    pieces.push(OutputPart { weight, n: *n, at });
                }
            }
            at += n;
        }
        // Distinguish several pieces by their first row.
        if pieces.len() > 1 {
            for p in &pieces {
                self.list[p.weight as usize].name = format!("{label} from row {}", p.at);
            }
        }
        Ok(pieces)
    }

    /// The same for the first rows, and for those after them apart.
    pub(crate) fn keys_apart_rows(
        &mut self,
        label: &str,
        rows: &[Rows],
        k: u32,
    ) -> Result<Vec<OutputPart>, Error> {
        let (queries, rest) = rows.split_at(rows.len().min(1));
        let mut pieces = self.joined_rows(label, queries, k)?;
        let at = queries.iter().map(|rows| rows.rows).sum::<u32>();
        let rest = self.joined_rows(&format!("{label} after queries"), rest, k)?;
        pieces.extend(rest.into_iter().map(|piece| piece.after(at)));
        Ok(pieces)
    }

    /// The biases of such rows.
    pub(crate) fn keys_apart_biases(
        &mut self,
        label: &str,
        list: &[(bool, String, u32)],
    ) -> Result<Vec<OutputPart>, Error> {
        let (queries, rest) = list.split_at(list.len().min(1));
        let mut pieces = self.biases(label, queries)?;
        let at = queries.iter().map(|bias| bias.2).sum::<u32>();
        let rest = self.biases(&format!("{label} after queries"), rest)?;
        pieces.extend(rest.into_iter().map(|piece| piece.after(at)));
        Ok(pieces)
    }

    /// Biases of neighbouring outputs. Adjacent ones become one vector.
    pub(crate) fn biases(
        &mut self,
        label: &str,
        list: &[(bool, String, u32)],
    ) -> Result<Vec<OutputPart>, Error> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for run in list.chunk_by(|a, b| a.0 == b.0) {
            let n = run.iter().map(|b| b.2).sum();
            if run[0].0 {
                let tensors: Vec<_> = run.iter().map(|b| (b.1.clone(), b.2)).collect();
                pieces.push(OutputPart {
                    weight: self.vector(label, &tensors, 0.0)?,
                    n,
                    at,
                });
            }
            at += n;
        }
        Ok(pieces)
    }

    /// Refuses tensors of a head that drafts which no command uses, but for `spare`.
    pub(crate) fn refuse_unused_of_head(&self, what: &str, spare: &[&str]) -> Result<(), Error> {
        let known = |t: &&TensorInfo| self.used.contains(&t.name) || spare.contains(&&*t.name);
        let mut others = self.checkpoint.tensors().iter().filter(|t| !known(t));
        match others.find(|t| !names::is_leftover(&t.name)) {
            Some(t) => Err(self.fault(&t.name, format!("is not part of {what}"))),
            None => Ok(()),
        }
    }

    /// Refuses tensors that no command uses: the model differs from its architecture.
    pub(crate) fn refuse_unused(&self, spec: &ModelSpec, names: &Names) -> Result<(), Error> {
        let mut spare = Vec::new();
        match spec.rope.scaling {
            Scaling::Factors => spare.push(weight(names.rope_factors, 0)),
            Scaling::Long { .. } => spare.extend([true, false].map(rope::long_factors)),
            _ => (),
        }
        if spec.tied {
            spare.push(names::resolve(self.checkpoint, &weight(names.head, 0)));
        }
        for i in 0..spec.layers {
            if spec.kv_source(i as usize) != i as usize {
                // Published checkpoints have these tensors, although no layer uses them.
                let unused = [names.k, names.v, names.k_norm].map(|name| weight(name, i));
                spare.extend(unused.map(|name| names::resolve(self.checkpoint, &name)));
            }
        }
        // Programs that score nothing do without it.
        spare.push(weight(CLASSIFIER, 0));
        let is_part = Keys::new(self.checkpoint, "").is_part();
        for t in self.checkpoint.tensors() {
            let known = self.used.contains(&t.name)
                || spare.contains(&t.name)
                || spec.encoder.is_some() && is_spare(&t.name);
            let constant = !spec.xielu.is_empty() && t.name.contains(".mlp.act_fn.");
            let other = is_part && names::is_of_other_modality(&t.name)
                || names::is_of_draft_layer(&t.name, spec.layers, spec.draft_layers);
            // Not all are used: see `Indexer`.
            let has_indexer = has_indexer(&spec.architecture) || spec.indexed.is_some();
            let indexer = has_indexer && names::is_of_indexer(&t.name);
            if !known && !constant && !other && !indexer && !names::is_leftover(&t.name) {
                let problem = format!(
                    "is not part of the architecture '{}' with {} layers; ignoring it would give wrong output",
                    spec.architecture, spec.layers
                );
                return Err(self.fault(&t.name, problem));
            }
        }
        Ok(())
    }
}
