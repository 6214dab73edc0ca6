//! Flags that several commands share.

use anyhow::Context;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use welte::{
    Activations, AdapterSource, DeviceChoice, EngineOptions, Exchange, Format, HeadKind,
    LoadOptions, Model, Pooling, PrefixStoreOptions, Replay, Speculation, Steps,
};

/// Which model, and how to load it.
#[derive(Args)]
pub(crate) struct LoadArgs {
    /// GGUF file, Hugging Face directory or synthetic:SHAPE:FORMAT
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// A model on the Hugging Face hub, ORG/NAME[:QUANT or FILE], downloaded if it is not in the cache (also -hf)
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

impl LoadArgs {
    pub(crate) fn options(&self) -> anyhow::Result<LoadOptions> {
        let mut options = self.place.options()?;
        // A command for one text uses the one that there is, whatever it is called.
        if let [adapter] = &mut options.adapters[..] {
            adapter.for_all = true;
        }
        Ok(options)
    }
}

/// The device, and what decides how it computes.
#[derive(Args, Clone)]
pub(crate) struct DeviceArgs {
    /// Device: cpu, cuda, cuda:N, gpu, gpu:N (or by API: vulkan, metal, dx12), reference (slow and plain), or auto (a GPU if there is
    /// one and the model fits)
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = device)]
    pub(crate) device: DeviceChoice,
    /// How a GPU replays chains: persistent (one kernel for many tokens), graph, loop, launches or allocate [default: persistent where it has run on this kind of GPU, else graph]
    #[arg(long, value_name = "NAME", value_parser = replay)]
    pub(crate) replay: Option<Replay>,
    /// Pin CPU threads to these processors, such as 0-7,16 [default: the system places them]
    #[arg(long, value_name = "LIST", value_parser = Cpus::parse)]
    pub(crate) cpus: Option<Cpus>,
    /// Format of cached keys: f16 or q8_0 (also -ctk)
    #[arg(long, value_name = "TYPE", value_parser = kv_format)]
    pub(crate) cache_type_k: Option<Format>,
    /// Format of cached values; must equal that of the keys (also -ctv)
    #[arg(long, value_name = "TYPE", value_parser = kv_format)]
    pub(crate) cache_type_v: Option<Format>,
    /// How a GPU rounds activations before products with FP8 weights: wide (to 16 bits or not at all) or fp8 (faster for many rows, less exact)
    #[arg(long, default_value = "wide", value_name = "NAME", value_parser = activations)]
    pub(crate) activations: Activations,
    /// How a GPU decodes few streams when loaded for many: alike (with the kernels for many, so an answer does not depend on other
    /// requests) or fast (with faster kernels if possible; the last bits of an answer then depend on the number of streams)
    #[arg(long, default_value = "alike", value_name = "NAME", value_parser = steps)]
    pub(crate) steps: Steps,
    /// Instruction set of the CPU [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(crate) isa: Option<String>,
    /// Keep the experts of the first N layers, or of all, in the CPU's memory and run them there; the rest goes to the GPU (also --n-cpu-moe)
    #[arg(long, alias = "n-cpu-moe", default_value = "0", value_name = "N", value_parser = cpu_experts)]
    pub(crate) cpu_experts: u32,
    /// Deal the model to N ranks: GPUs from the device's number on (or name them: --device cuda:0,1), or parts of the CPU's cores
    #[arg(long, visible_alias = "gpus", default_value = "1", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// Through which memory the GPUs of --gpus exchange: peers (each other's) or host [default: peers where they reach each other's, else host]
    #[arg(long, value_name = "NAME", value_parser = exchange)]
    pub(crate) exchange: Option<Exchange>,
}

