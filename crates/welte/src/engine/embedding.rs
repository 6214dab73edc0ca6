//! The vector of a text, on its way from the scheduler.

use super::channel::{Channel, Finish, Next, Room};
use super::sequence::{Picked, Sequence};
use super::{Engine, Request};
use crate::model::Sparse;
use crate::{Error, MediumAt, Model, Prompt};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use web_time::Instant;

/// The tokens of a text to embed.
#[derive(Clone, Debug, PartialEq)]
pub struct TextToEmbed {
    /// The tokens, and those around the text.
    pub tokens: Vec<u32>,
    /// The first tokens, this many, are not pooled, although the others see them.
    pub left_out: usize,
    /// What stands in the places of tokens: images.
    pub media: Vec<MediumAt>,
}

impl From<Vec<u32>> for TextToEmbed {
    fn from(tokens: Vec<u32>) -> TextToEmbed {
        TextToEmbed {
            tokens,
            left_out: 0,
            media: Vec::new(),
        }
    }
}

impl From<Prompt> for TextToEmbed {
    fn from(prompt: Prompt) -> TextToEmbed {
        TextToEmbed {
            media: prompt.media,
            ..prompt.tokens.into()
        }
    }
}

/// The vector of a text that is being computed: a future. Dropping it ends the request.
pub struct Embedding {
    out: Arc<Channel>,
    /// Values before the vector.
    skipped: usize,
    /// Values to keep.
    size: usize,
    normalise: bool,
    /// The engine goes on while it is wanted.
    _engine: Engine,
}

impl Embedding {
    /// Waits for the vector.
    pub fn wait(self) -> Result<Vec<f32>, Error> {
        self.result(self.out.next())
    }

    /// Keeps the first `size` values only, for models that were trained for shorter vectors.
    pub fn shortened(mut self, size: usize) -> Embedding {
        self.size = size;
        self
    }

    /// Leaves the vector as long as the model made it.
    pub fn unnormalised(mut self) -> Embedding {
        self.normalise = false;
        self
    }

    /// Shortens and scales a vector.
    fn shape(&self, vector: &mut Vec<f32>) {
        vector.truncate(self.size);
        if self.normalise {
            normalise(vector);
        }
    }

    fn result(&self, next: Option<Next>) -> Result<Vec<f32>, Error> {
        let mut vector = self.raw(next)?;
        vector.drain(..self.skipped.min(vector.len()));
        self.shape(&mut vector);
        Ok(vector)
    }

    /// What the pass has yielded.
    fn raw(&self, next: Option<Next>) -> Result<Vec<f32>, Error> {
        match next {
            Some(Next::End(Ok(Finish::Length))) => Ok(self.out.take_vector()),
            Some(Next::End(Ok(Finish::Deadline))) => Err(Error::Deadline),
            Some(Next::End(Err(error))) => Err(error),
            _ => Err(Error::EngineStopped { why: None }),
        }
    }
}

/// Scales a vector to length 1.
fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|v| *v /= length);
}

impl Future for Embedding {
    type Output = Result<Vec<f32>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<f32>, Error>> {
        let next = ready!(self.out.poll(context));
        Poll::Ready(self.result(next))
    }
}

impl Drop for Embedding {
    fn drop(&mut self) {
        self.out.leave();
    }
}

impl Model {
    /// Encodes a text to embed, with the prompt of this name before it. Without a name, the model's default prompt is used,
    /// if it has one ([`VectorSettings`](crate::VectorSettings)).
    pub fn encode_to_embed(&self, prompt: Option<&str>, text: &str) -> Result<TextToEmbed, Error> {
        let settings = self.vector_settings();
        let Some(name) = prompt.or(settings.default_prompt.as_deref()) else {
            return Ok(self.encode(text)?.into());
        };
        let prompt = settings.prompt(name).ok_or_else(|| {
            let known: Vec<&str> = settings.prompts.iter().map(|p| p.0.as_str()).collect();
            Error::NoSuchPrompt {
                name: name.to_string(),
                known: if known.is_empty() {
                    "none".to_string()
                } else {
                    known.join(", ")
                },
            }
        })?;
        Ok(TextToEmbed {
            tokens: self.encode(&format!("{prompt}{text}"))?,
            left_out: if settings.leaves_out_prompts && !prompt.is_empty() {
                self.tokenizer()?.count_prompt(prompt)?
            } else {
                0
            },
            media: Vec::new(),
        })
    }
}

