//! HTTP server of the engine: the APIs of OpenAI, Anthropic, Ollama and llama.cpp, and a chat page.
//!
//! Every API has a file. It converts its requests to one internal form (`ask.rs`) and the engine's streams, taken apart into
//! events at one place (`answer.rs`), to its own responses.

mod adapters;
mod answer;
mod anthropic;
mod app;
mod ask;
mod audio;
mod bodies;
mod browser;
mod client;
mod connections;
mod embeddings;
mod ending;
mod engine;
mod error;
mod fields;
mod for_all;
mod form;
mod health;
#[cfg(feature = "hub")]
mod hub;
mod ignored;
mod images;
mod kv_events;
mod length;
mod lines;
mod llama;
mod logprobs;
mod mcp;
mod metrics;
mod middleware;
mod models;
mod multipart;
mod ollama;
mod openai;
mod openapi;
mod page;
mod parameters;
mod prompts;
mod rates;
mod realtime;
mod recipe;
mod rerank;
mod router;
mod sampling;
mod scribe;
mod serve;
mod times;
mod turns;
mod volatile_lines;

pub use browser::BrowserPage;
#[cfg(feature = "hub")]
pub use hub::HubAccess;
pub use images::ImageRules;
pub use kv_events::KvEvents;
pub use mcp::McpServers;
pub use models::{BandwidthOf, Catalog, Planned, name_of};
pub use recipe::{Recipe, Recipes, Turn};
pub use router::router;
pub use scribe::SpeechService;
pub use serve::{Server, ShutdownHandle, serve};
pub use times::keep_alive;
pub use volatile_lines::Changing;

use serde_json::{Map, Value};
use std::time::Duration;
use welte::{EngineOptions, GenerateOptions};

/// Memory that encoding a byte of text as tokens takes at most, in bytes.
pub const ENCODING_BYTES: usize = 160;

/// How the server works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// A chat template in place of the models' own.
    pub chat_template: Option<String>,
    /// Variables of chat templates that requests do not set, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// Words that describe the models in lists.
    pub tags: Vec<String>,
    /// Serve the chat page.
    pub page: bool,
    /// Offer `/slots`.
    pub slots: bool,
    /// Chats have llama.cpp's whole response too, with the prompt, unless a request says otherwise.
    pub verbose: bool,
    /// Keys of clients; without any, everybody is welcome.
    pub api_keys: Vec<String>,
    /// Origins of web pages that may use the server, besides its own and those on this machine; `*`: all.
    pub origins: Vec<String>,
    /// Host names under which browsers may reach the server, besides addresses and `localhost`; `*`: all.
    pub hosts: Vec<String>,
    /// The largest body of a request, in bytes.
    pub largest_body: usize,
    /// What images requests may have.
    pub images: ImageRules,
    /// Memory that the bodies of all requests may take together, in bytes, parsed ones included.
    pub bodies_memory: usize,
    /// The longest text that `/tokenize` takes, in bytes. It needs [`ENCODING_BYTES`] times as much memory.
    pub longest_text: usize,
    /// Requests whose texts are encoded at the same time.
    pub encoders: usize,
    /// The longest time for an answer, waiting included.
    pub timeout: Option<Duration>,
    /// Sampling and limits of requests that do not choose their own.
    pub defaults: GenerateOptions,
    /// The seed of requests without one; `None`: a random one each.
    pub seed: Option<u64>,
    /// Offer `/metrics`.
    pub metrics: bool,
    /// The speed of a device, if it is known.
    pub bandwidth: Option<BandwidthOf>,
    /// How long an idle model stays loaded; `None`: until its memory is needed.
    pub keep_alive: Option<Duration>,
    /// Bytes that all loaded models may take together; `None`: what their devices have.
    pub models_memory: Option<u64>,
    /// Queue and prefix store of the engine.
    pub engine: EngineOptions,
    /// Memory for stored responses of `/v1/responses`, in bytes.
    pub stored_responses: usize,
    /// Lines of system prompts to leave out, because they change with every request.
    pub drop_changing: Vec<Changing>,
    /// Clients may load and unload adapters by the paths of their files.
    pub lora_updates: bool,
    /// Refuse fields that the server does not know, in place of ignoring and naming them.
    pub strict: bool,
    /// How long the head of a request may take to arrive.
    pub head_timeout: Duration,
    /// How long the body of a request may take to arrive.
    pub body_timeout: Duration,
    /// Lets clients download and delete models; `None`: they may not.
    #[cfg(feature = "hub")]
    pub hub: Option<HubAccess>,
    /// A model that writes down speech; `None`: there is none.
    pub speech: Option<SpeechService>,
    /// Servers whose tools models may call through `/v1/responses`; `None`: there are none.
    pub mcp: Option<McpServers>,
    /// Tells routers which prompts are cached; `None`: nobody is told.
    pub kv_events: Option<KvEvents>,
    /// A page that runs the engine in the browser, at `/browser/`; `None`: there is none.
    pub browser: Option<BrowserPage>,
    /// Connections at a time. Beyond them idle ones are closed, and some more may ask for `/health`.
    pub connections: usize,
    /// Connections of one address at a time.
    pub connections_per_address: usize,
    /// How long answers may take after the server was asked to end.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            chat_template: None,
            template_variables: Map::new(),
            tags: Vec::new(),
            page: true,
            slots: true,
            verbose: false,
            api_keys: Vec::new(),
            origins: Vec::new(),
            hosts: Vec::new(),
            largest_body: 32 << 20,
            images: ImageRules::default(),
            bodies_memory: 1 << 30,
            longest_text: 4 << 20,
            encoders: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
            timeout: Some(Duration::from_secs(600)),
            defaults: GenerateOptions::default(),
            seed: None,
            metrics: true,
            bandwidth: None,
            keep_alive: None,
            models_memory: None,
            engine: EngineOptions::default(),
            stored_responses: 64 << 20,
            drop_changing: Vec::new(),
            lora_updates: false,
            strict: false,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            #[cfg(feature = "hub")]
            hub: None,
            speech: None,
            mcp: None,
            kv_events: None,
            browser: None,
            connections: 1024,
            connections_per_address: 512,
            drain: Duration::from_secs(30),
        }
    }
}

impl ServerOptions {
    /// Whether clients may add models.
    pub(crate) fn grows(&self) -> bool {
        #[cfg(feature = "hub")]
        let grows = self.hub.is_some();
        #[cfg(not(feature = "hub"))]
        let grows = false;
        grows
    }
}
