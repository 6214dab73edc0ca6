//! `welte run`: one answer on standard output, its figures on standard error.

use crate::args::RunArgs;
use crate::{chat, floor, source};
use anyhow::bail;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;
use welte::memory::{human, peak};
use welte::{
    CancelHandle, Channels, ChatTemplate, FINAL, GenerateOptions, Message, Model, Outcome, Said,
    Session, StopReason,
};
use welte_table::Class;

/// What the user asked for, sorted out.
pub(crate) struct Request {
    pub(crate) source: String,
    pub(crate) prompt: Option<String>,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let request = sort_out(args)?;
    let prompt = match &request.prompt {
        Some(prompt) => prompt.clone(),
        None if std::io::stdin().is_terminal() => return chat::run(args, &request.source),
        None => source::read_text("-".as_ref())?,
    };
    one_answer(args, &request.source, &prompt)
}

pub(crate) fn chat(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let request = sort_out(args)?;
    match request.prompt {
        Some(prompt) => one_answer(args, &request.source, &prompt),
        None => chat::run(args, &request.source),
    }
}

/// The first word is a model if there is such a thing; else it is the prompt.
fn sort_out(args: &RunArgs) -> anyhow::Result<Request> {
    let (model, prompt) = match args.words.as_slice() {
        [] => (None, None),
        [word] if args.load.model.is_none() && source::is_model(word) => {
            (Some(word.as_str()), None)
        }
        [word] => (None, Some(word.as_str())),
        [model, prompt] if args.load.model.is_none() && source::is_model(model) => {
            (Some(model.as_str()), Some(prompt.as_str()))
        }
        [model, ..] if args.load.model.is_none() => {
            bail!(
                "{model}: no such file or directory; a model is a GGUF file, a directory or synthetic:SHAPE:FORMAT (quote a prompt of several words)"
            )
        }
        _ => bail!(
            "-m names the model, so only a prompt may follow; quote a prompt of several words"
        ),
    };
    let file = args.file.as_deref().map(source::read_text).transpose()?;
    let given = [prompt.map(str::to_string), args.prompt.clone(), file];
    let mut given = given.into_iter().flatten();
    let prompt = given.next();
    if given.next().is_some() {
        bail!("more than one prompt is given; use one of the argument, -p and -f");
    }
    Ok(Request {
        source: source::pick(args.load.model.as_deref(), model)?,
        prompt,
    })
}

/// The chat template to use: the file's, the model's, or none for raw text.
pub(crate) fn template(args: &RunArgs, model: &Model) -> anyhow::Result<Option<ChatTemplate>> {
    if args.no_chat {
        return Ok(None);
    }
    if let Some(path) = &args.chat_template_file {
        return Ok(Some(model.chat_template_from(&source::read_text(path)?)?));
    }
    Ok(if model.has_chat_template() {
        Some(model.chat_template()?)
    } else {
        None
    })
}

fn one_answer(args: &RunArgs, source: &str, prompt: &str) -> anyhow::Result<ExitCode> {
    let model = source::load(source, &args.load)?;
    let template = template(args, &model)?;
    let tokens = match &template {
        Some(template) => {
            let mut messages = Vec::new();
            messages.extend(
                args.system_prompt
                    .clone()
                    .map(|content| message("system", content)),
            );
            messages.push(message("user", prompt.to_string()));
            model.encode_chat(template, &messages)?
        }
        None => {
            if args.system_prompt.is_some() {
                bail!(
                    "-sys needs a chat template, and this model (or --no-chat) has none; put it into the prompt"
                );
            }
            if !args.no_chat {
                eprintln!("note: {source} has no chat template; completing the raw text");
            }
            model.encode(prompt)?
        }
    };
    let mut session = model.session()?;
    on_interrupt(session.cancel_handle())?;
    let begun = crate::START.get().map(std::time::Instant::elapsed);
    let channels = template.is_some() && in_channels(&model);
    let (outcome, _) = answer(&mut session, &tokens, &args.sampling.options(), channels)?;
    let interrupted = outcome.stop == StopReason::Cancelled;
    if args.verbose {
        start_line(&model, begun.unwrap_or_default(), &outcome);
    }
    closing_line(&mut session, &outcome);
    Ok(if interrupted {
        ExitCode::from(130)
    } else {
        ExitCode::SUCCESS
    })
}

pub(crate) fn message(role: &str, content: String) -> Message {
    Message::new(role, content)
}

/// Whether the model's answers come in channels.
pub(crate) fn in_channels(model: &Model) -> bool {
    model.tokenizer().is_ok_and(|t| t.has_channels())
}

/// Where the pieces of an answer go: what is said to the user onto standard output, other channels onto standard error.
struct Shown {
    channels: Option<Channels>,
    /// The channel that standard error is in the middle of.
    aside: Option<String>,
    /// What was said to the user.
    text: String,
}

impl Shown {
    fn piece(&mut self, out: &mut impl Write, piece: &str) -> std::io::Result<()> {
        let Some(channels) = &mut self.channels else {
            return self.say(out, piece);
        };
        let said = channels.push(piece);
        self.all(out, said)
    }

    fn end(&mut self, out: &mut impl Write) -> std::io::Result<()> {
        let rest = self.channels.as_mut().map(Channels::finish);
        self.all(out, rest.unwrap_or_default())?;
        self.leave_aside();
        writeln!(out)?;
        out.flush()
    }

