//! A Hugging Face checkpoint read as the GGUF file of the same model.
//!
//! The reader of an architecture knows each key and each tensor by its names in both dialects, so it also translates: what it asks for
//! under two names is copied, the rest is written from the spec. Then the result is read as any GGUF file. A spec that differs from the
//! original's is an error, so an architecture that cannot be translated yet is refused and never changed.

mod delta;
pub(crate) mod directory;
mod keys;
mod latent;
mod mamba;
pub(crate) mod mmproj;
pub(crate) mod translated;

use crate::arch::Architecture;
use crate::draft::DraftNames;
use crate::keys::Keys;
use crate::names::{self, Names, TransposedExperts, bias, weight};
use crate::read::{read, read_keys};
use crate::rope::{self, long_factors};
use crate::spec::Scaling;
use crate::weights::grouped_rows;
use crate::{Error, LayerKind, Mamba, ModelSpec, QkNorm};
use std::fmt::Debug;
use translated::{Change, Order, Source, Tensors, Translated};
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, TensorInfo, Value};

/// What a checkpoint of the other dialect is, and its keys in GGUF.
struct Described {
    arch: &'static Architecture,
    /// The architecture's name in GGUF.
    name: &'static str,
    spec: ModelSpec,
    draft: Option<DraftNames>,
    metadata: Metadata,
}

fn describe(from: &dyn Checkpoint) -> Result<Described, Error> {
    let (arch, said) = Architecture::of(from)?;
    let keys = Keys::new(from, &said);
    let spec = read_keys(&keys, arch, &said)?;
    // Some architectures have another name with experts, and some the configuration's.
    let said_there = match said.as_str() {
        "glm_moe_dsa" => "glm-dsa",
        other => other,
    };
    let same = |name: &&&str| **name == said_there;
    let mixed = |name: &&&str| name.ends_with("moe") == spec.experts.is_some();
    let all = || arch.gguf.iter();
    let named = all().find(same).or(all().find(mixed)).or(arch.gguf.first());
    let Some(name) = named else {
        let problem = format!("{said} has no form in GGUF");
        return Err(keys.error("model_type", problem));
    };
    let draft = spec.draft(from)?.map(|draft| draft.names);
    let mut metadata = keys::noted(&keys, name);
    keys::write_spec(&mut metadata, &spec, name);
    if draft.is_some() {
        // Files count it among the layers.
        let layers = u64::from(spec.layers) + 1;
        metadata.insert(format!("{name}.block_count"), Value::U64(layers));
        metadata.insert(format!("{name}.nextn_predict_layers"), Value::U64(1));
    }
    Ok(Described {
        arch,
        name,
        spec,
        draft,
        metadata,
    })
}

/// The keys that describe a model, by their names in GGUF: a file's own, without those of its text, and a directory's as a file would
/// have them.
pub fn gguf_keys(checkpoint: &dyn Checkpoint) -> Result<Metadata, Error> {
    if checkpoint.dialect() == Dialect::HuggingFace {
        return Ok(describe(checkpoint)?.metadata);
    }
    let all = checkpoint.metadata().iter();
    let of_model = all.filter(|(key, _)| !key.starts_with("tokenizer."));
    Ok(of_model
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect())
}

/// Reads a Hugging Face checkpoint as a GGUF file. `extra` has the metadata of its vocabulary, and replaces what the translation writes.
pub fn as_gguf(from: Box<dyn Checkpoint>, extra: Metadata) -> Result<Translated, Error> {
    let Described {
        arch,
        name,
        spec,
        draft,
        mut metadata,
    } = describe(from.as_ref())?;
    let tensors = OfModel::of(from.as_ref(), arch, &spec, draft.as_ref())?;
    metadata.extend(extra);
    let mut gguf = Translated::new(from, Dialect::Gguf, metadata, tensors.all);
    for (name, order) in &tensors.reordered {
        if let Some(Source::Rows { order: at, .. }) = gguf.source_mut(name) {
            *at = Some(*order);
        }
    }
    let read_back = read(&gguf, arch, name)?;
    same(&gguf, &spec, &read_back)?;
    gguf.adjust(arch, &spec, &read_back);
    gguf.tile(&spec, &read_back)?;
    Ok(gguf)
}

