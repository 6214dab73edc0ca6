//! Probabilities of tokens, in the forms of the APIs.

use crate::error::Failure;
use crate::fields::Fields;
use crate::models::Served;
use serde_json::{Map, Value, json};
use welte::{GenerateOptions, Logprobs};

/// JSON has no infinity; OpenAI sends this number for a probability of zero.
const LEAST: f32 = -9999.0;

/// Takes `logprobs` and `top_logprobs` of a chat.
pub(crate) fn take(fields: &mut Fields, options: &mut GenerateOptions) -> Result<(), Failure> {
    let wanted: bool = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<u32> = fields.take("top_logprobs")?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(fields.wrong("top_logprobs", "needs \"logprobs\": true"));
    }
    if wanted {
        options.logprobs = Some(checked(fields, "top_logprobs", top.unwrap_or(0))?);
    }
    Ok(())
}

/// How many of the likeliest tokens a field asks for.
pub(crate) fn checked(fields: &Fields, name: &str, top: u32) -> Result<u32, Failure> {
    if top as usize <= Logprobs::MOST {
        Ok(top)
    } else {
        Err(fields.wrong(name, format!("must be at most {}", Logprobs::MOST)))
    }
}

/// The spelling of a token. Control tokens have no text of their own.
fn spelling(served: &Served, token: u32) -> (String, Vec<u8>) {
    let Ok(tokenizer) = served.model.tokenizer() else {
        return (String::new(), Vec::new());
    };
    if token as usize >= tokenizer.vocab_size() {
        return (String::new(), Vec::new());
    }
    let mut bytes = tokenizer.token_bytes(token);
    if bytes.is_empty() {
        bytes = tokenizer.token_text(token).as_bytes();
    }
    (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
}

fn number(logprob: f32) -> Value {
    logprob.max(LEAST).into()
}

fn token(served: &Served, id: u32, logprob: f32) -> Value {
    let (text, bytes) = spelling(served, id);
    json!({ "token": text, "logprob": number(logprob), "bytes": bytes })
}

fn entry(served: &Served, one: &Logprobs, form: fn(&Served, u32, f32) -> Value) -> Value {
    let mut entry = form(served, one.token(), one.logprob());
    let top = one.top().iter().map(|&(id, p)| form(served, id, p));
    entry["top_logprobs"] = top.collect();
    entry
}

/// Entries of chats.
pub(crate) fn entries(served: &Served, all: &[Logprobs]) -> Value {
    all.iter().map(|one| entry(served, one, token)).collect()
}

/// What a choice of a chat has; null if nothing was asked for.
pub(crate) fn of_chat(served: &Served, all: &[Logprobs]) -> Value {
    if all.is_empty() {
        Value::Null
    } else {
        json!({ "content": entries(served, all), "refusal": null })
    }
}

/// Entries of llama.cpp's completions.
pub(crate) fn of_llama(served: &Served, all: &[Logprobs]) -> Value {
    let form = |served: &Served, id: u32, logprob: f32| {
        let mut value = token(served, id, logprob);
        value["id"] = id.into();
        value
    };
    all.iter().map(|one| entry(served, one, form)).collect()
}

/// An entry of llama.cpp's completions with probabilities after sampling.
pub(crate) fn sampled(served: &Served, chosen: u32, left: &[(u32, f32)], top: usize) -> Value {
    let form = |id: u32, prob: f32| {
        let (text, bytes) = spelling(served, id);
        json!({ "id": id, "token": text, "bytes": bytes, "prob": prob })
    };
    let of_chosen = left.iter().find(|one| one.0 == chosen);
    let mut entry = form(chosen, of_chosen.map_or(f32::MIN_POSITIVE, |one| one.1));
    let top = left.iter().filter(|one| one.1 > 0.0).take(top);
    entry["top_probs"] = top.map(|one| form(one.0, one.1)).collect();
    entry
}

/// What a choice of a completion has.
#[derive(Default)]
pub(crate) struct Columns {
    tokens: Vec<String>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<usize>,
    /// Characters before the next token.
    offset: usize,
    /// The next token with a spelling begins a text, which lacks the space that encoding adds in front.
    begins: bool,
}

impl Columns {
    /// Columns for tokens that begin after a number of characters.
    pub(crate) fn at(offset: usize) -> Columns {
        Columns {
            offset,
            ..Columns::default()
        }
    }

    /// Columns for the tokens of a text from its beginning on.
    pub(crate) fn of_text() -> Columns {
        Columns {
            begins: true,
            ..Columns::default()
        }
    }

    /// Adds a token whose probability is not known: the first one of a prompt.
    pub(crate) fn add_first(&mut self, served: &Served, id: u32) {
        self.push(served, id, Value::Null, Value::Null);
    }

    pub(crate) fn add(&mut self, served: &Served, all: &[Logprobs]) {
        for one in all {
            let top = one.top().iter();
            let top: Map<String, Value> = top
                .map(|&(id, p)| (spelling(served, id).0, number(p)))
                .collect();
            self.push(served, one.token(), number(one.logprob()), top.into());
        }
    }

    fn push(&mut self, served: &Served, id: u32, logprob: Value, top: Value) {
        let text = spelling(served, id).0;
        self.offsets.push(self.offset);
        // Control tokens have no place in the text.
        if let Ok(tokenizer) = served.model.tokenizer()
            && (id as usize) < tokenizer.vocab_size()
        {
            let bytes = tokenizer.token_bytes(id);
            // A character may be spread over tokens: it belongs to the one that it begins in.
            self.offset += bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            if self.begins && !bytes.is_empty() {
                self.begins = false;
                self.offset -= usize::from(tokenizer.decode(&[id]).len() < bytes.len());
            }
        }
        self.tokens.push(text);
        self.logprobs.push(logprob);
        self.top.push(top);
    }

    /// Takes what has been added; null if that is nothing.
    pub(crate) fn take(&mut self) -> Value {
        if self.tokens.is_empty() {
            return Value::Null;
        }
        let offset = self.offset;
        let all = std::mem::replace(self, Columns::at(offset));
        json!({
            "tokens": all.tokens, "token_logprobs": all.logprobs, "top_logprobs": all.top,
            "text_offset": all.offsets,
        })
    }
}
