//! From a checkpoint to a model that is ready to run: spec, table, plan, budget, upload.

use crate::device::{DeviceModel, Planned, Target, replay_on_gpu};
use crate::{Device, DeviceChoice, Error, Session, memory, text};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use welte_formats::checkpoint::{Checkpoint, Value};
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, ModelSpec};
use welte_table::dump::Header;
use welte_table::{Class, Format, MemoryPlan, Program, Shape};
use welte_text::{ChatTemplate, Message, Tokenizer};

/// The context where nobody asks for another and the model's own is longer.
pub const DEFAULT_CONTEXT: u32 = 4096;

/// How to load a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where to run.
    pub device: DeviceChoice,
    /// Positions a session may hold; 0: the model's own context, at most [`DEFAULT_CONTEXT`].
    pub context: u32,
    /// Threads of the CPU device; `None`: as many as the machine has cores.
    pub threads: Option<usize>,
    /// Format of keys and values: F16 or Q8_0.
    pub kv_format: Format,
    /// Instruction set of the CPU device; `None`: the best of this machine.
    pub isa: Option<welte_cpu::Isa>,
    /// Run the slow, plain oracle instead of the kernels.
    pub reference: bool,
    /// Rows of a prompt computed together; 0: what suits the device.
    pub prefill_rows: u32,
    /// Rows of the table that gives logits for each (used by perplexity); 0: none.
    pub batch_rows: u32,
    /// The longest chain of tokens decoded in one submission.
    pub max_chain: u32,
    /// How a GPU replays chains.
    pub replay: welte_cuda::Replay,
    /// Load even where the plan exceeds the memory that the device calls available.
    pub ignore_memory: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        let compile = CompileOptions::default();
        LoadOptions {
            device: DeviceChoice::Auto,
            context: 0,
            threads: None,
            kv_format: Format::F16,
            isa: None,
            reference: false,
            prefill_rows: 0,
            batch_rows: compile.batch_rows,
            max_chain: compile.max_chain,
            replay: welte_cuda::Replay::default(),
            ignore_memory: false,
        }
    }
}

/// A model that is compiled but whose weights were not read: what `welte inspect` shows.
pub struct Inspection {
    /// The checkpoint.
    pub checkpoint: Box<dyn Checkpoint>,
    /// What the model is.
    pub spec: ModelSpec,
    /// Positions a session may hold.
    pub context: u32,
    /// Why it is planned for the CPU although a GPU would have been welcome.
    pub why_cpu: Option<String>,
    target: Target,
    planned: Planned,
    replay: welte_cuda::Replay,
}

impl Inspection {
    /// What a view of the program shows above it.
    pub fn header(&self) -> Header {
        let text = |value: &Value| match value {
            Value::U64(v) => v.to_string(),
            Value::I64(v) => v.to_string(),
            Value::F64(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::String(v) => v.chars().take(80).collect(),
            Value::Array(v) => format!("{} values", v.len()),
        };
        let mut facts: Vec<(String, String)> = self.spec.facts();
        let named = self
            .checkpoint
            .metadata()
            .iter()
            .filter(|(key, _)| key.starts_with("general."));
        facts.extend(named.map(|(key, value)| (key.clone(), text(value))));
        let (name, how) = replay_on_gpu(&self.planned, self.replay);
        facts.push((name.to_string(), how));
        Header {
            title: self.checkpoint.origin().to_string(),
            facts,
            plan: self.planned.memory.clone(),
            available: self.target.available(),
        }
    }

    /// Its tables.
    pub fn program(&self) -> &Program {
        &self.planned.program
    }

    /// Memory by class.
    pub fn plan(&self) -> &MemoryPlan {
        &self.planned.memory
    }

    /// Where the model would run.
    pub fn device(&self) -> Device {
        self.target.device()
    }
}

/// A loaded model. Cheap to clone: all clones share the weights.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) origin: String,
    pub(crate) spec: ModelSpec,
    pub(crate) program: Arc<Program>,
    pub(crate) plan: MemoryPlan,
    pub(crate) device: DeviceModel,
    pub(crate) target: Target,
    pub(crate) why_cpu: Option<String>,
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) template: Option<String>,
    pub(crate) end_tokens: Vec<u32>,
    pub(crate) context: usize,
    pub(crate) max_chain: usize,
    pub(crate) load_time: Duration,
}