impl Translated {
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
            let heads = shape.heads + shape.kv_heads;
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
        let draft = DraftNames::written(spec.layers, &spec.architecture);
        let of_draft = draft.own().into_iter().take(3);
        let of_draft = of_draft.map(|norm| format!("{norm}.weight"));
        for name in of_layers.chain(of_draft) {
            if let Some(Source::Rows { change, .. }) = self.source_mut(&name) {
                let plain = spec.plain_final_norm && name == weight(gguf.final_norm, 0);
                *change = Change::Add(if plain { 0.0 } else { more });
            }
        }
    }
}

/// An error if the translation reads as another model. What the dialects store differently may differ.
fn same(gguf: &Translated, spec: &ModelSpec, read_back: &ModelSpec) -> Result<(), Error> {
    let mut expected = ModelSpec {
        draft_layers: spec.draft_layers.min(read_back.draft_layers),
        norm_add: read_back.norm_add,
        ..spec.clone()
    };
    // The rows of queries and keys can change places, those of latents cannot.
    if spec.latent.is_none() {
        expected.rope.interleaved = read_back.rope.interleaved;
    }
    if (expected.attention_scale - read_back.attention_scale).abs() < 1e-6 * spec.attention_scale {
        expected.attention_scale = read_back.attention_scale;
    }
    // GGUF has one epsilon for all norms.
    let selective = |mamba: Option<Mamba>| mamba.and_then(|m| m.selective);
    if let (Some(mamba), Some(other)) = (&mut expected.mamba, selective(read_back.mamba))
        && let Some(own) = &mut mamba.selective
    {
        own.eps = other.eps;
    }
    if let (Some(delta), Some(other)) = (&mut expected.delta, &read_back.delta) {
        delta.tiled = other.tiled;
    }
    if let (Some(local), Some(other)) = (&mut expected.local_rope, &read_back.local_rope) {
        local.interleaved = other.interleaved;
    }
    match (&mut expected.rope.scaling, &read_back.rope.scaling) {
        (scaling @ Scaling::Llama3 { .. }, Scaling::Factors) => *scaling = Scaling::Factors,
        // Pairs that are not rotated have a factor that stops them.
        (scaling @ Scaling::Proportional { .. }, Scaling::Factors) => *scaling = Scaling::Factors,
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
    let (ours, theirs) = differing(&expected, read_back);
    Err(Error::Key {
        origin: gguf.origin().into(),
        key: spec.architecture.clone(),
        problem: format!("cannot be written as GGUF yet: '{ours}' would be read as '{theirs}'"),
    })
}

/// The first field in which two specs differ, as a reader of an error would look for it.
fn differing<S: Debug>(ours: &S, theirs: &S) -> (String, String) {
    let (ours, theirs) = (format!("{ours:#?}"), format!("{theirs:#?}"));
    let mut lines = ours.lines().zip(theirs.lines());
    let differs = lines.find(|(ours, theirs)| ours != theirs);
    let (ours, theirs) = differs.unwrap_or(("more fields", "fewer fields"));
    let plain = |line: &str| line.trim().trim_end_matches(',').to_string();
    (plain(ours), plain(theirs))
}

/// The tensors of a model in GGUF.
#[derive(Default)]
struct OfModel {
    all: Tensors,
    /// What the names of a draft layer begin with, and would begin with if it were a layer like the others.
    renamed: Option<[String; 2]>,
    /// Tensors whose rows change places.
    reordered: Vec<(String, Order)>,
}

impl OfModel {
    fn of(
        from: &dyn Checkpoint,
        arch: &Architecture,
        spec: &ModelSpec,
        draft: Option<&DraftNames>,
    ) -> Result<OfModel, Error> {
        let (hf, gguf) = (&arch.hugging_face_names, &arch.gguf_names);
        let mut all = OfModel::default();
        all.pair(from, hf.embed, gguf.embed, 0);
        let layers = spec.layers + u32::from(draft.is_some());
        if let Some(draft) = draft {
            let numbered = format!("model.layers.{}.", spec.layers);
            all.renamed = Some([draft.layer.clone(), numbered]);
            let own = draft.own().map(|name| format!("{name}.weight"));
            let gguf = DraftNames::written(spec.layers, &spec.architecture);
            for (hf, gguf) in own.iter().zip(gguf.own()) {
                all.one(from, hf, &format!("{gguf}.weight"));
            }
        }
        for layer in 0..layers {
            all.shared_pair(from, hf, gguf, spec, layer);
            if spec.qk_norm == QkNorm::Each {
                all.own_norms(from, hf, gguf, spec, layer);
            }
            if hf.grouped_qkv && spec.biases.qkv {
                all.reordered_qkv(from, hf.qkv, gguf.qkv, spec, layer);
            } else if hf.grouped_qkv {
                all.ungrouped_qkv(from, hf.qkv, gguf, spec, layer);
            }
            if spec.kind(layer) == LayerKind::Conv {
                let [own, name] = [hf.conv[1], gguf.conv[1]].map(|name| weight(name, layer));
                all.kernel(from, &own, &name);
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
            all.mamba(from, spec, layer);
            all.latent(from, spec, layer);
        }
        all.pair(from, hf.final_norm, gguf.final_norm, 0);
        if spec.tied {
            let name = names::resolve(from, &weight(hf.head, 0));
            all.all.used.insert(name);
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
        if self.all.used.contains(&info.name) {
            return;
        }
        let parts = vec![self.all.part(info, 0, info.n)];
        self.all.push(gguf, info, info.n, 1, parts);
    }

    /// A tensor of the original, if it has one of this name.
    fn find<'a>(&self, from: &'a dyn Checkpoint, name: &str) -> Option<&'a TensorInfo> {
        let draft = self.renamed.as_ref();
        let draft =
            draft.and_then(|[own, like]| Some(format!("{own}{}", name.strip_prefix(like)?)));
        let name = draft.as_deref().unwrap_or(name);
        from.tensor(&names::resolve(from, name))
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
        let shape = spec.shape(layer as usize);
        let both = [
            (hf.q_norm, gguf.q_norm, shape.heads),
            (hf.k_norm, gguf.k_norm, shape.kv_heads),
        ];
        for (own, name, heads) in both {
            let each = (0..heads).map(|head| {
                let own = weight(&format!("{own}.norms.{head}"), layer);
                self.find(from, &own).cloned()
            });
            let Some(each) = each.collect::<Option<Vec<_>>>() else {
                continue;
            };
            let parts = each.iter().map(|info| self.all.part(info, 0, 1)).collect();
            self.all
                .push(&weight(name, layer), &each[0], heads as usize, 1, parts);
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
        if info.n as u32 != (shape.heads + 2 * shape.kv_heads) * shape.head_dim {
            // It stays unused and is refused.
            return;
        }
        let names = [gguf.q, gguf.k, gguf.v];
        for (name, parts) in names.into_iter().zip(grouped_rows(shape)) {
            let rows = parts.iter().map(|(_, rows)| *rows as usize).sum();
            let part =
                |(first, rows): (u32, u32)| self.all.part(&info, first as usize, rows as usize);
            let parts = parts.into_iter().map(part).collect();
            self.all.push(&weight(name, layer), &info, rows, 1, parts);
        }
    }

    /// The same as one tensor, with its bias.
    fn reordered_qkv(
        &mut self,
        from: &dyn Checkpoint,
        qkv: &str,
        gguf: &str,
        spec: &ModelSpec,
        layer: u32,
    ) {
        self.pair(from, qkv, gguf, layer);
        let shape = spec.shape(layer as usize);
        let ungrouped = Order::Ungrouped {
            heads: shape.heads as usize,
            groups: shape.kv_heads as usize,
            head: shape.head_dim as usize,
        };
        self.reordered
            .extend([weight(gguf, layer), bias(gguf, layer)].map(|name| (name, ungrouped)));
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
            let parts = vec![self.all.part(&pair, at * ffn, ffn)];
            self.all
                .push(&weight(gguf.shared_expert[at], layer), &pair, ffn, 1, parts);
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
                let parts = each
                    .iter()
                    .map(|info| self.all.part(info, 0, info.n))
                    .collect();
                let name = weight(gguf, layer);
                self.all
                    .push(&name, &each[0], each[0].n * count, count, parts);
            } else if !spec.biases.experts {
                let whole = &each[0];
                let parts = vec![self.all.part(whole, 0, whole.n)];
                self.all
                    .push(&weight(gguf, layer), whole, whole.n, count, parts);
            }
        }
        let [pair, down] = hf.fused_experts.map(|name| {
            self.find(from, &name.replace("{}", &layer.to_string()))
                .cloned()
        });
        let (width, dim) = (experts.ffn as usize, experts.latent.unwrap_or(spec.dim));
        if hf.transposed_experts == TransposedExperts::Published
            && let (Some(pair), Some(down)) = (&pair, &down)
            && (pair.k, down.k) == (2 * width, dim as usize)
        {
            for (at, first) in [0, width].into_iter().enumerate() {
                let name = weight(gguf.experts[at], layer);
                self.columns(&name, pair, (first, width), (count, pair.n / count));
            }
            let name = weight(gguf.experts[2], layer);
            self.columns(&name, down, (0, down.k), (count, width));
            return;
        }
        // Matrices without gates stay unused, and are refused.
        if let Some(pair) = pair.filter(|pair| spec.gated && pair.k == dim as usize) {
            for at in 0..2 {
                let firsts = (0..count).map(|expert| (2 * expert + at) * width);
                let parts = firsts
                    .map(|first| self.all.part(&pair, first, width))
                    .collect();
                let name = weight(gguf.experts[at], layer);
                self.all.push(&name, &pair, width * count, count, parts);
            }
        }
        if let Some(down) = down.filter(|down| down.k == width) {
            let parts = vec![self.all.part(&down, 0, down.n)];
            let name = weight(gguf.experts[2], layer);
            self.all.push(&name, &down, down.n, count, parts);
        }
    }

    /// Columns of each of the matrices that lie one below the other in a tensor, as rows: of so many, the first rows. What is not a row of
    /// numbers stays unused.
    fn columns(
        &mut self,
        name: &str,
        info: &TensorInfo,
        (first, columns): (usize, usize),
        (count, rows): (usize, usize),
    ) {
        if info.format.bytes(1).is_none() {
            return;
        }
        let parts = vec![self.all.part(info, 0, info.n)];
        self.all.push(name, info, columns * count, count, parts);
        if let Some((made, source)) = self.all.last() {
            made.k = rows;
            *source = Source::Transposed {
                tensor: info.name.clone(),
                first,
                columns,
                step: info.n / count,
            };
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
                let mut factors: Vec<f32> = factors.collect();
                // One for each pair that any layer rotates.
                let most = spec.local_rope.map_or(0, |local| local.rot / 2);
                factors.resize(factors.len().max(most as usize), 1.0);
                self.all
                    .constant(&weight(names::GGUF.rope_factors, 0), factors);
            }
            Scaling::Proportional { .. } => {
                let plain = crate::Rope {
                    scaling: Scaling::None,
                    ..spec.rope
                };
                let (plain, _) = rope::frequencies(&plain, from, spec.context)?;
                let (scaled, _) = rope::frequencies(&spec.rope, from, spec.context)?;
                let factor = |(f, slow): (&f32, f32)| if slow == 0.0 { 1e30 } else { f / slow };
                let factors = plain.iter().zip(scaled).map(factor).collect();
                self.all
                    .constant(&weight(names::GGUF.rope_factors, 0), factors);
            }
            Scaling::Long { .. } => {
                for long in [true, false] {
                    let factors = rope::listed_factors(from, long, half)?;
                    self.all.constant(&long_factors(long), factors);
                }
            }
            _ => (),
        }
        Ok(())
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
            !other && !self.all.used.contains(name)
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
