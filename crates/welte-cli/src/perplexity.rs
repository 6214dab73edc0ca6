//! `welte perplexity`: how well a model predicts a text.

use crate::args::{PerplexityArgs, Plain};
use crate::source;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use welte::{Model, Stepper};

/// The default chunk, as in llama-perplexity and llama-imatrix.
pub(crate) const CHUNK: u32 = 512;

pub(crate) fn run(args: &PerplexityArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.load.model.as_deref(), args.source.as_deref())?;
    let text = source::read_text(&args.file)?;
    let mut options = args.load.options()?;
    if options.context == 0 {
        options.context = CHUNK;
    }
    let chunk = options.context as usize;
    let model = source::load_with(&source, &options)?;
    let text = Text::of(&model, &text, chunk, args.chunks)?;
    let total = text.total;
    let mut stepper = model.stepper()?;
    stepper.use_adapters()?;
    let terminal = std::io::stderr().is_terminal();
    if let Some(base) = &args.kl_to {
        return compare(args, &source, base, &mut stepper, &text);
    }
    let score = welte::perplexity(&mut stepper, &text.tokens, chunk, text.bos, &mut |so_far| {
        if terminal {
            eprint!("\r\x1b[K[{}/{total}] {:.4}", so_far.chunks, so_far.ppl);
        }
        so_far.chunks < total
    })?;
    if terminal {
        eprintln!();
    }
    let mut out = crate::terminal::stdout();
    match args.output {
        Plain::Text => writeln!(
            out,
            "PPL = {:.4} +/- {:.5} ({} chunks of {chunk}, {} tokens scored)",
            score.ppl, score.error, score.chunks, score.scored
        )?,
        Plain::Json => {
            let all = serde_json::json!({
                "model": source, "ppl": score.ppl, "error": score.error,
                "chunks": score.chunks, "n_ctx": chunk, "scored": score.scored,
            });
            writeln!(out, "{all}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A text in chunks.
pub(crate) struct Text {
    pub(crate) tokens: Vec<u32>,
    chunk: usize,
    /// What every chunk begins with.
    pub(crate) bos: Option<u32>,
    /// Chunks to compute.
    pub(crate) total: usize,
}

impl Text {
    /// `most` are the most chunks; 0: all.
    pub(crate) fn of(model: &Model, text: &str, chunk: usize, most: usize) -> anyhow::Result<Text> {
        let tokenizer = model.tokenizer()?;
        let tokens = model.encode(text)?;
        let whole = tokens.len() / chunk;
        Ok(Text {
            tokens,
            chunk,
            bos: tokenizer.bos().filter(|_| tokenizer.adds_bos()),
            total: if most == 0 { whole } else { most.min(whole) },
        })
    }
}

/// The divergence of the model from another.
fn compare(
    args: &PerplexityArgs,
    source: &str,
    base: &str,
    stepper: &mut Stepper,
    text: &Text,
) -> anyhow::Result<ExitCode> {
    let mut options = args.load.options()?;
    options.context = text.chunk as u32;
    if args.kl_reference {
        options.device = "reference".parse()?;
    }
    options.instructions = None;
    let mut other = source::load_with(base, &options)?.stepper()?;
    let mut done = 0;
    let result = welte::divergence(
        stepper,
        &mut other,
        &text.tokens,
        text.chunk,
        text.bos,
        &mut |_| {
            done += 1;
            done < text.total
        },
    )?;
    let mut out = crate::terminal::stdout();
    match args.output {
        Plain::Text => writeln!(
            out,
            "KL = {:.6} +/- {:.6} nats from {base} (largest {:.6}, same top token {:.2} %, {} positions in {done} chunks of {})",
            result.mean,
            result.error,
            result.largest,
            100.0 * result.same_top,
            result.positions,
            text.chunk
        )?,
        Plain::Json => {
            let all = serde_json::json!({
                "model": source, "kl_to": base, "kl": result.mean, "error": result.error, "largest": result.largest,
                "same_top": result.same_top, "positions": result.positions, "chunks": done, "n_ctx": text.chunk,
            });
            writeln!(out, "{all}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