/// Opens a GGUF file, a Hugging Face directory or `synthetic:SHAPE:FORMAT`.
pub fn open(source: &str) -> Result<Box<dyn Checkpoint>, Error> {
    match source.strip_prefix("synthetic:") {
        Some(what) => Ok(Box::new(Synthetic::parse(what)?)),
        None => Ok(welte_formats::open(Path::new(source))?),
    }
}

impl Model {
    /// Compiles the model of a source and plans its memory, reading headers only.
    pub fn inspect(source: &str, options: &LoadOptions) -> Result<Inspection, Error> {
        inspect(open(source)?, options)
    }

    /// Loads a model from a GGUF file, a Hugging Face directory or `synthetic:SHAPE:FORMAT`. `progress` hears of bytes
    /// done and in all.
    ///
    /// ```
    /// # fn main() -> Result<(), welte::Error> {
    /// let options = welte::LoadOptions { context: 64, ..Default::default() };
    /// let model = welte::Model::load("synthetic:tiny:q4_0", &options, &mut |_, _| ())?;
    /// assert_eq!(model.context(), 64);
    /// # Ok(()) }
    /// ```
    pub fn load(
        source: &str,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, Error> {
        Model::from_checkpoint(open(source)?, options, progress)
    }

    /// Loads a model from a checkpoint that is already open.
    pub fn from_checkpoint(
        checkpoint: Box<dyn Checkpoint>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, Error> {
        let start = Instant::now();
        let side = text::TextSide::of(checkpoint.as_ref())?;
        let Inspection {
            checkpoint,
            spec,
            context,
            why_cpu,
            target,
            planned,
            ..
        } = inspect(checkpoint, options)?;
        if !options.ignore_memory {
            check_memory(checkpoint.origin(), &planned, &target)?;
        }
        let (program, plan) = (planned.program.clone(), planned.memory.clone());
        let device = target.load(planned, checkpoint.as_ref(), progress)?;
        Ok(Model {
            inner: Arc::new(Inner {
                origin: checkpoint.origin().to_string(),
                spec,
                program,
                plan,
                device,
                target,
                why_cpu,
                tokenizer: side.tokenizer,
                template: side.template,
                end_tokens: side.end_tokens,
                context: context as usize,
                max_chain: options.max_chain.max(1) as usize,
                load_time: start.elapsed(),
            }),
        })
    }

    /// A session: its own keys and values, its own text.
    pub fn session(&self) -> Result<Session, Error> {
        Session::new(self)
    }

    /// Where the model came from.
    pub fn origin(&self) -> &str {
        &self.inner.origin
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.inner.spec
    }

    /// Its tables.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// Memory by class, as planned before the load.
    pub fn plan(&self) -> &MemoryPlan {
        &self.inner.plan
    }

    /// Positions that a session may hold.
    pub fn context(&self) -> usize {
        self.inner.context
    }

    /// Size of the vocabulary as the model computes it.
    pub fn vocab(&self) -> u32 {
        self.inner.program.vocab
    }

    /// Where it runs.
    pub fn device(&self) -> Device {
        self.inner.target.device()
    }

    /// Why it runs on the CPU, where the choice was left to Welte.
    pub fn why_cpu(&self) -> Option<&str> {
        self.inner.why_cpu.as_deref()
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.inner.load_time
    }

    /// Tokens that end a text: from the metadata, the generation configuration and the vocabulary.
    pub fn end_tokens(&self) -> &[u32] {
        &self.inner.end_tokens
    }

    /// The tokenizer, if the checkpoint has one.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.inner
            .tokenizer
            .as_ref()
            .ok_or_else(|| Error::NoTokenizer(self.origin().to_string()))
    }

    /// Text to tokens, with the begin-of-text token where the model wants one; control tokens are recognised.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode(text, true, true)?)
    }

