//! How to load a model, as a JSON object.

use crate::Problem;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;
use welte::{
    Activations, AdapterSource, Format, Images, LoadOptions, Pooling, PrefixStoreOptions, Replay,
    Speculation, Steps, cpu_list,
};
use welte_server::ServerOptions;

/// Every option, for the message that refuses an unknown one.
const NAMES: [&str; 28] = [
    "activations",
    "cache_host",
    "cache_positions",
    "chat_template",
    "checkpoints",
    "context",
    "cpu_experts",
    "cpus",
    "device",
    "embeddings",
    "ignore_memory",
    "instructions",
    "kv_format",
    "lora",
    "lora_updates",
    "max_adapters",
    "max_rank",
    "mmproj",
    "pooling",
    "prefix_cache",
    "prefix_cache_bytes",
    "prompt_rows",
    "replay",
    "reranking",
    "slots",
    "speculation",
    "steps",
    "threads",
];
/// The size of a prefix store, if the options do not say.
const PREFIX_BYTES: u64 = 8 << 30;

/// What the options say.
pub(crate) struct Loading {
    pub(crate) load: LoadOptions,
    pub(crate) serve: ServerOptions,
}

impl Loading {
    /// Reads a JSON object; an empty text stands for one without fields.
    pub(crate) fn parse(text: &str) -> Result<Loading, Problem> {
        let mut fields = Fields(object("load options", text)?);
        let mut load = LoadOptions::default();
        let mut serve = ServerOptions::default();
        // A request that names an unknown field is a mistake of the program, not of a foreign client.
        (serve.strict, serve.page, serve.timeout) = (true, false, None);
        (load.fit_context, load.fit_with_others) = (true, true);
        load.embeddings = true;
        if let Some(name) = fields.take::<String>("device")? {
            load.device = name.parse()?;
        }
        fields.set("context", &mut load.context)?;
        fields.set("slots", &mut load.slots)?;
        fields.set("cache_positions", &mut load.cache_positions)?;
        fields.set("checkpoints", &mut load.checkpoints)?;
        fields.set("prompt_rows", &mut load.prompt_rows)?;
        fields.set("embeddings", &mut load.embeddings)?;
        fields.set("reranking", &mut load.scores)?;
        fields.set("ignore_memory", &mut load.ignore_memory)?;
        load.threads = fields.take("threads")?;
        load.instructions = fields.take("instructions")?;
        load.cpus = fields.named("cpus", cpu_list)?;
        load.replay = fields.named("replay", |name| {
            let names = Replay::ALL.map(Replay::name).join(", ");
            Replay::from_name(name).ok_or_else(|| format!("use one of {names}"))
        })?;
        load.pooling = fields.named("pooling", |name| {
            let names = Pooling::ALL.map(Pooling::name).join(", ");
            Pooling::from_name(name).ok_or_else(|| format!("use one of {names}"))
        })?;
        let format = fields.named("kv_format", |name| match Format::from_name(name) {
            Some(format @ (Format::F16 | Format::Q8_0)) => Ok(format),
            _ => Err("use f16 or q8_0".to_string()),
        })?;
        load.kv_format = format.unwrap_or(load.kv_format);
        let activations = fields.named("activations", |name| match name {
            "wide" => Ok(Activations::Wide),
            "fp8" => Ok(Activations::Float8),
            _ => Err("use wide or fp8".to_string()),
        })?;
        load.activations = activations.unwrap_or(load.activations);
        let steps = fields.named("steps", |name| match name {
            "alike" => Ok(Steps::Alike),
            "fast" => Ok(Steps::Fast),
            _ => Err("use alike or fast".to_string()),
        })?;
        load.steps = steps.unwrap_or(load.steps);
        load.images = match fields.take::<Value>("mmproj")? {
            None => Images::Beside,
            Some(Value::Bool(false)) => Images::Off,
            Some(Value::String(path)) => Images::File(path.into()),
            Some(_) => return Err(wrong("mmproj", "use the path of a file, or false")),
        };
        for text in fields.take::<Vec<String>>("lora")?.unwrap_or_default() {
            let source = text.parse::<AdapterSource>();
            load.adapters
                .push(source.map_err(|problem| wrong("lora", &problem))?);
        }
        fields.set("max_adapters", &mut load.max_adapters)?;
        fields.set("max_rank", &mut load.max_rank)?;
        fields.set("lora_updates", &mut serve.lora_updates)?;
        let speculation = fields.named("speculation", |name| match name {
            "auto" => Ok(Speculation::Auto),
            "ngram" => Ok(Speculation::Ngram),
            "mtp" => Ok(Speculation::Own),
            "off" => Ok(Speculation::Off),
            _ => Err("use auto, ngram, mtp or off".to_string()),
        })?;
        serve.engine.speculation = speculation.unwrap_or_default();
        load.cpu_experts = match fields.take::<Value>("cpu_experts")? {
            None => 0,
            Some(Value::String(all)) if all == "all" => u32::MAX,
            Some(number) => serde_json::from_value(number)
                .map_err(|_| wrong("cpu_experts", "use a number of layers, or \"all\""))?,
        };
        serve.chat_template = fields.take("chat_template")?;
        serve.engine.prefix_host_bytes = fields.take("cache_host")?.unwrap_or(0);
        let bytes = fields.take("prefix_cache_bytes")?;
        if let Some(dir) = fields.take::<PathBuf>("prefix_cache")? {
            load.prefix_store = true;
            let bytes = bytes.unwrap_or(PREFIX_BYTES);
            serve.engine.prefix_store = Some(PrefixStoreOptions { dir, bytes });
        } else if bytes.is_some() {
            return Err(wrong("prefix_cache_bytes", "needs prefix_cache, a folder"));
        }
        if load.slots == 0 || load.slots > 1024 {
            return Err(wrong("slots", "must be 1 to 1024"));
        }
        if load.threads.is_some_and(|n| n == 0 || n > 1024) {
            return Err(wrong("threads", "must be 1 to 1024"));
        }
        fields.finish()?;
        serve.drain = Duration::ZERO;
        Ok(Loading { load, serve })
    }
}

/// A JSON object; an empty text stands for one without fields. `what` names it in messages.
pub(crate) fn object(what: &str, text: &str) -> Result<Map<String, Value>, Problem> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text)
        .map_err(|error| Problem::argument(format!("{what}: not a JSON object: {error}")))
}

fn wrong(name: &str, problem: impl std::fmt::Display) -> Problem {
    Problem::argument(format!("load option {name:?}: {problem}"))
}

struct Fields(Map<String, Value>);

impl Fields {
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Problem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| wrong(name, error)),
        }
    }

    fn set<T: DeserializeOwned>(&mut self, name: &str, to: &mut T) -> Result<(), Problem> {
        if let Some(value) = self.take(name)? {
            *to = value;
        }
        Ok(())
    }

    /// A text that names a value.
    fn named<T>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let text: Option<String> = self.take(name)?;
        let read = |text: String| read(&text).map_err(|problem| wrong(name, problem));
        text.map(read).transpose()
    }

    /// Refuses what nobody has taken.
    fn finish(self) -> Result<(), Problem> {
        let Some(name) = self.0.keys().next() else {
            return Ok(());
        };
        let known = NAMES.join(", ");
        Err(wrong(name, format!("is unknown; the options are {known}")))
    }
}
