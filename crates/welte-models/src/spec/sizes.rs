//! What follows from a spec: sizes of layers, parameters, a description.

use super::*;

impl ModelSpec {
    /// Segments of a text: a pair of texts has two, if the model distinguishes them.
    pub fn segments(&self, scores: bool) -> u32 {
        match &self.encoder {
            Some(encoder) if scores && encoder.positions.is_some() => encoder.types.clamp(1, 2),
            _ => 1,
        }
    }

    /// What features are multiplied by before rows read them: hidden states are kept without the factor of what layers add, and
    /// Granite multiplies features like embeddings.
    pub fn feature_scale(&self) -> f32 {
        // With several parts the model scales none.
        let one_part = self.deep_features.is_empty();
        let like_embeddings = self.architecture.starts_with("granite") && one_part;
        let own = if like_embeddings {
            self.embedding_scale
        } else {
            1.0
        };
        own / self.residual_scale
    }

    /// The longest context that may be chosen by itself: the trained one, or as much of it as is supported.
    pub fn usual_context(&self) -> u32 {
        self.indexed
            .map_or(self.context, |most| most.min(self.context))
    }

    /// What a program for contexts of this length computes: an indexer that chooses all positions is left out.
    pub(crate) fn within(&self, context: u32) -> ModelSpec {
        let mut spec = self.clone();
        spec.indexer = spec.indexer.filter(|indexer| context > indexer.used);
        spec
    }

