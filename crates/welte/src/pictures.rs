//! Pictures and sounds in prompts: a model's senses, what they remember, and prompts with media in the places of placeholders.

use crate::engine::{Neighbour, Turns};
use crate::vision::{Picture, Piece, Vision, hash_of};
use crate::{Dictation, Error, Hearing, Medium, MediumAt, Sound};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use web_time::Duration;
use welte_device::DeviceId;
use welte_text::{Clip, Image, ImageSource, Message, Tokenizer, Video};
use welte_vision::{Film, Scene};

/// Bytes of features that are kept of the pictures seen last.
const KEPT: usize = 512 << 20;
/// Bytes of features that are kept or in requests, and of pictures that are not encoded yet.
const HELD: usize = 2 << 30;
/// The most features of all pictures of a video, if the family scales pictures.
const OF_VIDEO: u32 = 2048;
/// How often somebody who waits for a picture looks whether it is still wanted.
const LOOKS: Duration = Duration::from_millis(20);

/// Control tokens that stand for a picture or a sound where the vocabulary lacks the placeholder. Prompts have none of them otherwise.
const STAND_INS: [&str; 5] = [
    "<pad>",
    "[PAD]",
    "<|endoftext|>",
    "<unk>",
    // Llama 3
    "<|finetune_right_pad_id|>",
];

/// What turns pictures or sounds into features. [`Vision`] and [`Hearing`] do; tests have a simple one.
pub trait MediaEncoder: Send + Sync {
    /// The text that the chat template writes for a picture or a sound.
    fn placeholder(&self) -> &str;

    /// What it encodes: `images` or `sounds`.
    fn what(&self) -> &'static str {
        "images"
    }

    /// How it is asked for a transcript of a sound, if that is known.
    fn dictation(&self) -> Option<Dictation> {
        None
    }

    /// Floats of a feature.
    fn width(&self) -> usize;

    /// What stands before a prompt's picture of this number, from 0 on, if anything does.
    fn number(&self, _number: usize) -> Option<String> {
        None
    }

    /// Where it runs, if a device does that.
    fn device(&self) -> Option<DeviceId> {
        None
    }

    /// Decodes a picture or a sound, the bytes of a file.
    fn look(&self, bytes: &[u8]) -> Result<Decoded<'_>, Error>;

    /// As [`MediaEncoder::look`]. What takes long gives up with [`Error::Deadline`] once `wanted` is false.
    fn look_while(&self, bytes: &[u8], _wanted: &dyn Fn() -> bool) -> Result<Decoded<'_>, Error> {
        self.look(bytes)
    }

    /// Prepares a sound of which only the samples are known: one channel at 16 kHz.
    fn hear(&self, _samples: &[f32]) -> Result<Decoded<'_>, Error> {
        Err(Error::Media {
            problem: "it takes no samples of sounds".into(),
        })
    }

    /// The most samples of a sound, if it cannot take more at once.
    fn most_samples(&self) -> Option<usize> {
        None
    }

    /// How videos are shown.
    fn film(&self) -> Film {
        Film::PLAIN
    }

    /// Decodes frames that become one picture.
    fn look_at_frames(&self, clip: &Clip) -> Result<Decoded<'_>, Error> {
        self.look(clip.frames.first().map_or(&[], |frame| &frame[..]))
    }
}

/// A picture that is decoded, but not encoded.
pub struct Decoded<'a> {
    /// What stands in the prompt for it.
    pub layout: Vec<Piece>,
    /// Bytes that it takes until it is encoded.
    pub bytes: usize,
    /// Its number may stand before it ([`MediaEncoder::number`]).
    pub numbered: bool,
    /// Computes its features.
    pub encode: Encode<'a>,
}

/// Computes the features of a picture, row after row, in turns with others that use the device.
pub type Encode<'a> = Box<dyn FnOnce(&Turns<'_>) -> Result<Arc<[f32]>, Error> + 'a>;

impl MediaEncoder for Vision {
    fn placeholder(&self) -> &str {
        Vision::placeholder(self)
    }

    fn width(&self) -> usize {
        Vision::width(self)
    }

    fn number(&self, number: usize) -> Option<String> {
        Vision::number(self, number)
    }