impl DeviceArgs {
    fn apply(&self, options: &mut LoadOptions) -> anyhow::Result<()> {
        options.kv_format = match (self.cache_type_k, self.cache_type_v) {
            (Some(k), Some(v)) if k != v => {
                anyhow::bail!(
                    "-ctk {} and -ctv {} differ; keys and values share one format",
                    k.name(),
                    v.name()
                )
            }
            (k, v) => k.or(v).unwrap_or(Format::F16),
        };
        options.device = self.device;
        options.replay = self.replay;
        options.cpus = self.cpus.as_ref().map(|cpus| cpus.0.clone());
        options.activations = self.activations;
        options.steps = self.steps;
        options.instructions = self.isa.as_deref().map(instructions).transpose()?;
        options.cpu_experts = self.cpu_experts;
        options.ranks = self.ranks;
        options.exchange = self.exchange;
        Ok(())
    }
}

/// What is added to the model.
#[derive(Args, Clone, Default)]
pub(crate) struct AdapterArgs {
    /// Adapter (LoRA) as GGUF file or PEFT directory: NAME=PATH[:SCALE], which requests choose by name, or PATH[:SCALE], for all
    /// requests that choose none (serve: repeatable)
    #[arg(long, value_name = "[NAME=]PATH[:SCALE]")]
    pub(crate) lora: Vec<AdapterSource>,
    /// Adapters that may be loaded at a time [default: those of --lora]
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) max_adapters: u32,
    /// Highest rank of an adapter [default: that of --lora, at least 16]
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) max_rank: u32,
    /// Control vector as GGUF file, which is added to the outputs of layers (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) control_vector: Vec<PathBuf>,
    /// The same with a scale (repeatable)
    #[arg(long, value_name = "FILE:SCALE", value_parser = scaled)]
    pub(crate) control_vector_scaled: Vec<(PathBuf, f32)>,
    /// First and last layer that control vectors are added to [default: all that they know]
    #[arg(long, value_names = ["FIRST", "LAST"], num_args = 2)]
    pub(crate) control_vector_layer_range: Vec<u32>,
}

/// Reads a file and its scale.
fn scaled(text: &str) -> Result<(PathBuf, f32), String> {
    let parts = text.rsplit_once(':');
    let parts = parts.and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    match parts {
        Some((path, scale)) if scale.is_finite() && !path.is_empty() => Ok((path.into(), scale)),
        _ => Err("use FILE:SCALE, such as calm.gguf:0.8".into()),
    }
}

impl AdapterArgs {
    fn apply(&self, options: &mut LoadOptions) -> anyhow::Result<()> {
        let for_all = self.lora.iter().filter(|source| source.for_all);
        anyhow::ensure!(
            for_all.count() <= 1,
            "--lora: several adapters are for all requests, and a request has one; give them names: NAME=PATH"
        );
        for (at, source) in self.lora.iter().enumerate() {
            let twice = self.lora[..at]
                .iter()
                .any(|other| other.name == source.name);
            anyhow::ensure!(!twice, "--lora: two adapters are called {:?}", source.name);
        }
        options.adapters = self.lora.clone();
        (options.max_adapters, options.max_rank) = (self.max_adapters, self.max_rank);
        let plain = self.control_vector.iter().map(|path| (path.clone(), 1.0));
        options.control_vectors = plain.chain(self.control_vector_scaled.clone()).collect();
        if let [first, last] = self.control_vector_layer_range[..] {
            anyhow::ensure!(
                first <= last,
                "--control-vector-layer-range: {first} is after {last}"
            );
            options.control_layers = Some((first, last));
        }
        Ok(())
    }
}

/// How to load a model, and where.
#[derive(Args)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    pub(crate) on: DeviceArgs,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    /// Context size in tokens (0: the model's own; run and serve: as far as memory allows, else at most 4096)
    #[arg(short = 'c', long, default_value_t = 0, value_name = "N")]
    pub(crate) ctx_size: u32,
    /// CPU threads [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Short for --device reference
    #[arg(long, conflicts_with = "device")]
    pub(crate) reference: bool,
    /// Load even if the memory plan exceeds the available memory
    #[arg(long)]
    pub(crate) ignore_memory: bool,
    /// Rows of a prompt that are computed at a time (also -ub) [default: the device's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) rows: Option<u32>,
}

