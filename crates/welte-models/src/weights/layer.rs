//! The weights of a model as its commands know them, and those of a layer.

use super::{
    AltUpLayer, AltUpWeights, Collector, DeltaWeights, EncoderWeights, ExpertWeights, HyperWeights,
    LatentWeights, MambaWeights, NormWeights, OutputPart, PerLayerLayer, PerLayerWeights,
    RopeConstants, Rows, ValueWeights, delta, latent, mamba, values,
};
use crate::names::{Names, bias, weight};
use crate::{Error, LayerKind, LayerShape, ModelSpec, QkNorm};
use welte_formats::quant;
use welte_table::{NO_WEIGHT, Usage, WeightId};

/// The weights of one layer. Q, K and V of one format form one piece, and so do gate and up.
pub(crate) struct Layer {
    pub(crate) attn_norm: Option<NormWeights>,
    pub(crate) qkv: Vec<OutputPart>,
    pub(crate) qkv_bias: Vec<OutputPart>,
    pub(crate) q_norm: Option<WeightId>,
    /// The biases of these norms, if they have some.
    pub(crate) q_norm_bias: Option<WeightId>,
    pub(crate) k_norm_bias: Option<WeightId>,
    /// The weight of norms whose own are factors afterwards.
    pub(crate) head_ones: Option<WeightId>,
    pub(crate) k_norm: Option<WeightId>,
    /// [`NO_WEIGHT`] if the layer mixes nothing.
    pub(crate) o: WeightId,
    pub(crate) o_bias: Vec<OutputPart>,
    pub(crate) sinks: Option<WeightId>,
    pub(crate) post_attn_norm: Option<NormWeights>,
    /// The norm of this one's result and the layer's input.
    pub(crate) second_norm: Option<NormWeights>,
    /// None if the layer has no such norm, or if both parts read the same.
    pub(crate) ffn_norm: Option<NormWeights>,
    pub(crate) gate_up: Vec<OutputPart>,
    pub(crate) gate_up_bias: Vec<OutputPart>,
    /// None in layers with experts.
    pub(crate) down: Option<WeightId>,
    pub(crate) down_bias: Vec<OutputPart>,
    pub(crate) post_ffn_norm: Option<NormWeights>,
    /// Of attention over latents. Their output is `o`.
    pub(crate) latent: Option<LatentWeights>,
    /// Replace gate, up and down, or run beside them.
    pub(crate) experts: Option<ExpertWeights>,
    pub(crate) per_layer: Option<PerLayerLayer>,
    pub(crate) altup: Option<AltUpLayer>,
    /// The gates of streams for what mixes positions, and for the feed-forward part.
    pub(crate) hyper: Option<[HyperWeights; 2]>,
    /// Makes the gates of what attention over latents yields.
    pub(crate) gates: Option<WeightId>,
    /// Gates are cut off this many standard deviations above their mean.
    pub(crate) cutoff: Option<f32>,
    /// Factor of the layer's output.
    pub(crate) scalar: f32,
    /// Of layers with the gated delta rule. Their projections are `qkv` and `o`.
    pub(crate) delta: Option<DeltaWeights>,
    /// Of layers with the state space model. Their projections are `qkv` and `o`.
    pub(crate) mamba: Option<MambaWeights>,
    /// The kernel of a convolution between gates. Its projections are `qkv` and `o`.
    pub(crate) conv: Option<WeightId>,
    /// Of values narrower than keys.
    pub(crate) values: Option<ValueWeights>,
}