    fn device(&self) -> Option<DeviceId> {
        Some(Vision::device(self))
    }

    fn look(&self, bytes: &[u8]) -> Result<Decoded<'_>, Error> {
        Ok(decoded(self, self.read(bytes)?, true))
    }

    fn film(&self) -> Film {
        Vision::film(self)
    }

    fn look_at_frames(&self, clip: &Clip) -> Result<Decoded<'_>, Error> {
        Ok(decoded(self, self.read_frames(clip)?, false))
    }
}

impl MediaEncoder for Hearing {
    fn placeholder(&self) -> &str {
        Hearing::placeholder(self)
    }

    fn what(&self) -> &'static str {
        "sounds"
    }

    fn dictation(&self) -> Option<Dictation> {
        Hearing::dictation(self)
    }

    fn width(&self) -> usize {
        Hearing::width(self)
    }

    fn device(&self) -> Option<DeviceId> {
        Some(Hearing::device(self))
    }

    fn look(&self, bytes: &[u8]) -> Result<Decoded<'_>, Error> {
        self.look_while(bytes, &|| true)
    }

    fn look_while(&self, bytes: &[u8], wanted: &dyn Fn() -> bool) -> Result<Decoded<'_>, Error> {
        Ok(heard(self, self.read_while(bytes, wanted)?))
    }

    fn hear(&self, samples: &[f32]) -> Result<Decoded<'_>, Error> {
        Ok(heard(self, Hearing::hear(self, samples)?))
    }

    fn most_samples(&self) -> Option<usize> {
        Hearing::most_samples(self)
    }
}

fn heard(hearing: &Hearing, sound: Sound) -> Decoded<'_> {
    Decoded {
        numbered: false,
        layout: hearing.layout(&sound),
        bytes: sound.bytes(),
        encode: Box::new(move |turns| Ok(hearing.encode_in(&sound, turns)?.rows)),
    }
}

fn decoded(vision: &Vision, picture: Picture, numbered: bool) -> Decoded<'_> {
    Decoded {
        numbered,
        layout: vision.layout(&picture),
        bytes: picture.bytes(),
        encode: Box::new(move |turns| Ok(vision.encode_in(&picture, turns)?.rows)),
    }
}

/// A picture or a sound as it stands in prompts.
#[derive(Debug)]
pub struct Seen {
    parts: Vec<Part>,
    /// The token that stands for it in a prompt.
    placeholder: u32,
    /// It is a sound.
    sound: bool,
    /// Its number may stand before it. Frames of a video have none.
    numbered: bool,
}

#[derive(Debug)]
enum Part {
    Tokens(Vec<u32>),
    Medium(Arc<Medium>),
}

impl Seen {
    /// The positions that it takes.
    pub fn tokens(&self) -> usize {
        let rows = |part: &Part| match part {
            Part::Tokens(tokens) => tokens.len(),
            Part::Medium(medium) => medium.rows(),
        };
        self.parts.iter().map(rows).sum()
    }

    fn bytes(&self) -> usize {
        let bytes = |part: &Part| match part {
            Part::Tokens(tokens) => 4 * tokens.len(),
            Part::Medium(medium) => medium.bytes(),
        };
        self.parts.iter().map(bytes).sum()
    }
}

/// A picture before it is encoded, unless it was seen before: it says how many positions it takes.
pub struct Glimpse<'a> {
    sense: &'a Sense,
    hash: [u8; 32],
    tokens: usize,
    /// What to encode, with memory for it; nothing if the picture was seen before.
    found: Result<Arc<Seen>, (Decoded<'a>, Reserved<'a>)>,
}

impl Glimpse<'_> {
    /// The positions that the picture takes.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Encodes the picture. Takes a while, unless it was seen before.
    pub fn see(self) -> Result<Arc<Seen>, Error> {
        self.see_while(&|| true)
    }

    /// As [`Glimpse::see`], but gives up with [`Error::Deadline`] once `wanted` is false.
    pub fn see_while(self, wanted: &dyn Fn() -> bool) -> Result<Arc<Seen>, Error> {
        match self.found {
            Ok(seen) => Ok(seen),
            Err((decoded, _reserved)) => self.sense.encode(self.hash, decoded, wanted),
        }
    }
}

