//! `welte run NAME`: the answer of a running server that has a model of this name.

use crate::address::AddressArgs;
use crate::args::RunArgs;
use crate::{http, source};
use anyhow::Context;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use welte::DeviceChoice;

/// Answers through a running server, if the arguments name one of its models and no file. `None`: they do not.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<Option<ExitCode>> {
    if args.load.hf_repo.is_some() {
        return Ok(None);
    }
    let named = args.load.model.as_deref();
    let (name, prompt) = match (named, &args.words[..]) {
        (Some(name), []) => (name, None),
        (Some(name), [prompt]) => (name, Some(prompt)),
        (None, [name]) => (name.as_str(), None),
        (None, [name, prompt]) => (name.as_str(), Some(prompt)),
        _ => return Ok(None),
    };
    // A sentence is a prompt for the bundled model.
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    if source::is_model(name) || !is_name {
        return Ok(None);
    }
    let server = AddressArgs {
        host: None,
        port: None,
        // A key is for the server that was named with it.
        api_key: std::env::var_os("WELTE_HOST").and(std::env::var("WELTE_API_KEY").ok()),
    };
    let models = match http::ask(&server, "GET", "/v1/models", None) {
        Ok(models) => models,
        // The user named a server, and something answers there.
        Err(error) if std::env::var_os("WELTE_HOST").is_some() && !http::is_absent(&error) => {
            return Err(error);
        }
        Err(_) => return Ok(None),
    };
    let mut ids = models["data"].as_array().into_iter().flatten();
    if !ids.any(|model| model["id"].as_str() == Some(name)) {
        return Ok(None);
    }
    let mut chat = Chat {
        settings: settings(args, name)?,
        messages: Vec::new(),
        server,
    };
    let system = args.system_prompt.iter();
    chat.messages
        .extend(system.map(|text| json!({ "role": "system", "content": text })));
    let file = args.file.as_deref().map(source::read_text).transpose()?;
    let prompts = [prompt.cloned(), args.prompt.clone(), file];
    let mut prompts = prompts.into_iter().flatten();
    let prompt = prompts.next();
    anyhow::ensure!(prompts.next().is_none(), "more than one prompt");
    eprintln!("{name} at {}", chat.server.url()?);
    match prompt {
        Some(prompt) => chat.say(source::with_input(&prompt, source::piped()?))?,
        None if !std::io::stdin().is_terminal() => chat.say(source::read_text("-".as_ref())?)?,
        None => {
            let mut editor = rustyline::DefaultEditor::new()?;
            while let Ok(line) = editor.readline("> ") {
                let _ = editor.add_history_entry(&line);
                if line.trim() == "/exit" {
                    break;
                }
                if !line.trim().is_empty() {
                    chat.say(line)?;
                }
            }
        }
    }
    Ok(Some(ExitCode::SUCCESS))
}

/// The fields of every request. Settings that the server would not honour are refused there, by name.
fn settings(args: &RunArgs, model: &str) -> anyhow::Result<Value> {
    let options = args.sampling.constrained(&args.constraint)?;
    anyhow::ensure!(
        options.constraint.is_none()
            && args.logprobs.is_none()
            && !args.no_chat
            && args.image.is_empty(),
        "{model}: a running server answers; --json-schema, --grammar, --logprobs, --no-chat and --image work with a file"
    );
    let place = &args.load.place;
    for (given, flag) in [
        (place.ctx_size != 0, "-c"),
        (place.on.device != DeviceChoice::Auto, "--device"),
        (args.spec.model_draft.is_some(), "-md"),
        (args.prefix.prefix_cache.is_some(), "--prefix-cache"),
        (args.prefix.cache_host > 0, "--cache-host"),
        (args.chat_template_file.is_some(), "--chat-template-file"),
    ] {
        anyhow::ensure!(
            !given,
            "{model}: a running server answers, and {flag} is a setting of the server; end it, or name a file"
        );
    }
    let mut fields = json!({ "model": model, "stream": true });
    // The server has its own defaults, and a created model its own parameters.
    for (option, value) in args.sampling.given() {
        fields[option.name] = if option.is_whole() {
            json!(value as i64)
        } else {
            json!(value)
        };
    }
    if let Some(seed) = args.sampling.fixed_seed() {
        fields["seed"] = json!(seed);
    }
    if options.max_tokens != usize::MAX {
        fields["max_tokens"] = json!(options.max_tokens);
    }
    if !options.stop.is_empty() {
        fields["stop"] = json!(options.stop.to_vec());
    }
    if options.ignore_end {
        fields["ignore_eos"] = true.into();
    }
    if options.min_tokens > 0 {
        fields["min_tokens"] = options.min_tokens.into();
    }
    if options.dry_breakers != welte::GenerateOptions::default().dry_breakers {
        fields["dry_sequence_breakers"] = json!(options.dry_breakers);
    }
    Ok(fields)
}

struct Chat {
    server: AddressArgs,
    settings: Value,
    messages: Vec<Value>,
}

impl Chat {
    /// Says something and prints the answer as it comes.
    fn say(&mut self, text: String) -> anyhow::Result<()> {
        self.messages
            .push(json!({ "role": "user", "content": text }));
        let mut request = self.settings.clone();
        request["messages"] = self.messages.clone().into();
        let mut answer = String::new();
        let mut out = std::io::stdout().lock();
        http::stream(
            &self.server,
            "/v1/chat/completions",
            &request,
            &mut |chunk| {
                let piece = chunk.pointer("/choices/0/delta/content");
                let piece =
                    http::printable_lines(piece.and_then(Value::as_str).unwrap_or_default());
                answer.push_str(&piece);
                out.write_all(piece.as_bytes())?;
                Ok(out.flush()?)
            },
        )
        .context("the server did not finish its answer")?;
        writeln!(out)?;
        self.messages
            .push(json!({ "role": "assistant", "content": answer }));
        Ok(())
    }
}
