//! A Hugging Face checkpoint read as the GGUF file of the same model.
//!
//! The reader of an architecture knows each key and each tensor by its names in both dialects, so it also translates: what it asks for
//! under two names is copied, the rest is written from the spec. Then the result is read as any GGUF file. A spec that differs from the
//! original's is an error, so an architecture that cannot be translated yet is refused and never changed.

mod delta;
mod keys;

use crate::arch::Architecture;
use crate::draft::DraftNames;
use crate::keys::Keys;
use crate::names::{self, Names, bias, weight};
use crate::read::{read, read_keys};
use crate::rope::{self, long_factors};
use crate::spec::Scaling;
use crate::weights::grouped_rows;
use crate::{Error, ModelSpec, QkNorm};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, TensorInfo, Value};
use welte_formats::quant;
use welte_table::{Format, Part};

/// A checkpoint of the other dialect, with the names, keys and layouts of GGUF.
pub struct AsGguf {
    from: Box<dyn Checkpoint>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    sources: Vec<Source>,
    by_name: HashMap<String, usize>,
}

/// Where the rows of a tensor come from.
enum Source {
    Rows {
        /// Rows of tensors, one part after the other.
        parts: Vec<Part>,
        /// The order of the rows, or of a vector's elements.
        order: Option<Order>,
        /// The order of each row's elements.
        columns: Option<Order>,
        /// What a vector's elements become.
        change: Change,
    },
    Constant(Vec<f32>),
}

/// What elements become.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    Add(f32),
    /// `-exp(x)`
    Decay,
}

impl Change {
    fn of(self, value: f32) -> f32 {
        match self {
            Change::Add(more) => value + more,
            Change::Decay => -value.exp(),
        }
    }
}

/// The order of rows or elements that belong to heads.
#[derive(Clone, Copy)]
enum Order {
    /// The rows (i, i + rot/2) of each head become the rows (2i, 2i + 1). Rows from `end` on stay.
    Pairs { head: usize, rot: usize, end: usize },
    /// Heads of one group become `groups` places apart. They begin at `first`, and each has `size` rows.
    Tiled {
        first: usize,
        groups: usize,
        heads: usize,
        size: usize,
    },
}

impl Order {
    /// The original's place of what is at `at`.
    fn place(self, at: usize) -> usize {
        match self {
            Order::Pairs { head, rot, end } => {
                let (start, within) = (at - at % head, at % head);
                if within < rot && at < end {
                    start + within % 2 * (rot / 2) + within / 2
                } else {
                    at
                }
            }
            Order::Tiled { first, .. } if at < first => at,
            Order::Tiled {
                first,
                groups,
                heads,
                size,
            } => {
                let (head, within) = ((at - first) / size, (at - first) % size);
                let original = head % groups * (heads / groups) + head / groups;
                first + original * size + within
            }
        }
    }
}

impl AsGguf {
    /// Translates a checkpoint. `extra` has the metadata of its vocabulary, and replaces what the translation writes.
    pub fn new(from: Box<dyn Checkpoint>, extra: Metadata) -> Result<AsGguf, Error> {
        let (arch, said) = Architecture::of(from.as_ref())?;
        let keys = Keys::new(from.as_ref(), &said);
        let spec = read_keys(&keys, arch, &said)?;
        // Some architectures have another name with experts.
        let mixed = |name: &&&str| name.ends_with("moe") == spec.experts.is_some();
        let named = arch.gguf.iter().find(mixed).or(arch.gguf.first());
        let Some(name) = named else {
            let problem = format!("{said} has no form in GGUF");
            return Err(keys.error("model_type", problem));
        };
        let draft = spec.draft(from.as_ref())?.map(|draft| draft.names);
        let mut metadata = keys::noted(&keys, name);
        keys::write_spec(&mut metadata, &spec, name);
        if draft.is_some() {
            // Files count it among the layers.
            let layers = u64::from(spec.layers) + 1;
            metadata.insert(format!("{name}.block_count"), Value::U64(layers));
            metadata.insert(format!("{name}.nextn_predict_layers"), Value::U64(1));
        }
        let tensors = Tensors::of(from.as_ref(), arch, &spec, draft.as_ref())?;
        metadata.extend(extra);
        let mut gguf = AsGguf {
            metadata,
            by_name: (tensors.infos.iter().map(|info| info.name.clone()))
                .zip(0..)
                .collect(),
            tensors: tensors.infos,
            sources: tensors.sources,
            from,
        };
        let read_back = read(&gguf, arch, name)?;
        same(&gguf, &spec, &read_back)?;
        gguf.adjust(arch, &spec, &read_back);
        gguf.tile(&spec, &read_back)?;
        Ok(gguf)
    }