/// A model's eyes, or its ears. They remember what they have seen or heard, so a picture or a sound that comes again is not encoded again.
pub struct Sense {
    encoder: Box<dyn MediaEncoder>,
    tokenizer: Arc<Tokenizer>,
    /// The placeholder, and its token.
    mark: String,
    placeholder: u32,
    /// By the hash of their bytes, the last one in use at the end.
    seen: Mutex<VecDeque<([u8; 32], Arc<Seen>)>>,
    /// The engine whose streams have steps between the pieces of an encoder's work, if they share a device.
    neighbour: Option<Neighbour>,
    /// Pictures that are being encoded: the same picture in two requests is encoded once.
    busy: Mutex<Vec<[u8; 32]>>,
    free: Condvar,
    most_bytes: usize,
    made: Mutex<Made>,
    most_held: usize,
    /// What they see is a vector beside those of texts, and stands in no prompt.
    apart: bool,
}

#[derive(Default)]
struct Made {
    /// All media that were made and may still be in use.
    media: Vec<Weak<Medium>>,
    /// Bytes of pictures that were looked at, and that their features will take.
    reserved: usize,
}

impl Made {
    /// Bytes of the media that are remembered or in requests, and what is reserved.
    fn held(&mut self) -> usize {
        self.media.retain(|medium| medium.strong_count() > 0);
        let media = self.media.iter().filter_map(Weak::upgrade);
        self.reserved + media.map(|medium| medium.bytes()).sum::<usize>()
    }
}

/// Memory for a picture, until it is encoded or given up.
struct Reserved<'a> {
    sense: &'a Sense,
    bytes: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.sense.made().reserved -= self.bytes;
    }
}

impl std::fmt::Debug for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sense").field(&self.placeholder).finish()
    }
}

impl Sense {
    /// For a vocabulary and embeddings of `width` values. `origin` is what errors call the model.
    pub(crate) fn new(
        encoder: Box<dyn MediaEncoder>,
        tokenizer: Arc<Tokenizer>,
        width: usize,
        origin: &str,
    ) -> Result<Sense, Error> {
        let wrong = |problem: String| Error::Sense {
            origin: origin.to_string(),
            problem,
        };
        let own = encoder.width();
        if own != width {
            let what = encoder.what();
            return Err(wrong(format!(
                "the encoder of {what} makes vectors of {own} values, and the model reads {width}; \
                 it belongs to another model"
            )));
        }
        let own_mark = encoder.placeholder();
        let known = |mark: &&str| {
            tokenizer
                .id_of(mark)
                .is_some_and(|id| tokenizer.is_control(id))
        };
        let own = |mark: &str| match tokenizer.encode(mark, false, true).as_deref() {
            Ok([token]) => Some((mark.to_string(), *token)),
            _ => None,
        };
        let found = own(own_mark).or_else(|| STAND_INS.into_iter().filter(known).find_map(own));
        let found = found.ok_or_else(|| {
            let what = encoder.what();
            wrong(format!(
                "the vocabulary has no token {own_mark:?}, which stands for {what}"
            ))
        })?;
        Ok(Sense::with(encoder, tokenizer, found))
    }

    /// A sense that makes a vector of each picture, of as many values as those of texts have.
    pub(crate) fn apart(encoder: Box<dyn MediaEncoder>, tokenizer: Arc<Tokenizer>) -> Sense {
        // A prompt is this token alone.
        let mark = (encoder.placeholder().to_string(), 0);
        Sense {
            apart: true,
            ..Sense::with(encoder, tokenizer, mark)
        }
    }

    fn with(
        encoder: Box<dyn MediaEncoder>,
        tokenizer: Arc<Tokenizer>,
        (mark, placeholder): (String, u32),
    ) -> Sense {
        Sense {
            encoder,
            tokenizer,
            mark,
            placeholder,
            seen: Mutex::default(),
            neighbour: None,
            busy: Mutex::default(),
            free: Condvar::new(),
            most_bytes: KEPT,
            made: Mutex::default(),
            most_held: HELD,
            apart: false,
        }
    }

