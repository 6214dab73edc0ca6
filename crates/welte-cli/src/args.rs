//! Every flag. Flags that llama.cpp has too are named alike.

use crate::address::AddressArgs;
use crate::constraint::ConstraintArgs;
use crate::embed::EmbedArgs;
use crate::flags::{
    AdapterArgs, DeviceArgs, LoadArgs, PlaceArgs, PrefixArgs, SpecArgs, bytes, size,
};
use crate::fleet::FleetArgs;
use crate::images::EyeArgs;
use crate::launch::LaunchArgs;
use crate::limits::LimitArgs;
use crate::offer::OfferArgs;
#[cfg(feature = "hub")]
use crate::recipes::CreateArgs;
use crate::rerank::RerankArgs;
use crate::sampling::SamplingArgs;
use crate::service::ServiceArgs;
use crate::transcribe::TranscribeArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use welte_server::Changing;

/// Runs language models at the speed of the memory.
#[derive(Parser)]
#[command(
    name = "welte",
    version,
    about,
    after_help = "Exit codes: 0 done, 1 an error in input or model, 2 wrong usage, 130 interrupted."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt, or start a chat if none is given
    Run(RunArgs),
    /// Chat
    Chat(RunArgs),
    /// Serve a model over HTTP: the APIs of OpenAI, Anthropic, Ollama and llama.cpp, and a chat page
    Serve(Box<ServeArgs>),
    /// Show a model's card: what it is, its licence and what it can do; reads headers only
    Show(ShowArgs),
    /// Show a model's description, memory plan and passes; reads headers only
    Inspect(InspectArgs),
    /// Measure prompt and generation speed
    Bench(BenchArgs),
    /// Show where a token's time goes
    Profile(ProfileArgs),
    /// Score a text
    Perplexity(PerplexityArgs),
    /// Print the vectors of texts
    Embed(EmbedArgs),
    /// Write down speech
    Transcribe(Box<TranscribeArgs>),
    /// Order documents by their relevance for a query
    Rerank(RerankArgs),
    /// Encode text as tokens
    Tokenize(TokenizeArgs),
    /// Store a model's weights in another format, a directory as one GGUF file, or a GGUF file as a directory
    Quantize(QuantizeArgs),
    /// Measure how much each column of a model's matrices matters
    Imatrix(ImatrixArgs),
    /// Write a model of random weights
    Synth(SynthArgs),
    /// Measure a model's tuning parameters on this device and store them
    Tune(TuneArgs),
    /// Show the devices of this machine and what is missing
    Doctor(DoctorArgs),
    /// List the models that a running server has loaded
    Ps(PsArgs),
    /// Unload a model of a running server
    Stop(StopArgs),
    /// Run a coding agent or a chat page with a local model
    Launch(LaunchArgs),
    /// Serve in the background, starting at every login
    Service(ServiceArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(ManArgs),
    /// Create a model from another one: with its own system prompt, parameters and first messages
    #[cfg(feature = "hub")]
    Create(CreateArgs),
    /// Download a model from the Hugging Face hub into the shared cache
    #[cfg(feature = "hub")]
    Pull(PullArgs),
    /// List the models in that cache, and the created ones
    #[cfg(feature = "hub")]
    List(ListArgs),
    /// Remove a created model, or one from the cache, or one revision or file of it
    #[cfg(feature = "hub")]
    Rm(RmArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// A model (file, directory or synthetic:SHAPE:FORMAT), a prompt, or both
    #[arg(value_name = "[MODEL] PROMPT", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) prompt: Option<String>,
    /// File with the prompt (-: standard input)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// An image that the prompt is about, or a video where ffmpeg exists (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
    /// A sound that the prompt is about (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) audio: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) eyes: EyeArgs,
    /// System prompt (also -sys)
    #[arg(long, value_name = "TEXT")]
    pub(crate) system_prompt: Option<String>,
    /// File with a chat template that replaces the model's own
    #[arg(long, value_name = "FILE", conflicts_with = "no_chat")]
    pub(crate) chat_template_file: Option<PathBuf>,
    /// Print a line of JSON per token, with its probability and those of the N likeliest ones (at most 20)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20))]
    pub(crate) logprobs: Option<u32>,
    /// Complete the raw text, without a chat template
    #[arg(long)]
    pub(crate) no_chat: bool,
    /// Show how long each step until the first token took
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) prefix: PrefixArgs,
    /// How the model was created, if the arguments name one that was.
    #[arg(skip)]
    pub(crate) recipe: Option<welte_server::Recipe>,
}

