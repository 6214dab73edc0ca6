//! Images and sounds in requests: their fields, how they are fetched, and how they come into prompts.

#[cfg(feature = "hub")]
mod remote;
mod source;
mod video;

pub use source::ImageRules;

use crate::error::Failure;
use crate::fields::Fields;
use crate::models::Served;
use serde_json::Value;
use source::{BASE64, bytes_at, is_sound};
use std::sync::Arc;
use std::time::Duration;
use video::MOST_LISTED;
use welte::{Glimpse, Image, ImageSource, Message, Seen};

/// Why a part of a message is refused.
pub(crate) fn unsupported(kind: &str, supported: &str) -> String {
    match kind {
        "file" | "input_file" | "document" => {
            format!("{kind:?} is not supported; send a document's text, or its pages as images")
        }
        _ => format!("{kind:?} is not supported; use {supported}"),
    }
}

/// An image by an address: `data:` with its bytes, or a place on the web.
pub(crate) fn of_url(fields: &Fields, name: &str, url: &str) -> Result<ImageSource, Failure> {
    match url
        .strip_prefix("data:")
        .map(|data| data.split_once(BASE64))
    {
        Some(Some((_, ""))) => Err(fields.wrong(name, "is empty")),
        Some(None) => Err(fields.wrong(name, "a data address must have \";base64,\" and base64")),
        None if !url.starts_with("http://") && !url.starts_with("https://") => {
            Err(fields.wrong(name, "must begin with data:, https:// or http://"))
        }
        _ => Ok(ImageSource::Url(url.to_string())),
    }
}

/// An image as base64.
pub(crate) fn of_base64(fields: &Fields, name: &str, text: &str) -> Result<ImageSource, Failure> {
    of_url(fields, name, &format!("data:{BASE64}{text}"))
}

/// A source that was accepted before.
pub(crate) fn known(source: ImageSource, at: usize) -> Image {
    Image {
        at,
        source,
        name: "input".into(),
    }
}

/// The same source as that of a sound.
fn heard(source: ImageSource) -> ImageSource {
    match source {
        ImageSource::Url(url) => ImageSource::SoundUrl(url),
        other => other,
    }
}

/// A sound as base64, or by a data address, that was accepted before.
pub(crate) fn sound(data: &str) -> ImageSource {
    ImageSource::SoundUrl(if data.starts_with("data:") {
        data.to_string()
    } else {
        format!("data:{BASE64}{data}")
    })
}

/// The sound of a part in OpenAI's form, as base64 in `input_audio`.
pub(crate) fn of_sound_part(part: &mut Fields, at: usize) -> Result<Image, Failure> {
    let Some(mut inner) = part.object("input_audio")? else {
        return Err(part.wrong("input_audio", "is required"));
    };
    let data: String = inner.need("data")?;
    let source = sound(&data);
    if let ImageSource::SoundUrl(url) = &source {
        of_url(&inner, "data", url)?;
    }
    // The bytes decide what a file is.
    inner.take::<String>("format")?;
    let name = inner.name("data");
    inner.finish()?;
    Ok(Image { at, source, name })
}

/// The sound of a part by its address, as vLLM has it.
pub(crate) fn of_audio_url(part: &mut Fields, at: usize) -> Result<Image, Failure> {
    let url = address(part, "audio_url")?;
    Ok(Image {
        at,
        source: heard(of_url(part, "audio_url", &url)?),
        name: part.name("audio_url"),
    })
}

/// An address, or an object with one.
fn address(part: &mut Fields, name: &str) -> Result<String, Failure> {
    match part.need::<Value>(name)? {
        Value::String(url) => Ok(url),
        value => {
            let mut inner = part.inner(value, name)?;
            let url = inner.need("url")?;
            // Every image has the size that the model's family gives it.
            inner.ignore(&["detail"]);
            inner.finish()?;
            Ok(url)
        }
    }
}

/// A list of images and sounds as base64.
pub(crate) fn list(fields: &mut Fields, name: &str) -> Result<Vec<Image>, Failure> {
    let all: Vec<String> = fields.take(name)?.unwrap_or_default();
    let image = |(nth, text): (usize, &String)| {
        let name = format!("{name}[{nth}]");
        // Some clients send a whole data address.
        let source = if text.starts_with("data:") {
            of_url(fields, &name, text)?
        } else {
            of_base64(fields, &name, text)?
        };
        let base64 = text
            .split_once(BASE64)
            .map_or(text.as_str(), |(_, base64)| base64);
        let source = if is_sound(base64) {
            heard(source)
        } else {
            source
        };
        Ok(Image {
            at: 0,
            source,
            name: fields.name(&name),
        })
    };
    all.iter().enumerate().map(image).collect()
}

/// The image of a part in OpenAI's form: an address, or an object with one.
pub(crate) fn of_part(part: &mut Fields, at: usize) -> Result<Image, Failure> {
    let url = address(part, "image_url")?;
    part.ignore(&["detail"]);
    Ok(Image {
        at,
        source: of_url(part, "image_url", &url)?,
        name: part.name("image_url"),
    })
}