/// All weights of a model.
pub(crate) struct Weights {
    pub(crate) embed: WeightId,
    pub(crate) rope_constants: RopeConstants,
    /// For layers with an attention window.
    pub(crate) local_rope_constants: RopeConstants,
    pub(crate) per_layer: Option<PerLayerWeights>,
    pub(crate) altup: Option<AltUpWeights>,
    /// The gates of the sum of streams after the last layer.
    pub(crate) hyper: Option<HyperWeights>,
    pub(crate) layers: Vec<Layer>,
    /// Encoders may have none.
    pub(crate) final_norm: Option<NormWeights>,
    pub(crate) head: WeightId,
    /// The two rows that score a pair of texts, in programs that do.
    pub(crate) scores: Option<WeightId>,
    /// Empty for decoders.
    pub(crate) encoder: EncoderWeights,
    pub(crate) head_bias: Vec<OutputPart>,
    /// The model's own draft layer, in programs that guess with it.
    pub(crate) draft: Option<Box<DraftWeights>>,
}

/// The weights of the draft layer, and those around it.
pub(crate) struct DraftWeights {
    /// The layer, with the embedding that it reads, its last norm and its head.
    pub(crate) model: Weights,
    /// The norms of what the embedding yields and of the hidden state that it reads.
    pub(crate) norms: Option<[NormWeights; 2]>,
    /// From both, one after the other, to the stream. With taps: from these to a hidden state.
    pub(crate) join: WeightId,
    pub(crate) taps: Option<TapWeights>,
    /// From an assistant's hidden state to the width of the model's.
    pub(crate) up: Option<WeightId>,
    pub(crate) eagle: Option<EagleWeights>,
    pub(crate) block: Option<BlockWeights>,
    /// Tokens of the model.
    pub(crate) vocab: u32,
    /// Where the head has each of them, if it knows a part.
    pub(crate) map: Option<WeightId>,
}

/// What joins hidden states of several layers of the model.
pub(crate) struct TapWeights {
    /// Layers of the model whose inputs they are.
    pub(crate) layers: Vec<u32>,
    /// Their norm.
    pub(crate) norm: Option<NormWeights>,
    /// Width of the result.
    pub(crate) dim: u32,
    /// The epsilon of norms.
    pub(crate) eps: f32,
}

/// What only EAGLE-3 has.
pub(crate) struct EagleWeights {
    /// The layer adds to the normed hidden state.
    pub(crate) adds_to_norm: bool,
}

/// What only drafters of blocks have. In their layers keys and values are pieces apart from queries.
pub(crate) struct BlockWeights {
    /// The norm of the joined taps.
    pub(crate) hidden_norm: NormWeights,
    /// The drafter as a model.
    pub(crate) spec: ModelSpec,
}

