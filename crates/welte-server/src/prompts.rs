//! Prompts of completions and texts to embed, in the forms that OpenAI's and llama.cpp's APIs take.

use crate::ask::{Part, Prompt};
use crate::error::Failure;
use crate::fields::Fields;
use serde_json::{Map, Value};
use welte::{Image, Message};

/// Where an image or a sound stands in a prompt's text.
pub(crate) const MEDIUM: &str = "<__media__>";

const FORMS: &str = "must be a text, a list of tokens, a list of texts and tokens that follow each other, \
    an object with a text (prompt_string or content), or a list of these";

/// A prompt or several. True: they came as a list.
pub(crate) fn several(
    fields: &Fields,
    name: &str,
    value: Value,
) -> Result<(Vec<Prompt>, bool), Failure> {
    let is_one = |all: &[Value]| all.iter().any(Value::is_number);
    match value {
        Value::Array(all) if !is_one(&all) => {
            let all = all.into_iter().enumerate();
            let all = all.map(|(i, value)| one(fields, &format!("{name}[{i}]"), value));
            Ok((all.collect::<Result<_, _>>()?, true))
        }
        value => Ok((vec![one(fields, name, value)?], false)),
    }
}

/// What to embed: texts and tokens, or Jina's objects with a text or an image, each of which is a message of a user. `apart`: the model
/// has a vector for each text and each image.
pub(crate) fn to_embed(
    fields: &Fields,
    name: &str,
    value: Value,
    apart: bool,
) -> Result<Vec<Prompt>, Failure> {
    let message = |fields: Fields| message(fields, apart);
    let is_message = |value: &Value| value.get("text").or(value.get("image")).is_some();
    match value {
        Value::Array(all) if all.iter().any(is_message) => {
            let each = all.into_iter().enumerate().map(|(i, value)| {
                let name = format!("{name}[{i}]");
                if is_message(&value) {
                    message(fields.inner(value, &name)?)
                } else {
                    one(fields, &name, value)
                }
            });
            each.collect()
        }
        value if is_message(&value) => Ok(vec![message(fields.inner(value, name)?)?]),
        value => Ok(several(fields, name, value)?.0),
    }
}

/// A user's message of a text, an image or both; one of them for models with a vector for each.
fn message(mut fields: Fields, apart: bool) -> Result<Prompt, Failure> {
    let content: Option<String> = fields.take("text")?;
    let source = match fields.take::<String>("image")? {
        Some(url) if url.contains(':') => Some(crate::images::of_url(&fields, "image", &url)?),
        // Jina takes plain base64, too.
        Some(text) => Some(crate::images::of_base64(&fields, "image", &text)?),
        None => None,
    };
    let image = source.map(|source| Image {
        at: 0,
        source,
        name: fields.name("image"),
    });
    match (&content, &image) {
        (Some(_), Some(_)) if apart => {
            let problem = "does not go with text: this model has a vector for each text and each image; send two objects";
            return Err(fields.wrong("image", problem));
        }
        _ => fields.finish()?,
    }
    match image {
        Some(image) if apart => return Ok(Prompt::Parts(vec![Part::Image(image)])),
        None if apart => return Ok(Prompt::Text(content.unwrap_or_default())),
        _ => {}
    }
    let message = Message {
        role: "user".into(),
        content: content.unwrap_or_default(),
        images: image.into_iter().collect(),
        ..Message::default()
    };
    Ok(Prompt::Chat {
        messages: vec![message],
        variables: Map::new(),
    })
}

fn one(fields: &Fields, name: &str, value: Value) -> Result<Prompt, Failure> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(all) => {
            let part = |value| part(value).ok_or_else(|| fields.wrong(name, FORMS));
            let parts: Vec<Part> = all.into_iter().map(part).collect::<Result<_, _>>()?;
            Ok(tokens(&parts).map_or(Prompt::Parts(parts), Prompt::Tokens))
        }
        Value::Object(_) => object(fields.inner(value, name)?),
        _ => Err(fields.wrong(name, FORMS)),
    }
}

fn part(value: Value) -> Option<Part> {
    match value {
        Value::String(text) => Some(Part::Text(text)),
        value => Some(Part::Token(u32::try_from(value.as_u64()?).ok()?)),
    }
}

/// The parts, if all of them are tokens.
fn tokens(parts: &[Part]) -> Option<Vec<u32>> {
    let token = |part: &Part| match part {
        Part::Token(token) => Some(*token),
        Part::Text(_) | Part::Image(_) => None,
    };
    parts.iter().map(token).collect()
}

/// The text of an object.
fn object(mut fields: Fields) -> Result<Prompt, Failure> {
    let images = crate::images::list(&mut fields, "multimodal_data")?;
    let text: String = match fields.take("prompt_string")? {
        Some(text) => text,
        None => {
            let content: Vec<Value> = fields.need("content")?;
            crate::openai::text_of(&fields, content.into())?
        }
    };
    if images.is_empty() {
        fields.finish()?;
        return Ok(Prompt::Text(text));
    }
    let count = text.matches(MEDIUM).count();
    if count != images.len() {
        let own = images.len();
        let problem =
            format!("has {own} images and sounds for {count} places ({MEDIUM}) in the text");
        return Err(fields.wrong("multimodal_data", problem));
    }
    fields.finish()?;
    let mut parts = Vec::new();
    let mut images = images.into_iter();
    for text in text.split(MEDIUM) {
        if !text.is_empty() {
            parts.push(Part::Text(text.to_string()));
        }
        parts.extend(images.next().map(Part::Image));
    }
    Ok(Prompt::Parts(parts))
}
