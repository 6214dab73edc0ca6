//! Sizes to compile for.

use crate::{Error, ModelSpec, Pooling};
use welte_table::Format;

/// Sizes to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// The most positions per sequence.
    pub context: u32,
    /// The most sequences in flight at a time.
    pub slots: u32,
    /// Positions in a page of the KV cache.
    pub page: u32,
    /// Pages of each attention cache. 0: enough for the whole context of every slot.
    pub pages: u32,
    /// States of sequences that are kept beside those of the slots, to go on from there. Unused without recurrent state.
    pub checkpoints: u32,
    /// `F16` or `Q8_0`.
    pub kv_format: Format,
    /// The most rows of a decode step.
    pub decode_rows: u32,
    /// The most rows of a prompt step.
    pub prompt_rows: u32,
    /// The most rows of a prompt step that yield logits.
    pub prompt_outputs: u32,
    /// The most rows of an embed step; 0 for no embed pass.
    pub embed_rows: u32,
    /// The rows of a text that make its vector.
    pub pooling: Pooling,
    /// The embed pass yields the logits of these two tokens, or the scores of the checkpoint's classifier.
    pub score_tokens: Option<[u32; 2]>,
    /// The pass of an encoder yields the scores of its classifier.
    pub scores: bool,
    /// Vectors that rows may read in place of tokens; 0: the program has no memory for any. Unused by encoders.
    pub features: u32,
    /// The model's own draft layer is compiled as a pass, if the checkpoint has one.
    pub drafts: bool,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            context: 4096,
            slots: 1,
            page: 64,
            pages: 0,
            checkpoints: 8,
            kv_format: Format::F16,
            decode_rows: 16,
            prompt_rows: 512,
            prompt_outputs: 1,
            embed_rows: 0,
            pooling: Pooling::Last,
            score_tokens: None,
            scores: false,
            features: 0,
            drafts: false,
        }
    }
}

impl CompileOptions {
    /// True if the pass of an encoder weighs tokens: it can, and the rows that make a vector are output rows.
    pub fn weighs_tokens(&self, spec: &ModelSpec) -> bool {
        let encoder = spec.encoder.as_ref();
        let can = encoder.is_some_and(|encoder| encoder.weighs_tokens && encoder.dense.is_empty());
        let rows = matches!(self.pooling, Pooling::First | Pooling::Last);
        can && !self.scores && rows
    }

    /// True if the pass of an encoder yields the largest logits of a text, if it can.
    pub(crate) fn pools_vocabulary(&self) -> bool {
        self.pooling == Pooling::Vocabulary && !self.scores
    }

    /// Refuses pooling over the vocabulary where the model has no head for it.
    pub(crate) fn check_pooling(&self, spec: &ModelSpec) -> Result<(), Error> {
        let has_head = spec.encoder.as_ref().is_some_and(|e| e.masked_head);
        if self.pools_vocabulary() && !has_head {
            return Err(Error::Option {
                option: "pooling",
                problem:
                    "is splade, which needs an encoder with the head of a masked language model"
                        .into(),
            });
        }
        Ok(())
    }

    /// Positions of a segment.
    pub(crate) fn period(&self, spec: &ModelSpec) -> u32 {
        self.context / spec.segments(self.scores)
    }
}
