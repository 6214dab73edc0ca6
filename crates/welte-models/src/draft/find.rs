//! Finds the draft layer of a checkpoint.

use super::{DraftNames, DraftSpec, assistant, block, eagle};
use crate::names::resolve;
use crate::{Error, LayerKind, LayerRope, ModelSpec};
use std::fmt;
use welte_formats::checkpoint::{Checkpoint, Dialect};

/// What drafts for a model and is none itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// An EAGLE-3 head.
    Eagle3,
    /// A DFlash drafter, of whatever version.
    Dflash,
    /// A drafter of Gemma 4.
    Assistant,
}

/// For messages: with an article.
impl fmt::Display for HeadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeadKind::Eagle3 => "an EAGLE-3 head",
            HeadKind::Dflash => "a DFlash drafter",
            HeadKind::Assistant => "a drafter of Gemma 4",
        })
    }
}

/// The kind of a checkpoint that drafts for a model. `None`: it is none of these.
pub fn head_kind(checkpoint: &dyn Checkpoint) -> Option<HeadKind> {
    let has = |name: &str| checkpoint.tensor(name).is_some();
    if assistant::is_assistant(checkpoint) {
        return Some(HeadKind::Assistant);
    }
    if block::is_block_drafter(checkpoint) {
        return Some(HeadKind::Dflash);
    }
    (has("fc.weight") && !has("model.norm.weight")).then_some(HeadKind::Eagle3)
}

/// Architectures whose draft layers are not supported.
const OTHER_DRAFTS: [&str; 4] = ["step35", "mimo2", "mellum", "cohere2moe"];
/// Their draft layer has no experts, and the rope and the window of the first layer.
const DENSE_DRAFTS: [&str; 1] = ["exaone-moe"];

impl DraftNames {
    /// Names with the layer's number.
    fn numbered(layer: String, own: &str, norm: &str, head: &str) -> DraftNames {
        let name = |name: &str| format!("{layer}{own}{name}");
        DraftNames {
            join: name("eh_proj"),
            embedding_norm: name("enorm"),
            hidden_norm: name("hnorm"),
            head_norm: name(norm),
            embed: name("embed_tokens"),
            head: name(head),
            layer,
        }
    }

    /// Those of GGUF, after so many layers.
    pub(crate) fn gguf(layers: u32) -> DraftNames {
        let layer = format!("blk.{layers}.");
        DraftNames::numbered(layer, "nextn.", "shared_head_norm", "shared_head_head")
    }

    /// Those of GGUF for this architecture. Ling's files have the last norm among those of the layer.
    pub(crate) fn written(layers: u32, architecture: &str) -> DraftNames {
        let names = DraftNames::gguf(layers);
        match architecture {
            "bailingmoe2" => names.ending_in("layer_output_norm"),
            _ => names,
        }
    }

    /// The same with another last norm.
    fn ending_in(self, norm: &str) -> DraftNames {
        DraftNames {
            head_norm: format!("{}{norm}", self.layer),
            ..self
        }
    }

    /// The tensors beside those of the layer. Norms come first.
    pub(crate) fn own(&self) -> [&str; 6] {
        let norms = [&self.embedding_norm, &self.hidden_norm, &self.head_norm];
        let others = [&self.join, &self.embed, &self.head];
        let [a, b, c] = norms.map(String::as_str);
        let [d, e, f] = others.map(String::as_str);
        [a, b, c, d, e, f]
    }

    /// Those of Qwen.
    fn mtp() -> DraftNames {
        let name = |name: &str| format!("mtp.{name}");
        DraftNames {
            layer: name("layers.0."),
            join: name("fc"),
            embedding_norm: name("pre_fc_norm_embedding"),
            hidden_norm: name("pre_fc_norm_hidden"),
            head_norm: name("norm"),
            embed: name("embed_tokens"),
            head: name("lm_head"),
        }
    }

