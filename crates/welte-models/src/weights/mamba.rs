//! The weights of layers with the state space model of Mamba-2.

use super::{Collector, OutputPart};
use crate::{Error, Mamba, names};
use welte_formats::checkpoint::{Checkpoint, Dialect};
use welte_table::{Usage, WeightId};

/// The weights beside the projections.
pub(crate) struct MambaWeights {
    pub(crate) kernel: WeightId,
    pub(crate) conv_bias: Option<WeightId>,
    pub(crate) decay: WeightId,
    pub(crate) dt_bias: WeightId,
    pub(crate) skip: WeightId,
    pub(crate) norm: Option<WeightId>,
    pub(crate) beside: Option<MambaBeside>,
}

/// The projections of a state space model beside attention, whose projections are the layer's.
pub(crate) struct MambaBeside {
    pub(crate) project: Vec<OutputPart>,
    pub(crate) out: WeightId,
}

/// The names of the tensors.
pub(crate) struct MambaNames {
    /// The gate, inputs, keys, queries and time steps in one tensor.
    pub(crate) project: &'static str,
    kernel: &'static str,
    /// Full names.
    decay: &'static str,
    dt_bias: &'static str,
    skip: &'static str,
    norm: &'static str,
    pub(crate) out: &'static str,
}

const GGUF: MambaNames = MambaNames {
    project: "blk.{}.ssm_in",
    kernel: "blk.{}.ssm_conv1d",
    decay: "blk.{}.ssm_a",
    dt_bias: "blk.{}.ssm_dt.bias",
    skip: "blk.{}.ssm_d",
    norm: "blk.{}.ssm_norm",
    out: "blk.{}.ssm_out",
};

const HUGGING_FACE: MambaNames = MambaNames {
    project: "model.layers.{}.mamba.in_proj",
    kernel: "model.layers.{}.mamba.conv1d",
    decay: "model.layers.{}.mamba.A_log",
    dt_bias: "model.layers.{}.mamba.dt_bias",
    skip: "model.layers.{}.mamba.D",
    norm: "model.layers.{}.mamba.norm",
    out: "model.layers.{}.mamba.out_proj",
};

/// Nemotron-H calls whatever a layer has its mixer.
const MIXER: MambaNames = MambaNames {
    project: "model.layers.{}.mixer.in_proj",
    kernel: "model.layers.{}.mixer.conv1d",
    decay: "model.layers.{}.mixer.A_log",
    dt_bias: "model.layers.{}.mixer.dt_bias",
    skip: "model.layers.{}.mixer.D",
    norm: "model.layers.{}.mixer.norm",
    out: "model.layers.{}.mixer.out_proj",
};

pub(super) fn names(checkpoint: &dyn Checkpoint, alone: bool) -> &'static MambaNames {
    match checkpoint.dialect() {
        Dialect::Gguf => &GGUF,
        Dialect::HuggingFace if alone => &MIXER,
        Dialect::HuggingFace => &HUGGING_FACE,
    }
}

/// The weights beside the projections.
pub(super) fn collect(
    c: &mut Collector<'_>,
    names: &MambaNames,
    layer: u32,
    m: &Mamba,
    dim: u32,
) -> Result<MambaWeights, Error> {
    let label = |what: &str| format!("layer {layer} {what}");
    let full = |template: &str| template.replace("{}", &layer.to_string());
    let kernel = names::weight(names.kernel, layer);
    let bias = [(m.bias, names::bias(names.kernel, layer), m.channels())];
    let bias: Vec<OutputPart> = c.biases(&label("convolution bias"), &bias)?;
    let norm = names::weight(names.norm, layer);
    let dt_bias = [(full(names.dt_bias), m.heads)];
    Ok(MambaWeights {
        kernel: c.kernel(&label("convolution"), &kernel, m.channels(), m.taps)?,
        conv_bias: bias.first().map(|piece| piece.weight),
        decay: c.decay(&label("decay"), &full(names.decay), m.heads)?,
        dt_bias: c.vector(&label("time bias"), &dt_bias, 0.0)?,
        skip: c.per_head(&label("skip"), &full(names.skip), m.heads)?,
        norm: if !m.norm {
            None
        } else if c.is_gguf() {
            let (what, groups) = (label("mamba norm"), m.groups);
            let each = m.values() / groups;
            Some(c.flat(&what, &norm, groups, groups, each)?)
        } else {
            let what = label("mamba norm");
            Some(c.vector(&what, &[(norm, m.values())], 0.0)?)
        },
        beside: if m.beside {
            let [project, out] = [names.project, names.out].map(|name| names::weight(name, layer));
            Some(MambaBeside {
                project: c.joined(&label("mamba in"), &[(project, m.width())], dim)?,
                out: c.matrix(&label("mamba out"), Usage::Matrix, &out, dim, m.values())?,
            })
        } else {
            None
        },
    })
}
