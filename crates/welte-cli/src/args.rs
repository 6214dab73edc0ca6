//! Every flag, by the name people know from llama.cpp.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use welte::{DeviceChoice, Format, LoadOptions, Replay, Sampling};

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
    /// Answer a prompt, or chat when there is none and a terminal
    Run(RunArgs),
    /// Chat
    Chat(RunArgs),
    /// Show a model's description, memory plan and table, reading headers only
    Inspect(InspectArgs),
    /// Measure prompt and generation speed
    Bench(BenchArgs),
    /// Show where a token's time goes
    Profile(ProfileArgs),
    /// Score a text
    Perplexity(PerplexityArgs),
    /// Turn text into tokens
    Tokenize(TokenizeArgs),
    /// Store a model's weights in another format
    Quantize(QuantizeArgs),
    /// Write a model of random weights
    Synth(SynthArgs),
    /// Show what this machine offers
    Doctor(DoctorArgs),
    /// Bring a model from the Hugging Face hub into the cache that all programs share
    #[cfg(feature = "hub")]
    Pull(PullArgs),
    /// List the models in that cache
    #[cfg(feature = "hub")]
    List(ListArgs),
    /// Show what the cache has of a model
    #[cfg(feature = "hub")]
    Show(ShowArgs),
    /// Remove a model from the cache, or one revision or file of it
    #[cfg(feature = "hub")]
    Rm(RmArgs),
}

/// Which model, and how to load it.
#[derive(Args)]
pub(crate) struct LoadArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// A model on the Hugging Face hub, ORG/NAME[:QUANT or FILE], pulled if the cache does not have it (also -hf)
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
    /// Where to run: cpu, cuda, cuda:N, or auto (a GPU if there is one and the model fits)
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub(crate) device: DeviceChoice,
    /// How a GPU replays chains: persistent (one kernel for many tokens), graph, loop or launches
    #[arg(long, default_value = "persistent", value_name = "HOW", value_parser = replay)]
    pub(crate) replay: Replay,
    /// Positions of the context (0: the model's own, at most 4096)
    #[arg(short = 'c', long, default_value_t = 0, value_name = "N")]
    pub(crate) ctx_size: u32,
    /// Threads of the CPU (as many as there are cores)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Format of the keys: f16 or q8_0 (also -ctk)
    #[arg(long, value_name = "TYPE", value_parser = kv_format)]
    pub(crate) cache_type_k: Option<Format>,
    /// Format of the values, the same as of the keys (also -ctv)
    #[arg(long, value_name = "TYPE", value_parser = kv_format)]
    pub(crate) cache_type_v: Option<Format>,
    /// Instruction set of the CPU instead of its best
    #[arg(long, value_name = "NAME")]
    pub(crate) isa: Option<String>,
    /// Compute with the slow, plain reference, on the CPU
    #[arg(long)]
    pub(crate) reference: bool,
    /// Load even if the plan exceeds the memory available
    #[arg(long)]
    pub(crate) ignore_memory: bool,
}

impl LoadArgs {
    pub(crate) fn options(&self) -> anyhow::Result<LoadOptions> {
        let kv_format = match (self.cache_type_k, self.cache_type_v) {
            (Some(k), Some(v)) if k != v => {
                anyhow::bail!(
                    "-ctk {} and -ctv {} differ; keys and values share one format",
                    k.name(),
                    v.name()
                )
            }
            (k, v) => k.or(v).unwrap_or(Format::F16),
        };
        Ok(LoadOptions {
            device: self.device,
            replay: self.replay,
            context: self.ctx_size,
            threads: self.threads.map(usize::from),
            kv_format,
            isa: self.isa.as_deref().map(isa).transpose()?,
            reference: self.reference,
            ignore_memory: self.ignore_memory,
            ..LoadOptions::default()
        })
    }
}

fn replay(name: &str) -> Result<Replay, String> {
    match name {
        "graph" => Ok(Replay::Graph),
        "persistent" => Ok(Replay::Persistent),
        "loop" => Ok(Replay::While),
        "launches" => Ok(Replay::Eager),
        _ => Err("use persistent, graph, loop or launches".to_string()),
    }
}

fn isa(name: &str) -> anyhow::Result<welte::Isa> {
    let all = welte::Isa::available();
    let names = all
        .iter()
        .map(|isa| isa.name())
        .collect::<Vec<_>>()
        .join(", ");
    all.into_iter()
        .find(|isa| isa.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            anyhow::anyhow!("--isa {name}: not available on this machine; use one of {names}")
        })
}

fn kv_format(name: &str) -> Result<Format, String> {
    match Format::from_name(name) {
        Some(format @ (Format::F16 | Format::Q8_0)) => Ok(format),
        _ => Err("use f16 or q8_0".to_string()),
    }
}