    /// The sizes of a layer.
    pub fn shape(&self, layer: usize) -> LayerShape {
        let common = LayerShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            ffn: self.ffn,
        };
        self.layer_shapes.get(layer).copied().unwrap_or(common)
    }

    /// The limits of a layer's activations.
    pub fn limits(&self, layer: usize) -> Limits {
        self.limits.get(layer).copied().unwrap_or_default()
    }

    /// The layer whose keys and values a layer attends to.
    pub fn kv_source(&self, layer: usize) -> usize {
        self.kv_sources.get(layer).map_or(layer, |i| *i as usize)
    }

    /// True if features that attend to each other do so in layers with windows only.
    pub fn reaches_within_windows(&self) -> bool {
        self.causal_layers.contains(&true)
    }

    /// What mixes positions in a layer.
    pub(crate) fn kind(&self, layer: u32) -> LayerKind {
        let kind = self.layer_kinds.get(layer as usize).copied();
        kind.unwrap_or(LayerKind::Attention)
    }

    /// The epsilon of norms of the stream, which is kept divided by `residual_scale`.
    pub(crate) fn stream_eps(&self) -> f32 {
        self.eps / (self.residual_scale * self.residual_scale)
    }

    /// True if the layer has a feed-forward part.
    pub(crate) fn has_feed_forward(&self, layer: u32) -> bool {
        let some = self.shape(layer as usize).ffn > 0;
        some && (!self.alone || self.kind(layer) == LayerKind::None)
    }

    /// Floats of the widest row that a mixer's first projection yields.
    pub(crate) fn projected_width(&self) -> u32 {
        let conv = if self.conv_taps > 0 { 3 * self.dim } else { 0 };
        let delta = self.delta.map_or(0, |d| d.width());
        let mamba = self.mamba.map_or(0, |m| m.width());
        let layers = 0..self.layers as usize;
        let attention = layers.map(|i| self.attention_width(i)).max();
        attention.unwrap_or(1).max(delta).max(conv).max(mamba)
    }

    /// Floats of the widest row that a convolution yields, with what Mamba-1 puts after its channels.
    pub(crate) fn channels(&self) -> u32 {
        let conv = if self.conv_taps > 0 { self.dim } else { 0 };
        let mamba = self.mamba.map_or(0, |m| m.convolved());
        self.delta.map_or(0, |d| d.channels()).max(conv).max(mamba)
    }

    /// Values that a layer's mixer yields before its output matrix.
    pub(crate) fn mixed_width(&self) -> u32 {
        let delta = self.delta.map_or(0, |d| d.values());
        let mamba = self.mamba.map_or(0, |m| m.values());
        let layers = 0..self.layers as usize;
        let attention = layers.map(|i| self.shape(i).heads * self.shape(i).head_dim);
        attention.max().unwrap_or(1).max(delta).max(mamba)
    }

    /// Floats of a row of queries, of keys and values unless the layer shares them, and of the gates of the output.
    pub(crate) fn attention_width(&self, layer: usize) -> u32 {
        let shape = self.shape(layer);
        let own = u32::from(self.kv_source(layer) == layer);
        (shape.heads + 2 * own * shape.kv_heads) * shape.head_dim + self.gates(layer)
    }

    /// Gates of a layer's attention.
    pub(crate) fn gates(&self, layer: usize) -> u32 {
        let shape = self.shape(layer);
        match self.attention_gate {
            None => 0,
            Some(gate) if gate.per_head => shape.heads,
            Some(_) => shape.heads * shape.head_dim,
        }
    }

    /// The number of parameters, without biases.
    pub fn parameters(&self) -> u64 {
        let [dim, vocab] = [self.dim, self.vocab].map(u64::from);
        let attention = |layer: usize| {
            let shape = self.shape(layer);
            let head = u64::from(shape.head_dim);
            let q = u64::from(shape.heads) * head;
            let own = self.kv_source(layer) == layer;
            let kv = if own {
                u64::from(shape.kv_heads) * head
            } else {
                0
            };
            let values_are_keys = self.values_are_keys.get(layer).copied().unwrap_or(false);
            let gates = u64::from(self.gates(layer));
            let of_values = |all: u64| match self.value_dim {
                Some(value) => all / head * u64::from(value),
                None => all,
            };
            let values = if values_are_keys { 0 } else { of_values(kv) };
            let projections = gates + q + of_values(q) + kv + values;
            let norms = match self.qk_norm {
                QkNorm::None | QkNorm::Plain => 0,
                QkNorm::Head => {
                    if own {
                        2 * head
                    } else {
                        head
                    }
                }
                QkNorm::Row | QkNorm::Each => q + kv,
                QkNorm::LayerRow => 2 * (q + kv),
            };
            dim * projections + norms
        };
        let each = match self.norm {
            NormKind::Plain => 0,
            _ if self.alone => dim,
            _ => 2 * dim,
        };
        let norms = each * (u64::from(self.pre_norm) + u64::from(self.post_norm));
        let matrices = 2 + u64::from(self.gated);
        let dense = |layer: usize| matrices * dim * u64::from(self.shape(layer).ffn);
        let mixture = |layer: usize, e: Experts| {
            let shared = e.shared.map_or(0, |s| {
                matrices * dim * u64::from(s.ffn) + dim * u64::from(s.gated)
            });
            // Three norms, the scale of the router's input, and the scales of the experts.
            let beside = if e.beside {
                dense(layer) + 4 * dim + u64::from(e.count)
            } else {
                0
            };
            let (width, around) = match e.latent.map(u64::from) {
                Some(width) => (width, 2 * width * dim),
                None => (dim, 0),
            };
            let experts = u64::from(e.count) * (matrices * width * u64::from(e.ffn) + dim);
            experts + around + shared + beside
        };
        let part = |layer: usize| match self.experts {
            _ if !self.has_feed_forward(layer as u32) => 0,
            Some(e) if self.expert_layers.get(layer) == Some(&true) => mixture(layer, e),
            _ => dense(layer),
        };
        let latent = self.latent.map(|l| {
            let [width, rank, value] = [l.width(), l.rank, l.value].map(u64::from);
            let [heads, query] = [self.heads, l.query()].map(u64::from);
            let queries = match l.query_rank.map(u64::from) {
                Some(rank) => rank * (dim + 1 + heads * query),
                None => dim * heads * query,
            };
            let ups = heads * rank * (u64::from(l.plain) + value);
            let gates = match self.attention_gate {
                Some(_) => dim * heads * value,
                None => 0,
            };
            queries + dim * width + rank + ups + dim * heads * value + gates
        });
        let delta = self.delta.map_or(0, |d| {
            let [width, values, heads] = [d.width(), d.values(), d.heads].map(u64::from);
            let kernel = u64::from(d.channels()) * u64::from(d.taps);
            let common = each + dim * values + kernel + heads + u64::from(d.value_dim);
            if !d.by_channel {
                return common + dim * width + heads;
            }
            let [channels, ranks, key_dim] = [d.channels(), d.ranks(), d.key_dim].map(u64::from);
            let low = heads * key_dim * key_dim + values * u64::from(d.value_dim);
            common + dim * (channels + ranks + heads) + low + heads * key_dim
        });
        let mamba = self.mamba.map_or(0, |m| {
            let [width, values, heads] = [m.width(), m.values(), m.heads].map(u64::from);
            let kernel = u64::from(m.channels()) * u64::from(m.taps);
            let Some(s) = m.selective else {
                return each + dim * (width + values) + kernel + 3 * heads + values;
            };
            let [rank, keys] = [s.rank, m.keys_and_queries()].map(u64::from);
            let norms = match s.norms {
                SelectiveNorms::Weighted => rank + keys,
                _ => 0,
            };
            let products = values * (keys + rank) + rank * values;
            let decays = values * u64::from(m.key_dim);
            each + dim * 3 * values + kernel + products + decays + 2 * values + norms
        });
        let conv = norms + dim * (4 * dim + u64::from(self.conv_taps));
        let mixer = |layer: usize| match self.kind(layer as u32) {
            LayerKind::Attention => {
                // What runs beside it has the same norms.
                let beside = self.mamba.filter(|m| m.beside).map_or(0, |_| mamba - each);
                let chooses = |i: &&Indexer| i.chooses.get(layer) == Some(&true);
                let indexer = self.indexer.as_ref().filter(chooses).map_or(0, |i| {
                    let (heads, width) = (u64::from(i.heads), u64::from(i.head_dim));
                    let rank = self.latent.and_then(|l| l.query_rank).unwrap_or(0);
                    heads * width * u64::from(rank) + dim * u64::from(i.inputs()) + 2 * width
                });
                latent.unwrap_or(attention(layer)) + indexer + beside + norms
            }
            LayerKind::Delta => delta,
            LayerKind::Conv => conv,
            LayerKind::Mamba => mamba,
            LayerKind::None => norms,
        };
        let layers = u64::from(self.layers);
        let altup = self.altup.map_or(0, |a| {
            let [streams, rank] = [a.streams, a.rank].map(u64::from);
            let router = (streams + 2) * dim + streams.pow(3) + streams.pow(2);
            2 * (streams - 1) * dim * dim + layers * (router + 2 * rank * dim + dim)
        });
        let hyper = self.hyper.map_or(0, |h| {
            let streams = u64::from(h.streams);
            let gates = streams * streams * dim + streams + 1;
            (4 * layers + 1) * gates
        });
        let width = u64::from(self.per_layer_width);
        let per_layer = match width {
            0 => 0,
            _ => layers * width * (vocab + 3 * dim) + layers * dim + width,
        };
        let all = 0..self.layers as usize;
        all.map(|i| mixer(i) + part(i)).sum::<u64>()
            + per_layer
            + altup
            + hyper
            + layers * u64::from(self.layer_scalars)
            + dim * vocab * if self.tied { 1 } else { 2 }
            + dim
    }

    /// The facts that `welte inspect` shows, as names and values.
    pub fn facts(&self) -> Vec<(String, String)> {
        let windowed = self.windows.iter().filter(|w| **w > 0).count();
        let widest = self.windows.iter().max().copied().unwrap_or(0);
        let fact = |name: &str, value: String| (name.to_string(), value);
        let mut facts = vec![
            fact("architecture", self.architecture.clone()),
            fact(
                "parameters",
                format!("{:.2} M", self.parameters() as f64 / 1e6),
            ),
            fact("layers", self.layers.to_string()),
            fact("width", self.dim.to_string()),
        ];
        let of_attention = [
            fact(
                "heads",
                format!(
                    "{} ({} for keys and values) of {}",
                    self.heads, self.kv_heads, self.head_dim
                ),
            ),
            fact(
                "feed-forward",
                match self.experts {
                    None => format!("{} ({})", self.ffn, self.act.name()),
                    Some(e) => format!(
                        "{} of {} experts of {} ({})",
                        e.used,
                        e.count,
                        e.ffn,
                        self.act.name()
                    ),
                },
            ),
        ];
        let attends = self.layer_kinds.contains(&LayerKind::Attention);
        facts.extend(of_attention.into_iter().filter(|_| attends));
        facts.extend([
            fact(
                "vocabulary",
                format!("{}{}", self.vocab, if self.tied { ", tied" } else { "" }),
            ),
            fact("trained context", self.context.to_string()),
        ]);
        if attends {
            let text = format!("theta {}, {}", self.rope.theta, self.rope.scaling);
            facts.push(fact("rope", text));
        }
        match self.qk_norm {
            QkNorm::None => (),
            QkNorm::Head => facts.push(fact("query and key norm", "per head".into())),
            QkNorm::Row => facts.push(fact("query and key norm", "per row".into())),
            QkNorm::LayerRow => {
                facts.push(fact("query and key norm", "per row, layer norm".into()));
            }
            QkNorm::Plain => {
                let text = "per head, without weights";
                facts.push(fact("query and key norm", text.into()));
            }
            QkNorm::Each => {
                let text = "layer norm, own weights of each head";
                facts.push(fact("query and key norm", text.into()));
            }
        }
        let norm = match self.norm {
            NormKind::Rms => None,
            NormKind::Layer { bias: true } => Some("with bias"),
            NormKind::Layer { bias: false } => Some("without bias"),
            NormKind::Plain => Some("without weights"),
        };
        facts.extend(norm.map(|text| fact("layer norm", text.into())));
        if self.parallel {
            facts.push(fact("attention and feed-forward", "in parallel".into()));
        }
        if let Some(scale) = &self.position_scale {
            let (beta, original) = (scale.beta, scale.original);
            let text = format!("by {beta} from {original} positions");
            facts.push(fact("queries grow", text));
        }
        if let Some(l) = self.latent {
            let text = format!(
                "latent {}, rotated {}, queries of {}, values of {}",
                l.rank,
                l.rope,
                l.query(),
                l.value
            );
            facts.push(fact("attention over latents", text));
        }
        if let Some(most) = self.indexed {
            let text = format!("{most} positions, the longest context");
            facts.push(fact("indexer", text));
        }
        if let Some(indexer) = &self.indexer {
            let choosing = indexer.chooses.iter().filter(|own| **own).count();
            let mut text = format!(
                "{} positions, {} heads of {}",
                indexer.used, indexer.heads, indexer.head_dim
            );
            if choosing < indexer.chooses.len() {
                text += &format!(", in {choosing} layers");
            }
            facts.push(fact("indexer", text));
        }
        if let Some(shared) = self.experts.and_then(|e| e.shared) {
            facts.push(fact("shared expert", shared.ffn.to_string()));
        }
        if self.draft_layers > 0 {
            facts.push(fact(
                "layers that guess ahead",
                self.draft_layers.to_string(),
            ));
        }
        if !self.pre_norm || self.post_norm {
            let norms = if self.pre_norm {
                "before and after each part"
            } else {
                "after each part"
            };
            facts.push(fact("norms", norms.into()));
        }
        let still = self.layer_ropes.iter().filter(|r| **r == LayerRope::None);
        match still.count() {
            0 => (),
            _ if !attends => (),
            n => facts.push(fact("layers without rope", n.to_string())),
        }
        if let Some(rope) = &self.local_rope {
            let text = format!("theta {}, {}", rope.theta, rope.scaling);
            facts.push(fact("rope of windowed layers", text));
        }
        if !self.layer_shapes.is_empty() {
            let each = |shape: &LayerShape| format!("{} of {}", shape.kv_heads, shape.head_dim);
            let mut kinds: Vec<String> = self.layer_shapes.iter().map(each).collect();
            kinds.sort_unstable();
            kinds.dedup();
            facts.push(fact("heads of keys and values by layer", kinds.join(", ")));
        }
        let shared = (0..self.layers as usize).filter(|i| self.kv_source(*i) != *i);
        match shared.count() {
            0 => (),
            n => facts.push(fact(
                "layers without keys and values of their own",
                n.to_string(),
            )),
        }
        if self.per_layer_width > 0 {
            let width = self.per_layer_width.to_string();
            facts.push(fact("width of the embeddings per layer", width));
        }
        if let Some(a) = self.altup {
            let text = format!("{}, a path of rank {}", a.streams, a.rank);
            facts.push(fact("streams", text));
        }
        match self.cutoffs.iter().flatten().count() {
            0 => (),
            n => facts.push(fact("layers with sparse activations", n.to_string())),
        }
        let count = |kind| self.layer_kinds.iter().filter(|k| **k == kind).count();
        match count(LayerKind::None) {
            0 => (),
            n => facts.push(fact("feed-forward layers", n.to_string())),
        }
        if self.conv_taps > 0 {
            let text = format!("{} layers, {} taps", count(LayerKind::Conv), self.conv_taps);
            facts.push(fact("convolutions", text));
        }
        if let Some(m) = self.mamba {
            let layers = match m.beside {
                true => self.layers as usize,
                false => count(LayerKind::Mamba),
            };
            let (name, text) = match m.selective {
                None => (
                    "Mamba-2",
                    format!(
                        "{layers} layers, {} heads of {} x {} in {} groups, {} taps",
                        m.heads, m.key_dim, m.value_dim, m.groups, m.taps
                    ),
                ),
                Some(s) => (
                    "Mamba-1",
                    format!(
                        "{layers} layers, {} channels with states of {}, time steps of rank {}, {} taps",
                        m.values(),
                        m.key_dim,
                        s.rank,
                        m.taps
                    ),
                ),
            };
            facts.push(fact(name, text));
        }
        if let Some(d) = self.delta {
            let text = format!(
                "{} layers, {} heads of {} x {} ({} for keys), {} taps{}",
                count(LayerKind::Delta),
                d.heads,
                d.key_dim,
                d.value_dim,
                d.key_heads,
                d.taps,
                if d.by_channel {
                    ", decays by channel"
                } else {
                    ""
                }
            );
            facts.push(fact("gated delta rule", text));
        }
        let limited = self.limits.iter().filter(|l| **l != Limits::default());
        match limited.count() {
            0 => (),
            n => facts.push(fact("layers with limited activations", n.to_string())),
        }
        match self.sinks.iter().filter(|sinks| **sinks).count() {
            0 => (),
            n if n == self.layers as usize => {
                facts.push(fact("attention sinks", "one per head".into()));
            }
            n => facts.push(fact(
                "attention sinks",
                format!("one per head in {n} layers"),
            )),
        }
        if let Some(value) = self.value_dim {
            facts.push(fact("elements of a value", value.to_string()));
        }
        if windowed > 0 {
            let what = match self.chunks {
                true => "attention within chunks",
                false => "attention window",
            };
            facts.push(fact(what, format!("{widest} in {windowed} layers")));
        }
        facts
    }
}