impl Engine {
    /// Begins to compute the vector of a text: the pooled last hidden states of its tokens, of length 1. The vector depends
    /// on the tokens and media alone. The model must have been loaded with
    /// [`LoadOptions::embeddings`](crate::LoadOptions::embeddings).
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// let mut options = welte::LoadOptions::default();
    /// (options.context, options.embeddings) = (64, true);
    /// let model = welte::Model::load("synthetic:tiny:q8_0", &options, &mut |_| ())?;
    /// let vector = model.engine()?.embed(vec![1, 2, 3], None)?.wait()?;
    /// assert_eq!(Some(vector.len()), model.embedding_size());
    /// # Ok(()) }
    /// ```
    pub fn embed(
        &self,
        text: impl Into<TextToEmbed>,
        deadline: Option<Instant>,
    ) -> Result<Embedding, Error> {
        if self.model.embedding_size().is_none() {
            let origin = self.model.origin().to_string();
            return Err(Error::NoEmbeddings { origin });
        }
        let text = text.into();
        let mut embedding = match (self.model.eyes(), &text.media[..]) {
            (Some(eyes), [image]) if eyes.are_apart() => self.known(image.medium.features()),
            _ => self.values(text, None, deadline)?,
        };
        embedding.normalise = true;
        Ok(embedding)
    }

    /// A vector that an encoder of images has made.
    fn known(&self, vector: &[f32]) -> Embedding {
        let clock = self.handle.shared.clock.clone();
        let out = Channel::new(Room::default(), Arc::default(), clock);
        out.set_vector(vector);
        out.end(Ok(Finish::Length));
        Embedding {
            out: Arc::new(out),
            skipped: 0,
            size: vector.len(),
            normalise: false,
            _engine: self.clone(),
        }
    }

    /// Begins to compute what the embed pass yields for a text, or for two of which the second one begins at `second`.
    pub(crate) fn values(
        &self,
        text: TextToEmbed,
        second: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<Embedding, Error> {
        let picked = match self.model.inner.sparse {
            Some(Sparse::Tokens { first: true }) => Picked::First,
            _ => Picked::Last,
        };
        self.rows(text, second, deadline, picked)
    }

    /// As [`Engine::values`], of these rows.
    fn rows(
        &self,
        text: TextToEmbed,
        second: Option<usize>,
        deadline: Option<Instant>,
        picked: Picked,
    ) -> Result<Embedding, Error> {
        let width = self.model.embed_width().unwrap_or(0);
        let room = match picked {
            Picked::Each { .. } => text.tokens.len() + width,
            _ => width,
        };
        // The last token is pooled always.
        let left_out = text.left_out.min(text.tokens.len().saturating_sub(1));
        let left_out = match left_out {
            0 => 0,
            some => self.model.pooled_from(some)?,
        };
        let mut request = Request::new(text.tokens);
        request.media = text.media;
        request.deadline = deadline;
        request.options.max_tokens = 0;
        request.prefix_cache = false;
        let clock = self.handle.shared.clock.clone();
        let out = |most| Channel::new(most, Arc::default(), clock).with_vector(room);
        let mut sequence = Sequence::new(&self.model, &request, out)?;
        (sequence.embeds, sequence.left_out) = (true, left_out);
        sequence.picked = picked;
        if let Some(second) = second.filter(|_| self.model.inner.segments > 1) {
            sequence.second = (second, self.model.context() as u32);
        }
        let out = sequence.out.clone();
        self.handle.shared.push(sequence)?;
        Ok(Embedding {
            out,
            skipped: self.model.embed_skipped(),
            size: width,
            normalise: false,
            _engine: self.clone(),
        })
    }
}

/// What a model for searches by words makes of a text (BGE-M3, SPLADE).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseVector {
    /// What tokens weigh, those that weigh anything, in the order of their numbers. BGE-M3 weighs those of the text: special ones are left
    /// out, and one that comes several times weighs as much as where it weighs most. SPLADE weighs all that it knows.
    pub weights: Vec<(u32, f32)>,
    /// Its vector, as [`Engine::embed`] yields it. SPLADE has none.
    pub dense: Vec<f32>,
}