impl PlaceArgs {
    pub(crate) fn options(&self) -> anyhow::Result<LoadOptions> {
        let mut options = LoadOptions::default();
        self.on.apply(&mut options)?;
        self.adapters.apply(&mut options)?;
        if self.reference {
            options.device = "reference".parse()?;
        }
        options.context = self.ctx_size;
        options.threads = self.threads.map(usize::from);
        options.ignore_memory = self.ignore_memory;
        options.prompt_rows = self.rows.unwrap_or(0);
        Ok(options)
    }
}

/// A list of processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Vec<usize>);

impl Cpus {
    pub(crate) fn parse(text: &str) -> Result<Cpus, String> {
        welte::cpu_list(text).map(Cpus)
    }
}

pub(crate) fn device(name: &str) -> Result<DeviceChoice, String> {
    name.parse().map_err(|error: welte::Error| {
        let kind = name.split(':').next().unwrap_or(name);
        let is_left_out = ["gpu", "vulkan", "metal", "dx12"].contains(&kind)
            && "gpu".parse::<DeviceChoice>().is_err();
        if is_left_out {
            format!("{error}; this binary was built without --features gpu")
        } else {
            error.to_string()
        }
    })
}

fn replay(name: &str) -> Result<Replay, String> {
    let names = Replay::ALL.map(Replay::name).join(", ");
    Replay::from_name(name).ok_or_else(|| format!("use one of {names}"))
}

fn activations(name: &str) -> Result<Activations, String> {
    match name {
        "wide" => Ok(Activations::Wide),
        "fp8" => Ok(Activations::Float8),
        _ => Err("use wide or fp8".to_string()),
    }
}

fn steps(name: &str) -> Result<Steps, String> {
    match name {
        "alike" => Ok(Steps::Alike),
        "fast" => Ok(Steps::Fast),
        _ => Err("use alike or fast".to_string()),
    }
}

fn exchange(name: &str) -> Result<Exchange, String> {
    match name {
        "peers" => Ok(Exchange::Peers),
        "host" => Ok(Exchange::Host),
        _ => Err("use peers or host".to_string()),
    }
}

/// The instruction set's name as the device spells it.
fn instructions(name: &str) -> anyhow::Result<String> {
    let all = welte::instruction_sets();
    let known = all.iter().find(|known| known.eq_ignore_ascii_case(name));
    let known = known.with_context(|| {
        let all = all.join(", ");
        format!("--isa {name}: not available on this machine; use one of {all}")
    })?;
    Ok(known.to_string())
}

fn cpu_experts(layers: &str) -> Result<u32, String> {
    match layers {
        "all" => Ok(u32::MAX),
        number => number
            .parse()
            .map_err(|_| "use a number of layers, or all".to_string()),
    }
}

fn kv_format(name: &str) -> Result<Format, String> {
    match Format::from_name(name) {
        Some(format @ (Format::F16 | Format::Q8_0)) => Ok(format),
        _ => Err("use f16 or q8_0".to_string()),
    }
}

/// Prefixes in host memory and on disk.
#[derive(Args)]
pub(crate) struct PrefixArgs {
    /// Host memory that keeps computed prompts for which the device's memory has no room: a number, also with K, M, G or T
    #[arg(long, value_name = "N", default_value = "0", value_parser = bytes)]
    pub(crate) cache_host: u64,
    /// Folder that keeps computed prompts, so that later runs need not compute them again
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix_cache: Option<PathBuf>,
    /// The most bytes that the folder takes: a number, also with K, M, G or T
    #[arg(long, value_name = "N", default_value = "8G", value_parser = bytes, requires = "prefix_cache")]
    pub(crate) prefix_cache_size: u64,
}

impl PrefixArgs {
    pub(crate) fn options(&self) -> Option<PrefixStoreOptions> {
        let dir = self.prefix_cache.clone()?;
        Some(PrefixStoreOptions {
            dir,
            bytes: self.prefix_cache_size,
        })
    }
}