    /// Those of a checkpoint of a model with so many layers.
    fn of(checkpoint: &dyn Checkpoint, layers: u32) -> Option<DraftNames> {
        let has = |name: &str| {
            let name = resolve(checkpoint, &format!("{name}.weight"));
            checkpoint.tensor(&name).is_some()
        };
        let own_norm = match checkpoint.dialect() {
            Dialect::Gguf => "layer_output_norm",
            Dialect::HuggingFace => "final_layernorm",
        };
        let all = match checkpoint.dialect() {
            Dialect::Gguf => vec![DraftNames::gguf(layers)],
            Dialect::HuggingFace => {
                let layer = format!("model.layers.{layers}.");
                let numbered =
                    DraftNames::numbered(layer, "", "shared_head.norm", "shared_head.head");
                vec![numbered, DraftNames::mtp()]
            }
        };
        let names = all.into_iter().find(|names| has(&names.join))?;
        match has(&names.head_norm) || !has(&format!("{}{own_norm}", names.layer)) {
            true => Some(names),
            false => Some(names.ending_in(own_norm)),
        }
    }
}

impl ModelSpec {
    /// True if the checkpoint has a draft layer that can guess for the model.
    pub fn has_draft_layer(&self, checkpoint: &dyn Checkpoint) -> bool {
        matches!(self.draft(checkpoint), Ok(Some(_)))
    }

    /// What the checkpoint has to guess for the model, in words for a person.
    pub fn draft_kind(&self, checkpoint: &dyn Checkpoint) -> Option<String> {
        let draft = self.draft(checkpoint).ok().flatten()?;
        Some(match (&draft.eagle, &draft.assistant, &draft.block) {
            (Some(_), ..) => "EAGLE-3".to_string(),
            (_, Some(_), _) => "drafter of Gemma 4".to_string(),
            (.., Some(drafter)) => format!("DFlash, blocks of {}", drafter.block.size),
            _ => "multi-token prediction".to_string(),
        })
    }

    /// What guesses for the model: a head with a checkpoint of its own, otherwise the first draft layer of the model's checkpoint. That has
    /// attention and the model's experts, if any, except in [`DENSE_DRAFTS`]. `None`: nothing guesses, or its kind is not supported.
    pub(crate) fn draft(&self, checkpoint: &dyn Checkpoint) -> Result<Option<DraftSpec>, Error> {
        // These parts follow the layer's number, which the draft layer has not.
        let plain = self.layer_shapes.is_empty()
            && self.kv_sources.is_empty()
            && self.encoder.is_none()
            && self.altup.is_none()
            && self.per_layer_width == 0
            && !self.alone
            && !OTHER_DRAFTS.contains(&self.architecture.as_str());
        if let Some(head) = checkpoint.draft() {
            let read = match head_kind(head) {
                Some(HeadKind::Assistant) => assistant::read_assistant(self, head),
                Some(HeadKind::Dflash) => block::read_block(self, head),
                _ => eagle::read_eagle(self, head, plain),
            };
            return read.map(Some);
        }
        let Some(names) = DraftNames::of(checkpoint, self.layers).filter(|_| plain) else {
            return Ok(None);
        };
        let dense = DENSE_DRAFTS.contains(&self.architecture.as_str());
        let (window, rope) = match dense {
            true => (self.windows.first(), self.layer_ropes.first()),
            false => (None, None),
        };
        let experts = self.experts.filter(|_| !dense);
        let spec = ModelSpec {
            layers: 1,
            draft_layers: 0,
            layer_kinds: vec![LayerKind::Attention],
            delta: None,
            mamba: None,
            conv_taps: 0,
            windows: vec![window.copied().unwrap_or(0)],
            layer_ropes: vec![rope.copied().unwrap_or(LayerRope::Main)],
            limits: Vec::new(),
            experts,
            expert_layers: vec![experts.is_some()],
            // A guess may see all positions.
            indexer: None,
            ..self.clone()
        };
        Ok(Some(DraftSpec {
            spec,
            names,
            taps: None,
            eagle: None,
            assistant: None,
            block: None,
        }))
    }
}
