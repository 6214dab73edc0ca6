//! The weights of layers with the gated delta rule.

use super::{Collector, Rows};
use crate::{Delta, Error, names};
use welte_formats::WeightRows;
use welte_formats::checkpoint::{Checkpoint, Dialect};
use welte_table::{Format, Part, Source, Usage, WeightId, WeightSpec};

/// The weights beside the projections.
pub(crate) struct DeltaWeights {
    pub(crate) kernel: WeightId,
    pub(crate) decay: WeightId,
    pub(crate) dt_bias: WeightId,
    pub(crate) norm: WeightId,
    /// With decays by channel.
    pub(crate) low_ranks: Option<LowRanks>,
}

/// What leads from low ranks to a and to the output's gate.
#[derive(Clone, Copy)]
pub(crate) struct LowRanks {
    pub(crate) decay: WeightId,
    pub(crate) gate: WeightId,
}

/// The names of the tensors, without `.weight`.
pub(crate) struct DeltaNames {
    /// Queries, keys and values; the gate.
    pub(crate) qkv: &'static str,
    pub(crate) gate: &'static str,
    /// All four in one tensor, grouped by key head.
    pub(crate) grouped: &'static str,
    /// b and a of every head.
    pub(crate) b: &'static str,
    pub(crate) a: &'static str,
    /// Both in one tensor, grouped by key head.
    pub(crate) grouped_ba: &'static str,
    pub(crate) kernel: &'static str,
    /// With decays by channel, queries, keys, values and their kernels are tensors of their own, and the matrices to and from the low
    /// ranks of a and of the gate.
    pub(crate) each: [&'static str; 3],
    pub(crate) kernels: [&'static str; 3],
    pub(crate) low_decay: [&'static str; 2],
    pub(crate) low_gate: [&'static str; 2],
    /// The full names of the decay and of what is added to a.
    pub(crate) decay: &'static str,
    pub(crate) dt_bias: &'static str,
    pub(crate) norm: &'static str,
    pub(crate) out: &'static str,
}

const GGUF: DeltaNames = DeltaNames {
    qkv: "blk.{}.attn_qkv",
    gate: "blk.{}.attn_gate",
    grouped: "blk.{}.ssm_in",
    b: "blk.{}.ssm_beta",
    a: "blk.{}.ssm_alpha",
    grouped_ba: "blk.{}.ssm_ba",
    kernel: "blk.{}.ssm_conv1d",
    each: ["blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v"],
    kernels: [
        "blk.{}.ssm_conv1d_q",
        "blk.{}.ssm_conv1d_k",
        "blk.{}.ssm_conv1d_v",
    ],
    low_decay: ["blk.{}.ssm_f_a", "blk.{}.ssm_f_b"],
    low_gate: ["blk.{}.ssm_g_a", "blk.{}.ssm_g_b"],
    decay: "blk.{}.ssm_a",
    dt_bias: "blk.{}.ssm_dt.bias",
    norm: "blk.{}.ssm_norm",
    out: "blk.{}.ssm_out",
};

const HUGGING_FACE: DeltaNames = DeltaNames {
    qkv: "model.layers.{}.linear_attn.in_proj_qkv",
    gate: "model.layers.{}.linear_attn.in_proj_z",
    grouped: "model.layers.{}.linear_attn.in_proj_qkvz",
    b: "model.layers.{}.linear_attn.in_proj_b",
    a: "model.layers.{}.linear_attn.in_proj_a",
    grouped_ba: "model.layers.{}.linear_attn.in_proj_ba",
    kernel: "model.layers.{}.linear_attn.conv1d",
    each: [""; 3],
    kernels: [""; 3],
    low_decay: [""; 2],
    low_gate: [""; 2],
    decay: "model.layers.{}.linear_attn.A_log",
    dt_bias: "model.layers.{}.linear_attn.dt_bias",
    norm: "model.layers.{}.linear_attn.norm",
    out: "model.layers.{}.linear_attn.out_proj",
};

/// With decays by channel, as transformers and GGUF name the parts of such a layer.
const BY_CHANNEL_HUGGING_FACE: DeltaNames = DeltaNames {
    b: "model.layers.{}.self_attn.b_proj",
    each: [
        "model.layers.{}.self_attn.q_proj",
        "model.layers.{}.self_attn.k_proj",
        "model.layers.{}.self_attn.v_proj",
    ],
    kernels: [
        "model.layers.{}.self_attn.q_conv1d",
        "model.layers.{}.self_attn.k_conv1d",
        "model.layers.{}.self_attn.v_conv1d",
    ],
    low_decay: [
        "model.layers.{}.self_attn.f_a_proj",
        "model.layers.{}.self_attn.f_b_proj",
    ],
    low_gate: [
        "model.layers.{}.self_attn.g_a_proj",
        "model.layers.{}.self_attn.g_b_proj",
    ],
    decay: "model.layers.{}.self_attn.A_log",
    dt_bias: "model.layers.{}.self_attn.dt_bias",
    norm: "model.layers.{}.self_attn.o_norm",
    out: "model.layers.{}.self_attn.o_proj",
    ..HUGGING_FACE
};

const BY_CHANNEL_GGUF: DeltaNames = DeltaNames {
    out: "blk.{}.attn_output",
    ..GGUF
};

impl DeltaNames {
    /// Those of directories and those of GGUF files.
    pub(crate) fn both(by_channel: bool) -> [&'static DeltaNames; 2] {
        match by_channel {
            true => [&BY_CHANNEL_HUGGING_FACE, &BY_CHANNEL_GGUF],
            false => [&HUGGING_FACE, &GGUF],
        }
    }
}

pub(super) fn names(checkpoint: &dyn Checkpoint, by_channel: bool) -> &'static DeltaNames {
    let [hugging_face, gguf] = DeltaNames::both(by_channel);
    match checkpoint.dialect() {
        Dialect::Gguf => gguf,
        Dialect::HuggingFace => hugging_face,
    }
}

/// The sizes of queries, keys and values of all heads.
fn sizes(d: &Delta) -> [u32; 3] {
    let keys = d.key_heads * d.key_dim;
    [keys, keys, d.values()]
}

/// The rows of all projections: queries, keys, values, the gate, b, a. With decays by channel: queries, keys, values, the low ranks of
/// the gate and of a, b.
pub(super) fn rows(c: &Collector<'_>, names: &DeltaNames, layer: u32, d: &Delta) -> Vec<Rows> {
    let name = |template: &str| names::weight(template, layer);
    let (keys, values) = (d.key_heads * d.key_dim, d.values());
    if d.by_channel {
        let parts = names.each.into_iter().zip(sizes(d)).chain([
            (names.low_gate[0], d.value_dim),
            (names.low_decay[0], d.key_dim),
            (names.b, d.heads),
        ]);
        return parts.map(|(part, n)| Rows::all(name(part), n)).collect();
    }
    // A group holds the parts of one key head, one after the other.
    let groups = |tensor: &str, parts: &[u32]| {
        let (tensor, group) = (name(tensor), parts.iter().sum::<u32>());
        let mut rows = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let before: u32 = parts[..i].iter().sum();
            rows.extend((0..d.key_heads).map(|head| Rows {
                tensor: tensor.clone(),
                of: group * d.key_heads,
                first: head * group + before,
                rows: *part,
            }));
        }
        rows
    };
    let each = d.heads / d.key_heads;
    let mut all = if c.has(&name(names.grouped)) {
        let value = each * d.value_dim;
        groups(names.grouped, &[d.key_dim, d.key_dim, value, value])
    } else {
        vec![
            Rows::all(name(names.qkv), 2 * keys + values),
            Rows::all(name(names.gate), values),
        ]
    };
    all.extend(if c.has(&name(names.grouped_ba)) {
        groups(names.grouped_ba, &[each, each])
    } else {
        [names.b, names.a]
            .map(|n| Rows::all(name(n), d.heads))
            .into()
    });
    all
}

/// The other weights.
pub(super) fn collect(
    c: &mut Collector<'_>,
    names: &DeltaNames,
    layer: u32,
    d: &Delta,
) -> Result<DeltaWeights, Error> {
    let label = |what: &str| format!("layer {layer} {what}");
    let full = |template: &str| template.replace("{}", &layer.to_string());
    let name = |template: &str| names::weight(template, layer);
    let norm = [(name(names.norm), d.value_dim)];
    let decays = if d.by_channel { d.key_dim } else { 1 };
    let dt_bias = [(full(names.dt_bias), d.heads * decays)];
    let kernels: Vec<_> = if d.by_channel {
        let each = names.kernels.into_iter().zip(sizes(d));
        each.map(|(kernel, n)| (name(kernel), n)).collect()
    } else {
        vec![(name(names.kernel), d.channels())]
    };
    Ok(DeltaWeights {
        kernel: c.kernels(&label("convolution"), &kernels, d.taps)?,
        low_ranks: if d.by_channel {
            let mut from = |what: &str, names: [&str; 2], rank: u32| {
                let (what, name) = (label(what), name(names[1]));
                c.matrix(&what, Usage::Matrix, &name, d.heads * rank, rank)
            };
            Some(LowRanks {
                decay: from("decays", names.low_decay, d.key_dim)?,
                gate: from("gates", names.low_gate, d.value_dim)?,
            })
        } else {
            None
        },
        decay: c.decay(&label("decay"), &full(names.decay), d.heads)?,
        dt_bias: c.vector(&label("time bias"), &dt_bias, 0.0)?,
        norm: c.vector(&label("delta norm"), &norm, 0.0)?,
    })
}

impl Collector<'_> {
    /// The taps of every channel.
    pub(super) fn kernel(
        &mut self,
        label: &str,
        name: &str,
        n: u32,
        taps: u32,
    ) -> Result<WeightId, Error> {
        self.kernels(label, &[(name.to_string(), n)], taps)
    }

    /// The same of neighbouring channels in several tensors.
    fn kernels(
        &mut self,
        label: &str,
        tensors: &[(String, u32)],
        taps: u32,
    ) -> Result<WeightId, Error> {
        let mut parts = Vec::new();
        for (name, rows) in tensors {
            parts.push(Part {
                tensor: self.tensor(name, *rows, taps)?.name,
                first_row: 0,
                rows: *rows,
            });
        }
        let channels: u32 = tensors.iter().map(|(_, n)| n).sum();
        let mut spec = vector(label, channels * taps, String::new(), 0);
        spec.source = Source::Parts(parts);
        Ok(self.push(spec))
    }

    /// A value of every head.
    pub(super) fn per_head(
        &mut self,
        label: &str,
        name: &str,
        heads: u32,
    ) -> Result<WeightId, Error> {
        let (n, k) = self.row_or_column(name, heads);
        let info = self.tensor(name, n, k)?;
        Ok(self.push(vector(label, heads, info.name, n)))
    }

    /// The shape of a vector. GGUF files keep some as columns.
    fn row_or_column(&self, name: &str, k: u32) -> (u32, u32) {
        let name = names::resolve(self.checkpoint, name);
        let info = self.checkpoint.tensor(&name);
        if info.is_some_and(|info| info.k == 1) {
            (k, 1)
        } else {
            (1, k)
        }
    }

    /// The factors of the decay. Hugging Face checkpoints hold the logarithms of their negatives.
    pub(super) fn decay(&mut self, label: &str, name: &str, heads: u32) -> Result<WeightId, Error> {
        let (n, k) = self.row_or_column(name, heads);
        let info = self.tensor(name, n, k)?;
        let mut spec = vector(label, heads, info.name, n);
        if self.checkpoint.dialect() == Dialect::HuggingFace {
            let weight = WeightRows {
                spec: &spec,
                checkpoint: self.checkpoint,
            };
            let values = weight.values()?.iter().map(|v| -v.exp()).collect();
            spec.source = Source::Constant(values);
        }
        Ok(self.push(spec))
    }
}

/// The first rows of a tensor, joined end to end.
fn vector(label: &str, k: u32, tensor: String, rows: u32) -> WeightSpec {
    WeightSpec {
        name: label.into(),
        format: Format::F32,
        n: 1,
        k,
        usage: Usage::Vector,
        add: 0.0,
        source: Source::Parts(vec![Part {
            tensor,
            first_row: 0,
            rows,
        }]),
    }
}