    /// Changes that the other dialect's conventions need: pairs of rope as neighbours, and norms with what is added to them.
    fn adjust(&mut self, arch: &Architecture, spec: &ModelSpec, read_back: &ModelSpec) {
        let interleave = read_back.rope.interleaved && !spec.rope.interleaved;
        let more = spec.norm_add - read_back.norm_add;
        let gguf = &arch.gguf_names;
        // A draft layer follows the others.
        let layers = spec.layers + read_back.draft_layers;
        for layer in 0..layers {
            let shape = spec.shape(layer as usize);
            // A matrix of queries, keys and values has the values last.
            let heads = spec.heads + shape.kv_heads;
            let pairs = Order::Pairs {
                head: shape.head_dim as usize,
                rot: spec.rope.rot as usize,
                end: (heads * shape.head_dim) as usize,
            };
            let rotated = [gguf.q, gguf.k, gguf.qkv];
            let rotated = rotated.into_iter().filter(|_| interleave);
            for template in rotated {
                for name in [weight(template, layer), bias(template, layer)] {
                    if let Some(Source::Rows { order: at, .. }) = self.source_mut(&name) {
                        *at = Some(pairs);
                    }
                }
            }
        }
        let norms = [
            gguf.attn_norm,
            gguf.q_norm,
            gguf.k_norm,
            gguf.post_attn_norm,
            gguf.ffn_norm,
            gguf.post_ffn_norm,
            gguf.final_norm,
        ];
        let of_layers = (0..layers).flat_map(|i| norms.map(|norm| weight(norm, i)));
        let draft = DraftNames::gguf(spec.layers);
        let of_draft = draft.own().into_iter().take(3);
        let of_draft = of_draft.map(|norm| format!("{norm}.weight"));
        for name in of_layers.chain(of_draft) {
            if let Some(Source::Rows { change, .. }) = self.source_mut(&name) {
                *change = Change::Add(more);
            }
        }
    }

    fn source_mut(&mut self, name: &str) -> Option<&mut Source> {
        let at = *self.by_name.get(name)?;
        self.sources.get_mut(at)
    }

    /// Elements of a vector, or rows of a matrix, after the changes of their source.
    fn made(
        &self,
        tensor: &TensorInfo,
        source: &Source,
        first: usize,
        rows: usize,
    ) -> Result<Vec<u8>, welte_formats::Error> {
        let (parts, order, columns, change) = match source {
            Source::Constant(values) => {
                return Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect());
            }
            Source::Rows {
                parts,
                order,
                columns,
                change,
            } => (parts, *order, *columns, *change),
        };
        let place = |at| order.map_or(at, |order| order.place(at));
        if tensor.n == 1 {
            let values = self.values(tensor, &parts[0], 0)?;
            let changed = (0..tensor.k).map(|at| change.of(values[place(at)]));
            return Ok(changed.flat_map(f32::to_le_bytes).collect());
        }
        let mut bytes = Vec::new();
        for row in first..first + rows {
            let mut at = place(row);
            for part in parts {
                if at < part.rows as usize {
                    let row = self.row(tensor, part, at)?;
                    match columns {
                        Some(columns) => reordered(tensor, &row, columns, &mut bytes),
                        None => bytes.extend_from_slice(&row),
                    }
                    break;
                }
                at -= part.rows as usize;
            }
        }
        Ok(bytes)
    }

    /// A row of a part, in the tensor's format.
    fn row(
        &self,
        tensor: &TensorInfo,
        part: &Part,
        at: usize,
    ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
        let info = self.stored(tensor, part)?;
        if info.format == tensor.format {
            return self.from.rows(info, part.first_row as usize + at, 1);
        }
        let values = self.values(tensor, part, at)?;
        Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    fn values(
        &self,
        tensor: &TensorInfo,
        part: &Part,
        at: usize,
    ) -> Result<Vec<f32>, welte_formats::Error> {
        let info = self.stored(tensor, part)?;
        let bytes = self.from.rows(info, part.first_row as usize + at, 1)?;
        let mut values = vec![0.0; tensor.k];
        quant::decode(info.format, &bytes, &mut values);
        Ok(values)
    }

    fn stored(
        &self,
        tensor: &TensorInfo,
        part: &Part,
    ) -> Result<&TensorInfo, welte_formats::Error> {
        let info = self.from.tensor(&part.tensor);
        info.ok_or_else(|| self.missing(tensor, &part.tensor))
    }

    fn is_stored_so(&self, tensor: &TensorInfo, part: &Part) -> bool {
        self.stored(tensor, part)
            .is_ok_and(|info| info.format == tensor.format)
    }

    fn missing(&self, tensor: &TensorInfo, name: &str) -> welte_formats::Error {
        welte_formats::Error::Weight {
            origin: self.origin().into(),
            weight: tensor.name.clone(),
            problem: format!("{name} is missing"),
        }
    }
}

