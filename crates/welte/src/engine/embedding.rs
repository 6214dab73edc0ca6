//! The vector of a text, on its way from the scheduler.

use super::channel::{Channel, Finish, Next, Room};
use super::sequence::Sequence;
use super::{Engine, Request};
use crate::{Error, MediumAt, Model, Prompt};
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

    fn result(&self, next: Option<Next>) -> Result<Vec<f32>, Error> {
        match next {
            Some(Next::End(Ok(Finish::Length))) => {
                let mut vector = self.out.take_vector();
                vector.truncate(self.size);
                if self.normalise {
                    normalise(&mut vector);
                }
                Ok(vector)
            }
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
        let size = self.model.embed_width().unwrap_or(0);
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
        let out = |most| Channel::new(most, Arc::default(), clock).with_vector(size);
        let mut sequence = Sequence::new(&self.model, &request, out)?;
        (sequence.embeds, sequence.left_out) = (true, left_out);
        if let Some(second) = second.filter(|_| self.model.inner.segments > 1) {
            sequence.second = (second, self.model.context() as u32);
        }
        let out = sequence.out.clone();
        self.handle.shared.push(sequence)?;
        Ok(Embedding {
            out,
            size,
            normalise: false,
            _engine: self.clone(),
        })
    }
}