    /// True if the checkpoint brings a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.inner.template.is_some()
    }

    /// The checkpoint's chat template.
    pub fn chat_template(&self) -> Result<ChatTemplate, Error> {
        let source = self
            .inner
            .template
            .as_deref()
            .ok_or_else(|| Error::NoChatTemplate(self.origin().to_string()))?;
        self.chat_template_from(source)
    }

    /// A chat template from somewhere else, for this model's tokens.
    pub fn chat_template_from(&self, source: &str) -> Result<ChatTemplate, Error> {
        text::template(source, self.tokenizer()?)
    }

    /// A conversation as the tokens that ask for the next answer.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer()?;
        let text = template.render(messages, true)?;
        // Templates write the begin-of-text token themselves where they want it; never have it twice.
        let begun = tokenizer.bos().is_some_and(|bos| {
            let bos = tokenizer.token_text(bos);
            !bos.is_empty() && text.starts_with(bos)
        });
        Ok(tokenizer.encode(&text, !begun, true)?)
    }

    /// Bytes that decoding one token at this depth must read: all weights once, and the keys and values so far.
    pub fn bytes_per_token(&self, depth: usize) -> u64 {
        let weights: u64 = match self.inner.program.tables.first() {
            Some(table) => table.commands.iter().map(|c| c.bytes).sum(),
            None => 0,
        };
        weights
            + self
                .inner
                .program
                .kv
                .position_bytes()
                .unwrap_or(0)
                .saturating_mul(depth as u64)
    }

    /// Index of the first table of a kind.
    pub(crate) fn table(&self, kind: fn(&Shape) -> bool) -> Option<(usize, usize)> {
        let tables = &self.inner.program.tables;
        tables
            .iter()
            .position(|t| kind(&t.shape))
            .map(|i| (i, tables[i].shape.rows() as usize))
    }
}

/// Compiles for the device that was asked for; where the choice is ours, for the GPU if there is one and the plan fits.
fn inspect(checkpoint: Box<dyn Checkpoint>, options: &LoadOptions) -> Result<Inspection, Error> {
    let origin = checkpoint.origin().to_string();
    if !matches!(options.kv_format, Format::F16 | Format::Q8_0) {
        return Err(Error::option(
            "-ctk/-ctv",
            format!(
                "{} is not offered; use f16 or q8_0",
                options.kv_format.name()
            ),
        ));
    }
    let spec = welte_models::spec(checkpoint.as_ref())?;
    let planned = |target: &Target| planned(checkpoint.as_ref(), &spec, options, target);
    let (target, why_cpu, planned) = match options.device {
        DeviceChoice::Cpu => {
            let target = Target::cpu(options);
            let planned = planned(&target)?;
            (target, None, planned)
        }
        DeviceChoice::Cuda(ordinal) => {
            let target = Target::cuda(ordinal, options).map_err(|why| Error::NoDevice {
                device: Device::Cuda(ordinal),
                why,
            })?;
            let planned = planned(&target)?;
            (target, None, planned)
        }
        DeviceChoice::Auto => {
            let gpu = Target::cuda(0, options).and_then(|target| {
                welte_cuda::compiler_version().map_err(|error| error.to_string())?;
                let planned = planned(&target).map_err(|error| match error {
                    Error::NoDevice { why, .. } => why,
                    error => error.to_string(),
                })?;
                match check_memory(&origin, &planned, &target) {
                    Err(error) if !options.ignore_memory => Err(error.to_string()),
                    _ => Ok((target, None, planned)),
                }
            });
            match gpu {
                Ok(found) => found,
                Err(why) => {
                    let target = Target::cpu(options);
                    let planned = planned(&target)?;
                    (target, Some(why), planned)
                }
            }
        }
    };
    Ok(Inspection {
        checkpoint,
        spec,
        context: planned.program.kv.context,
        why_cpu,
        target,
        planned,
        replay: options.replay,
    })
}