impl Checkpoint for AsGguf {
    fn origin(&self) -> &str {
        self.from.origin()
    }
    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }
    fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
        let at = self.by_name.get(&tensor.name).copied();
        let source = at.ok_or_else(|| self.missing(tensor, &tensor.name))?;
        match &self.sources[source] {
            Source::Rows {
                parts,
                order: None,
                columns: None,
                ..
            } if parts.len() == 1 && tensor.n > 1 && self.is_stored_so(tensor, &parts[0]) => {
                let info = self.stored(tensor, &parts[0])?;
                self.from
                    .rows(info, parts[0].first_row as usize + first, rows)
            }
            source => self.made(tensor, source, first, rows).map(Cow::Owned),
        }
    }
    fn release(&self) {
        self.from.release();
    }
}

/// Appends a row whose elements change places. The heads are whole blocks of the format.
fn reordered(tensor: &TensorInfo, row: &[u8], columns: Order, bytes: &mut Vec<u8>) {
    let step = match columns {
        Order::Tiled { size, .. } => size,
        Order::Pairs { .. } => 1,
    };
    let Some(unit) = tensor.format.bytes(step) else {
        return;
    };
    for at in (0..tensor.k).step_by(step) {
        let from = columns.place(at) / step * unit;
        bytes.extend_from_slice(&row[from..from + unit]);
    }
}

/// An error if the translation reads as another model. What the dialects store differently may differ.
fn same(gguf: &AsGguf, spec: &ModelSpec, read_back: &ModelSpec) -> Result<(), Error> {
    let mut expected = ModelSpec {
        draft_layers: spec.draft_layers.min(read_back.draft_layers),
        norm_add: read_back.norm_add,
        ..spec.clone()
    };
    expected.rope.interleaved = read_back.rope.interleaved;
    if let (Some(delta), Some(other)) = (&mut expected.delta, &read_back.delta) {
        delta.tiled = other.tiled;
    }
    if let (Some(local), Some(other)) = (&mut expected.local_rope, &read_back.local_rope) {
        local.interleaved = other.interleaved;
    }
    match (&mut expected.rope.scaling, &read_back.rope.scaling) {
        (scaling @ Scaling::Llama3 { .. }, Scaling::Factors) => *scaling = Scaling::Factors,
        // GGUF has no name for it.
        (scaling @ Scaling::Dynamic { .. }, Scaling::None) => *scaling = Scaling::None,
        (
            Scaling::Yarn { magnitude, .. },
            Scaling::Yarn {
                magnitude: other, ..
            },
        ) if (*magnitude - other).abs() < 1e-6 * magnitude.abs() => {
            *magnitude = *other;
        }
        _ => (),
    }
    if expected == *read_back {
        return Ok(());
    }
    // The first field that differs, as a reader of an error would look for it.
    let (ours, theirs) = (format!("{expected:#?}"), format!("{read_back:#?}"));
    let mut lines = ours.lines().zip(theirs.lines());
    let differs = lines.find(|(ours, theirs)| ours != theirs);
    let (ours, theirs) = differs.unwrap_or(("more fields", "fewer fields"));
    Err(Error::Key {
        origin: gguf.origin().into(),
        key: spec.architecture.clone(),
        problem: format!(
            "cannot be written as GGUF yet: '{}' would be read as '{}'",
            ours.trim().trim_end_matches(','),
            theirs.trim().trim_end_matches(',')
        ),
    })
}

