//! Vectors of texts and images: `/v1/embeddings` of OpenAI, `/api/embed` and `/api/embeddings` of Ollama, `/embed_sparse` of Text
//! Embeddings Inference.

use crate::app::App;
use crate::ask::{self, Ask, Ending, Prompt};
use crate::bodies::Held;
use crate::error::{Failure, Outcome, Overflow, written};
use crate::fields::Fields;
use crate::models::Lease;
use crate::{length, ollama, openai, prompts, times};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use welte::TextToEmbed;

/// The most texts of a request.
const MOST_TEXTS: usize = 2048;
/// Memory of a number of a vector: itself, and as text.
const BYTES_PER_NUMBER: usize = 20;
/// Memory of a token's weight: its number and value, and both as text with the names of the fields.
const BYTES_PER_WEIGHT: usize = 48;

/// What shapes a conversation, and no text.
const OF_CONVERSATIONS: [&str; 3] = [
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
];

/// `POST /v1/embeddings`
pub(crate) async fn openai(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_named(&mut fields).await?.without_adapter()?;
    let mut texts = match fields.take::<Value>("input")? {
        Some(input) => {
            // A conversation in its place is vLLM's.
            fields.refuse(&["messages"])?;
            for field in OF_CONVERSATIONS {
                if fields.take::<Value>(field)?.is_some() {
                    fields.pass_over(field, "has no effect without messages")?;
                }
            }
            let apart = served.model.eyes().is_some_and(|eyes| eyes.are_apart());
            let mut texts = Texts::new(prompts::to_embed(&fields, "input", input, apart)?);
            // Models that see take the vector where an answer would begin.
            texts.ending = Ending::Begin;
            texts
        }
        None => Texts::conversation(&mut fields)?,
    };
    texts.take_dimensions(&mut fields, &served)?;
    texts.take_prompt(&mut fields, &served)?;
    let format: Option<String> = fields.take("encoding_format")?;
    let write: fn(&[f32]) -> Written<'_> = match format.as_deref() {
        None | Some("float") => |vector| Written::Numbers(vector),
        Some("base64") => |vector| Written::Text(base64(vector)),
        Some(_) => return Err(fields.wrong("encoding_format", "must be float or base64")),
    };
    fields.take::<String>("user")?;
    fields.finish()?;
    let embedded = texts.embed(&app, &served).await?;
    let item = |(index, vector)| Item {
        object: "embedding",
        index,
        embedding: write(vector),
    };
    let tokens = embedded.tokens;
    written(&List {
        object: "list",
        data: embedded.numbered().map(item).collect(),
        model: &served.id,
        usage: json!({ "prompt_tokens": tokens, "total_tokens": tokens }),
    })
}

/// A vector in an answer of OpenAI's API.
#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a> {
    Numbers(&'a [f32]),
    Text(String),
}

#[derive(Serialize)]
struct Item<'a> {
    object: &'static str,
    index: usize,
    embedding: Written<'a>,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Item<'a>>,
    model: &'a str,
    usage: Value,
}

/// `POST /embedding` of llama.cpp
pub(crate) async fn llama(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?.without_adapter()?;
    let (content, input) = (fields.take("content")?, fields.take("input")?);
    let (name, input): (&str, Value) = match (content, input) {
        (Some(content), _) => ("content", content),
        (None, Some(input)) => ("input", input),
        (None, None) => return Err(fields.wrong("input", "is required")),
    };
    let mut texts = Texts::new(prompts::several(&fields, name, input)?.0);
    texts.normalise = match fields.take("embd_normalize")? {
        None | Some(2) => true,
        Some(-1) => false,
        Some(_) => {
            let problem = "must be 2 (length 1) or -1 (as long as the model makes it)";
            return Err(fields.wrong("embd_normalize", problem));
        }
    };
    fields.finish()?;
    #[derive(Serialize)]
    struct Item<'a> {
        index: usize,
        embedding: [&'a [f32]; 1],
    }
    let embedded = texts.embed(&app, &served).await?;
    let item = |(index, vector)| Item {
        index,
        embedding: [vector],
    };
    written(&embedded.numbered().map(item).collect::<Vec<_>>())
}

