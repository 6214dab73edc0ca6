//! Images and sounds in the prompts of a model.

use super::Model;
use crate::hearing::Reader;
use crate::{Dictated, Dictation, Error, Glimpse, MediaEncoder, Prompt, Seen, Sense, TextToEmbed};
use std::sync::Arc;
use welte_text::{ChatTemplate, Image, ImageSource, Message};

impl Model {
    /// The model's eyes, if it takes images.
    pub fn eyes(&self) -> Option<&Sense> {
        self.inner.eyes.get()
    }

    /// The model's ears, if it takes sounds.
    pub fn ears(&self) -> Option<&Sense> {
        self.inner.ears.get()
    }

    /// Why it takes no images, if it takes none.
    pub fn no_images(&self) -> Option<&str> {
        let missing = self.inner.no_images.as_deref();
        missing.filter(|_| self.eyes().is_none())
    }

    /// Why it takes no sounds, if it takes none.
    pub fn no_sounds(&self) -> Option<&str> {
        let missing = self.inner.no_sounds.as_deref();
        missing.filter(|_| self.ears().is_none())
    }

    /// The sense for what comes from a source, or why there is none.
    pub fn sense(&self, source: &ImageSource) -> Result<&Sense, String> {
        let (sense, what, why) = if source.is_sound() {
            let why = self.no_sounds().unwrap_or("it has no ears");
            (self.ears(), "sounds", why)
        } else {
            let why = self.no_images().unwrap_or("it has no eyes");
            (self.eyes(), "images", why)
        };
        sense.ok_or_else(|| format!("the model takes no {what}: {why}"))
    }

    /// A prompt with images and sounds in the places of their placeholders, which must be as many.
    pub fn place(&self, tokens: &[u32], media: &[Arc<Seen>]) -> Result<Prompt, Error> {
        match self.eyes().or(self.ears()) {
            Some(sense) => sense.place(tokens, media),
            None => Ok(tokens.into()),
        }
    }

    /// The tokens before and after a sound whose transcript is wanted.
    pub fn dictation(
        &self,
        language: Option<&str>,
        prompt: Option<&str>,
    ) -> Result<[Vec<u32>; 2], Error> {
        self.dictating()?
            .around(self.tokenizer()?, language, prompt)
    }

    /// What an answer to that says.
    pub fn dictated(&self, answer: &[u32]) -> Result<Dictated, Error> {
        self.dictating()?;
        Ok(Reader::whole(self.tokenizer()?, answer))
    }

    fn dictating(&self) -> Result<Dictation, Error> {
        let wrong = |problem: String| Error::Speech {
            field: "model",
            problem,
        };
        let ears = self.ears().ok_or_else(|| {
            let why = self.no_sounds().unwrap_or("it has no ears");
            wrong(format!("the model takes no sounds: {why}"))
        })?;
        let problem = "has no prompt for transcripts that is known; ask it in a chat";
        ears.dictation().ok_or_else(|| wrong(problem.into()))
    }

    /// Gives a model eyes or ears that were opened elsewhere.
    #[doc(hidden)]
    pub fn set_sense(&self, encoder: Box<dyn MediaEncoder>) -> Result<(), Error> {
        let origin = self.origin().to_string();
        let tokenizer = self.inner.tokenizer.clone();
        let tokenizer: Arc<_> = tokenizer.ok_or(Error::NoTokenizer { origin })?;
        let sounds = encoder.what() == "sounds";
        let sense = Sense::new(encoder, tokenizer, self.feature_width(), self.origin())?
            .beside(self.device().id, &self.inner.neighbour);
        let place = if sounds {
            &self.inner.ears
        } else {
            &self.inner.eyes
        };
        let _ = place.set(sense);
        Ok(())
    }

    /// An image to embed: as it is, if the model has a vector for each image, or as the message of a user and the beginning of an answer.
    pub fn encode_image_to_embed(&self, image: Image) -> Result<TextToEmbed, Error> {
        let wrong = |problem: String| Error::Sense {
            origin: self.origin().to_string(),
            problem,
        };
        let eyes = self.sense(&image.source).map_err(wrong)?;
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

    /// The prompt that begins an answer to a conversation, with its images and sounds in their places. They must be there: none is
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
        let wrong = |problem: String| Error::Sense {
            origin: self.origin().to_string(),
            problem,
        };
        let look = |image: &Image| {
            let sense = self.sense(&image.source).map_err(wrong)?;
            match &image.source {
                ImageSource::Bytes(bytes) | ImageSource::Sound(bytes) => sense.look(bytes),
                ImageSource::Clip(clip) => sense.look_at_frames(clip),
                ImageSource::Url(_)
                | ImageSource::SoundUrl(_)
                | ImageSource::VideoUrls { .. }
                | ImageSource::Video(_) => Err(wrong("an image is an address, not a file".into())),
            }
        };
        let named = |image: &Image, error: Error| match error {
            error @ (Error::ManyImages { .. } | Error::Sense { .. }) => error,
            error => Error::File {
                path: image.name.clone(),
                problem: error.to_string(),
            },
        };
        let looks = images.map(|image| look(image).map_err(|error| named(image, error)));
        let looks = looks.collect::<Result<Vec<_>, _>>()?;
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
        self.place(&tokens, &seen)
    }
}