/// The tensors of the other dialect and their sources.
#[derive(Default)]
struct Tensors {
    infos: Vec<TensorInfo>,
    sources: Vec<Source>,
    /// The original's tensors that became part of one.
    used: HashSet<String>,
    /// What the names of a draft layer begin with, and would begin with if it were a layer like the others.
    renamed: Option<[String; 2]>,
}

impl Tensors {
    fn of(
        from: &dyn Checkpoint,
        arch: &Architecture,
        spec: &ModelSpec,
        draft: Option<&DraftNames>,
    ) -> Result<Tensors, Error> {
        let (hf, gguf) = (&arch.hugging_face_names, &arch.gguf_names);
        let mut all = Tensors::default();
        all.pair(from, hf.embed, gguf.embed, 0);
        let layers = spec.layers + u32::from(draft.is_some());
        if let Some(draft) = draft {
            let numbered = format!("model.layers.{}.", spec.layers);
            all.renamed = Some([draft.layer.clone(), numbered]);
            let own = draft.own().map(|name| format!("{name}.weight"));
            let gguf = DraftNames::gguf(spec.layers);
            for (hf, gguf) in own.iter().zip(gguf.own()) {
                all.one(from, hf, &format!("{gguf}.weight"));
            }
        }
        for layer in 0..layers {
            all.shared_pair(from, hf, gguf, spec, layer);
            if spec.qk_norm == QkNorm::Each {
                all.own_norms(from, hf, gguf, spec, layer);
            }
            if hf.grouped_qkv {
                all.ungrouped_qkv(from, hf.qkv, gguf, spec, layer);
            }
            for (hf, gguf) in layer_names(hf, gguf, spec) {
                all.pair(from, hf, gguf, layer);
            }
            for (hf, gguf) in [(hf.sinks, gguf.sinks), (hf.choice_bias, gguf.choice_bias)] {
                let number = layer.to_string();
                let (hf, gguf) = (hf.replace("{}", &number), gguf.replace("{}", &number));
                all.one(from, &hf, &gguf);
            }
            all.experts(from, hf, gguf, spec, layer);
            all.delta(from, spec, layer);
        }
        all.pair(from, hf.final_norm, gguf.final_norm, 0);
        if spec.tied {
            let name = names::resolve(from, &weight(hf.head, 0));
            all.used.insert(name);
        } else {
            all.pair(from, hf.head, gguf.head, 0);
        }
        all.factors(from, spec)?;
        all.refuse_others(from, spec)?;
        Ok(all)
    }

    /// Weight and bias of this name, if the checkpoint has them.
    fn pair(&mut self, from: &dyn Checkpoint, hf: &str, gguf: &str, layer: u32) {
        self.one(from, &weight(hf, layer), &weight(gguf, layer));
        self.one(from, &bias(hf, layer), &bias(gguf, layer));
    }

    fn one(&mut self, from: &dyn Checkpoint, hf: &str, gguf: &str) {
        let Some(info) = self.find(from, hf) else {
            return;
        };
        // A name that stands for several parts of a layer comes up again.
        if self.used.contains(&info.name) {
            return;
        }
        let parts = vec![self.part(info, 0, info.n)];
        self.push(gguf, info, info.n, 1, parts);
    }

