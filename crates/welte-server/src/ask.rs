//! The one form of request that all APIs convert to, and its way into the engine.

use crate::answer::{Answer, Parsing, Report};
use crate::app::App;
use crate::error::Failure;
use crate::fields::Fields;
use crate::images::{self, ImageRules, Looked};
use crate::length;
use crate::lines::LineLimits;
use crate::models::{Active, Lease, Served};
use crate::volatile_lines::{self, Changing};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use welte::{Constraint, GenerateOptions, Image, Message, Request, Seen};

/// What to continue.
pub(crate) enum Prompt {
    /// A conversation. The variables go to the chat template.
    Chat {
        messages: Vec<Message>,
        variables: Map<String, Value>,
    },
    /// Text without a chat template.
    Text(String),
    Tokens(Vec<u32>),
    /// Texts and tokens that follow each other.
    Parts(Vec<Part>),
    /// What is between two texts, of which the beginning is known.
    Infill {
        prefix: String,
        suffix: String,
        middle: String,
        /// The field that has the suffix.
        field: &'static str,
    },
}

/// A part of a prompt.
pub(crate) enum Part {
    Text(String),
    Token(u32),
    Image(Image),
}

impl Prompt {
    /// The tokens of a prompt that is not a conversation and has no images.
    pub(crate) fn encode(&self, served: &Served) -> Result<Vec<u32>, Failure> {
        Ok(self.encode_with(served, &[])?.tokens)
    }

    /// The same with its images.
    fn encode_with(&self, served: &Served, seen: &[Arc<Seen>]) -> Result<welte::Prompt, Failure> {
        match self {
            Prompt::Tokens(tokens) => Ok(tokens.clone().into()),
            Prompt::Text(text) => {
                length::check(served, text)?;
                Ok(served.model.encode(text)?.into())
            }
            Prompt::Parts(parts) => {
                let mut prompt = welte::Prompt::default();
                let mut seen = seen.iter();
                // An image alone may be its own vector, without the tokens that begin a text.
                let apart = served.model.eyes().filter(|eyes| eyes.are_apart());
                let image = apart.and_then(|_| parts.iter().find_map(Part::image));
                let mut begun = image.is_some();
                if let (Some(image), [_, _, ..]) = (image, &parts[..]) {
                    let problem =
                        "must stand alone: this model has a vector for each text and each image";
                    return Err(Failure::field(image.name.as_str(), problem));
                }
                for part in parts {
                    let tokens = &mut prompt.tokens;
                    match part {
                        Part::Token(token) => tokens.push(*token),
                        Part::Image(image) => {
                            let sense = served.model.sense(&image.source).ok();
                            let (Some(sense), Some(seen)) = (sense, seen.next()) else {
                                return Err(Failure::field(
                                    image.name.as_str(),
                                    "images and sounds cannot stand here",
                                ));
                            };
                            if !begun && tokens.is_empty() {
                                tokens.extend(served.model.encode("")?);
                            }
                            sense.push(&mut prompt, seen);
                        }
                        Part::Text(text) => {
                            length::check(served, text)?;
                            // Only a text at the beginning begins the prompt.
                            tokens.extend(if !begun && tokens.is_empty() {
                                served.model.encode(text)?
                            } else {
                                served.model.tokenizer()?.encode(text, false, true)?
                            });
                        }
                    }
                    begun = true;
                }
                Ok(prompt)
            }
            Prompt::Infill {
                prefix,
                suffix,
                middle,
                field,
            } => {
                for part in [prefix, suffix, middle] {
                    length::check(served, part)?;
                }
                let tokens = served.model.encode_infill(prefix, suffix);
                let mut tokens = tokens.map_err(|error| match error {
                    welte::Error::NoInfill { .. } => Failure::field(*field, error),
                    error => error.into(),
                })?;
                let tokenizer = served.model.tokenizer()?;
                tokens.extend(tokenizer.encode(middle, false, false)?);
                Ok(tokens.into())
            }
            Prompt::Chat { .. } => Err(Failure::server("a conversation is not plain text")),
        }
    }

    /// Lines of its system prompt that change with every request.
    fn changing(&self) -> Vec<Changing> {
        match self {
            Prompt::Chat { messages, .. } => volatile_lines::kinds(messages),
            _ => Vec::new(),
        }
    }
}