/// The program for a device and its memory plan.
fn planned(
    checkpoint: &dyn Checkpoint,
    spec: &ModelSpec,
    options: &LoadOptions,
    target: &Target,
) -> Result<Planned, Error> {
    let context = match options.context {
        0 => spec.context.clamp(1, DEFAULT_CONTEXT),
        n => n,
    };
    let prefill_rows = match options.prefill_rows {
        0 => target.prefill_rows(),
        n => n,
    };
    let compile = CompileOptions {
        context,
        kv_format: options.kv_format,
        prefill_rows: prefill_rows.clamp(1, context.max(1)),
        batch_rows: options.batch_rows,
        max_chain: options.max_chain.max(1),
        ..CompileOptions::default()
    };
    let mut program = welte_models::compile(spec, checkpoint, &compile)?;
    if let Some(what) = target.missing(&program) {
        return Err(Error::NoDevice {
            device: target.device(),
            why: format!("there is no CUDA kernel yet for what this model needs ({what})"),
        });
    }
    let table_error = |problem| Error::Table {
        origin: checkpoint.origin().to_string(),
        problem,
    };
    welte_table::legalize(&mut program, &|command| target.supports(command))
        .map_err(table_error)?;
    welte_table::verify(&program).map_err(table_error)?;
    target.plan(Arc::new(program))
}

/// Refuses what does not fit, with numbers and a suggestion.
fn check_memory(origin: &str, planned: &Planned, target: &Target) -> Result<(), Error> {
    let Planned {
        memory: plan,
        program,
        ..
    } = planned;
    let Some(have) = target.available() else {
        return Ok(());
    };
    let need = plan.total();
    if need <= have {
        return Ok(());
    }
    let kv_bytes = plan.bytes(Class::Kv);
    let fixed = need.saturating_sub(kv_bytes);
    let per_position = (kv_bytes / u64::from(program.kv.context.max(1))).max(1);
    let fits = have.saturating_sub(fixed) / per_position / 256 * 256;
    let mut remedy = if fits >= 256 {
        format!("try -c {fits}")
    } else {
        "the weights alone leave no room for a context: quantise the model (welte quantize), or free memory".to_string()
    };
    if target.device() != Device::Cpu {
        remedy += ", or --device cpu";
    }
    Err(Error::Memory {
        origin: origin.to_string(),
        device: target.device(),
        need: memory::human(need),
        have: memory::human(have),
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cuda_lacks_is_named_with_a_remedy() {
        let options = LoadOptions {
            context: 64,
            ..LoadOptions::default()
        };
        let cuda = Target::Cuda(welte_cuda::Options::default());
        let planned = |source: &str, target: &Target| {
            let checkpoint = open(source).unwrap();
            let spec = welte_models::spec(checkpoint.as_ref()).unwrap();
            planned(checkpoint.as_ref(), &spec, &options, target)
        };
        let source = "synthetic:custom,arch=gpt-oss:mxfp4_moe";
        let error = planned(source, &cuda).err().unwrap().to_string();
        for part in [
            "--device cuda:0",
            "attention sinks",
            "biases of experts",
            "a clamped activation",
            "use --device cpu",
        ] {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
        let cpu = Target::cpu(&options);
        assert!(planned(source, &cpu).is_ok());
        // Other experts are at home there: what fails here, if anything, is the lack of a GPU.
        let other = planned("synthetic:custom,arch=qwen3moe:q4_0", &cuda);
        assert!(!matches!(other, Err(Error::NoDevice { .. })));
    }
}