/// How long an idle model stays loaded; `None`: until its memory is needed.
#[derive(Clone, Copy)]
pub(crate) struct KeepAlive(pub(crate) Option<Duration>);

fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    welte_server::keep_alive(text).map(KeepAlive)
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT [default: the bundled model]
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT (repeatable; the first model is the default one)
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Vec<String>,
    /// A model on the Hugging Face hub, ORG/NAME[:QUANT or FILE], downloaded if it is not in the cache (repeatable; also -hf)
    #[arg(long, value_name = "NAME")]
    pub(crate) hf_repo: Vec<String>,
    /// Folder whose models are loaded at their first request (repeatable)
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Vec<PathBuf>,
    /// Serve the models in the hub's cache too (see `welte list`)
    #[arg(long)]
    pub(crate) models_cached: bool,
    /// Memory that all loaded models may take together, in bytes or with K, M, G or T [default: all that is available]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) models_memory: Option<u64>,
    /// How long an idle model stays loaded, such as 300, 5m or 24h (-1: until its memory is needed)
    #[arg(long, value_name = "TIME", default_value = "-1", allow_hyphen_values = true, value_parser = keep_alive)]
    pub(crate) keep_alive: KeepAlive,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) eyes: EyeArgs,
    /// A model of speech for /v1/audio: a Whisper directory, or a .bin file of whisper.cpp
    #[arg(long, value_name = "MODEL")]
    pub(crate) speech: Option<String>,
    /// Windows of sound that are written together if requests allow it (chunking_strategy auto)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), requires = "speech")]
    pub(crate) speech_batch: u32,
    /// File with a chat template that replaces the models' own
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Address to listen at; 0.0.0.0 is every address of this machine
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: String,
    /// Port to listen at; 0 takes a free one
    #[arg(long, default_value_t = 8080, value_name = "N")]
    pub(crate) port: u16,
    /// Requests that are answered at the same time; each has the whole context (also -np)
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: u32,
    /// Positions in the caches, shared by all requests (0: one context, or with -c one for each request, if memory allows)
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) cache_positions: u32,
    /// States of earlier requests to keep, so that later ones can continue from them; only for models with recurrent state
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub(crate) checkpoints: u32,
    /// Requests that may wait; further ones are refused
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) queue: u32,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) prefix: PrefixArgs,
    /// Key that clients must send (repeatable)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// File with one key per line
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// The model's name in the APIs, or several after commas (repeatable, in the order of the models) [default: the file's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
    /// Lines of system prompts to leave out, because they change with every request and so empty the prompt cache:
    /// billing, times or ids (repeatable, or separated by commas)
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) drop_changing: Vec<Changing>,
    /// Score pairs of texts at /v1/rerank instead of embedding them, with models whose files do not say that they are rerankers
    #[arg(long, visible_alias = "rerank")]
    pub(crate) reranking: bool,
    /// Seconds that an answer may take, waiting included (0: no limit)
    #[arg(long, default_value_t = 600, value_name = "S")]
    pub(crate) timeout: u64,
    /// Offer figures for Prometheus at /metrics
    #[arg(long)]
    pub(crate) metrics: bool,
    /// Origin of web pages that may use the server (repeatable; *: all)
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors: Vec<String>,
    /// Host name under which browsers may reach the server (repeatable; *: all)
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Let clients load and unload adapters by the paths of their files (/v1/load_lora_adapter)
    #[arg(long)]
    pub(crate) lora_updates: bool,
    /// Refuse unknown API fields instead of ignoring and naming them
    #[arg(long)]
    pub(crate) strict: bool,
    /// Folder that tools/browser made: serves the page that runs Welte in the browser, at /browser/
    #[arg(long, value_name = "FOLDER")]
    pub(crate) browser: Option<PathBuf>,
    /// File with MCP servers whose tools models may call through /v1/responses: {"mcpServers": {NAME: {"command": …} or {"url": …}}}
    #[arg(long, value_name = "FILE")]
    pub(crate) mcp_config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    #[command(flatten)]
    pub(crate) offer: OfferArgs,
    /// Log every request, and add the prompt to the responses of chats
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// End when standard input ends: with the program that has started the server
    #[arg(long, hide = true)]
    pub(crate) end_with_input: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Picture {
    Text,
    Json,
    Dot,
    Html,
}

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) eyes: EyeArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Picture::Text)]
    pub(crate) output: Picture,
    /// Requests at the same time, as `serve` has them (also -np)
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: u32,
    /// Instead, compile the CUDA kernels of this load into FOLDER, for machines without a compiler; `--device h200` needs no GPU here
    #[arg(long, value_name = "FOLDER", conflicts_with = "output")]
    pub(crate) kernels: Option<PathBuf>,
}