/// `POST /api/embed`
pub(crate) async fn ollama(app: Arc<App>, mut fields: Fields) -> Outcome {
    #[derive(Serialize)]
    struct List<'a> {
        model: &'a str,
        embeddings: &'a [Vec<f32>],
        total_duration: u64,
        load_duration: u64,
        prompt_eval_count: usize,
    }
    let served = ollama::lease(&app, &mut fields).await?;
    let input: Value = fields.need("input")?;
    // As in Ollama, an empty text has no vector.
    let prompts = match input.as_str() {
        Some("") => Vec::new(),
        _ => crate::sampling::texts(&fields, "input", input, MOST_TEXTS)?,
    };
    let mut texts = Texts::new(prompts.into_iter().map(Prompt::Text).collect());
    texts.truncate = fields.take("truncate")?.unwrap_or(true);
    texts.take_dimensions(&mut fields, &served)?;
    take_options(&mut fields, &served)?;
    fields.finish()?;
    let embedded = texts.embed_any(&app, &served).await?;
    written(&List {
        model: &served.id,
        embeddings: &embedded.vectors,
        total_duration: times::nanoseconds(served.since().elapsed()),
        load_duration: times::nanoseconds(served.waited()),
        prompt_eval_count: embedded.tokens,
    })
}

/// `POST /api/embeddings`, Ollama's older endpoint.
pub(crate) async fn ollama_one(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = ollama::lease(&app, &mut fields).await?;
    let prompt: String = fields.need("prompt")?;
    let prompts = (!prompt.is_empty()).then_some(Prompt::Text(prompt));
    let mut texts = Texts::new(prompts.into_iter().collect());
    texts.truncate = true;
    take_options(&mut fields, &served)?;
    fields.finish()?;
    let embedded = texts.embed_any(&app, &served).await?;
    let first = embedded.vectors.first().map_or(&[][..], Vec::as_slice);
    written(&BTreeMap::from([("embedding", first)]))
}

/// `POST /embed_sparse` of Text Embeddings Inference: the token weights of each text.
pub(crate) async fn sparse(app: Arc<App>, mut fields: Fields) -> Outcome {
    #[derive(Serialize)]
    struct Item {
        index: u32,
        value: f32,
    }
    let served = app.lease_of(&mut fields).await?.without_adapter()?;
    served.model.check_sparse()?;
    let inputs: Value = fields.need("inputs")?;
    let mut texts = Texts::new(prompts::several(&fields, "inputs", inputs)?.0);
    texts.truncate = fields.take("truncate")?.unwrap_or(false);
    let direction: Option<String> = fields.take("truncation_direction")?;
    if direction.is_some_and(|side| !side.eq_ignore_ascii_case("right")) {
        return Err(fields.wrong(
            "truncation_direction",
            "must be Right: texts are cut at their ends",
        ));
    }
    texts.take_prompt(&mut fields, &served)?;
    fields.finish()?;
    texts.count("inputs")?;
    let deadline = served.deadline(&app.options);
    let encoded = texts.encoded(&app, &served).await?;
    let tokens = encoded.iter().map(|text| text.tokens.len()).sum();
    served.metrics.embedded(tokens);
    // SPLADE may weigh the whole vocabulary, so what a vector takes is known only afterwards.
    let mut held = app.bodies.hold(0)?;
    let mut vectors: Vec<Vec<Item>> = Vec::with_capacity(encoded.len());
    let together = served.model.program().slots.max(1) as usize;
    for some in encoded.chunks(together) {
        let begin = |text: &TextToEmbed| {
            let vector = served.engine.embed_sparse(text.clone(), deadline);
            vector.map_err(|error| too_large(served.refused(error)))
        };
        let begun: Vec<_> = some.iter().map(begin).collect::<Result<_, _>>()?;
        for vector in begun {
            let weights = vector.await?.weights;
            held.add(weights.len().saturating_mul(BYTES_PER_WEIGHT))?;
            vectors.push(
                weights
                    .into_iter()
                    .map(|(index, value)| Item { index, value })
                    .collect(),
            );
        }
    }
    written(&vectors)
}

/// Takes `options`, of which only the context has a meaning here.
fn take_options(fields: &mut Fields, served: &Lease) -> Result<(), Failure> {
    if let Some(mut options) = fields.object("options")? {
        ollama::take_context(&mut options, served)?;
        options.finish()?;
    }
    Ok(())
}

/// Texts and what to do with them.
struct Texts {
    prompts: Vec<Prompt>,
    /// Cut those that are too long.
    truncate: bool,
    /// Scale vectors to length 1.
    normalise: bool,
    /// Values to keep.
    dimensions: Option<usize>,
    /// The model's prompt to put before texts; without a name, its default one.
    prompt_name: Option<String>,
    /// How a conversation ends.
    ending: Ending,
}

