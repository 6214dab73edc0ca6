//! `welte run`: the answer goes to standard output, everything else to standard error.

use crate::args::RunArgs;
use crate::conversation::{
    answer, close, in_channels, load, media, message, on_interrupt, opening, session, template,
};
use crate::{chat, figures, logprobs, source};
use anyhow::bail;
use std::io::IsTerminal;
use std::process::ExitCode;
use welte::{Message, Prompt, StopReason};

/// The model and the prompt that the arguments name.
struct Request {
    source: String,
    prompt: Option<String>,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let request = request(args)?;
    let prompt = match &request.prompt {
        Some(prompt) => source::with_input(prompt, source::piped()?),
        None if std::io::stdin().is_terminal() => return start_chat(args, &request.source),
        None => source::read_text("-".as_ref())?,
    };
    one_answer(args, &request.source, &prompt)
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

fn one_answer(args: &RunArgs, source: &str, prompt: &str) -> anyhow::Result<ExitCode> {
    let mut options = args.sampling.constrained(&args.constraint)?;
    options.logprobs = args.logprobs;
    let model = load(source, args)?;
    let template = template(args, &model)?;
    anyhow::ensure!(
        template.is_some() || args.image.is_empty() && args.audio.is_empty(),
        "--image and --audio need a chat template, which this model lacks or --no-chat switches off"
    );
    let tokens: Prompt = match &template {
        Some(template) => {
            let mut messages = opening(args);
            messages.push(Message {
                images: media(args)?,
                ..message("user", prompt.to_string())
            });
            model.encode_conversation(template, &messages)?
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
            model.encode(prompt)?.into()
        }
    };
    let mut session = session(args, &model)?;
    on_interrupt(session.cancel_handle())?;
    figures::note_device(&model, args.verbose);
    let begun = figures::START.get().map(std::time::Instant::elapsed);
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
