//! The weights of layers with the state space model of Mamba-2 or Mamba-1.

use super::{Collector, OutputPart, Rows};
use crate::{Error, Mamba, Selective, SelectiveNorms, names};
use welte_formats::WeightRows;
use welte_formats::checkpoint::{Checkpoint, Dialect};
use welte_table::{Format, NO_WEIGHT, Part, Source, Usage, WeightId, WeightSpec};

/// The weights beside the projections.
pub(crate) struct MambaWeights {
    pub(crate) kernel: WeightId,
    pub(crate) conv_bias: Option<WeightId>,
    pub(crate) decay: WeightId,
    pub(crate) dt_bias: WeightId,
    pub(crate) skip: WeightId,
    pub(crate) norm: Option<WeightId>,
    pub(crate) beside: Option<MambaBeside>,
    pub(crate) selective: Option<SelectiveWeights>,
}

/// What Mamba-1 has.
pub(crate) struct SelectiveWeights {
    /// From inputs to keys, queries and time steps at their rank.
    pub(crate) project: Vec<OutputPart>,
    /// From these to the time steps of all inputs.
    pub(crate) time: WeightId,
    /// Of time steps, keys and queries; without weights, [`NO_WEIGHT`].
    pub(crate) norms: [WeightId; 3],
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
    pub(crate) kernel: &'static str,
    /// Full names.
    pub(crate) decay: &'static str,
    dt_bias: &'static str,
    pub(crate) skip: &'static str,
    norm: &'static str,
    pub(crate) out: &'static str,
    /// Mamba-1's: time steps at their rank, keys and queries of inputs; the time steps of all inputs, whose bias this tensor has; the norms
    /// of the three.
    pub(crate) parts: &'static str,
    pub(crate) time: &'static str,
    pub(crate) norms: [&'static str; 3],
}

const GGUF: MambaNames = MambaNames {
    project: "blk.{}.ssm_in",
    kernel: "blk.{}.ssm_conv1d",
    decay: "blk.{}.ssm_a",
    dt_bias: "blk.{}.ssm_dt.bias",
    skip: "blk.{}.ssm_d",
    norm: "blk.{}.ssm_norm",
    out: "blk.{}.ssm_out",
    parts: "blk.{}.ssm_x",
    time: "blk.{}.ssm_dt",
    norms: [
        "blk.{}.ssm_dt_norm",
        "blk.{}.ssm_b_norm",
        "blk.{}.ssm_c_norm",
    ],
};

const HUGGING_FACE: MambaNames = MambaNames {
    project: "model.layers.{}.mamba.in_proj",
    kernel: "model.layers.{}.mamba.conv1d",
    decay: "model.layers.{}.mamba.A_log",
    dt_bias: "model.layers.{}.mamba.dt_bias",
    skip: "model.layers.{}.mamba.D",
    norm: "model.layers.{}.mamba.norm",
    out: "model.layers.{}.mamba.out_proj",
    parts: "model.layers.{}.mamba.x_proj",
    time: "model.layers.{}.mamba.dt_proj",
    norms: [
        "model.layers.{}.mamba.dt_layernorm",
        "model.layers.{}.mamba.b_layernorm",
        "model.layers.{}.mamba.c_layernorm",
    ],
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
    parts: "model.layers.{}.mixer.x_proj",
    time: "model.layers.{}.mixer.dt_proj",
    norms: [""; 3],
};

impl MambaNames {
    /// Those of directories and those of GGUF files.
    pub(crate) fn both(alone: bool) -> [&'static MambaNames; 2] {
        match alone {
            true => [&MIXER, &GGUF],
            false => [&HUGGING_FACE, &GGUF],
        }
    }
}

pub(super) fn names(checkpoint: &dyn Checkpoint, alone: bool) -> &'static MambaNames {
    let [hugging_face, gguf] = MambaNames::both(alone);
    match checkpoint.dialect() {
        Dialect::Gguf => gguf,
        Dialect::HuggingFace => hugging_face,
    }
}