impl Prompt {
    /// Its images and sounds, in order.
    pub(crate) fn images(&self) -> Vec<&Image> {
        match self {
            Prompt::Chat { messages, .. } => messages.iter().flat_map(|m| &m.images).collect(),
            Prompt::Parts(parts) => parts.iter().filter_map(Part::image).collect(),
            _ => Vec::new(),
        }
    }
}

impl Part {
    fn image(&self) -> Option<&Image> {
        match self {
            Part::Image(image) => Some(image),
            Part::Text(_) | Part::Token(_) => None,
        }
    }
}

/// A request of any API.
pub(crate) struct Ask {
    /// Its id in the response.
    pub(crate) id: String,
    pub(crate) image_rules: ImageRules,
    /// Of each prompt, once its images were looked at.
    viewed: Vec<Viewed>,
    /// When it came, and when its answer is given up.
    since: Instant,
    pub(crate) deadline: Option<Instant>,
    /// The model.
    pub(crate) served: Lease,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) options: GenerateOptions,
    /// Answers to each prompt.
    pub(crate) choices: usize,
    /// The answer so far, which another server has made.
    pub(crate) answered: Vec<u32>,
    /// Functions that the model may call, as JSON of OpenAI's form.
    pub(crate) tools: Vec<Value>,
    /// End the answer after the first call.
    pub(crate) one_call: bool,
    /// The answer must be a call.
    pub(crate) must_call: Option<MustCall>,
    /// Functions whose arguments must fit their schemas, with the fields that ask for it.
    pub(crate) strict: Vec<(String, String)>,
    /// The field that asks for the constraint.
    pub(crate) constrained_by: Option<String>,
    /// Reuse what earlier requests computed.
    pub(crate) cache: bool,
    pub(crate) lines: Option<LineLimits>,
    /// What to tell beside the text.
    pub(crate) report: Report,
    /// How the prompt of a conversation ends.
    pub(crate) ending: Ending,
}

/// How the prompt of a conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A last message of the assistant is the beginning of the answer.
    #[default]
    Auto,
    /// With the beginning of an answer.
    Begin,
    /// With the last message, which the answer continues.
    Continue,
    /// With the last message, complete.
    Nothing,
}

/// A call that the model must make.
pub(crate) struct MustCall {
    /// The field that asks for it.
    pub(crate) field: String,
    /// The function; `None`: any.
    pub(crate) name: Option<String>,
}

/// Says that nobody waits any longer, when it is dropped.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What follows a rendered prompt.
pub(crate) struct Shape {
    /// The end of the prompt that belongs to the answer.
    pub(crate) opening: String,
    /// Replaces the constraint of the request.
    pub(crate) constraint: Option<Constraint>,
    pub(crate) parsing: Option<Parsing>,
}

/// What is known of a prompt whose images were looked at.
#[derive(Default)]
struct Viewed {
    images: Vec<Arc<Seen>>,
    /// The tokens of a conversation.
    chat: Option<Rendered>,
}

/// The tokens of a conversation, with placeholders for images, and what its answer must look like.
type Rendered = (Vec<u32>, Shape);

/// An encoded prompt.
struct Encoded {
    prompt: welte::Prompt,
    /// Replaces that of the options.
    constraint: Option<Constraint>,
    /// How to take the answer apart.
    parsing: Option<Parsing>,
}

/// The field that has the answer so far.
pub(crate) const ANSWERED: &str = "answered_tokens";

/// The most answers to one request.
pub(crate) const MOST_CHOICES: usize = 64;

impl Ask {
    /// A request with the server's defaults.
    pub(crate) fn new(app: &App, served: &Lease, id: String) -> Ask {
        let mut options = app.options.defaults.clone();
        options.sampling.seed = app.options.seed.unwrap_or_else(|| app.seed());
        if let Some(recipe) = &served.recipe {
            recipe.apply(&mut options);
        }
        options.adapter = served.adapter();
        Ask {
            id,
            since: served.since(),
            deadline: served.deadline(&app.options),
            image_rules: app.options.images.clone(),
            viewed: Vec::new(),
            served: served.clone(),
            prompts: Vec::new(),
            options,
            choices: 1,
            answered: Vec::new(),
            tools: Vec::new(),
            one_call: false,
            must_call: None,
            strict: Vec::new(),
            constrained_by: None,
            cache: true,
            lines: None,
            report: Report {
                prompt: app.options.verbose,
                ..Report::default()
            },
            ending: Ending::default(),
        }
    }