/// Collects the weights of a layer.
pub(super) fn layer(
    c: &mut Collector<'_>,
    spec: &ModelSpec,
    names: &Names,
    i: u32,
) -> Result<Layer, Error> {
    let shape = spec.shape(i as usize);
    let (head_dim, ffn) = (shape.head_dim, shape.ffn);
    let (q, kv) = (shape.heads * head_dim, shape.kv_heads * head_dim);
    let (dim, b) = (spec.dim, spec.biases);
    let own_kv = spec.kv_source(i as usize) == i as usize;
    let label = |what: &str| format!("layer {i} {what}");
    let w = |template: &str| weight(template, i);
    let one = |on: bool, template: &str, n: u32| [(on, bias(template, i), n)];
    let norm = |c: &mut Collector<'_>, on: bool, what: &str, template: &str| {
        if on {
            c.norm(&label(what), template, i, spec).map(Some)
        } else {
            Ok(None)
        }
    };
    let each = spec.qk_norm == QkNorm::Each;
    let head_norm = |c: &mut Collector<'_>, on: bool, what: &str, template: &str, k: u32| {
        if on {
            if each {
                return c
                    .own_norms(&label(what), template, i, [k / head_dim, head_dim])
                    .map(Some);
            }
            let tensor = [(w(template), k)];
            c.vector(&label(what), &tensor, spec.norm_add).map(Some)
        } else {
            Ok(None)
        }
    };
    let (qk, q_width, k_width) = match spec.qk_norm {
        QkNorm::None | QkNorm::Plain => (false, 0, 0),
        QkNorm::Head => (true, head_dim, head_dim),
        QkNorm::Row | QkNorm::Each | QkNorm::LayerRow => (true, q, kv),
    };
    let delta = spec.delta.filter(|_| spec.kind(i) == LayerKind::Delta);
    let delta = delta.map(|d| (d, delta::names(c.checkpoint, d.by_channel)));
    let conv = (spec.kind(i) == LayerKind::Conv).then_some(names.conv);
    let mamba = spec
        .mamba
        .filter(|m| m.beside || spec.kind(i) == LayerKind::Mamba);
    let mamba = mamba.map(|m| (m, mamba::names(c.checkpoint, spec.alone)));
    let mixes = spec.kind(i) != LayerKind::None;
    let (qkv, o_name, o_width) = match (&delta, &mamba, conv, spec.latent) {
        (Some((d, names)), ..) => (delta::rows(c, names, i, d), w(names.out), d.values()),
        (_, Some((m, names)), ..) if !m.beside => {
            (mamba::rows(names, i, m), w(names.out), m.values())
        }
        (_, _, Some([project, _, out]), _) => (vec![Rows::all(w(project), 3 * dim)], w(out), dim),
        (.., Some(l)) => (Vec::new(), w(names.o), spec.heads * l.value),
        _ if !mixes => (Vec::new(), String::new(), 0),
        _ => {
            let values = spec.value_dim.unwrap_or(head_dim);
            let rows = attention_rows(c, spec, names, i);
            (rows, w(names.o), shape.heads * values)
        }
    };
    let qk = qk && spec.kind(i) == LayerKind::Attention;
    let shifted = spec.qk_norm == QkNorm::LayerRow;
    let head_bias = |c: &mut Collector<'_>, what: &str, template: &str, k: u32| {
        let tensor = [(bias(template, i), k)];
        let shift = shifted.then(|| c.vector(&label(what), &tensor, 0.0));
        shift.transpose()
    };
    let encoder = spec.encoder.as_ref();
    let (second_norm, up_first) = encoder.map_or((false, false), |e| (e.second_norm, e.up_first));
    let gate_up = if !spec.gated {
        vec![(w(names.up), ffn)]
    } else if !c.has(&w(names.gate)) && c.has(&w(names.gate_up)) {
        vec![(w(names.gate_up), 2 * ffn)]
    } else {
        vec![(w(names.gate), ffn), (w(names.up), ffn)]
    };
    let (pre, post) = (spec.pre_norm, spec.post_norm);
    let normed = i == 0 && spec.encoder.as_ref().is_some_and(|e| e.first_is_normed);
    let qkv_bias = if b.qkv {
        one(true, names.qkv, q + 2 * kv).to_vec()
    } else {
        vec![
            (b.q, bias(names.q, i), q),
            (b.k, bias(names.k, i), kv),
            (b.v, bias(names.v, i), kv),
        ]
    };
    let mixed = spec.expert_layers.get(i as usize).copied();
    let experts = spec.experts.filter(|_| mixed.unwrap_or(false));
    let feeds = spec.has_feed_forward(i);
    let plain = feeds && experts.is_none_or(|e| e.beside);
    Ok(Layer {
        attn_norm: norm(
            c,
            pre && mixes && !normed,
            "attention norm",
            names.attn_norm,
        )?,
        qkv: match c.keys_apart {
            true => c.keys_apart_rows(&label("qkv"), &qkv, dim)?,
            false => c.joined_rows(&label("qkv"), &qkv, dim)?,
        },
        qkv_bias: match c.keys_apart {
            _ if b.qkv && names.grouped_qkv => {
                grouped_bias(c, &label("qkv bias"), &bias(names.qkv, i), shape)?
            }
            true => c.keys_apart_biases(&label("qkv bias"), &qkv_bias)?,
            false => c.biases(&label("qkv bias"), &qkv_bias)?,
        },
        q_norm: head_norm(c, qk, "query norm", names.q_norm, q_width)?,
        q_norm_bias: head_bias(c, "query norm bias", names.q_norm, q_width)?,
        k_norm_bias: head_bias(c, "key norm bias", names.k_norm, k_width)?,
        head_ones: (qk && each).then(|| c.ones(&label("norm of a head"), head_dim)),
        k_norm: head_norm(c, qk && own_kv, "key norm", names.k_norm, k_width)?,
        o: if mixes {
            let what = label("attention output");
            c.matrix(&what, Usage::Matrix, &o_name, dim, o_width)?
        } else {
            NO_WEIGHT
        },
        latent: match spec.latent.filter(|_| spec.kind(i) == LayerKind::Attention) {
            Some(l) => Some(latent::collect(c, spec, l, i)?),
            None => None,
        },
        o_bias: c.biases(&label("attention output bias"), &one(b.o, names.o, dim))?,
        sinks: if spec.sinks.get(i as usize) == Some(&true) {
            let tensor = [(names.sinks.replace("{}", &i.to_string()), shape.heads)];
            Some(c.vector(&label("attention sinks"), &tensor, 0.0)?)
        } else {
            None
        },
        post_attn_norm: norm(c, post, "norm after attention", names.post_attn_norm)?,
        second_norm: norm(
            c,
            second_norm,
            "second norm after attention",
            names.ffn_norm,
        )?,
        ffn_norm: norm(
            c,
            pre && feeds && (!spec.parallel || spec.own_norms),
            "feed-forward norm",
            names.ffn_norm,
        )?,
        gate_up: if plain && up_first {
            // Commands have the gate first.
            let half = |first| Rows {
                tensor: w(names.gate_up),
                of: 2 * ffn,
                first,
                rows: ffn,
            };
            c.joined_rows(&label("gate and up"), &[half(ffn), half(0)], dim)?
        } else if plain {
            c.joined(&label("gate and up"), &gate_up, dim)?
        } else {
            Vec::new()
        },
        gate_up_bias: c.biases(
            &label("gate and up bias"),
            &[
                (b.gate && plain, bias(names.gate, i), ffn),
                (b.up && plain, bias(names.up, i), ffn),
            ][usize::from(!spec.gated)..],
        )?,
        down: if plain {
            let name = w(names.down);
            Some(c.matrix(&label("down"), Usage::Matrix, &name, dim, ffn)?)
        } else {
            None
        },
        down_bias: c.biases(&label("down bias"), &one(b.down && plain, names.down, dim))?,
        post_ffn_norm: norm(c, post, "norm after feed-forward", names.post_ffn_norm)?,
        experts: match experts {
            Some(e) => Some(c.experts(&label, names, i, spec, e)?),
            None => None,
        },
        per_layer: c.per_layer_of(&label, i, spec)?,
        altup: c.altup_of(&label, i, spec)?,
        hyper: c.hyper_layer(spec, i)?,
        gates: match spec.latent.filter(|_| spec.attention_gate.is_some()) {
            Some(l) if spec.kind(i) == LayerKind::Attention => {
                let (what, name) = (label("gates"), w(names.attn_gate));
                let n = spec.heads * l.value;
                Some(c.matrix(&what, Usage::Matrix, &name, n, dim)?)
            }
            _ => None,
        },
        cutoff: spec.cutoffs.get(i as usize).copied().flatten(),
        scalar: if spec.layer_scalars {
            c.scalar(i)?
        } else {
            1.0
        },
        delta: match &delta {
            Some((d, names)) => Some(delta::collect(c, names, i, d)?),
            None => None,
        },
        mamba: match &mamba {
            Some((m, names)) => Some(mamba::collect(c, names, i, m, dim)?),
            None => None,
        },
        conv: match conv {
            Some([_, kernel, _]) => {
                let what = label("convolution");
                Some(c.kernel(&what, &w(kernel), dim, spec.conv_taps)?)
            }
            None => None,
        },
        values: match spec.value_dim {
            Some(_) => Some(values::collect(c, spec, names, i)?),
            None => None,
        },
    })
}

