//! Images in the prompts of a model.

use super::Model;
use crate::{Error, Eyes, Glimpse, Prompt, Sight, TextToEmbed};
use std::sync::Arc;
use welte_text::{ChatTemplate, Image, ImageSource, Message};

impl Model {
    /// The model's eyes, if it takes images.
    pub fn eyes(&self) -> Option<&Eyes> {
        self.inner.eyes.get()
    }

    /// Why it takes no images, if it takes none.
    pub fn no_images(&self) -> Option<&str> {
        let missing = self.inner.no_images.as_deref();
        missing.filter(|_| self.eyes().is_none())
    }

    /// The eyes, or why there are none.
    fn needed_eyes(&self) -> Result<&Eyes, Error> {
        self.eyes().ok_or_else(|| {
            let why = self.no_images().unwrap_or("it has no eyes");
            Error::Eyes {
                origin: self.origin().to_string(),
                problem: format!("the model takes no images: {why}"),
            }
        })
    }

    /// Gives a model eyes that were opened elsewhere.
    #[doc(hidden)]
    pub fn set_eyes(&self, sight: Box<dyn Sight>) -> Result<(), Error> {
        let origin = self.origin().to_string();
        let tokenizer = self.inner.tokenizer.clone();
        let tokenizer: Arc<_> = tokenizer.ok_or(Error::NoTokenizer { origin })?;
        let eyes = Eyes::new(sight, tokenizer, self.feature_width(), self.origin())?
            .beside(self.device().id, &self.inner.neighbour);
        let _ = self.inner.eyes.set(eyes);
        Ok(())
    }

    /// An image to embed: as it is, if the model has a vector for each image, or as the message of a user and the beginning of an answer.
    pub fn encode_image_to_embed(&self, image: Image) -> Result<TextToEmbed, Error> {
        let eyes = self.needed_eyes()?;
        match &image.source {
            ImageSource::Bytes(bytes) if eyes.are_apart() => {
                let mut prompt = Prompt::default();
                eyes.push(&mut prompt, &*eyes.see(bytes)?);
                Ok(prompt.into())
            }
            _ => {
                let message = Message {
                    images: vec![image],
                    ..Message::new("user", String::new())
                };
                let prompt = self.encode_conversation(&self.chat_template()?, &[message])?;
                Ok(prompt.into())
            }
        }
    }

    /// The prompt that begins an answer to a conversation, with its images in their places. The images must be there: none is
    /// fetched from an address.
    pub fn encode_conversation(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Prompt, Error> {
        let mut played;
        let messages = match self.eyes() {
            Some(eyes) => {
                played = messages.to_vec();
                eyes.play(&mut played);
                &played
            }
            None => messages,
        };
        let tokens = self.encode_chat(template, messages)?;
        let mut images = messages.iter().flat_map(|m| &m.images).peekable();
        if images.peek().is_none() {
            return Ok(tokens.into());
        }
        let wrong = |problem: String| Error::Eyes {
            origin: self.origin().to_string(),
            problem,
        };
        let eyes = self.needed_eyes()?;
        let look = |image: &Image| match &image.source {
            ImageSource::Bytes(bytes) => eyes.look(bytes),
            ImageSource::Clip(clip) => eyes.look_at_frames(clip),
            ImageSource::Url(_) | ImageSource::VideoUrls { .. } | ImageSource::Video(_) => {
                Err(wrong("an image is an address, not a file".into()))
            }
        };
        let looks = images.map(look).collect::<Result<Vec<_>, _>>()?;
        // A prompt that does not fit needs no features.
        let own: usize = looks.iter().map(Glimpse::tokens).sum();
        let (prompt, context) = (
            tokens.len().saturating_sub(looks.len()) + own,
            self.context(),
        );
        if prompt >= context {
            return Err(Error::ContextFull { prompt, context });
        }
        let seen = looks.into_iter().map(Glimpse::see);
        let seen = seen.collect::<Result<Vec<_>, _>>()?;
        eyes.place(&tokens, &seen)
    }
}