/// Where guesses of the next tokens come from.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spec {
    /// The draft model if there is one, else the model's own draft layer, else earlier text
    Auto,
    /// Earlier text of prompt and answer
    Ngram,
    /// The model's own draft layer, or the drafter of -md
    Mtp,
    /// The head of -md
    Eagle3,
    /// The DFlash drafter of -md, or the one beside the model
    Dflash,
    /// The draft model
    Draft,
    /// Nowhere
    Off,
}

/// Speculation.
#[derive(Args)]
pub(crate) struct SpecArgs {
    /// Guess tokens ahead where it pays, from: mtp (the model's own draft layer, or Gemma 4's drafter of -md), eagle3 (the head of
    /// -md), dflash (the drafter of -md, or one beside the model), draft (the model of -md), ngram (earlier text), off, or auto (-md if given, else mtp, else ngram). It never changes the text
    #[arg(long, value_enum, value_name = "FROM", default_value = "auto")]
    pub(crate) spec: Spec,
    /// What guesses tokens: an EAGLE-3 head, a DFlash drafter or Gemma 4's drafter for the model, or a smaller model with the same
    /// vocabulary (also -md)
    #[arg(long, value_name = "MODEL")]
    pub(crate) model_draft: Option<String>,
    /// The most tokens to guess at a time
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) draft_max: u16,
}

impl SpecArgs {
    /// Sets how the model is loaded: with its own draft layer, or with a head.
    pub(crate) fn set_load(&self, options: &mut LoadOptions) -> anyhow::Result<()> {
        let kind = match &self.model_draft {
            Some(draft) => welte::draft_head_kind(draft)?,
            None => None,
        };
        let head = kind.is_some();
        match (self.spec, kind) {
            (Spec::Eagle3, None) => {
                anyhow::bail!("--spec eagle3 needs an EAGLE-3 head; name it with -md")
            }
            (Spec::Eagle3, Some(kind)) if kind != HeadKind::Eagle3 => {
                anyhow::bail!("--spec eagle3 needs an EAGLE-3 head, and -md is {kind}")
            }
            (Spec::Mtp, Some(kind)) if kind != HeadKind::Assistant => {
                anyhow::bail!(
                    "--spec mtp is for the model's own draft layer or a drafter of Gemma 4, and -md is {kind}; use --spec auto"
                )
            }
            (Spec::Dflash, kind)
                if self.model_draft.is_some() && kind != Some(HeadKind::Dflash) =>
            {
                anyhow::bail!("--spec dflash needs a DFlash drafter, and -md is none")
            }
            (Spec::Draft, Some(_)) => {
                anyhow::bail!("-md is a head for this model and no model; use --spec auto")
            }
            _ => {}
        }
        options.draft_layer = match self.spec {
            Spec::Auto => head || self.model_draft.is_none(),
            Spec::Mtp | Spec::Eagle3 | Spec::Dflash => true,
            Spec::Ngram | Spec::Draft | Spec::Off => false,
        };
        if head {
            options.draft_head = self.model_draft.clone();
        }
        options.draft_beside = self.spec == Spec::Dflash;
        Ok(())
    }

    /// True if -md names a model that runs beside the other one.
    pub(crate) fn has_draft_model(&self, options: &LoadOptions) -> bool {
        self.model_draft.is_some() && options.draft_head.is_none()
    }