    /// A request as this one without a prompt, whose answer need not be a call.
    pub(crate) fn again(&self) -> Ask {
        Ask {
            id: self.id.clone(),
            since: Instant::now(),
            deadline: self.deadline,
            image_rules: self.image_rules.clone(),
            viewed: Vec::new(),
            served: self.served.clone(),
            prompts: Vec::new(),
            options: self.options.clone(),
            choices: self.choices,
            answered: Vec::new(),
            tools: self.tools.clone(),
            one_call: self.one_call,
            must_call: None,
            strict: self.strict.clone(),
            constrained_by: self.constrained_by.clone(),
            cache: self.cache,
            lines: self.lines,
            report: self.report,
            ending: self.ending,
        }
    }

    /// Takes the answer so far.
    pub(crate) fn take_answered(&mut self, fields: &mut Fields) -> Result<(), Failure> {
        self.answered = fields.take(ANSWERED)?.unwrap_or_default();
        Ok(())
    }

    /// Whether the request has tools that the model's template does not know.
    pub(crate) fn has_generic_tools(&self) -> bool {
        let template = self.served.template.as_ref();
        !self.tools.is_empty() && template.is_some_and(|template| !template.supports_tools())
    }

    /// Hands the request to the engine. The answers are in order of prompts, then choices.
    pub(crate) async fn start(self, app: &Arc<App>) -> Result<Vec<Answer>, Failure> {
        if app.options.strict && self.has_generic_tools() {
            let problem = "the model's chat template does not support tools";
            return Err(Failure::field("tools", problem));
        }
        let count = self.choices.saturating_mul(self.prompts.len());
        if count == 0 || count > MOST_CHOICES {
            let problem = format!("a request may have 1 to {MOST_CHOICES} answers, not {count}");
            return Err(Failure::request(problem));
        }
        if !self.answered.is_empty() && count > 1 {
            let problem = format!("continues one answer, and the request asks for {count}");
            return Err(Failure::field(ANSWERED, problem));
        }
        let room = self.served.model.program().slots as usize + self.served.engine.queue();
        if count > room {
            // The queue never has room for all of them.
            let problem = format!(
                "the request asks for {count} answers, and the server takes {room} at a time; see --parallel and --queue"
            );
            return Err(Failure::request(problem));
        }
        let ask = self.with_images(app).await?;
        // Rendering and encoding a long prompt takes a while.
        let (ask, encoded) = app.bodies.aside(move || ask.encode_all()).await?;
        // A constraint may wait until others are compiled.
        let started = tokio::task::spawn_blocking(move || ask.submit(encoded)).await;
        started.unwrap_or_else(|error| Err(Failure::fault(&error)))
    }

    /// Hands a prompt to the engine that stands for the only one of the request.
    pub(crate) fn submit_prompt(self, prompt: welte::Prompt) -> Result<Vec<Answer>, Failure> {
        self.submit(vec![Encoded {
            prompt,
            constraint: None,
            parsing: None,
        }])
    }

    fn submit(self, encoded: Vec<Encoded>) -> Result<Vec<Answer>, Failure> {
        let served = &self.served;
        let mut answers = Vec::new();
        for (prompt, encoded) in self.prompts.iter().zip(encoded) {
            let Encoded {
                prompt: welte::Prompt { tokens, media, .. },
                constraint,
                parsing,
            } = encoded;
            for choice in 0..self.choices {
                let mut request = Request::new([&tokens[..], &self.answered].concat());
                request.answered = self.answered.len();
                request.media = media.clone();
                request.options = self.options.clone();
                if constraint.is_some() {
                    request.options.constraint = constraint.clone();
                }
                if matches!(prompt, Prompt::Infill { .. }) {
                    let ends = served.model.tokenizer()?.infill_ends();
                    request.options.stop_tokens.extend(ends);
                }
                let seed = &mut request.options.sampling.seed;
                *seed = seed.wrapping_add(choice as u64);
                if parsing.is_some() {
                    request.options.printed_controls = served.controls.clone();
                }
                request.prefix_cache = self.cache;
                request.deadline = self.deadline;
                let stream = served.engine.submit(request);
                let stream = stream.map_err(|error| self.refused(error))?;
                served.metrics.begun(tokens.len(), choice == 0);
                let active = Active {
                    id: self.id.clone(),
                    prompt_tokens: tokens.len(),
                    since: self.since,
                };
                let answer = Answer::new(served, stream, parsing.clone(), active);
                let answer = answer.with_changing(prompt.changing());
                let answer = answer.with_lines(self.lines);
                answers.push(answer.with_report(self.report, &tokens));
            }
        }
        Ok(answers)
    }