    /// What they see is a vector beside those of texts, and can stand in no prompt beside other things.
    pub fn are_apart(&self) -> bool {
        self.apart
    }

    /// A sense that shares the device `near` with an engine.
    pub(crate) fn beside(mut self, near: DeviceId, engine: &Neighbour) -> Sense {
        let shares = self.encoder.device() == Some(near);
        self.neighbour = shares.then(|| engine.clone());
        self
    }

    /// The text that stands for a picture or a sound in a prompt.
    pub fn placeholder(&self) -> &str {
        &self.mark
    }

    /// Decodes a picture or a sound, a file's bytes, unless it was seen before.
    pub fn look(&self, bytes: &[u8]) -> Result<Glimpse<'_>, Error> {
        self.look_while(bytes, &|| true)
    }

    /// As [`Sense::look`], but a long sound is given up with [`Error::Deadline`] once `wanted` is false.
    pub fn look_while(
        &self,
        bytes: &[u8],
        wanted: &dyn Fn() -> bool,
    ) -> Result<Glimpse<'_>, Error> {
        let hash = Sha256::digest(bytes).into();
        self.glimpse(hash, || self.encoder.look_while(bytes, wanted))
    }

    /// Prepares samples of a sound, one channel at 16 kHz, unless they were heard before.
    pub fn hear(&self, samples: &[f32]) -> Result<Glimpse<'_>, Error> {
        let mut hash = Sha256::new_with_prefix(b"samples");
        for sample in samples {
            hash.update(sample.to_le_bytes());
        }
        self.glimpse(hash.finalize().into(), || self.encoder.hear(samples))
    }

    /// The most samples of a sound, if its encoder cannot take more at once.
    pub fn most_samples(&self) -> Option<usize> {
        self.encoder.most_samples()
    }

    /// Decodes frames that become one picture, unless they were seen before.
    pub fn look_at_frames(&self, clip: &Clip) -> Result<Glimpse<'_>, Error> {
        self.glimpse(hash_of(clip), || self.encoder.look_at_frames(clip))
    }

    fn glimpse<'a>(
        &'a self,
        hash: [u8; 32],
        look: impl FnOnce() -> Result<Decoded<'a>, Error>,
    ) -> Result<Glimpse<'a>, Error> {
        let (tokens, found) = match self.remember(&hash) {
            Some(seen) => (seen.tokens(), Ok(seen)),
            None => {
                let decoded = look()?;
                let rows = |piece: &Piece| match piece {
                    Piece::Text(text) => Ok(self.text(text)?.len()),
                    Piece::Features { axes, .. } => Ok(axes.len()),
                };
                let each = decoded.layout.iter().map(rows);
                let tokens = each.sum::<Result<usize, Error>>()?;
                let reserved = self.reserve(&decoded)?;
                (tokens, Err((decoded, reserved)))
            }
        };
        Ok(Glimpse {
            sense: self,
            hash,
            tokens,
            found,
        })
    }

    /// How it is asked for a transcript of a sound, if that is known.
    pub fn dictation(&self) -> Option<Dictation> {
        self.encoder.dictation()
    }

    /// How videos are shown.
    pub fn film(&self) -> Film {
        self.encoder.film()
    }

    /// Makes text and pictures of the videos in messages.
    pub fn play(&self, messages: &mut [Message]) {
        let videos = |message: &&mut Message| {
            let mut sources = message.images.iter().map(|image| &image.source);
            sources.any(|source| matches!(source, ImageSource::Video(_)))
        };
        for message in messages.iter_mut().filter(videos) {
            let (text, images) = (
                std::mem::take(&mut message.content),
                std::mem::take(&mut message.images),
            );
            let mut done = 0;
            for image in images {
                message.content.push_str(&text[done..image.at]);
                done = image.at;
                match &image.source {
                    ImageSource::Video(video) => self.play_one(video, &image.name, message),
                    _ => message.images.push(Image {
                        at: message.content.len(),
                        ..image
                    }),
                }
            }
            message.content.push_str(&text[done..]);
        }
    }

    fn play_one(&self, video: &Video, name: &str, message: &mut Message) {
        let times = video.frames.iter().map(|frame| frame.at.as_secs_f64());
        let times: Vec<f64> = times.collect();
        let scenes = self.film().scenes(&times, video.length.as_secs_f64());
        let of_frames = |scene: &&Scene| matches!(scene, Scene::Frames(_));
        let pictures = match self.film().together {
            // The encoder reads two at a time.
            0 => times.len().div_ceil(2),
            _ => scenes.iter().filter(of_frames).count(),
        };
        let each = video.length / times.len().max(1) as u32;
        let around = self.film().around;
        if let Some([before, _]) = around {
            message.marks.push((message.content.len(), before));
        }
        for scene in scenes {
            let own = match scene {
                Scene::Text(text) => {
                    message.content.push_str(&text);
                    continue;
                }
                Scene::Frames(own) => &video.frames[own],
            };
            let clip = Clip {
                frames: own.iter().map(|frame| frame.bytes.clone()).collect(),
                length: 2 * each,
                most_features: OF_VIDEO / pictures.max(1) as u32,
            };
            message.images.push(Image {
                at: message.content.len(),
                source: ImageSource::Clip(Arc::new(clip)),
                name: name.to_string(),
            });
        }
        if let Some([_, after]) = around {
            message.marks.push((message.content.len(), after));
        }
    }

    /// Looks at a picture and encodes it.
    pub fn see(&self, bytes: &[u8]) -> Result<Arc<Seen>, Error> {
        self.look(bytes)?.see()
    }

    fn encode(
        &self,
        hash: [u8; 32],
        decoded: Decoded<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Arc<Seen>, Error> {
        let _encoding = self.begin(hash, wanted)?;
        if let Some(seen) = self.remember(&hash) {
            return Ok(seen);
        }
        let features = (decoded.encode)(&Turns::beside(self.neighbour.as_ref(), wanted))?;
        let (layout, numbered) = (decoded.layout.into_iter(), decoded.numbered);
        let parts = layout.map(|piece| self.part(piece, &features));
        let seen = Arc::new(Seen {
            parts: parts.collect::<Result<_, _>>()?,
            placeholder: self.placeholder,
            sound: self.encoder.what() == "sounds",
            numbered,
        });
        self.note(&seen);
        self.keep(hash, &seen);
        Ok(seen)
    }

    fn busy(&self) -> MutexGuard<'_, Vec<[u8; 32]>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else encodes the same picture.
    fn begin(&self, hash: [u8; 32], wanted: &dyn Fn() -> bool) -> Result<Encoding<'_>, Error> {
        let mut busy = self.busy();
        while busy.contains(&hash) {
            let waited = self.free.wait_timeout(busy, LOOKS);
            (busy, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if !wanted() {
                return Err(Error::Deadline);
            }
        }
        busy.push(hash);
        drop(busy);
        Ok(Encoding { sense: self, hash })
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, seen: &Seen) {
        let media = seen.parts.iter().filter_map(|part| match part {
            Part::Medium(medium) => Some(Arc::downgrade(medium)),
            Part::Tokens(_) => None,
        });
        self.made().media.extend(media);
    }

    /// Memory for a picture and its features, if there is enough of it.
    fn reserve(&self, decoded: &Decoded<'_>) -> Result<Reserved<'_>, Error> {
        let row = 4 * self.encoder.width() + size_of::<[u32; 3]>();
        let features = |piece: &Piece| match piece {
            Piece::Text(_) => 0,
            Piece::Features { axes, .. } => axes.len() * row,
        };
        let bytes = decoded.bytes + decoded.layout.iter().map(features).sum::<usize>();
        let mut made = self.made();
        let held = made.held();
        if held + bytes > self.most_held {
            return Err(Error::ManyImages { bytes: held as u64 });
        }
        made.reserved += bytes;
        Ok(Reserved { sense: self, bytes })
    }

    /// The tokens of a text around features. What begins and ends a sound is a token, or missing in the vocabulary.
    fn text(&self, text: &str) -> Result<Vec<u32>, Error> {
        if self.encoder.what() == "sounds" && self.tokenizer.id_of(text.trim()).is_none() {
            return Ok(Vec::new());
        }
        Ok(self.tokenizer.encode(text, false, true)?)
    }

    fn part(&self, piece: Piece, features: &[f32]) -> Result<Part, Error> {
        let (first, axes, advance, both_ways) = match piece {
            Piece::Text(text) => {
                return Ok(Part::Tokens(self.text(&text)?));
            }
            Piece::Features {
                first,
                axes,
                advance,
                both_ways,
            } => (first, axes, advance, both_ways),
        };
        let width = self.encoder.width();
        let own = features.get(first * width..(first + axes.len()) * width);
        let own = own.ok_or_else(|| Error::Media {
            problem: "an image has fewer features than its layout; please report this as a bug"
                .into(),
        })?;
        let medium = Medium::new(width, own.to_vec())?.with_axes(axes, advance)?;
        Ok(Part::Medium(Arc::new(if both_ways {
            medium.attending_both_ways()
        } else {
            medium
        })))
    }

    fn seen(&self) -> MutexGuard<'_, VecDeque<([u8; 32], Arc<Seen>)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, hash: &[u8; 32]) -> Option<Arc<Seen>> {
        let mut all = self.seen();
        let at = all.iter().position(|(known, _)| known == hash)?;
        let found = all.remove(at)?;
        all.push_back(found.clone());
        Some(found.1)
    }

    fn keep(&self, hash: [u8; 32], seen: &Arc<Seen>) {
        // It would drive out all others and not stay itself.
        if seen.bytes() > self.most_bytes {
            return;
        }
        let mut all = self.seen();
        all.push_back((hash, seen.clone()));
        let mut held: usize = all.iter().map(|(_, seen)| seen.bytes()).sum();
        while held > self.most_bytes
            && let Some((_, oldest)) = all.pop_front()
        {
            held -= oldest.bytes();
        }
    }

    /// A prompt with media in the places of their placeholders, which must be as many. The media may be those of other senses, too.
    pub fn place(&self, tokens: &[u32], media: &[Arc<Seen>]) -> Result<Prompt, Error> {
        let is_place = |token: &u32| media.iter().any(|medium| medium.placeholder == *token);
        let places = tokens.iter().filter(|token| is_place(token)).count();
        let wrong = Error::ImagePlaces {
            images: media.len(),
            places,
        };
        if places != media.len() {
            return Err(wrong);
        }
        let mut prompt = Prompt::default();
        let mut next = media.iter();
        for (at, token) in tokens.iter().enumerate() {
            if !is_place(token) {
                prompt.tokens.push(*token);
                continue;
            }
            match next.next() {
                Some(medium) if medium.placeholder == *token => {
                    let around = [tokens[..at].last(), tokens.get(at + 1)];
                    self.add(&mut prompt, medium, around);
                }
                _ => return Err(wrong),
            }
        }
        Ok(prompt)
    }

    /// Adds a picture or a sound to a prompt.
    pub fn push(&self, prompt: &mut Prompt, medium: &Seen) {
        self.add(prompt, medium, [None; 2]);
    }

    /// The same between two tokens of the template.
    fn add(&self, prompt: &mut Prompt, medium: &Seen, around: [Option<&u32>; 2]) {
        if medium.numbered {
            let number = self.encoder.number(prompt.pictures);
            // A vocabulary without these tokens cannot say it.
            let number = number.and_then(|text| self.tokenizer.encode(&text, false, true).ok());
            prompt.tokens.extend(number.unwrap_or_default());
            prompt.pictures += 1;
        }
        // Some templates write the tokens that begin and end a sound.
        let written = |token: Option<&u32>| {
            token
                .copied()
                .filter(|token| medium.sound && *token != medium.placeholder)
        };
        let ([before, after], last) = (around.map(written), medium.parts.len() - 1);
        for (number, part) in medium.parts.iter().enumerate() {
            match part {
                Part::Tokens(own)
                    if number == 0 && before.is_some_and(|token| own == &[token])
                        || number == last && after.is_some_and(|token| own == &[token]) => {}
                Part::Tokens(own) => prompt.tokens.extend_from_slice(own),
                Part::Medium(features) => {
                    let at = prompt.tokens.len();
                    let end = at + features.rows();
                    prompt.tokens.resize(end, medium.placeholder);
                    let medium = features.clone();
                    prompt.media.push(MediumAt { at, medium });
                }
            }
        }
    }
}