impl Texts {
    fn new(prompts: Vec<Prompt>) -> Texts {
        Texts {
            prompts,
            truncate: false,
            normalise: true,
            dimensions: None,
            prompt_name: None,
            ending: Ending::Nothing,
        }
    }

    /// A conversation in place of texts. It ends with its last message unless the request says otherwise.
    fn conversation(fields: &mut Fields) -> Result<Texts, Failure> {
        if fields.peek("messages").is_none() {
            return Err(fields.wrong("input", "is required, or a conversation in messages"));
        }
        let messages = openai::take_messages(fields)?;
        let ending = match Ending::take(fields, &messages)? {
            Ending::Auto => Ending::Nothing,
            ending => ending,
        };
        let variables = openai::variables(fields)?;
        let prompt = Prompt::Chat {
            messages,
            variables,
        };
        Ok(Texts {
            ending,
            ..Texts::new(vec![prompt])
        })
    }

    fn take_dimensions(&mut self, fields: &mut Fields, served: &Lease) -> Result<(), Failure> {
        self.dimensions = fields.take("dimensions")?;
        let size = served.model.embedding_size().unwrap_or(usize::MAX);
        match self.dimensions {
            Some(n) if n == 0 || n > size => {
                Err(fields.wrong("dimensions", format!("must be from 1 to {size}")))
            }
            _ => Ok(()),
        }
    }

    /// Takes `prompt_name`, or `input_type` in its place.
    fn take_prompt(&mut self, fields: &mut Fields, served: &Lease) -> Result<(), Failure> {
        let settings = served.model.vector_settings();
        let name: Option<String> = fields.take("prompt_name")?;
        let name = name.filter(|name| !name.is_empty());
        let kind: Option<String> = fields.take("input_type")?;
        let (field, name) = match (name, kind) {
            (name, None) => ("prompt_name", name),
            (None, Some(kind)) => {
                let names = prompts_of(&kind).ok_or_else(|| {
                    fields.wrong("input_type", "must be query, document or passage")
                })?;
                let known = names.iter().find(|name| settings.prompt(name).is_some());
                ("input_type", known.map(|name| name.to_string()))
            }
            (Some(_), Some(_)) => {
                return Err(fields.wrong("input_type", "does not go with prompt_name"));
            }
        };
        let Some(name) = name else {
            return Ok(());
        };
        // Images with vectors of their own have no prompt.
        let apart = served.model.eyes().is_some_and(|eyes| eyes.are_apart());
        let fits = |prompt: &Prompt| match prompt {
            Prompt::Text(_) => true,
            Prompt::Parts(parts) => apart && matches!(parts[..], [ask::Part::Image(_)]),
            _ => false,
        };
        if !self.prompts.iter().all(fits) {
            return Err(fields.wrong(field, "needs texts, not tokens"));
        }
        if settings.prompt(&name).is_none() {
            let known: Vec<&str> = settings.prompts.iter().map(|p| p.0.as_str()).collect();
            let problem = format!("is none of the model's prompts: {}", known.join(", "));
            return Err(fields.wrong(field, problem));
        }
        self.prompt_name = Some(name);
        Ok(())
    }

    /// As [`Texts::embed`], also of no texts.
    async fn embed_any(self, app: &App, served: &Lease) -> Result<Embedded, Failure> {
        if self.prompts.is_empty() {
            Ok(Embedded::default())
        } else {
            self.embed(app, served).await
        }
    }

    async fn embed(mut self, app: &App, served: &Lease) -> Result<Embedded, Failure> {
        let count = self.count("input")?;
        let deadline = served.deadline(&app.options);
        let numbers = count.saturating_mul(served.model.embedding_size().unwrap_or(0));
        let held = app.bodies.hold(numbers.saturating_mul(BYTES_PER_NUMBER))?;
        let encoded = self.encoded(app, served).await?;
        let tokens = encoded.iter().map(|text| text.tokens.len()).sum();
        served.metrics.embedded(tokens);
        let mut vectors = Vec::with_capacity(count);
        // As many as the engine computes together, so that a large request does not fill its queue.
        let together = served.model.program().slots.max(1) as usize;
        for some in encoded.chunks(together) {
            let begin = |text: &TextToEmbed| {
                let vector = served.engine.embed(text.clone(), deadline);
                let mut vector = vector.map_err(|error| too_large(served.refused(error)))?;
                if let Some(size) = self.dimensions {
                    vector = vector.shortened(size);
                }
                Ok::<_, Failure>(if self.normalise {
                    vector
                } else {
                    vector.unnormalised()
                })
            };
            let begun: Vec<_> = some.iter().map(begin).collect::<Result<_, _>>()?;
            for embedding in begun {
                vectors.push(embedding.await?);
            }
        }
        Ok(Embedded {
            vectors,
            tokens,
            _held: Some(held),
        })
    }

