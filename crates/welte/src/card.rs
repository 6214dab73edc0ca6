//! A model's card: what a person wants to know of a model before it is loaded, from headers alone.

use crate::licence::front_matter;
use crate::model::eyes::media_of;
use crate::text::{TextSide, template};
use crate::{Error, Images, open};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use welte_formats::checkpoint::{Checkpoint, Dialect, Value};
use welte_formats::quantize::Recipe;
use welte_models::{ModelSpec, head_kind, hearing_spec, speech_spec, vision_spec};
use welte_table::Format;
use welte_text::calls::Format as AnswerFormat;
use welte_text::{ChatTemplate, TemplateSupport, Tokenizer};

/// The longest list of a key that is part of a card.
const LONGEST_LIST: usize = 1024;

/// What a model is and can do.
#[derive(Clone, Debug)]
pub struct Card {
    /// Where it comes from.
    pub origin: String,
    /// The name that its file has for it.
    pub name: Option<String>,
    /// Its architecture.
    pub architecture: String,
    /// Its weights.
    pub parameters: u64,
    /// The name of its quantisation, or the format of most of its matrices.
    pub format: String,
    /// The formats of its matrices by bytes, largest first.
    pub formats: Vec<&'static str>,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// The licence, by its name.
    pub license: Option<String>,
    /// Where the licence's text is.
    pub license_link: Option<String>,
    /// Positions that it was trained for.
    pub context: Option<u32>,
    /// Values of a hidden state.
    pub width: Option<u32>,
    /// Layers.
    pub layers: Option<u32>,
    /// Size of the vocabulary.
    pub vocab: Option<u32>,
    /// What it has to guess tokens ahead, in words.
    pub draft: Option<String>,
    /// What its chat template supports.
    pub template: Option<TemplateCard>,
    /// What it can do, in Ollama's words where it has one.
    pub capabilities: Vec<&'static str>,
    /// The keys that describe it, by their names in GGUF. Long lists are left out.
    pub info: BTreeMap<String, Value>,
}

/// What a chat template supports.
#[derive(Clone, Copy, Debug)]
pub struct TemplateCard {
    /// What it writes.
    pub support: TemplateSupport,
    /// The syntax of calls.
    pub calls: &'static str,
    /// The template has marks of reasoning.
    pub reasons: bool,
}

impl TemplateCard {
    /// What a template supports.
    pub fn of(source: &str, template: &ChatTemplate) -> TemplateCard {
        let format = AnswerFormat::of_template(source);
        TemplateCard {
            support: template.support(),
            calls: format.syntax.name,
            reasons: format.template_reasons,
        }
    }

    /// One line for each thing that it supports.
    pub fn lines(&self) -> Vec<String> {
        let TemplateCard {
            support,
            calls,
            reasons,
        } = *self;
        let thinking = match (support.thinking_switch, support.effort) {
            (Some(name), true) => format!(", set by {name} and reasoning_effort"),
            (Some(name), false) => format!(", switched by {name}"),
            (None, true) => ", set by reasoning_effort".to_string(),
            (None, false) => String::new(),
        };
        let all = [
            (support.system, "system messages".to_string()),
            (support.tools, format!("tools (calls as {calls})")),
            (reasons, format!("thinking{thinking}")),
            (support.images, "images".to_string()),
            (support.sounds, "sounds".to_string()),
        ];
        all.into_iter()
            .filter_map(|(does, what)| does.then_some(what))
            .collect()
    }
}

/// What decides about a model's capabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Abilities {
    /// It generates text.
    pub generates: bool,
    /// It yields vectors of texts.
    pub embeds: bool,
    /// It scores pairs of texts.
    pub scores: bool,
    /// Its chat template.
    pub template: Option<TemplateCard>,
    /// Its vocabulary has the marks of text to fill in.
    pub fills: bool,
    /// It takes images.
    pub sees: bool,
    /// It takes sounds.
    pub hears: bool,
    /// It writes down speech and does nothing else.
    pub transcribes: bool,
    /// It has something that guesses tokens ahead.
    pub guesses: bool,
    /// It guesses for another model and is none itself.
    pub drafts: bool,
}

impl Abilities {
    /// What a model can do: Ollama's words, and `chat`, `rerank`, `transcription`, `draft` (a draft layer of its own) and `drafter`.
    pub fn capabilities(&self) -> Vec<&'static str> {
        let template = self.template.as_ref();
        let all = [
            (self.generates, "completion"),
            (self.generates && template.is_some(), "chat"),
            (self.embeds, "embedding"),
            (self.scores, "rerank"),
            (
                template.is_some_and(|template| template.support.tools),
                "tools",
            ),
            (self.fills, "insert"),
            (
                template.is_some_and(|template| template.reasons),
                "thinking",
            ),
            (self.sees, "vision"),
            (self.hears, "audio"),
            (self.transcribes, "transcription"),
            (self.guesses, "draft"),
            (self.drafts, "drafter"),
        ];
        let can = |(can, name): (bool, &'static str)| can.then_some(name);
        all.into_iter().filter_map(can).collect()
    }
}