    /// A tensor of the original, if it has one of this name.
    fn find<'a>(&self, from: &'a dyn Checkpoint, name: &str) -> Option<&'a TensorInfo> {
        let draft = self.renamed.as_ref();
        let draft =
            draft.and_then(|[own, like]| Some(format!("{own}{}", name.strip_prefix(like)?)));
        let name = draft.as_deref().unwrap_or(name);
        from.tensor(&names::resolve(from, name))
    }

    fn part(&mut self, info: &TensorInfo, first: usize, rows: usize) -> Part {
        self.used.insert(info.name.clone());
        Part {
            tensor: info.name.clone(),
            first_row: first as u32,
            rows: rows as u32,
        }
    }

    /// Vectors and norms are F32 in GGUF.
    fn push(&mut self, name: &str, like: &TensorInfo, n: usize, stack: usize, parts: Vec<Part>) {
        self.infos.push(TensorInfo {
            name: name.into(),
            format: if n == 1 || name.ends_with("_norm.weight") {
                Format::F32
            } else {
                like.format
            },
            n,
            k: like.k,
            stack,
        });
        self.sources.push(Source::Rows {
            parts,
            order: None,
            columns: None,
            change: Change::Add(0.0),
        });
    }

    /// The norms of heads, if each is a tensor, as rows of one.
    fn own_norms(
        &mut self,
        from: &dyn Checkpoint,
        hf: &Names,
        gguf: &Names,
        spec: &ModelSpec,
        layer: u32,
    ) {
        let kv_heads = spec.shape(layer as usize).kv_heads;
        let both = [
            (hf.q_norm, gguf.q_norm, spec.heads),
            (hf.k_norm, gguf.k_norm, kv_heads),
        ];
        for (own, name, heads) in both {
            let each = (0..heads).map(|head| {
                let own = weight(&format!("{own}.norms.{head}"), layer);
                self.find(from, &own).cloned()
            });
            let Some(each) = each.collect::<Option<Vec<_>>>() else {
                continue;
            };
            let parts = each.iter().map(|info| self.part(info, 0, 1)).collect();
            self.push(&weight(name, layer), &each[0], heads as usize, 1, parts);
        }
    }

    /// Queries, keys and values of a matrix that has them group by group, as three tensors.
    fn ungrouped_qkv(
        &mut self,
        from: &dyn Checkpoint,
        qkv: &str,
        gguf: &Names,
        spec: &ModelSpec,
        layer: u32,
    ) {
        let Some(info) = self.find(from, &weight(qkv, layer)).cloned() else {
            return;
        };
        let shape = spec.shape(layer as usize);
        if info.n as u32 != (spec.heads + 2 * shape.kv_heads) * shape.head_dim {
            // It stays unused and is refused.
            return;
        }
        let names = [gguf.q, gguf.k, gguf.v];
        for (name, parts) in names.into_iter().zip(grouped_rows(spec.heads, shape)) {
            let rows = parts.iter().map(|(_, rows)| *rows as usize).sum();
            let part = |(first, rows): (u32, u32)| self.part(&info, first as usize, rows as usize);
            let parts = parts.into_iter().map(part).collect();
            self.push(&weight(name, layer), &info, rows, 1, parts);
        }
    }

    /// Gate and up of a shared expert that are one matrix.
    fn shared_pair(
        &mut self,
        from: &dyn Checkpoint,
        hf: &Names,
        gguf: &Names,
        spec: &ModelSpec,
        layer: u32,
    ) {
        let shared = spec.experts.and_then(|experts| experts.shared);
        let (Some(shared), None) = (shared, self.find(from, &weight(hf.shared_expert[0], layer)))
        else {
            return;
        };
        let ffn = shared.ffn as usize;
        let pair = self.find(from, &weight(hf.gate_up, layer)).cloned();
        let Some(pair) = pair.filter(|pair| pair.n == 2 * ffn) else {
            return;
        };
        for at in 0..2 {
            let parts = vec![self.part(&pair, at * ffn, ffn)];
            self.push(&weight(gguf.shared_expert[at], layer), &pair, ffn, 1, parts);
        }
    }

    /// The matrices of all experts, one tensor for each of gate, up and down.
    fn experts(
        &mut self,
        from: &dyn Checkpoint,
        hf: &Names,
        gguf: &Names,
        spec: &ModelSpec,
        layer: u32,
    ) {
        let Some(experts) = spec.experts else {
            return;
        };
        let count = experts.count as usize;
        for (template, gguf) in hf.experts.into_iter().zip(gguf.experts) {
            let each = (0..count).map(|expert| {
                let name = template.replace("[]", &expert.to_string());
                self.find(from, &weight(&name, layer)).cloned()
            });
            let Some(each) = each.collect::<Option<Vec<_>>>() else {
                continue;
            };
            if template.contains("[]") {
                let parts = each.iter().map(|info| self.part(info, 0, info.n)).collect();
                let name = weight(gguf, layer);
                self.push(&name, &each[0], each[0].n * count, count, parts);
            }
        }
        let [pair, down] = hf.fused_experts.map(|name| {
            self.find(from, &name.replace("{}", &layer.to_string()))
                .cloned()
        });
        let (width, dim) = (experts.ffn as usize, experts.latent.unwrap_or(spec.dim));
        // Transposed matrices, and those without gates, stay unused, and are refused.
        if let Some(pair) = pair.filter(|pair| spec.gated && pair.k == dim as usize) {
            for at in 0..2 {
                let firsts = (0..count).map(|expert| (2 * expert + at) * width);
                let parts = firsts.map(|first| self.part(&pair, first, width)).collect();
                let name = weight(gguf.experts[at], layer);
                self.push(&name, &pair, width * count, count, parts);
            }
        }
        if let Some(down) = down.filter(|down| down.k == width) {
            let parts = vec![self.part(&down, 0, down.n)];
            let name = weight(gguf.experts[2], layer);
            self.push(&name, &down, down.n, count, parts);
        }
    }

    /// The factors of rope, which configurations list or describe.
    fn factors(&mut self, from: &dyn Checkpoint, spec: &ModelSpec) -> Result<(), Error> {
        let half = spec.rope.rot / 2;
        match spec.rope.scaling {
            Scaling::Llama3 { .. } => {
                let plain = crate::Rope {
                    scaling: Scaling::None,
                    ..spec.rope
                };
                let (plain, _) = rope::frequencies(&plain, from, spec.context)?;
                let (scaled, _) = rope::frequencies(&spec.rope, from, spec.context)?;
                let factors = plain.iter().zip(scaled).map(|(f, slow)| f / slow);
                self.constant(&weight(names::GGUF.rope_factors, 0), factors.collect());
            }
            Scaling::Long { .. } => {
                for long in [true, false] {
                    let factors = rope::listed_factors(from, long, half)?;
                    self.constant(&long_factors(long), factors);
                }
            }
            _ => (),
        }
        Ok(())
    }

    fn constant(&mut self, name: &str, values: Vec<f32>) {
        self.infos.push(TensorInfo {
            name: name.into(),
            format: Format::F32,
            n: 1,
            k: values.len(),
            stack: 1,
        });
        self.sources.push(Source::Constant(values));
    }

    /// A tensor without a name in GGUF is part of the model, unless it is known to be none.
    fn refuse_others(&self, from: &dyn Checkpoint, spec: &ModelSpec) -> Result<(), Error> {
        let is_part = Keys::new(from, "").is_part();
        // The first draft layer is written, and further ones are left out.
        let written = |name: &str| {
            let own = self.renamed.as_ref().map(|[own, _]| own);
            own.is_some_and(|own| name.contains(own))
        };
        let unknown = from.tensors().iter().find(|tensor| {
            let name = &tensor.name;
            let other = is_part && names::is_of_other_modality(name)
                || names::is_of_draft_layer(name, spec.layers, spec.draft_layers) && !written(name)
                || names::is_leftover(name);
            !other && !self.used.contains(name)
        });
        match unknown {
            None => Ok(()),
            Some(tensor) => Err(Error::Tensor {
                origin: from.origin().into(),
                name: tensor.name.clone(),
                problem: format!(
                    "cannot be written as GGUF yet: {} has a tensor without a known name there",
                    spec.architecture
                ),
            }),
        }
    }
}