/// Reads a rate of arrivals.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 => Ok(rate),
        _ => Err("use a number above 0, or inf".to_string()),
    }
}

/// Reads a number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("use a number from 0 to 1".to_string()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rows {
    Md,
    Csv,
    Json,
    Jsonl,
}

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// A model on the Hugging Face hub, ORG/NAME[:QUANT or FILE], downloaded if it is not in the cache (also -hf)
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
    /// Random weights of a named shape, such as qwen3-0.6b:q4_0
    #[arg(long, value_name = "SHAPE:FORMAT")]
    pub(crate) synthetic: Option<String>,
    #[command(flatten)]
    pub(crate) on: DeviceArgs,
    /// Compare ways to replay, from one launch per op to one kernel per chain (GPU)
    #[arg(long)]
    pub(crate) ladder: bool,
    /// Decode this many sequences together, comma-separated: the table of llama-batched-bench
    #[arg(long, value_name = "B", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024), conflicts_with_all = ["ladder", "random_depth", "serve"])]
    pub(crate) batched: Vec<u32>,
    /// Compute vectors of texts of this many tokens, comma-separated
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with_all = ["ladder", "random_depth", "serve", "batched", "speculative"])]
    pub(crate) embed: Vec<u32>,
    /// Texts of --embed, which are computed together
    #[arg(long, default_value_t = 16, value_name = "N", requires = "embed", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) texts: u32,
    /// Encode pictures of these sizes, comma-separated, alone and beside a stream
    #[arg(long, value_name = "WIDTHxHEIGHT", value_delimiter = ',', value_parser = size, conflicts_with_all = ["ladder", "random_depth", "serve", "batched", "speculative", "embed"])]
    pub(crate) images: Vec<[u32; 2]>,
    /// File with the encoder of --images [default: mmproj*.gguf beside the model]
    #[arg(long, value_name = "FILE", requires = "images")]
    pub(crate) mmproj: Option<PathBuf>,
    /// Generate with made-up guesses that are right with this probability per token, comma-separated; the draft layer of a model that has
    /// one runs as well
    #[arg(long, value_name = "P", value_delimiter = ',', value_parser = share, conflicts_with_all = ["ladder", "random_depth", "serve", "batched"])]
    pub(crate) speculative: Vec<f64>,
    /// Cost of a guess of --speculative, as a share of a token's
    #[arg(long, default_value_t = 0.125, value_name = "P", requires = "speculative", value_parser = share)]
    pub(crate) draft_cost: f64,
    /// The most guesses of --speculative at a time
    #[arg(long, default_value_t = 16, value_name = "N", requires = "speculative", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) draft_max: u16,
    /// Answer requests that arrive at random times, at this average rate per second, comma-separated (inf: all at once)
    #[arg(long, value_name = "RATE", value_delimiter = ',', value_parser = rate, conflicts_with_all = ["ladder", "random_depth"])]
    pub(crate) serve: Vec<f64>,
    /// Requests of --serve
    #[arg(long, default_value_t = 64, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) requests: u32,
    /// Requests that --serve answers at the same time (also -np)
    #[arg(long, default_value_t = 16, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: u32,
    /// Seed of the arrivals and lengths of --serve
    #[arg(long, default_value_t = 1, value_name = "N", requires = "serve")]
    pub(crate) seed: u64,
    /// Draw throughput against latency of --serve into this file
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub(crate) svg: Option<PathBuf>,
    /// Tokens of the prompt, comma-separated; 0 leaves the row out
    #[arg(short = 'p', long, default_value = "512", value_delimiter = ',')]
    pub(crate) n_prompt: Vec<u32>,
    /// Tokens to generate, comma-separated; 0 leaves the row out
    #[arg(short = 'n', long, default_value = "128", value_delimiter = ',')]
    pub(crate) n_gen: Vec<u32>,
    /// Tokens already in the context, comma-separated
    #[arg(short = 'd', long, default_value = "0", value_delimiter = ',')]
    pub(crate) n_depth: Vec<u32>,
    /// Fill the context of --n-depth with random numbers instead of computing it; a token takes the same time
    #[arg(long, conflicts_with = "ladder")]
    pub(crate) random_depth: bool,
    /// Repetitions
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    /// CPU threads, comma-separated [default: one for each core]
    #[arg(short, long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Rows::Md)]
    pub(crate) output: Rows,
}