    /// The number of texts.
    fn count(&self, field: &str) -> Result<usize, Failure> {
        let count = self.prompts.len();
        if count == 0 || count > MOST_TEXTS {
            let problem = format!("a request may have 1 to {MOST_TEXTS} texts, not {count}");
            return Err(Failure::field(field, problem));
        }
        Ok(count)
    }

    /// The texts as tokens.
    async fn encoded(&mut self, app: &App, served: &Lease) -> Result<Vec<TextToEmbed>, Failure> {
        let prompts = std::mem::take(&mut self.prompts);
        let (prompts, seen) = see(app, served, self.ending, prompts).await?;
        let (lease, truncate) = (served.clone(), self.truncate);
        let name = self.prompt_name.clone();
        let encode = move || {
            let model = &lease.model;
            let encode = |prompt: &Prompt| {
                let Prompt::Text(text) = prompt else {
                    let mut tokens = prompt.encode(&lease)?;
                    if truncate {
                        tokens.truncate(model.context());
                    }
                    return Ok(tokens.into());
                };
                let text = if truncate {
                    length::beginning(&lease, text)?
                } else {
                    length::check(&lease, text)?;
                    text
                };
                let mut encoded = model.encode_to_embed(name.as_deref(), text)?;
                if truncate {
                    // The end token stays.
                    let tokenizer = model.tokenizer()?;
                    tokenizer.truncate(&mut encoded.tokens, model.context());
                }
                Ok(encoded)
            };
            let mut seen = seen.into_iter();
            let each = prompts.iter().map(|prompt| match prompt {
                None => Ok(seen.next().unwrap_or_default().into()),
                Some(prompt) => encode(prompt),
            });
            each.collect::<Result<Vec<TextToEmbed>, Failure>>()
        };
        app.bodies.aside(encode).await.map_err(too_large)
    }
}

/// Encodes conversations and prompts with images. Nothing stays in their places among the others.
async fn see(
    app: &App,
    served: &Lease,
    ending: Ending,
    prompts: Vec<Prompt>,
) -> Result<(Vec<Option<Prompt>>, Vec<welte::Prompt>), Failure> {
    let mut ask = Ask::new(app, served, String::new());
    (ask.ending, ask.options.max_tokens) = (ending, 0);
    let mut others = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        if matches!(prompt, Prompt::Chat { .. }) || !prompt.images().is_empty() {
            ask.prompts.push(prompt);
            others.push(None);
        } else {
            others.push(Some(prompt));
        }
    }
    let seen = if ask.prompts.is_empty() {
        Vec::new()
    } else {
        ask::encoded(app, ask).await?
    };
    Ok((others, seen))
}

/// The vectors of texts, and their tokens.
#[derive(Default)]
struct Embedded {
    vectors: Vec<Vec<f32>>,
    tokens: usize,
    /// The memory of the vectors and of the answer, until that is written.
    _held: Option<Held>,
}

impl Embedded {
    fn numbered(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.vectors.iter().map(Vec::as_slice).enumerate()
    }
}

/// Says of a text that does not fit what is wrong with it: nothing is generated.
fn too_large(mut failure: Failure) -> Failure {
    if let Some(Overflow { prompt, context }) = failure.overflow {
        failure.message = format!(
            "the input is too large: it has {prompt} tokens or more, which exceeds the available context size of {context}"
        );
    }
    failure
}

/// The names that models give to the prompt for queries or for documents, in order of preference (those of
/// sentence-transformers).
fn prompts_of(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "query" => Some(&["query", "retrieval.query"]),
        "document" | "passage" => Some(&["document", "passage", "corpus", "retrieval.passage"]),
        _ => None,
    }
}

/// Little-endian numbers as text.
fn base64(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            text.push(if digit <= three.len() {
                DIGITS[(bits >> (18 - 6 * digit) & 63) as usize].into()
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[1.0, -2.5, 0.1]), "AACAPwAAIMDNzMw9");
    }
}