/// How tokens are chosen.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Tokens to generate (-1: until the end)
    #[arg(short = 'n', long, default_value_t = -1, value_name = "N", allow_hyphen_values = true)]
    pub(crate) predict: i64,
    /// Seed of the noise (-1: from the clock)
    #[arg(short, long, default_value_t = -1, value_name = "N", allow_hyphen_values = true)]
    pub(crate) seed: i64,
    /// Temperature; 0 is greedy
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    pub(crate) temp: f32,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 40, value_name = "N")]
    pub(crate) top_k: u32,
    /// Keep the likeliest tokens of this total probability; 1 keeps all
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this times the likeliest; 0 drops none
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    pub(crate) min_p: f32,
    /// Divide the logits of recent tokens by this; 1 is none
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub(crate) repeat_penalty: f32,
    /// How many recent tokens the penalties look at
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) repeat_last_n: u32,
    /// Subtract this per occurrence of a recent token
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub(crate) frequency_penalty: f32,
    /// Subtract this from every recent token
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub(crate) presence_penalty: f32,
    /// Go on past end tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Stop at this text (may be given again)
    #[arg(short = 'r', long = "stop", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    pub(crate) fn sampling(&self) -> Sampling {
        let clock = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(0, |d| d.as_nanos() as u64)
        };
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_last_n: self.repeat_last_n,
            seed: if self.seed < 0 {
                clock()
            } else {
                self.seed as u64
            },
        }
    }

    pub(crate) fn options(&self) -> welte::GenerateOptions {
        welte::GenerateOptions {
            max_tokens: usize::try_from(self.predict).unwrap_or(usize::MAX),
            sampling: self.sampling(),
            stop: self.stop.clone(),
            ignore_end: self.ignore_eos,
            ..welte::GenerateOptions::default()
        }
    }
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// A model (file, directory, synthetic:SHAPE:FORMAT) and a prompt, or only one of them
    #[arg(value_name = "[MODEL] PROMPT", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) prompt: Option<String>,
    /// A file with the prompt
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// What the model is told before the conversation (also -sys)
    #[arg(long, value_name = "TEXT")]
    pub(crate) system_prompt: Option<String>,
    /// A chat template instead of the model's own
    #[arg(long, value_name = "FILE", conflicts_with = "no_chat")]
    pub(crate) chat_template_file: Option<PathBuf>,
    /// Complete the raw text, without a chat template
    #[arg(long)]
    pub(crate) no_chat: bool,
    /// Say where the time until the first token went
    #[arg(short, long)]
    pub(crate) verbose: bool,
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
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = Picture::Text)]
    pub(crate) output: Picture,
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
    /// A model on the Hugging Face hub, ORG/NAME[:QUANT or FILE], pulled if the cache does not have it (also -hf)
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
    /// Random weights of a named shape, such as qwen3-0.6b:q4_0
    #[arg(long, value_name = "SHAPE:FORMAT")]
    pub(crate) synthetic: Option<String>,
    /// Where to run: cpu, cuda, cuda:N, or auto (a GPU if there is one and the model fits)
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub(crate) device: DeviceChoice,
    /// How a GPU replays chains: persistent (one kernel for many tokens), graph, loop or launches
    #[arg(long, default_value = "persistent", value_name = "HOW", value_parser = replay)]
    pub(crate) replay: Replay,
    /// From a launch per op to a chain, step by step, with the gaps between kernels (CUDA)
    #[arg(long)]
    pub(crate) ladder: bool,
    /// Tokens of the prompt, several separated by commas; 0 leaves the row out
    #[arg(short = 'p', long, default_value = "512", value_delimiter = ',')]
    pub(crate) n_prompt: Vec<u32>,
    /// Tokens to generate, several separated by commas; 0 leaves the row out
    #[arg(short = 'n', long, default_value = "128", value_delimiter = ',')]
    pub(crate) n_gen: Vec<u32>,
    /// Tokens in the context before, several separated by commas
    #[arg(short = 'd', long, default_value = "0", value_delimiter = ',')]
    pub(crate) n_depth: Vec<u32>,
    /// Reach the depth with random keys and values in place of a prompt's (CPU; the time of a token is the same)
    #[arg(long, conflicts_with = "ladder")]
    pub(crate) random_depth: bool,
    /// Repetitions
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Threads, several separated by commas (as many as there are cores)
    #[arg(short, long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,
    /// Format of keys and values: f16 or q8_0 (also -ctk)
    #[arg(long, value_name = "TYPE", value_parser = kv_format)]
    pub(crate) cache_type_k: Option<Format>,
    /// The same as -ctk (also -ctv)
    #[arg(long, value_name = "TYPE", value_parser = kv_format)]
    pub(crate) cache_type_v: Option<Format>,
    /// Instruction set of the CPU instead of its best
    #[arg(long, value_name = "NAME")]
    pub(crate) isa: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Rows::Md)]
    pub(crate) output: Rows,
}