impl BenchArgs {
    pub(crate) fn load_args(&self, threads: Option<u16>, context: u32) -> LoadArgs {
        LoadArgs {
            model: None,
            hf_repo: None,
            place: PlaceArgs {
                adapters: self.adapters.clone(),
                on: self.on.clone(),
                ctx_size: context,
                threads,
                reference: false,
                ignore_memory: false,
                rows: None,
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plain {
    Text,
    Json,
}

#[derive(Args)]
pub(crate) struct ProfileArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Tokens of the prompt
    #[arg(short = 'p', long, default_value_t = 64)]
    pub(crate) n_prompt: u32,
    /// Tokens to generate
    #[arg(short = 'n', long, default_value_t = 64)]
    pub(crate) n_gen: u32,
    /// Load for this many sequences, and profile the steps that decode them together as well
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batched: Option<u32>,
    /// Output format; html is a page with the roofline and a token's timeline
    #[arg(short, long, value_enum, default_value_t = Page::Text)]
    pub(crate) output: Page,
    /// Also write one prompt step and one token as trace events for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Page {
    Text,
    Json,
    Html,
}

#[derive(Args)]
pub(crate) struct PerplexityArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// The text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Measure the divergence from this model instead of scoring the text
    #[arg(long, value_name = "MODEL")]
    pub(crate) kl_to: Option<String>,
    /// Run the model of --kl-to on the reference device
    #[arg(long, requires = "kl_to")]
    pub(crate) kl_reference: bool,
    /// The most chunks to score (0: all)
    #[arg(long, default_value_t = 0)]
    pub(crate) chunks: usize,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

#[derive(Args)]
pub(crate) struct TokenizeArgs {
    /// GGUF file (a vocabulary is enough) or Hugging Face directory
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    /// GGUF file (a vocabulary is enough) or Hugging Face directory
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// A model on the Hugging Face hub, ORG/NAME[:QUANT or FILE], downloaded if it is not in the cache (also -hf)
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
    /// The text
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) prompt: Option<String>,
    /// A file with the text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print token ids as one JSON array
    #[arg(long)]
    pub(crate) ids: bool,
    /// Add no begin-of-text token or other special token
    #[arg(long)]
    pub(crate) no_bos: bool,
    /// Encode the names of control tokens as plain text
    #[arg(long)]
    pub(crate) no_parse_special: bool,
}

#[derive(Args)]
pub(crate) struct QuantizeArgs {
    /// GGUF file or Hugging Face directory
    pub(crate) input: String,
    /// The GGUF file to write; a folder (DIR/): the Hugging Face directory of a GGUF file
    pub(crate) output: PathBuf,
    /// A type by its llama.cpp name: Q4_0, Q4_K_M, Q8_0, …
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// Write the encoders of images and sounds of a directory, as a file that stands beside the model's (mmproj)
    #[arg(long)]
    pub(crate) mmproj: bool,
    /// Weigh errors by this importance matrix
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,
    /// Store tensors whose names contain TEXT as TYPE, for example ffn_down=Q8_0
    #[arg(long, value_name = "TEXT=TYPE")]
    pub(crate) tensor_type: Vec<String>,
    /// Threads (default: all)
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Show what would be written
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args)]
pub(crate) struct ImatrixArgs {
    /// GGUF file or Hugging Face directory, in high precision
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// The text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    pub(crate) output: PathBuf,
    /// The most chunks to compute (0: all)
    #[arg(long, default_value_t = 0)]
    pub(crate) chunks: usize,
}

#[derive(Args)]
pub(crate) struct SynthArgs {
    /// Shape and format, such as qwen3-0.6b:q4_0
    #[arg(value_name = "SHAPE:FORMAT")]
    pub(crate) what: String,
    /// The GGUF file to write
    pub(crate) output: PathBuf,
}

#[derive(Args)]
pub(crate) struct TuneArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(value_name = "MODEL")]
    pub(crate) source: Option<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