/// The names of a layer's weights in both dialects, of parts that the model has.
fn layer_names<'a>(hf: &'a Names, gguf: &'a Names, spec: &ModelSpec) -> Vec<(&'a str, &'a str)> {
    let shared = hf.shared_expert.into_iter().zip(gguf.shared_expert);
    let mut pairs: Vec<_> = match spec.experts {
        // Its matrices may have the names of a dense part.
        Some(experts) if experts.shared.is_some() => shared.collect(),
        _ => Vec::new(),
    };
    pairs.extend([
        (hf.attn_norm, gguf.attn_norm),
        (hf.q, gguf.q),
        (hf.k, gguf.k),
        (hf.v, gguf.v),
        (hf.q_norm, gguf.q_norm),
        (hf.k_norm, gguf.k_norm),
        (hf.o, gguf.o),
        (hf.qkv, gguf.qkv),
        (hf.attn_gate, gguf.attn_gate),
        (hf.gate, gguf.gate),
        (hf.up, gguf.up),
        (hf.gate_up, gguf.gate_up),
        (hf.down, gguf.down),
        (hf.router, gguf.router),
        (hf.shared_gate, gguf.shared_gate),
    ]);
    pairs.extend(hf.conv.into_iter().zip(gguf.conv));
    pairs.extend(hf.expert_latent.into_iter().zip(gguf.expert_latent));
    // One name of configurations means either norm.
    if spec.post_norm {
        pairs.push((hf.post_attn_norm, gguf.post_attn_norm));
        pairs.push((hf.post_ffn_norm, gguf.post_ffn_norm));
    }
    if spec.pre_norm {
        pairs.push((hf.ffn_norm, gguf.ffn_norm));
    }
    pairs
}