/// The sparse vector of a text that is being computed: a future. Dropping it ends the request.
pub struct SparseEmbedding {
    embedding: Embedding,
    /// The tokens of the text; special ones are left out. None: the whole vocabulary is weighed.
    tokens: Option<Vec<Option<u32>>>,
}

impl SparseEmbedding {
    /// Waits for the vector.
    pub fn wait(self) -> Result<SparseVector, Error> {
        let next = self.embedding.out.next();
        self.result(next)
    }

    /// Shapes the vector beside the weights as [`Embedding::shortened`] does.
    pub fn shortened(mut self, size: usize) -> SparseEmbedding {
        self.embedding = self.embedding.shortened(size);
        self
    }

    /// Shapes the vector beside the weights as [`Embedding::unnormalised`] does.
    pub fn unnormalised(mut self) -> SparseEmbedding {
        self.embedding = self.embedding.unnormalised();
        self
    }

    fn result(&self, next: Option<Next>) -> Result<SparseVector, Error> {
        let mut all = self.embedding.raw(next)?;
        let Some(tokens) = &self.tokens else {
            // `log(1 + max(logit, 0))`, whose largest is that of the largest logit.
            let weights = (0..).zip(all).filter(|(_, logit)| *logit > 0.0);
            return Ok(SparseVector {
                weights: weights
                    .map(|(token, logit)| (token, logit.ln_1p()))
                    .collect(),
                dense: Vec::new(),
            });
        };
        let mut dense = all.split_off(tokens.len().min(all.len()));
        dense.drain(..self.embedding.skipped.min(dense.len()));
        self.embedding.shape(&mut dense);
        let mut most = BTreeMap::new();
        for (token, weight) in tokens.iter().zip(all) {
            // A weight that is not a number is not above 0.
            if let Some(token) = token.filter(|_| weight > 0.0) {
                let known = most.entry(token).or_insert(weight);
                *known = weight.max(*known);
            }
        }
        Ok(SparseVector {
            weights: most.into_iter().collect(),
            dense,
        })
    }
}

impl Future for SparseEmbedding {
    type Output = Result<SparseVector, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let next = ready!(self.embedding.out.poll(context));
        Poll::Ready(self.result(next))
    }
}

impl Engine {
    /// Begins to compute what the tokens of a text weigh, for a search by words, and its vector beside it. The model must have the
    /// weights for it ([`Model::has_sparse_vectors`]).
    pub fn embed_sparse(
        &self,
        text: impl Into<TextToEmbed>,
        deadline: Option<Instant>,
    ) -> Result<SparseEmbedding, Error> {
        let model = &self.model;
        model.check_sparse()?;
        let text = text.into();
        let Some(Sparse::Tokens { first }) = model.inner.sparse else {
            let embedding = self.values(text, None, deadline)?;
            let tokens = None;
            return Ok(SparseEmbedding { embedding, tokens });
        };
        let tokenizer = model.inner.tokenizer.as_deref();
        let is_special = |token: u32| tokenizer.is_some_and(|t| t.is_special(token));
        let tokens = text.tokens.iter().enumerate().map(|(at, token)| {
            let counts = at >= text.left_out && !is_special(*token);
            counts.then_some(*token)
        });
        let tokens = Some(tokens.collect());
        let mut embedding = self.rows(text, None, deadline, Picked::Each { first })?;
        embedding.normalise = true;
        Ok(SparseEmbedding { embedding, tokens })
    }
}
