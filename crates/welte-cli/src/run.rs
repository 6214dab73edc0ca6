//! `welte run`: the answer goes to standard output, everything else to standard error.

use crate::args::RunArgs;
use crate::wrap::Wrapper;
use crate::{chat, figures, logprobs, source};
use anyhow::bail;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use welte::{
    Activations, CancelHandle, Channels, ChatTemplate, Engine, EngineOptions, FINAL,
    GenerateOptions, LoadOptions, Message, Model, Outcome, Said, Session, StopReason,
};

/// The model and the prompt that the arguments name.
struct Request {
    source: String,
    prompt: Option<String>,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let request = request(args)?;
    let prompt = match &request.prompt {
        Some(prompt) => with_input(prompt, piped()?),
        None if std::io::stdin().is_terminal() => return start_chat(args, &request.source),
        None => source::read_text("-".as_ref())?,
    };
    one_answer(args, &request.source, &prompt)
}

/// Text on standard input, if that is a pipe or a file.
fn piped() -> anyhow::Result<Option<String>> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileTypeExt;
        // Other inputs, such as the sockets of services, may stay open for ever.
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let kind = input.and_then(|input| std::fs::File::from(input).metadata());
        let reads = kind.is_ok_and(|kind| kind.is_file() || kind.file_type().is_fifo());
        if !reads {
            return Ok(None);
        }
    }
    match std::io::stdin().is_terminal() {
        true => Ok(None),
        false => Ok(Some(source::read_text("-".as_ref())?)),
    }
}

/// The question after the text that it is about.
fn with_input(question: &str, input: Option<String>) -> String {
    match input.as_deref().map(str::trim_end).unwrap_or_default() {
        "" => question.to_string(),
        text => format!("{text}\n\n{question}"),
    }
}

pub(crate) fn chat(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let request = request(args)?;
    match request.prompt {
        Some(prompt) => one_answer(args, &request.source, &prompt),
        None => start_chat(args, &request.source),
    }
}

fn start_chat(args: &RunArgs, source: &str) -> anyhow::Result<ExitCode> {
    if args.logprobs.is_some() {
        bail!("--logprobs needs a prompt; a chat prints text only");
    }
    chat::run(args, source)
}

/// The first word is the model if a file of that name exists, and else the prompt.
fn request(args: &RunArgs) -> anyhow::Result<Request> {
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
    let mut options = args.options()?;
    options.logprobs = args.logprobs;
    let model = load(source, args)?;
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
                    "-sys needs a chat template, which this model lacks or --no-chat switches off; put it into the prompt"
                );
            }
            if !args.no_chat {
                eprintln!("note: {source} has no chat template; completing the raw text");
            }
            model.encode(prompt)?
        }
    };
    let mut session = session(args, &model)?;
    on_interrupt(session.cancel_handle())?;
    figures::note_device(&model, args.verbose);
    let begun = crate::START.get().map(std::time::Instant::elapsed);
    let channels = template.is_some() && in_channels(&model);
    let outcome = match args.logprobs {
        Some(_) => logprobs::answer(
            &mut session,
            &tokens,
            &options,
            &mut crate::terminal::stdout(),
        )?,
        None => answer(&mut session, &tokens, &options, channels)?.0,
    };
    let interrupted = outcome.stop == StopReason::Cancelled;
    if args.verbose {
        figures::start_line(&model, begun.unwrap_or_default(), &outcome);
        figures::phase_lines(&model);
        figures::speculation_line(&outcome);
    }
    eprintln!("{}", figures::closing_line(&session, &outcome));
    figures::note_full_context(&model, &outcome);
    close(&session);
    Ok(if interrupted {
        ExitCode::from(130)
    } else {
        ExitCode::SUCCESS
    })
}

/// The model, prepared for the prefix cache that the arguments ask for.
pub(crate) fn load(source: &str, args: &RunArgs) -> anyhow::Result<Model> {
    source::load_with(source, &load_options(args)?)
}

fn load_options(args: &RunArgs) -> anyhow::Result<LoadOptions> {
    let mut options = args.load.options()?;
    options.fit_context = true;
    options.fit_with_others = args.spec.model_draft.is_some();
    options.prefix_store = args.prefix.prefix_cache.is_some();
    Ok(options)
}

/// A conversation, with the prefix cache and the speculation that the arguments ask for.
pub(crate) fn session(args: &RunArgs, model: &Model) -> anyhow::Result<Session> {
    let mut options = EngineOptions::default();
    options.prefix_store = args.prefix.options();
    args.spec.set(&mut options, |draft| {
        let mut options = load_options(args)?;
        options.context = model.context() as u32;
        options.activations = Activations::Wide;
        source::load_with(draft, &options)
    })?;
    Ok(Engine::new(model, &options)?.session())
}

