//! A model and its answers in the terminal: the answer goes to standard output, everything else to standard error.

use crate::args::RunArgs;
use crate::wrap::Wrapper;
use crate::{images, source};
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use welte::{
    Activations, CancelHandle, Channels, ChatTemplate, Engine, EngineOptions, FINAL,
    GenerateOptions, Image, Images, LoadOptions, Message, Model, Outcome, Prompt, Said, Session,
};

/// The chat template to use: the file's, the model's, or none for raw text.
pub(crate) fn template(args: &RunArgs, model: &Model) -> anyhow::Result<Option<ChatTemplate>> {
    if args.no_chat {
        return Ok(None);
    }
    if let Some(path) = &args.chat_template_file {
        return Ok(Some(model.chat_template_from(&source::read_text(path)?)?));
    }
    if let Some(template) = args
        .recipe
        .as_ref()
        .and_then(|recipe| recipe.template.as_deref())
    {
        return Ok(Some(model.chat_template_from(template)?));
    }
    Ok(if model.has_chat_template() {
        Some(model.chat_template()?)
    } else {
        None
    })
}

/// What a conversation begins with: the system message, and messages of a created model.
pub(crate) fn opening(args: &RunArgs) -> Vec<Message> {
    let own = args.system_prompt.clone();
    let own = own.map(|text| message("system", text));
    let created = args.recipe.iter().flat_map(|recipe| recipe.opening());
    let replaced = own.is_some();
    let created = created.filter(|message| !replaced || message.role != "system");
    own.iter().cloned().chain(created).collect()
}

/// The images and the sounds that the prompt is about.
pub(crate) fn media(args: &RunArgs) -> anyhow::Result<Vec<Image>> {
    let mut all = images::read_all(&args.image)?;
    for path in &args.audio {
        all.push(images::read_sound(path)?);
    }
    Ok(all)
}

/// The model, prepared for the prefix cache that the arguments ask for.
pub(crate) fn load(source: &str, args: &RunArgs) -> anyhow::Result<Model> {
    source::load_with(source, &load_options(args)?)
}

fn load_options(args: &RunArgs) -> anyhow::Result<LoadOptions> {
    let mut options = args.load.options()?;
    anyhow::ensure!(
        options.adapters.len() <= 1,
        "a conversation has one adapter; give one --lora"
    );
    options.fit_context = true;
    args.spec.set_load(&mut options)?;
    options.fit_with_others = args.spec.has_draft_model(&options);
    options.prefix_store = args.prefix.prefix_cache.is_some();
    args.eyes.set(&mut options);
    Ok(options)
}

/// A conversation, with the prefix cache and the speculation that the arguments ask for.
pub(crate) fn session(args: &RunArgs, model: &Model) -> anyhow::Result<Session> {
    let mut options = EngineOptions::default();
    options.prefix_store = args.prefix.options();
    options.prefix_host_bytes = args.prefix.cache_host;
    args.spec.set(&mut options, Some(model), |draft| {
        let mut options = load_options(args)?;
        options.draft_layer = false;
        options.context = model.context() as u32;
        options.activations = Activations::Wide;
        options.images = Images::Off;
        (options.adapters, options.max_adapters) = (Vec::new(), 0);
        options.control_vectors = Vec::new();
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
    prompt: &Prompt,
    options: &GenerateOptions,
    channels: bool,
) -> anyhow::Result<(Outcome, String)> {
    let out = std::io::stdout().lock();
    let columns = columns(&out);
    let mut shown = Shown::new(channels, Wrapper::new(out, columns));
    let mut failed = None;
    let outcome = session.generate(prompt, options, &mut |piece| match shown.piece(piece) {
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