impl Card {
    /// The card of a GGUF file, a Hugging Face directory or `synthetic:SHAPE:FORMAT`: a model, one of speech, an encoder of images or
    /// sounds, or a drafter. `images` says where to look for an encoder; `own_template` comes before the checkpoint's chat template.
    pub fn read(source: &str, images: &Images, own_template: Option<&str>) -> Result<Card, Error> {
        let checkpoint = open(source)?;
        let checkpoint = checkpoint.as_ref();
        let mut card = Card::of(checkpoint);
        if let Some(kind) = head_kind(checkpoint) {
            card.draft = Some(kind.to_string());
            let abilities = Abilities {
                drafts: true,
                ..Abilities::default()
            };
            card.capabilities = abilities.capabilities();
            return Ok(card);
        }
        if let Some(spec) = speech_spec(checkpoint)? {
            (card.width, card.vocab) = (Some(spec.dim), Some(spec.vocab));
            (card.layers, card.context) = (Some(spec.decoder.count), Some(spec.tokens));
            let abilities = Abilities {
                transcribes: true,
                ..Abilities::default()
            };
            card.capabilities = abilities.capabilities();
            return Ok(card);
        }
        let spec = match welte_models::spec(checkpoint) {
            Ok(spec) => spec,
            Err(why) => {
                let abilities = Abilities {
                    sees: vision_spec(checkpoint)?.is_some(),
                    hears: hearing_spec(checkpoint)?.is_some(),
                    ..Abilities::default()
                };
                // An mmproj file is an encoder alone. Of a directory it would be only a part.
                if checkpoint.dialect() != Dialect::Gguf || !(abilities.sees || abilities.hears) {
                    return Err(why.into());
                }
                card.capabilities = abilities.capabilities();
                return Ok(card);
            }
        };
        card.describe(&spec, checkpoint);
        let side = TextSide::of(checkpoint)?;
        let vectors = welte_models::vector_settings(checkpoint)?;
        let tokenizer = side.tokenizer.as_ref();
        card.template = match (own_template.or(side.template.as_deref()), tokenizer) {
            // What is wrong with a template is said when a chat begins.
            (Some(source), Some(tokenizer)) => template(source, tokenizer)
                .ok()
                .map(|made| TemplateCard::of(source, &made)),
            _ => None,
        };
        let [sees, hears] = media_of(checkpoint, images);
        let abilities = Abilities {
            generates: spec.encoder.is_none(),
            embeds: !vectors.scores,
            scores: vectors.scores,
            template: card.template,
            fills: tokenizer.is_some_and(fills),
            sees,
            hears,
            guesses: card.draft.is_some(),
            ..Abilities::default()
        };
        card.capabilities = abilities.capabilities();
        Ok(card)
    }

