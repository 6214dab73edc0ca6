//! The weights of streams of hidden states beside each other.

use super::Collector;
use crate::{Error, Hyper, ModelSpec};
use welte_formats::checkpoint::Dialect;
use welte_formats::quant;
use welte_table::{Usage, WeightId};

/// The gates of one part of a layer, or of the sum after the last one.
pub(crate) struct HyperWeights {
    /// The weight of the norm, which has none.
    pub(crate) ones: WeightId,
    pub(crate) matrix: WeightId,
    /// Of each group of gates: of what a part reads, and of its output.
    pub(crate) scales: Vec<f32>,
    pub(crate) base: WeightId,
}

/// What names of tensors begin with: those of the two parts of a layer, and of the sum after the last one. What they end with.
const HUGGING_FACE: ([&str; 2], &str, &str) = (
    [
        "model.layers.{}.hc_attn_layer.hc_pre.hc_",
        "model.layers.{}.hc_mlp_layer.hc_pre.hc_",
    ],
    "model.hc_head.hc_head_",
    "",
);
const GGUF: ([&str; 2], &str, &str) = (
    ["blk.{}.hc_attn_", "blk.{}.hc_ffn_"],
    "output_hc_",
    ".weight",
);

impl Collector<'_> {
    /// Those of a layer.
    pub(super) fn hyper_layer(
        &mut self,
        spec: &ModelSpec,
        layer: u32,
    ) -> Result<Option<[HyperWeights; 2]>, Error> {
        let Some(hyper) = spec.hyper else {
            return Ok(None);
        };
        let (parts, _, end) = self.hyper_names();
        let mut part = |what: &str, name: &str| {
            let label = format!("layer {layer} {what}");
            let name = name.replace("{}", &layer.to_string());
            self.hyper_weights(&label, [&name, end], (hyper, spec.dim), 2)
        };
        let attention = part("gates of streams", parts[0])?;
        let feed = part("feed-forward gates of streams", parts[1])?;
        Ok(Some([attention, feed]))
    }

    /// Those of the sum after the last layer.
    pub(super) fn hyper_head(&mut self, spec: &ModelSpec) -> Result<Option<HyperWeights>, Error> {
        let Some(hyper) = spec.hyper else {
            return Ok(None);
        };
        let (_, head, end) = self.hyper_names();
        let label = "last gates of streams";
        let own = self.hyper_weights(label, [head, end], (hyper, spec.dim), 1)?;
        Ok(Some(own))
    }

    fn hyper_names(&self) -> ([&'static str; 2], &'static str, &'static str) {
        match self.checkpoint.dialect() {
            Dialect::Gguf => GGUF,
            Dialect::HuggingFace => HUGGING_FACE,
        }
    }

    fn hyper_weights(
        &mut self,
        label: &str,
        [begin, end]: [&str; 2],
        (hyper, dim): (Hyper, u32),
        groups: u32,
    ) -> Result<HyperWeights, Error> {
        let name = |part: &str| format!("{begin}{part}{end}");
        let gates = groups * hyper.streams;
        let base = [(name("base"), gates)];
        let width = hyper.streams * dim;
        Ok(HyperWeights {
            ones: self.ones(&format!("{label} norm"), width),
            matrix: self.matrix(label, Usage::Matrix, &name("fn"), gates, width)?,
            scales: self.floats(&name("scale"), groups)?,
            base: self.vector(&format!("{label} base"), &base, 0.0)?,
        })
    }

    /// A few numbers that are parameters of commands, so they are read here.
    fn floats(&mut self, name: &str, n: u32) -> Result<Vec<f32>, Error> {
        let info = self.tensor(name, 1, n)?;
        let mut values = vec![0.0; n as usize];
        quant::decode(
            info.format,
            &self.checkpoint.rows(&info, 0, 1)?,
            &mut values,
        );
        if values.iter().any(|value| !value.is_finite()) {
            return Err(self.fault(&info.name, "has a number that is not finite".into()));
        }
        Ok(values)
    }
}