    /// Sets the engine's options. `load` loads the draft model.
    pub(crate) fn set(
        &self,
        options: &mut EngineOptions,
        model: Option<&Model>,
        load: impl FnOnce(&str) -> anyhow::Result<Model>,
    ) -> anyhow::Result<()> {
        options.draft_max = self.draft_max.into();
        let head = model.is_some_and(Model::has_draft_head);
        let usable = model.is_some_and(Model::has_draft_layer);
        options.speculation = match (self.spec, &self.model_draft) {
            (Spec::Auto | Spec::Mtp | Spec::Eagle3 | Spec::Dflash, Some(_)) if head && usable => {
                Speculation::Own
            }
            (Spec::Auto, Some(draft)) if head => {
                eprintln!("note: {draft} is not used: the device runs no draft heads yet");
                Speculation::Ngram
            }
            (Spec::Auto | Spec::Draft, Some(draft)) => Speculation::Model(load(draft)?),
            (Spec::Mtp | Spec::Eagle3 | Spec::Dflash, Some(_)) if head => {
                anyhow::bail!("this device runs no draft heads; try --spec auto without -md")
            }
            (Spec::Ngram | Spec::Mtp | Spec::Eagle3 | Spec::Dflash | Spec::Off, Some(_)) => {
                anyhow::bail!(
                    "-md is used with --spec draft, mtp, eagle3, dflash or auto only; leave one of both out"
                )
            }
            (Spec::Eagle3, None) => {
                anyhow::bail!("--spec eagle3 needs an EAGLE-3 head; name it with -md")
            }
            (Spec::Dflash, None) if model.is_none() => {
                anyhow::bail!("--spec dflash needs a model that is named with -m")
            }
            (Spec::Dflash, None) if !usable => {
                anyhow::bail!("this device runs no draft heads; try --spec auto")
            }
            (Spec::Dflash, None) => Speculation::Own,
            (Spec::Draft, None) => {
                anyhow::bail!("--spec draft needs a draft model; name it with -md")
            }
            (Spec::Auto, None) => Speculation::Auto,
            (Spec::Ngram, None) => Speculation::Ngram,
            (Spec::Mtp, None) => Speculation::Own,
            (Spec::Off, None) => Speculation::Off,
        };
        Ok(())
    }
}

/// Reads WIDTHxHEIGHT.
pub(crate) fn size(text: &str) -> Result<[u32; 2], String> {
    let sides = text.split_once('x');
    let sides = sides.and_then(|(width, height)| Some([width.parse().ok()?, height.parse().ok()?]));
    let most = 1..=20_000;
    let sides = sides.filter(|sides: &[u32; 2]| sides.iter().all(|side| most.contains(side)));
    sides.ok_or_else(|| "use WIDTHxHEIGHT, such as 1024x768".to_string())
}

/// Reads a number of bytes, as powers of 1024 if a letter follows.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[number.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err("the unit must be K, M, G or T".to_string()),
    };
    let number: u64 = number.parse().map_err(|e| format!("{e}"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "the number is too large".to_string())
}

pub(crate) fn pooling(name: &str) -> Result<Pooling, String> {
    let names = Pooling::ALL.map(Pooling::name).join(", ");
    Pooling::from_name(name).ok_or_else(|| match name {
        "none" => format!("a vector for every token is not offered; use one of {names}"),
        "rank" => "use `welte rerank` or `welte serve --reranking` for scores of pairs".to_owned(),
        _ => format!("use one of {names}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("1024x768"), Ok([1024, 768]));
        for wrong in ["", "1024", "0x5", "5x", "5x5x5", "99999x1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_head_is_of_the_kind_that_is_asked_for() {
        let [eagle, blocks, assistant] = [
            "drafts/eagle3/hf",
            "drafts/dflash/hf",
            "drafts/gemma4_assistant/hf",
        ]
        .map(welte_goldens::Golden::new);
        let fits = |spec, head: &welte_goldens::Golden| {
            let args = SpecArgs {
                spec,
                model_draft: Some(head.path().to_str().unwrap().to_string()),
                draft_max: 4,
            };
            args.set_load(&mut LoadOptions::default()).is_ok()
        };
        for (spec, wanted) in [
            (Spec::Auto, [true, true, true]),
            (Spec::Eagle3, [true, false, false]),
            (Spec::Dflash, [false, true, false]),
            (Spec::Mtp, [false, false, true]),
            (Spec::Draft, [false, false, false]),
        ] {
            let got = [&eagle, &blocks, &assistant].map(|head| fits(spec, head));
            assert_eq!(got, wanted);
        }
    }
}