/// The rows of the projections: all, or the gate and the inputs, which are the other way round in the file.
pub(super) fn rows(names: &MambaNames, layer: u32, m: &Mamba) -> Vec<Rows> {
    let tensor = names::weight(names.project, layer);
    if m.selective.is_none() {
        return vec![Rows::all(tensor, m.width())];
    }
    let values = m.values();
    let half = |first| Rows {
        tensor: tensor.clone(),
        of: 2 * values,
        first,
        rows: values,
    };
    [values, 0].map(half).to_vec()
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
    let (dt_bias, times) = match m.selective {
        None => (full(names.dt_bias), m.heads),
        Some(_) => (names::bias(names.time, layer), m.values()),
    };
    let (what, decay) = (label("decay"), full(names.decay));
    Ok(MambaWeights {
        kernel: c.kernel(&label("convolution"), &kernel, m.channels(), m.taps)?,
        conv_bias: bias.first().map(|piece| piece.weight),
        decay: match m.selective {
            None => c.decay(&what, &decay, m.heads)?,
            Some(_) => c.decays_of_states(&what, &decay, m)?,
        },
        dt_bias: c.vector(&label("time bias"), &[(dt_bias, times)], 0.0)?,
        skip: c.per_head(&label("skip"), &full(names.skip), times)?,
        selective: match &m.selective {
            None => None,
            Some(s) => Some(selective(c, names, layer, m, s)?),
        },
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

/// What Mamba-1 has. The file has time steps before keys and queries.
fn selective(
    c: &mut Collector<'_>,
    names: &MambaNames,
    layer: u32,
    m: &Mamba,
    s: &Selective,
) -> Result<SelectiveWeights, Error> {
    let label = |what: &str| format!("layer {layer} {what}");
    let values = m.values();
    let part = |first, rows| Rows {
        tensor: names::weight(names.parts, layer),
        of: s.rank + m.keys_and_queries(),
        first,
        rows,
    };
    let parts = [part(s.rank, m.keys_and_queries()), part(0, s.rank)];
    let what = label("mamba keys, queries, times");
    let project = c.joined_rows(&what, &parts, values)?;
    let time = names::weight(names.time, layer);
    let mut norms = [NO_WEIGHT; 3];
    if s.norms == SelectiveNorms::Weighted {
        let sizes = [s.rank, m.key_dim, m.key_dim];
        let all = norms.iter_mut().zip(names.norms).zip(sizes);
        for ((norm, name), size) in all {
            let tensor = [(names::weight(name, layer), size)];
            *norm = c.vector(&label("mamba part norm"), &tensor, 0.0)?;
        }
    }
    Ok(SelectiveWeights {
        project,
        time: c.matrix(&label("mamba times"), Usage::Matrix, &time, values, s.rank)?,
        norms,
    })
}

impl Collector<'_> {
    /// The decay of every element of the states. Files have a row for each input, states a column.
    fn decays_of_states(&mut self, label: &str, name: &str, m: &Mamba) -> Result<WeightId, Error> {
        let info = self.tensor(name, m.values(), m.key_dim)?;
        let (columns, rows) = (m.value_dim as usize, m.key_dim as usize);
        let mut spec = WeightSpec {
            name: label.into(),
            format: Format::F32,
            n: 1,
            k: m.values() * m.key_dim,
            usage: Usage::Vector,
            add: 0.0,
            source: Source::Parts(vec![Part {
                tensor: info.name,
                first_row: 0,
                rows: m.values(),
            }]),
        };
        let weight = WeightRows {
            spec: &spec,
            checkpoint: self.checkpoint,
        };
        let mut stored = weight.values()?;
        if !self.is_gguf() {
            stored.iter_mut().for_each(|v| *v = -v.exp());
        }
        let heads = stored.chunks(columns * rows);
        let decays = heads.flat_map(|head| {
            let row = move |row| (0..columns).map(move |column| head[column * rows + row]);
            (0..rows).flat_map(row)
        });
        spec.source = Source::Constant(decays.collect());
        Ok(self.push(spec))
    }
}