/// A picture that is being encoded.
struct Encoding<'a> {
    sense: &'a Sense,
    hash: [u8; 32],
}

impl Drop for Encoding<'_> {
    fn drop(&mut self) {
        self.sense.busy().retain(|hash| *hash != self.hash);
        self.sense.free.notify_all();
    }
}

/// A prompt with media: what [`Request`](crate::Request) takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// The tokens, with placeholders for rows of media.
    pub tokens: Vec<u32>,
    /// The media.
    pub media: Vec<MediumAt>,
    /// How many pictures it has.
    pub pictures: usize,
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Prompt {
        Prompt {
            tokens,
            ..Prompt::default()
        }
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Prompt {
        tokens.to_vec().into()
    }
}

impl From<&Vec<u32>> for Prompt {
    fn from(tokens: &Vec<u32>) -> Prompt {
        tokens.clone().into()
    }
}

impl<const N: usize> From<&[u32; N]> for Prompt {
    fn from(tokens: &[u32; N]) -> Prompt {
        tokens.to_vec().into()
    }
}

impl From<&Prompt> for Prompt {
    fn from(prompt: &Prompt) -> Prompt {
        prompt.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WordEncoder;

    /// A tokenizer of these characters, from 0 on, then of these control tokens.
    fn tokenizer(characters: &[&str], controls: &[&str]) -> Arc<Tokenizer> {
        let vocab = characters.iter().zip(0u32..);
        let vocab: serde_json::Map<String, _> =
            vocab.map(|(c, id)| (c.to_string(), id.into())).collect();
        let control = |(content, id): (&&str, usize)| {
            serde_json::json!({
                "id": id, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        let controls = controls.iter().zip(characters.len()..).map(control);
        let tokenizer = serde_json::json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
            "added_tokens": controls.collect::<Vec<_>>(),
        });
        Arc::new(Tokenizer::from_json(&tokenizer.to_string(), None).unwrap())
    }

    fn words() -> WordEncoder {
        WordEncoder {
            placeholder: "<image>".into(),
            what: "images",
            dictation: None,
            width: 4,
            count: Arc::default(),
        }
    }

    /// MiniCPM-V's pictures have their number in the prompt before them.
    #[test]
    fn pictures_are_numbered() {
        struct Numbered(WordEncoder);
        impl MediaEncoder for Numbered {
            fn placeholder(&self) -> &str {
                self.0.placeholder()
            }
            fn width(&self) -> usize {
                self.0.width()
            }
            fn number(&self, number: usize) -> Option<String> {
                let marks = welte_vision::Marks::Slices {
                    numbered: true,
                    placeholder: "",
                };
                marks.number(number)
            }
            fn look(&self, bytes: &[u8]) -> Result<Decoded<'_>, Error> {
                self.0.look(bytes)
            }
            fn look_at_frames(&self, clip: &Clip) -> Result<Decoded<'_>, Error> {
                Ok(Decoded {
                    numbered: false,
                    ..self.0.look(&clip.frames[0])?
                })
            }
        }
        let tokenizer = tokenizer(&["0", "1"], &["<image>", "<image_id>", "</image_id>"]);
        let eyes = Sense::new(Box::new(Numbered(words())), tokenizer, 4, "m").unwrap();
        let seen = eyes.see(b"word").unwrap();
        let prompt = eyes.place(&[2, 0, 2], &[seen.clone(), seen.clone()]);
        let prompt = prompt.unwrap();
        assert_eq!(prompt.tokens, [3, 0, 4, 2, 2, 2, 0, 3, 1, 4, 2, 2, 2]);
        // Those of a video are not.
        let clip = Clip {
            frames: vec![b"word"[..].into()],
            length: Duration::from_secs(1),
            most_features: 16,
        };
        let frame = eyes.look_at_frames(&clip).unwrap().see().unwrap();
        let prompt = eyes.place(&[2, 2], &[frame, seen]).unwrap();
        assert_eq!(prompt.tokens, [2, 2, 2, 3, 0, 4, 2, 2, 2]);
    }