/// The video of a part: an address, several of frames, or an object with one.
pub(crate) fn of_video_part(part: &mut Fields, name: &str, at: usize) -> Result<Image, Failure> {
    let rate = |fields: &mut Fields| match fields.take::<f64>("fps")? {
        Some(rate) if !(0.01..=1000.0).contains(&rate) => {
            Err(fields.wrong("fps", "must be from 0.01 to 1000"))
        }
        rate => Ok(rate),
    };
    let mut own = rate(part)?;
    let urls = match part.need::<Value>(name)? {
        Value::String(url) => vec![url],
        Value::Array(urls) => {
            let texts = urls.into_iter().map(|url| match url {
                Value::String(url) => Some(url),
                _ => None,
            });
            let texts: Option<Vec<String>> = texts.collect();
            let texts = texts.filter(|texts| !texts.is_empty());
            texts.ok_or_else(|| part.wrong(name, "must be an address or a list of some"))?
        }
        value => {
            let mut inner = part.inner(value, name)?;
            let url = inner.need("url")?;
            own = rate(&mut inner)?.or(own);
            inner.ignore(&["detail"]);
            inner.finish()?;
            vec![url]
        }
    };
    for url in &urls {
        of_url(part, name, url)?;
    }
    Ok(Image {
        at,
        source: ImageSource::VideoUrls {
            urls,
            step: own.map(|rate| Duration::from_secs_f64(1.0 / rate)),
        },
        name: part.name(name),
    })
}

/// Fetches the videos of conversations as long as they are wanted, and makes text and pictures of them. They share the pictures
/// that the request may have beside its `images`, of which there are not too many.
pub(crate) fn play(
    served: &Served,
    rules: &ImageRules,
    images: usize,
    chats: &mut [&mut Vec<Message>],
    wanted: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let Some(eyes) = served.model.eyes() else {
        return Ok(());
    };
    let messages = chats.iter().flat_map(|messages| messages.iter());
    let (mut videos, mut frames) = (0, 0);
    for image in messages.flat_map(|message| &message.images) {
        if let ImageSource::VideoUrls { urls, .. } = &image.source {
            videos += 1;
            frames += video::listed(urls);
            if frames > MOST_LISTED {
                let problem = format!("videos of a request may list {MOST_LISTED} frames together");
                return Err(Failure::field(image.name.as_str(), problem));
            }
        }
    }
    if videos == 0 {
        return Ok(());
    }
    let pictures = rules.max_images.saturating_sub(images - videos) / videos;
    let pictures = u32::try_from(pictures).unwrap_or(u32::MAX);
    let mut reader = video::Reader::new(rules, eyes.film(), pictures, wanted);
    for messages in chats {
        for image in messages.iter_mut().flat_map(|message| &mut message.images) {
            if let ImageSource::VideoUrls { urls, step } = &image.source {
                if !wanted() {
                    return Err(welte::Error::Deadline.into());
                }
                let video = reader.frames(urls, *step);
                let video = video.map_err(|problem| match wanted() {
                    true => Failure::field(image.name.as_str(), problem),
                    false => welte::Error::Deadline.into(),
                })?;
                image.source = ImageSource::Video(Arc::new(video));
            }
        }
        eyes.play(messages);
    }
    Ok(())
}

/// An image or a sound that is decoded, with its name for errors.
pub(crate) struct Looked<'a> {
    name: &'a str,
    glimpse: Glimpse<'a>,
}

impl Looked<'_> {
    /// The positions that it takes.
    pub(crate) fn tokens(&self) -> usize {
        self.glimpse.tokens()
    }

    /// Encodes it, as long as it is wanted. Takes a while.
    pub(crate) fn see(self, wanted: &dyn Fn() -> bool) -> Result<Arc<Seen>, Failure> {
        self.glimpse.see_while(wanted).map_err(|error| match error {
            welte::Error::ManyImages { .. } | welte::Error::Deadline => error.into(),
            error => Failure::field(self.name, error),
        })
    }
}

/// Fetches and decodes an image or a sound, as long as it is wanted.
pub(crate) fn look<'a>(
    served: &'a Served,
    rules: &ImageRules,
    image: &'a Image,
    wanted: &dyn Fn() -> bool,
) -> Result<Looked<'a>, Failure> {
    let name = image.name.as_str();
    let wrong = |problem: String| Failure::field(name, problem);
    let sense = served.model.sense(&image.source).map_err(wrong)?;
    let refused = |error| match error {
        welte::Error::ManyImages { .. } | welte::Error::Deadline => Failure::from(error),
        error => wrong(error.to_string()),
    };
    let bytes = match &image.source {
        ImageSource::Bytes(bytes) | ImageSource::Sound(bytes) => bytes.clone(),
        ImageSource::Url(url) | ImageSource::SoundUrl(url) => {
            bytes_at(rules, url).map_err(wrong)?
        }
        ImageSource::Clip(clip) => {
            let glimpse = sense.look_at_frames(clip).map_err(refused)?;
            return Ok(Looked { name, glimpse });
        }
        ImageSource::Video(_) | ImageSource::VideoUrls { .. } => {
            return Err(wrong("a video can only stand in a conversation".into()));
        }
    };
    if bytes.len() > rules.largest {
        let (own, most) = (bytes.len() >> 10, rules.largest >> 10);
        let what = if image.source.is_sound() {
            "a sound"
        } else {
            "an image"
        };
        return Err(wrong(format!("has {own} KiB; {what} may have {most}")));
    }
    let glimpse = sense.look_while(&bytes, wanted).map_err(refused)?;
    Ok(Looked { name, glimpse })
}