    /// Why the engine does not accept the request.
    fn refused(&self, error: welte::Error) -> Failure {
        match error {
            welte::Error::Constraint { .. } => Failure::field(self.form_field(), error),
            welte::Error::Answered { .. } => Failure::field(ANSWERED, error),
            error => self.served.refused(error),
        }
    }

    /// Sets what the answer must look like, by a field of the request.
    pub(crate) fn constrain(
        &mut self,
        field: String,
        constraint: Constraint,
    ) -> Result<(), Failure> {
        if let Some(other) = &self.constrained_by {
            return Err(Failure::field(
                field,
                format!("cannot be combined with {other}"),
            ));
        }
        self.options.constraint = Some(constraint);
        self.constrained_by = Some(field);
        Ok(())
    }

    /// True if it has images or sounds.
    pub(crate) fn has_images(&self) -> bool {
        self.prompts
            .iter()
            .any(|prompt| !prompt.images().is_empty())
    }

    /// Fetches and encodes the images of all prompts, as long as somebody waits for the answer. Takes a while.
    fn look(&mut self, wanted: &AtomicBool) -> Result<(), Failure> {
        let deadline = self.deadline;
        let is_wanted = || {
            let is_late = deadline.is_some_and(|at| at <= Instant::now());
            !is_late && wanted.load(Ordering::Relaxed)
        };
        let all: Vec<&Image> = self.prompts.iter().flat_map(Prompt::images).collect();
        let (count, max_images) = (all.len(), self.image_rules.max_images);
        // A video becomes a picture at least.
        if let Some(beyond) = all.get(max_images) {
            let problem = format!(
                "the request has {count} images and sounds; see --max-images ({max_images})"
            );
            return Err(Failure::field(beyond.name.as_str(), problem));
        }
        let chats = self.prompts.iter_mut().filter_map(|prompt| match prompt {
            Prompt::Chat { messages, .. } => Some(messages),
            _ => None,
        });
        let mut chats: Vec<&mut Vec<Message>> = chats.collect();
        images::play(
            &self.served,
            &self.image_rules,
            count,
            &mut chats,
            &is_wanted,
        )?;
        let all = self.prompts.iter().map(Prompt::images);
        let all: Vec<Vec<&Image>> = all.collect();
        let mut looked = Vec::new();
        for (prompt, images) in self.prompts.iter().zip(&all) {
            let (mut own, mut rows) = (Vec::new(), 0);
            for &image in images {
                if !is_wanted() {
                    return Err(welte::Error::Deadline.into());
                }
                let looked = images::look(&self.served, &self.image_rules, image, &is_wanted)?;
                rows += looked.tokens();
                own.push(looked);
                // Those after what does not fit need not be decoded.
                let context = self.served.model.context();
                if rows > context {
                    let prompt = rows;
                    return Err(welte::Error::ContextFull { prompt, context }.into());
                }
            }
            // A prompt that does not fit needs no features.
            let chat = self.check_length(prompt, rows)?;
            looked.push((own, chat));
        }
        let see = |image: Looked<'_>| image.see(&is_wanted);
        let viewed = looked.into_iter().map(|(own, chat)| {
            let images = own.into_iter().map(see).collect::<Result<_, Failure>>()?;
            Ok(Viewed { images, chat })
        });
        self.viewed = viewed.collect::<Result<_, Failure>>()?;
        Ok(())
    }