/// The rows of queries, keys and values, and of the gates of the output. Each head's gate follows its query in the file.
fn attention_rows(c: &Collector<'_>, spec: &ModelSpec, names: &Names, i: u32) -> Vec<Rows> {
    let shape = spec.shape(i as usize);
    let head_dim = shape.head_dim;
    let (q, kv) = (shape.heads * head_dim, shape.kv_heads * head_dim);
    let w = |template: &str| weight(template, i);
    if let Some(value) = spec.value_dim {
        // Values are a product of their own.
        let kv_values = shape.kv_heads * value;
        return values::queries_and_keys(c, names, i, [q, kv, kv_values]);
    }
    if c.has(&w(names.qkv)) {
        let all = q + 2 * kv;
        if !names.grouped_qkv {
            return vec![Rows::all(w(names.qkv), all)];
        }
        let [queries, keys, values] = grouped_rows(shape);
        let part = |(first, rows)| Rows {
            tensor: w(names.qkv),
            of: all,
            first,
            rows,
        };
        let parts = queries.into_iter().chain(keys).chain(values);
        return parts.map(part).collect();
    }
    let heads = |part: u32| {
        (0..shape.heads).map(move |head| Rows {
            tensor: w(names.q),
            of: 2 * q,
            first: (2 * head + part) * head_dim,
            rows: head_dim,
        })
    };
    let keys_and_values = [Rows::all(w(names.k), kv), Rows::all(w(names.v), kv)];
    let gated = spec.attention_gate.is_some();
    if gated && c.has(&w(names.attn_gate)) {
        let queries = [Rows::all(w(names.q), q)].into_iter();
        let gates = [Rows::all(w(names.attn_gate), spec.gates(i as usize))];
        queries.chain(keys_and_values).chain(gates).collect()
    } else if gated {
        heads(0).chain(keys_and_values).chain(heads(1)).collect()
    } else {
        let own = spec.kv_source(i as usize) == i as usize;
        let stored = match (own, spec.values_are_keys.get(i as usize)) {
            (false, _) => 0,
            (true, Some(true)) => 1,
            (true, _) => 2,
        };
        let queries = [Rows::all(w(names.q), q)];
        let rest = keys_and_values.into_iter().take(stored);
        queries.into_iter().chain(rest).collect()
    }
}