impl BenchArgs {
    pub(crate) fn load_args(&self, threads: Option<u16>, context: u32) -> LoadArgs {
        LoadArgs {
            model: None,
            hf_repo: None,
            device: self.device,
            replay: self.replay,
            ctx_size: context,
            threads,
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            isa: self.isa.clone(),
            reference: false,
            ignore_memory: false,
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
    /// How to print: html is a page with the roofline and a token's timeline
    #[arg(short, long, value_enum, default_value_t = Page::Text)]
    pub(crate) output: Page,
    /// Also write a step of the prompt and one token as trace events, for Perfetto or chrome://tracing
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
    /// Compare with another model (its divergence from that one), instead of scoring the text
    #[arg(long, value_name = "MODEL")]
    pub(crate) kl_to: Option<String>,
    /// Compute the other model with the slow, plain reference
    #[arg(long, requires = "kl_to")]
    pub(crate) kl_reference: bool,
    /// The most chunks to score (0: all)
    #[arg(long, default_value_t = 0)]
    pub(crate) chunks: usize,
    /// How to print
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
    /// A model on the Hugging Face hub, ORG/NAME[:QUANT or FILE], pulled if the cache does not have it (also -hf)
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
    /// The text
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) prompt: Option<String>,
    /// A file with the text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print the ids as one JSON array
    #[arg(long)]
    pub(crate) ids: bool,
    /// Add no begin-of-text token (or other special token) where the model would have it
    #[arg(long)]
    pub(crate) no_bos: bool,
    /// Take the names of control tokens in the text as text
    #[arg(long)]
    pub(crate) no_parse_special: bool,
}

#[derive(Args)]
pub(crate) struct QuantizeArgs {
    /// GGUF file or Hugging Face directory
    pub(crate) input: String,
    /// The GGUF file to write
    pub(crate) output: PathBuf,
    /// Q4_0, Q4_K_M, Q8_0, … as llama.cpp names them
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
}

#[derive(Args)]
pub(crate) struct SynthArgs {
    /// Such as qwen3-0.6b:q4_0
    #[arg(value_name = "SHAPE:FORMAT")]
    pub(crate) what: String,
    /// The GGUF file to write
    pub(crate) output: PathBuf,
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

/// A model in the words of the hub.
#[cfg(feature = "hub")]
const HUB_NAME: &str = "ORG/NAME[@REV][:QUANT or FILE]";

#[cfg(feature = "hub")]
#[derive(Args)]
pub(crate) struct PullArgs {
    /// The model; of several GGUF files Q4_K_M is meant if nothing else is said
    #[arg(value_name = HUB_NAME)]
    pub(crate) name: welte_hub::ModelName,
}

#[cfg(feature = "hub")]
#[derive(Args)]
pub(crate) struct ListArgs {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

#[cfg(feature = "hub")]
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The model
    #[arg(value_name = "ORG/NAME")]
    pub(crate) name: welte_hub::ModelName,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Plain::Text)]
    pub(crate) output: Plain,
}

#[cfg(feature = "hub")]
#[derive(Args)]
pub(crate) struct RmArgs {
    /// The model, all of it unless a revision or a file is named
    #[arg(value_name = HUB_NAME)]
    pub(crate) name: welte_hub::ModelName,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Flags with one dash and several letters, as llama.cpp has them, turned into the long ones.
pub(crate) fn long_names(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    args.map(|arg| {
        literal |= arg == "--";
        match arg.to_str() {
            Some("-sys") if !literal => "--system-prompt".into(),
            Some("-hf") if !literal => "--hf-repo".into(),
            Some("-ctk") if !literal => "--cache-type-k".into(),
            Some("-ctv") if !literal => "--cache-type-v".into(),
            _ => arg,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
        let cli = Cli::try_parse_from(long_names(line.iter().map(OsString::from)))
            .unwrap_or_else(|e| panic!("{e}"));
        let Command::Run(args) = cli.command else {
            panic!("not run")
        };
        assert_eq!(args.system_prompt.as_deref(), Some("be brief"));
        assert_eq!(args.load.cache_type_k, Some(Format::Q8_0));
        assert_eq!(args.load.hf_repo.as_deref(), Some("a/b:Q8_0"));
        assert_eq!(args.words, ["hello"]);
    }
}