    /// Refuses a prompt that exceeds the context with the positions that its images take. Keeps what rendering a conversation yields.
    fn check_length(&self, prompt: &Prompt, of_images: usize) -> Result<Option<Rendered>, Failure> {
        let served = &self.served;
        let mut chat = None;
        let own = match prompt {
            Prompt::Chat {
                messages,
                variables,
            } => {
                let rendered = self.encode_chat(messages, variables)?;
                let tokens = rendered.0.len();
                chat = Some(rendered);
                tokens.saturating_sub(prompt.images().len())
            }
            Prompt::Parts(parts) => {
                let count = |part: &Part| match part {
                    Part::Image(_) => Ok(0),
                    Part::Token(_) => Ok(1),
                    Part::Text(text) => {
                        length::check(served, text)?;
                        Ok(served.model.tokenizer()?.encode(text, false, true)?.len())
                    }
                };
                parts.iter().map(count).sum::<Result<usize, Failure>>()?
            }
            _ => return Ok(None),
        };
        let (prompt, context) = (own + of_images, served.model.context());
        if prompt + usize::from(self.options.max_tokens > 0) > context {
            return Err(welte::Error::ContextFull { prompt, context }.into());
        }
        Ok(chat)
    }

    /// The request with its images looked at, if it has any.
    async fn with_images(mut self, app: &App) -> Result<Ask, Failure> {
        if !self.has_images() {
            return Ok(self);
        }
        let wanted = Wanted(Arc::new(AtomicBool::new(true)));
        let told = wanted.0.clone();
        let look = move || {
            self.look(&told)?;
            Ok(self)
        };
        app.bodies.looking(look).await
    }

    fn encode_all(mut self) -> Result<(Ask, Vec<Encoded>), Failure> {
        let mut viewed = std::mem::take(&mut self.viewed);
        viewed.resize_with(self.prompts.len(), Viewed::default);
        let all = self.prompts.iter().zip(viewed);
        let encoded = all.map(|(prompt, viewed)| self.encode(prompt, viewed));
        let encoded = encoded.collect::<Result<_, Failure>>()?;
        Ok((self, encoded))
    }

    /// The tokens of a conversation, with placeholders for images, and what its answer must look like.
    pub(crate) fn encode_chat(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
    ) -> Result<Rendered, Failure> {
        let served = &self.served;
        let variables = served.variables(variables);
        let mut rendered = self.render(messages, &variables)?;
        let shape = self.shape(&rendered, &variables)?;
        rendered.push_str(&shape.opening);
        length::check(served, &rendered)?;
        Ok((served.model.encode_rendered(&rendered)?, shape))
    }

    fn encode(&self, prompt: &Prompt, viewed: Viewed) -> Result<Encoded, Failure> {
        let served = &self.served;
        let seen = &viewed.images;
        match prompt {
            Prompt::Chat {
                messages,
                variables,
            } => {
                let (tokens, shape) = match viewed.chat {
                    Some(rendered) => rendered,
                    None => self.encode_chat(messages, variables)?,
                };
                let prompt = if seen.is_empty() {
                    Ok(tokens.into())
                } else {
                    served.model.place(&tokens, seen)
                };
                let prompt = prompt.map_err(|error| Failure::field("messages", error))?;
                Ok(Encoded {
                    prompt,
                    constraint: shape.constraint,
                    parsing: shape.parsing,
                })
            }
            prompt => Ok(Encoded {
                prompt: prompt.encode_with(served, seen)?,
                constraint: None,
                parsing: None,
            }),
        }
    }
}

/// A request's prompts with their images.
pub(crate) async fn encoded(app: &App, ask: Ask) -> Result<Vec<welte::Prompt>, Failure> {
    let ask = ask.with_images(app).await?;
    let encode = move || {
        let (_, all) = ask.encode_all()?;
        Ok(all.into_iter().map(|encoded| encoded.prompt).collect())
    };
    app.bodies.aside(encode).await
}

/// Counts the tokens of a request's prompts.
pub(crate) async fn count(app: &App, ask: Ask) -> Result<usize, Failure> {
    let all = encoded(app, ask).await?;
    Ok(all.iter().map(|prompt| prompt.tokens.len()).sum())
}