    /// What every checkpoint says.
    fn of(checkpoint: &dyn Checkpoint) -> Card {
        let origin = checkpoint.origin();
        let text = |key: &str| match checkpoint.metadata().get(key) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            _ => None,
        };
        let architecture = text("general.architecture").unwrap_or_default();
        let said = front_matter(origin);
        let of_readme = |key: &str| said.get(key).cloned();
        // "other" means that the name says it.
        let named = |name: &String| name != "other" && name != "unknown";
        let license = text("general.license").or_else(|| of_readme("license"));
        let license = license.filter(named).or_else(|| {
            text("general.license.name")
                .or_else(|| of_readme("license_name"))
                .or_else(|| text("general.license"))
        });
        let formats = formats(checkpoint);
        let recipe = match checkpoint.metadata().get("general.file_type") {
            Some(Value::U64(number)) => Recipe::of_file_type(*number),
            _ => None,
        };
        let format = recipe.map(Recipe::name).or(formats.first().copied());
        let parameters = checkpoint.tensors().iter();
        let parameters = parameters
            .map(|tensor| tensor.n as u64 * tensor.k as u64)
            .sum();
        Card {
            origin: origin.to_string(),
            name: text("general.name"),
            architecture,
            parameters,
            format: format.unwrap_or_default().to_string(),
            formats,
            bytes: welte_formats::quantize::size(checkpoint.tensors()),
            license,
            license_link: text("general.license.link").or_else(|| of_readme("license_link")),
            context: None,
            width: None,
            layers: None,
            vocab: None,
            draft: None,
            template: None,
            capabilities: Vec::new(),
            info: info(checkpoint),
        }
    }

    /// Adds what is known of a language model or an encoder of texts.
    fn describe(&mut self, spec: &ModelSpec, checkpoint: &dyn Checkpoint) {
        self.architecture = spec.architecture.clone();
        self.parameters = spec.parameters();
        self.context = Some(spec.context);
        self.width = Some(spec.dim);
        self.layers = Some(spec.layers);
        self.vocab = Some(spec.vocab);
        self.draft = spec.draft_kind(checkpoint);
        // What a file does not say: a synthetic model has no keys, and few files have this one.
        let architecture = self.info_prefix();
        let mut add = |key: String, value: u64| {
            self.info.entry(key).or_insert(Value::U64(value));
        };
        add("general.parameter_count".into(), spec.parameters());
        add(
            format!("{architecture}.context_length"),
            spec.context.into(),
        );
        add(format!("{architecture}.embedding_length"), spec.dim.into());
        add(format!("{architecture}.block_count"), spec.layers.into());
        add(format!("{architecture}.vocab_size"), spec.vocab.into());
    }

    /// What the keys of the model begin with.
    pub fn info_prefix(&self) -> String {
        match self.info.get("general.architecture") {
            Some(Value::String(name)) => name.clone(),
            _ => self.architecture.clone(),
        }
    }

    /// Makes the card of a model while it is loaded.
    pub(crate) fn of_model(spec: &ModelSpec, checkpoint: &dyn Checkpoint) -> Card {
        let mut card = Card::of(checkpoint);
        card.describe(spec, checkpoint);
        card
    }

    /// The keys of the model as JSON.
    pub fn info_as_json(&self) -> Map<String, Json> {
        let all = self.info.iter();
        all.map(|(key, value)| (key.clone(), as_json(value)))
            .collect()
    }

    /// All of it as JSON.
    pub fn as_json(&self) -> Json {
        let template = self.template.map(|template| {
            let support = template.support;
            json!({
                "system": support.system, "tools": support.tools,
                "calls": support.tools.then_some(template.calls), "thinking": template.reasons,
                "thinking_switch": support.thinking_switch, "reasoning_effort": support.effort,
                "images": support.images, "sounds": support.sounds,
            })
        });
        json!({
            "model": self.origin, "name": self.name, "architecture": self.architecture, "parameters": self.parameters,
            "format": self.format, "formats": self.formats, "bytes": self.bytes, "license": self.license,
            "license_link": self.license_link, "context_length": self.context, "embedding_length": self.width,
            "layers": self.layers, "vocabulary": self.vocab, "draft": self.draft, "template": template,
            "capabilities": self.capabilities, "model_info": self.info_as_json(),
        })
    }
}

pub(crate) fn fills(tokenizer: &Tokenizer) -> bool {
    tokenizer.infill_tokens().is_some()
}

/// The formats of the matrices by bytes, largest first.
fn formats(checkpoint: &dyn Checkpoint) -> Vec<&'static str> {
    let mut bytes: BTreeMap<&'static str, u64> = BTreeMap::new();
    let all = checkpoint.tensors();
    let has_matrices = all.iter().any(|tensor| tensor.n > 1);
    for tensor in all.iter().filter(|tensor| tensor.n > 1 || !has_matrices) {
        let own = welte_formats::quantize::size(std::slice::from_ref(tensor));
        *bytes.entry(Format::name(tensor.format)).or_default() += own;
    }
    let mut all: Vec<_> = bytes.into_iter().collect();
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    all.into_iter().map(|(name, _)| name).collect()
}

/// The keys of a model by their names in GGUF. A directory whose architecture has no form there keeps its own.
fn info(checkpoint: &dyn Checkpoint) -> BTreeMap<String, Value> {
    let keys = welte_models::gguf_keys(checkpoint).or_else(|why| {
        // A directory that holds no language model.
        let own = checkpoint.metadata().iter();
        let own = own.filter(|(key, _)| key.starts_with("general."));
        let own: BTreeMap<_, _> = own
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if own.is_empty() { Err(why) } else { Ok(own) }
    });
    let mut keys = keys.unwrap_or_default();
    keys.retain(|_, value| !matches!(value, Value::Array(list) if list.len() > LONGEST_LIST));
    keys
}

pub(crate) fn as_json(value: &Value) -> Json {
    match value {
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::F64(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.clone().into(),
        Value::Array(list) => list.iter().map(as_json).collect(),
    }
}