#[derive(Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) server: AddressArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

#[derive(Args)]
pub(crate) struct StopArgs {
    /// The model, as `welte ps` names it
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) server: AddressArgs,
}

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args)]
pub(crate) struct ManArgs {
    /// The folder to write to, such as man1
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Syntax of a model's name on the hub.
#[cfg(feature = "hub")]
const HUB_NAME: &str = "ORG/NAME[@REV][:QUANT or FILE] or a short name";

/// A name on the hub, or a short name of one.
#[cfg(feature = "hub")]
fn model_name(text: &str) -> Result<welte_hub::ModelName, welte_hub::Error> {
    crate::short::on_hub(text).unwrap_or(text).parse()
}

/// A model that `rm` names.
#[cfg(feature = "hub")]
#[derive(Clone)]
pub(crate) enum Kept {
    /// It was created under this name.
    Created(String),
    Hub(welte_hub::ModelName),
}

#[cfg(feature = "hub")]
fn kept(text: &str) -> anyhow::Result<Kept> {
    match crate::recipes::created(text)? {
        Some(_) => Ok(Kept::Created(text.to_string())),
        None => Ok(Kept::Hub(model_name(text)?)),
    }
}

#[cfg(feature = "hub")]
#[derive(Args)]
pub(crate) struct PullArgs {
    /// The model; Q4_K_M is the default among several GGUF files
    #[arg(value_name = HUB_NAME, value_parser = model_name)]
    pub(crate) name: welte_hub::ModelName,
    /// Leave out the encoder of images (mmproj) that lies beside a GGUF file
    #[arg(long)]
    pub(crate) no_mmproj: bool,
}

#[cfg(feature = "hub")]
#[derive(Args)]
pub(crate) struct ListArgs {
    /// List the short names of common models instead
    #[arg(long)]
    pub(crate) available: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// GGUF file, Hugging Face directory, a model in the cache, or a created one [default: the bundled model]
    #[arg(value_name = "MODEL")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) eyes: EyeArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

#[cfg(feature = "hub")]
#[derive(Args)]
pub(crate) struct RmArgs {
    /// The model; with a revision or a file, only that
    #[arg(value_name = HUB_NAME, value_parser = kept)]
    pub(crate) name: Kept,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama_flags::translate;
    use clap::CommandFactory;
    use std::ffi::OsString;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_of_llama_cpp() {
        let line = [
            "welte", "run", "-sys", "be brief", "-ctk", "q8_0", "-n", "-1", "-hf", "a/b:Q8_0",
            "hello",
        ];
        let cli = Cli::try_parse_from(translate(line.iter().map(OsString::from)).args)
            .unwrap_or_else(|e| panic!("{e}"));
        let Command::Run(args) = cli.command else {
            panic!("not run")
        };
        assert_eq!(args.system_prompt.as_deref(), Some("be brief"));
        assert_eq!(args.load.place.on.cache_type_k, Some(welte::Format::Q8_0));
        assert_eq!(args.load.hf_repo.as_deref(), Some("a/b:Q8_0"));
        assert_eq!(args.words, ["hello"]);
    }
}