/// The bias of a matrix that has queries, keys and values group by group, in the order in which commands have them.
fn grouped_bias(
    c: &mut Collector<'_>,
    label: &str,
    name: &str,
    shape: LayerShape,
) -> Result<Vec<OutputPart>, Error> {
    let n = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    let info = c.tensor(name, 1, n)?;
    let mut stored = vec![0.0; n as usize];
    quant::decode(info.format, &c.checkpoint.rows(&info, 0, 1)?, &mut stored);
    let parts = grouped_rows(shape).concat();
    let parts = parts
        .into_iter()
        .flat_map(|(first, rows)| first..first + rows);
    let values = parts.map(|at| stored[at as usize]).collect();
    let weight = c.constant(label, values);
    Ok(vec![OutputPart { weight, n, at: 0 }])
}

/// Where queries, keys and values are in a matrix that has them group by group: the first row and the number of rows of each group's part.
pub(crate) fn grouped_rows(shape: LayerShape) -> [Vec<(u32, u32)>; 3] {
    let (groups, head) = (shape.kv_heads, shape.head_dim);
    let queries = shape.heads / groups * head;
    let part = |at: u32, rows: u32| {
        let first = move |group| group * (queries + 2 * head) + at;
        (0..groups).map(|group| (first(group), rows)).collect()
    };
    [
        part(0, queries),
        part(queries, head),
        part(queries + head, head),
    ]
}
