//! How a model makes sparse vectors.

use welte_models::{ModelSpec, Pooling, TOKEN_WEIGHT_FLOATS};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sparse {
    /// An output row has the weight of its token, and the vector if it is the first or the last one of its text.
    Tokens { first: bool },
    /// The output row of a text has the largest logit of each token of the vocabulary.
    Vocabulary,
}

impl Sparse {
    /// `width`: of the rows of the pass of embeddings, if there is one. `scores`: the model is loaded for scores of pairs.
    pub(super) fn of(
        spec: &ModelSpec,
        pooling: Option<Pooling>,
        width: Option<u32>,
        scores: bool,
    ) -> Option<Sparse> {
        if pooling == Some(Pooling::Vocabulary) && width.is_some() && !scores {
            return Some(Sparse::Vocabulary);
        }
        let weighs = spec.encoder.as_ref().is_some_and(|e| e.weighs_tokens)
            && width == Some(spec.dim + TOKEN_WEIGHT_FLOATS);
        weighs.then_some(Sparse::Tokens {
            first: pooling == Some(Pooling::First),
        })
    }
}