    #[test]
    fn pictures_stand_in_the_order_of_their_placeholders() {
        let tokenizer = tokenizer(&["a"], &["<image>"]);
        let eyes = Sense::new(Box::new(words()), tokenizer, 4, "m").unwrap();
        let seen = [b"one", b"two"].map(|word| eyes.see(word).unwrap());
        let prompt = eyes.place(&[1, 0, 1], &seen).unwrap();
        assert_eq!(prompt.media.len(), 2);
        for (placed, seen) in prompt.media.iter().zip(&seen) {
            let mut parts = seen.parts.iter();
            assert!(
                parts.any(
                    |part| matches!(part, Part::Medium(own) if Arc::ptr_eq(own, &placed.medium))
                )
            );
        }
        assert!(prompt.media[0].at < prompt.media[1].at);
    }

    /// A model may see and hear. Media stand where placeholders of their own kind are.
    #[test]
    fn media_of_both_senses_stand_in_their_order() {
        let tokenizer = tokenizer(&["a"], &["<image>", "<sound>"]);
        let sense = |what: &'static str, placeholder: &str| {
            let encoder = WordEncoder {
                placeholder: placeholder.into(),
                what,
                ..words()
            };
            Sense::new(Box::new(encoder), tokenizer.clone(), 4, "m").unwrap()
        };
        let (eyes, ears) = (sense("images", "<image>"), sense("sounds", "<sound>"));
        let (seen, heard) = (eyes.see(b"one two").unwrap(), ears.see(b"three").unwrap());
        let both = [seen.clone(), heard.clone()];
        let prompt = eyes.place(&[1, 0, 2], &both).unwrap();
        assert_eq!(prompt.tokens, [1, 1, 1, 1, 0, 2, 2, 2]);
        let at: Vec<usize> = prompt.media.iter().map(|medium| medium.at).collect();
        assert_eq!(at, [1, 6]);
        for wrong in [&[2, 0, 1][..], &[1, 1], &[1], &[1, 2, 2]] {
            let error = eyes.place(wrong, &both).unwrap_err();
            assert!(matches!(error, Error::ImagePlaces { .. }), "{wrong:?}");
        }
    }

    /// What is too large to be remembered drives nothing out.
    #[test]
    fn large_media_leave_the_memory_of_others() {
        let tokenizer = tokenizer(&["a"], &["<image>"]);
        let encoder = words();
        let count = encoder.count.clone();
        let mut eyes = Sense::new(Box::new(encoder), tokenizer, 4, "m").unwrap();
        eyes.most_bytes = 100;
        for (words, encoded) in [
            (&b"one"[..], 1),
            (b"two", 2),
            (b"much more than can be remembered", 3),
            (b"one", 3),
            (b"two", 3),
        ] {
            eyes.see(words).unwrap();
            assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), encoded);
        }
    }

    /// Features that requests hold are bounded; what was given back makes room.
    #[test]
    fn no_more_is_encoded_than_there_is_memory_for() {
        let tokenizer = tokenizer(&["a"], &["<image>"]);
        let mut eyes = Sense::new(Box::new(words()), tokenizer, 4, "m").unwrap();
        // Two features of four values with their axes, and nine letters; one with five.
        (eyes.most_held, eyes.most_bytes) = (70, 0);
        let held = eyes.see(b"two words").unwrap();
        let refused = eyes.see(b"third").unwrap_err();
        assert!(
            matches!(refused, Error::ManyImages { bytes: 56 }),
            "{refused}"
        );
        drop(held);
        let held = eyes.see(b"third").unwrap();
        eyes.see(b"fourth").unwrap();
        // Pictures that wait to be encoded count, too.
        drop(held);
        let waiting = eyes.look(b"two words").unwrap();
        let refused = eyes.look(b"third").map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, Error::ManyImages { bytes: 65 }),
            "{refused}"
        );
        waiting.see().unwrap();
        assert_eq!(eyes.made().held(), 0);
        eyes.look(b"third").unwrap();
        assert_eq!(eyes.made().held(), 0);
    }
}