    fn all(&mut self, out: &mut impl Write, said: Vec<Said>) -> std::io::Result<()> {
        for Said { channel, text } in said {
            if channel == FINAL {
                self.leave_aside();
                self.say(out, &text)?;
            } else {
                if self.aside.as_ref() != Some(&channel) {
                    self.leave_aside();
                    eprint!("[{channel}] ");
                    self.aside = Some(channel);
                }
                eprint!("{text}");
            }
        }
        Ok(())
    }

    fn leave_aside(&mut self) {
        if self.aside.take().is_some() {
            eprintln!();
        }
    }

    fn say(&mut self, out: &mut impl Write, text: &str) -> std::io::Result<()> {
        self.text.push_str(text);
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// Generates onto standard output; returns what was said to the user as well.
pub(crate) fn answer(
    session: &mut Session,
    tokens: &[u32],
    options: &GenerateOptions,
    channels: bool,
) -> anyhow::Result<(Outcome, String)> {
    let mut out = std::io::stdout().lock();
    let mut shown = Shown {
        channels: channels.then(Channels::default),
        aside: None,
        text: String::new(),
    };
    let mut failed = None;
    let outcome = session.generate(
        tokens,
        options,
        &mut |piece| match shown.piece(&mut out, piece) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        },
    )?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    shown.end(&mut out)?;
    Ok((outcome, shown.text))
}

/// Ctrl-C ends the generation; a second one before it has ended, the program.
pub(crate) fn on_interrupt(handle: CancelHandle) -> anyhow::Result<()> {
    ctrlc::set_handler(move || {
        if handle.is_cancelled() {
            std::process::exit(130);
        }
        handle.cancel();
    })?;
    Ok(())
}

/// Where the time until the first token went, on standard error.
fn start_line(model: &Model, begun: Duration, outcome: &Outcome) {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let weights = model.plan().bytes(Class::Weights);
    let load = model.load_time();
    eprintln!(
        "first token {:.1} ms after the process began: load {:.1} ms ({} of weights, {:.2} GB/s), prompt {:.1} ms, the rest {:.1} ms",
        ms(begun + outcome.timings.first_token),
        ms(load),
        human(weights),
        weights as f64 / load.as_secs_f64().max(1e-9) / 1e9,
        ms(outcome.timings.first_token),
        ms(begun.saturating_sub(load)),
    );
}

/// Where and how it ran, and why not otherwise.
fn place(session: &mut Session) -> String {
    let model = session.model().clone();
    let device = model.device();
    if let Some(why) = model.why_cpu() {
        return format!("{device} ({why})");
    }
    let Ok(gpu) = session.device().cuda() else {
        return device.to_string();
    };
    format!("{device}, {}", gpu.replaying())
}

/// Speeds, memory and bandwidth, on standard error.
pub(crate) fn closing_line(session: &mut Session, outcome: &Outcome) {
    let model = session.model().clone();
    let t = &outcome.timings;
    let computed = outcome.prompt_tokens - outcome.cached_tokens;
    let per_second = |n: usize, d: std::time::Duration| n as f64 / d.as_secs_f64().max(1e-9);
    let cached = match outcome.cached_tokens {
        0 => String::new(),
        n => format!(" (+{n} cached)"),
    };
    let speed = t.bytes as f64 / t.generation.as_secs_f64().max(1e-9);
    let share = floor::recall(model.device()).map_or(String::new(), |floor| {
        format!(" ({:.0} % of {:.1})", 100.0 * speed / floor, floor / 1e9)
    });
    eprintln!(
        "prompt {computed} tokens{cached} {:.1} t/s · generation {} tokens {:.1} t/s · first token {:.1} ms · peak memory {} · {:.1} GB/s{share} · {}",
        per_second(computed, t.prompt),
        outcome.tokens.len(),
        per_second(t.decoded, t.generation),
        t.first_token.as_secs_f64() * 1e3,
        peak().map_or("unknown".to_string(), human),
        speed / 1e9,
        place(session),
    );
    if outcome.stop == StopReason::ContextFull {
        let (used, context) = (
            outcome.prompt_tokens + outcome.tokens.len(),
            model.context(),
        );
        eprintln!(
            "note: the context is full ({used} of {context} tokens); load with a larger -c to go on"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_go_to_standard_output_and_into_the_conversation() {
        let show = |channels: Option<Channels>| {
            let mut shown = Shown {
                channels,
                aside: None,
                text: String::new(),
            };
            let mut out = Vec::new();
            for piece in [
                "<|channel|>ana",
                "lysis<|message|>Short.<|end|>",
                "<|start|>assistant<|channel|>final<|message|>By the",
                " river <|",
            ] {
                shown.piece(&mut out, piece).unwrap();
            }
            shown.end(&mut out).unwrap();
            (String::from_utf8(out).unwrap(), shown.text)
        };
        let (out, text) = show(Some(Channels::default()));
        assert_eq!(
            (out.as_str(), text.as_str()),
            ("By the river <|\n", "By the river <|")
        );
        let (out, text) = show(None);
        assert!(out.starts_with("<|channel|>analysis<|message|>Short."));
        assert_eq!(out.trim_end_matches('\n'), text);
    }
}