/// Ends the conversation's engine, which then writes the prefix cache. Says what went wrong with it.
pub(crate) fn close(session: &Session) {
    let engine = session.engine();
    if engine.prefix_store().is_some() {
        engine.shutdown();
    }
    if let Some(problem) = engine.prefix_store().and_then(|store| store.problem) {
        eprintln!("note: prefix cache: {problem}");
    }
}

pub(crate) fn message(role: &str, content: String) -> Message {
    Message::new(role, content)
}

/// Whether the model's answers come in channels.
pub(crate) fn in_channels(model: &Model) -> bool {
    model.tokenizer().is_ok_and(|t| t.has_channels())
}

/// Where the pieces of an answer go: the answer itself to standard output, other channels to standard error.
struct Shown<W> {
    channels: Option<Channels>,
    out: Wrapper<W>,
    /// The channel that is being written to standard error.
    aside: Option<(String, Wrapper<std::io::Stderr>)>,
    /// The answer so far.
    text: String,
}

impl<W: Write> Shown<W> {
    fn new(channels: bool, out: Wrapper<W>) -> Shown<W> {
        Shown {
            channels: channels.then(Channels::default),
            out,
            aside: None,
            text: String::new(),
        }
    }

    fn piece(&mut self, piece: &str) -> std::io::Result<()> {
        let Some(channels) = &mut self.channels else {
            return self.say(piece);
        };
        let said = channels.push(piece);
        self.all(said)
    }

    fn end(&mut self) -> std::io::Result<()> {
        let rest = self.channels.as_mut().map(Channels::finish);
        self.all(rest.unwrap_or_default())?;
        self.leave_aside()?;
        self.out.push("\n")
    }

    fn all(&mut self, said: Vec<Said>) -> std::io::Result<()> {
        for Said { channel, text } in said {
            if channel == FINAL {
                self.leave_aside()?;
                self.say(&text)?;
            } else {
                self.say_aside(channel, &text)?;
            }
        }
        Ok(())
    }

    fn say_aside(&mut self, channel: String, text: &str) -> std::io::Result<()> {
        match &mut self.aside {
            Some((current, err)) if *current == channel => err.push(text),
            _ => {
                self.leave_aside()?;
                let err = std::io::stderr();
                let columns = columns(&err);
                let (_, err) = self
                    .aside
                    .insert((channel.clone(), Wrapper::new(err, columns)));
                err.push(&format!("[{channel}] {text}"))
            }
        }
    }

    fn leave_aside(&mut self) -> std::io::Result<()> {
        match self.aside.take() {
            Some((_, mut err)) => err.push("\n"),
            None => Ok(()),
        }
    }

    fn say(&mut self, text: &str) -> std::io::Result<()> {
        self.text.push_str(text);
        self.out.push(text)
    }
}

/// Columns of the terminal; `None` if the stream is not one.
fn columns(stream: &impl IsTerminal) -> Option<u16> {
    let size = stream.is_terminal().then(terminal_size::terminal_size)?;
    Some(size.map_or(80, |(width, _)| width.0))
}

/// Generates to standard output. Returns the answer too.
pub(crate) fn answer(
    session: &mut Session,
    tokens: &[u32],
    options: &GenerateOptions,
    channels: bool,
) -> anyhow::Result<(Outcome, String)> {
    let out = std::io::stdout().lock();
    let columns = columns(&out);
    let mut shown = Shown::new(channels, Wrapper::new(out, columns));
    let mut failed = None;
    let outcome = session.generate(tokens, options, &mut |piece| match shown.piece(piece) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    shown.end()?;
    Ok((outcome, shown.text))
}

/// Ctrl-C ends the generation. A second Ctrl-C before that ends the program.
pub(crate) fn on_interrupt(handle: CancelHandle) -> anyhow::Result<()> {
    ctrlc::set_handler(move || {
        if handle.is_cancelled() {
            std::process::exit(130);
        }
        handle.cancel();
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_go_to_standard_output_and_into_the_conversation() {
        let show = |channels: bool| {
            let mut out = Vec::new();
            let mut shown = Shown::new(channels, Wrapper::new(&mut out, None));
            for piece in [
                "<|channel|>ana",
                "lysis<|message|>Short.<|end|>",
                "<|start|>assistant<|channel|>final<|message|>By the",
                " river <|",
            ] {
                shown.piece(piece).unwrap();
            }
            shown.end().unwrap();
            let text = shown.text;
            (String::from_utf8(out).unwrap(), text)
        };
        let (out, text) = show(true);
        assert_eq!(
            (out.as_str(), text.as_str()),
            ("By the river <|\n", "By the river <|")
        );
        let (out, text) = show(false);
        assert!(out.starts_with("<|channel|>analysis<|message|>Short."));
        assert_eq!(out.trim_end_matches('\n'), text);
    }
}
