//! Rerankers: how well a document answers a query.

use crate::{Engine, Error, Model};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use web_time::Instant;

/// The instruction of rerankers that take one, unless the caller gives another.
pub const RERANK_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// The text around a pair for Qwen3-Reranker.
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
    Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

impl Model {
    /// The tokens by which the model judges whether a document answers a query. Encoders take no instruction. Tokens that
    /// do not fit in the context are cut from the end of the document.
    pub fn encode_pair(
        &self,
        query: &str,
        document: &str,
        instruction: &str,
    ) -> Result<Pair, Error> {
        let tokenizer = self.tokenizer()?;
        if self.is_encoder() {
            let (mut tokens, second) = tokenizer.encode_pair(query, document)?;
            tokenizer.truncate(&mut tokens, self.context());
            let second = Some(second);
            return Ok(Pair { tokens, second });
        }
        let marks = |text: &str| tokenizer.encode(text, false, true);
        // The texts of a caller contain no marks.
        let pair = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
        let mut tokens = [marks(BEFORE)?, tokenizer.encode(&pair, false, false)?].concat();
        let after = marks(AFTER)?;
        tokens.truncate(self.context().saturating_sub(1 + after.len()));
        tokens.extend(after);
        let second = None;
        Ok(Pair { tokens, second })
    }
}

/// A query and a document as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The tokens of both, and those around them.
    pub tokens: Vec<u32>,
    /// Where the document begins, in encoders.
    pub second: Option<usize>,
}

/// The score of a pair that is being computed: a future. Dropping it ends the request.
pub struct Score(crate::Embedding);

impl Score {
    /// Waits for the score.
    pub fn wait(self) -> Result<f32, Error> {
        Ok(score(&self.0.wait()?))
    }
}

impl Future for Score {
    type Output = Result<f32, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<f32, Error>> {
        let values = ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(values.map(|values| score(&values)))
    }
}

/// The probability of yes, beside no if that has a logit.
fn score(logits: &[f32]) -> f32 {
    match logits {
        [yes] => 1.0 / (1.0 + (-yes).exp()),
        [yes, no] => 1.0 / (1.0 + (no - yes).exp()),
        _ => f32::NAN,
    }
}

impl Engine {
    /// Begins to score a pair of [`Model::encode_pair`]: from 0 to 1, larger for better documents. The model must have
    /// been loaded with [`LoadOptions::scores`](crate::LoadOptions::scores).
    pub fn score(&self, pair: Pair, deadline: Option<Instant>) -> Result<Score, Error> {
        if !self.model().scores_pairs() {
            let origin = self.model().origin().to_string();
            return Err(Error::NoScores { origin });
        }
        Ok(Score(self.values(
            pair.tokens.into(),
            pair.second,
            deadline,
        )?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadOptions;

    /// A long document is cut, never what stands around it, and a token has room to follow.
    #[test]
    fn a_pair_fits_in_the_context() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
        let mut options = LoadOptions::default();
        (options.context, options.slots) = (512, 1);
        options.device = "reference".parse().unwrap();
        let model = Model::load(path, &options, &mut |_| ()).unwrap();
        let tokenizer = model.tokenizer().unwrap();
        let after = tokenizer.encode(AFTER, false, true).unwrap();
        let pair = |document: &str| {
            let pair = model.encode_pair("a fox", document, RERANK_INSTRUCTION);
            pair.unwrap().tokens
        };
        let (short, long) = (pair("A bear."), pair(&"A bear. ".repeat(500)));
        assert!(short.len() < long.len());
        assert_eq!(long.len(), 511);
        assert!(short.ends_with(&after) && long.ends_with(&after));
    }

    #[test]
    fn a_score_is_the_share_of_yes() {
        assert_eq!(score(&[1.5, 1.5]), 0.5);
        assert!((score(&[2.0, 0.0]) - 0.880_797).abs() < 1e-6);
        assert_eq!(score(&[-200.0, 200.0]), 0.0);
        assert_eq!(score(&[0.0]), 0.5);
    }
}
