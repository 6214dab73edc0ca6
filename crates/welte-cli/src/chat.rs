//! The interactive chat: a conversation with history, line editing and a few commands.

use crate::args::RunArgs;
use crate::{conversation, figures, hints, images, source, terminal};
use anyhow::Context;
use rustyline::error::ReadlineError;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use welte::{ChatTemplate, Image, Message, Outcome, Session, StopReason};
use welte_formats::files;

const HELP: &str = "\
/help           this list
/clear          forget the conversation
/image FILE     ask about an image or a video in the next message; a file dropped into the line does the same
/audio FILE     ask about a sound in the next message
/system [TEXT]  set or clear the system prompt; forgets the conversation
/save FILE      write the conversation as JSON
/load FILE      read a conversation
/exit           leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends in a backslash continues on the next line.
\"\"\" begins a message of several lines, and ends it.";

struct Chat {
    session: Session,
    template: Option<ChatTemplate>,
    messages: Vec<Message>,
    /// Images and sounds of the next message.
    images: Vec<Image>,
    /// The text so far, if there is no template.
    raw: String,
}

enum Next {
    Go,
    Leave,
}

pub(crate) fn run(args: &RunArgs, source: &str) -> anyhow::Result<ExitCode> {
    let model = conversation::load(source, args)?;
    let template = conversation::template(args, &model)?;
    if template.is_none() {
        eprintln!("note: no chat template; the model continues each line as raw text");
        if args.system_prompt.is_some() {
            anyhow::bail!(
                "-sys needs a chat template, which this model lacks or --no-chat switches off"
            );
        }
    }
    let session = conversation::session(args, &model)?;
    let cancel = session.cancel_handle();
    if std::io::stdin().is_terminal() {
        let headline = figures::headline(&session, args.verbose);
        eprintln!("{headline}. /help lists the commands.");
    }
    let mut chat = Chat {
        session,
        template,
        messages: Vec::new(),
        images: Vec::new(),
        raw: String::new(),
    };
    for medium in conversation::media(args)? {
        chat.attach(medium)?;
    }
    if chat.template.is_some() {
        chat.messages = conversation::opening(args);
    }
    let mut editor = rustyline::DefaultEditor::new()?;
    // The editor installs a handler that would swallow the signal, so ours comes after it.
    conversation::on_interrupt(cancel)?;
    loop {
        match read(&mut |prompt| editor.readline(prompt)) {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                let _ = editor.add_history_entry(line.as_str());
                let done = chat.line(args, &line);
                match done {
                    Ok(Next::Leave) => break,
                    Ok(Next::Go) => {}
                    Err(error) if terminal::is_broken_pipe(&error) => return Err(error),
                    // An error in one line does not end the conversation.
                    Err(error) => eprintln!("error: {}", hints::explain(&error)),
                }
            }
            Err(ReadlineError::Interrupted) => eprintln!("leave with /exit or Ctrl-D"),
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        }
    }
    conversation::close(&chat.session);
    Ok(ExitCode::SUCCESS)
}

/// Begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Reads a message, which may have several lines.
fn read(line: &mut dyn FnMut(&str) -> rustyline::Result<String>) -> rustyline::Result<String> {
    let mut text = line("> ")?;
    if let Some(begun) = text.trim_start().strip_prefix(QUOTES) {
        let mut text = begun.to_string();
        loop {
            if let Some(whole) = text.trim_end().strip_suffix(QUOTES) {
                return Ok(whole.trim_matches('\n').to_string());
            }
            text = format!("{text}\n{}", line(". ")?);
        }
    }
    while let Some(more) = text.strip_suffix('\\') {
        text = format!("{more}\n{}", line(". ")?);
    }
    Ok(text)
}

impl Chat {
    /// A command, a message, or images and sounds dropped into the line.
    fn line(&mut self, args: &RunArgs, line: &str) -> anyhow::Result<Next> {
        // The first word of a path that was dropped has further slashes, or a dot.
        let command = line.trim().strip_prefix('/').filter(|command| {
            let word = command.split_whitespace().next();
            !word.is_some_and(|word| word.contains(['/', '.']))
        });
        if let Some(command) = command {
            return self.command(args, command);
        }
        let model = self.session.model();
        let (text, paths) = images::dropped(line, model.eyes().is_some(), model.ears().is_some());
        if paths.is_empty()
            && let Some(command) = line.trim().strip_prefix('/')
        {
            return self.command(args, command);
        }
        for path in &paths {
            self.attach(images::read(path)?)?;
        }
        if text.is_empty() {
            return Ok(Next::Go);
        }
        self.turn(args, &text).map(|()| Next::Go)
    }

    /// Takes an image or a sound for the next message.
    fn attach(&mut self, medium: Image) -> anyhow::Result<()> {
        let model = self.session.model();
        anyhow::ensure!(
            self.template.is_some(),
            "images and sounds need a chat template"
        );
        model.sense(&medium.source).map_err(anyhow::Error::msg)?;
        eprintln!("{}: goes with the next message", medium.name);
        self.images.push(medium);
        Ok(())
    }

    fn turn(&mut self, args: &RunArgs, line: &str) -> anyhow::Result<()> {
        let model = self.session.model().clone();
        let options = args.sampling.constrained(&args.constraint)?;
        let Some(template) = &self.template else {
            let text = format!("{}{line}", self.raw);
            let tokens = model.encode(&text)?;
            let prompt = tokens.into();
            let (outcome, answer) =
                conversation::answer(&mut self.session, &prompt, &options, false)?;
            self.raw = format!("{text}{answer}");
            self.close(&outcome);
            return Ok(());
        };
        self.messages.push(Message {
            images: std::mem::take(&mut self.images),
            ..conversation::message("user", line.to_string())
        });
        let channels = conversation::in_channels(&model);
        let result = model
            .encode_conversation(template, &self.messages)
            .map_err(anyhow::Error::from)
            .and_then(|prompt| {
                conversation::answer(&mut self.session, &prompt, &options, channels)
            });
        match result {
            Ok((outcome, text)) => {
                self.messages.push(conversation::message("assistant", text));
                if outcome.stop == StopReason::Cancelled {
                    eprintln!("(stopped)");
                }
                self.close(&outcome);
                Ok(())
            }
            Err(error) => {
                // The question is not part of the conversation then. Its images stay for the next one.
                let asked = self.messages.pop();
                self.images = asked.map_or(Vec::new(), |asked| asked.images);
                Err(error)
            }
        }
    }

    /// The line after an answer.
    fn close(&self, outcome: &Outcome) {
        eprintln!("{}", figures::speeds(outcome));
        figures::note_full_context(self.session.model(), outcome);
    }

    fn command(&mut self, args: &RunArgs, line: &str) -> anyhow::Result<Next> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match name {
            "help" | "?" => eprintln!("{HELP}"),
            "exit" | "quit" | "bye" => return Ok(Next::Leave),
            "clear" => self.clear(args),
            "image" => {
                anyhow::ensure!(!rest.is_empty(), "/image FILE");
                self.attach(images::read(rest.as_ref())?)?;
            }
            "audio" => {
                anyhow::ensure!(!rest.is_empty(), "/audio FILE");
                self.attach(images::read_sound(rest.as_ref())?)?;
            }
            "system" => {
                anyhow::ensure!(self.template.is_some(), "/system needs a chat template");
                self.clear(args);
                self.messages.retain(|message| message.role != "system");
                if !rest.is_empty() {
                    let system = conversation::message("system", rest.to_string());
                    self.messages.insert(0, system);
                }
            }
            "save" => self.save(rest)?,
            "load" => self.load(rest)?,
            _ => anyhow::bail!("/{name} is not a command; see /help"),
        }
        Ok(Next::Go)
    }

    /// Forgets all but the system message, and what every conversation begins with.
    fn clear(&mut self, args: &RunArgs) {
        self.messages.retain(|m| m.role == "system");
        if self.template.is_some() {
            let opening = conversation::opening(args).into_iter();
            self.messages.extend(opening.filter(|m| m.role != "system"));
        }
        self.images.clear();
        self.raw.clear();
    }

    fn save(&self, path: &str) -> anyhow::Result<()> {
        anyhow::ensure!(!path.is_empty(), "/save FILE");
        let messages: Vec<serde_json::Value> = self
            .messages
            .iter()
            .map(|m| {
                let images: Vec<&str> = m.images.iter().map(|i| i.name.as_str()).collect();
                serde_json::json!({ "role": m.role, "content": m.content, "images": images })
            })
            .collect();
        let all = serde_json::json!({ "messages": messages, "text": self.raw });
        files::replace_file(path.as_ref(), format!("{all:#}\n").as_bytes())
            .with_context(|| format!("{path}: cannot be written"))
    }

    fn load(&mut self, path: &str) -> anyhow::Result<()> {
        anyhow::ensure!(!path.is_empty(), "/load FILE");
        let text = source::read_text(path.as_ref())?;
        let all: serde_json::Value =
            serde_json::from_str(&text).with_context(|| format!("{path}: is not JSON"))?;
        let field = |m: &serde_json::Value, key: &str| {
            m.get(key).and_then(|v| v.as_str()).map(str::to_string)
        };
        let list = all.get("messages").and_then(|m| m.as_array());
        let list =
            list.with_context(|| format!("{path}: messages: missing; load what /save wrote"))?;
        let messages: Option<Vec<Message>> = list
            .iter()
            .map(|m| {
                Some(conversation::message(
                    &field(m, "role")?,
                    field(m, "content")?,
                ))
            })
            .collect();
        let mut messages = messages
            .with_context(|| format!("{path}: messages: each needs a role and a content"))?;
        for (message, stored) in messages.iter_mut().zip(list) {
            let files = stored.get("images").and_then(|all| all.as_array());
            let files = files.into_iter().flatten().filter_map(|file| file.as_str());
            let files: Vec<PathBuf> = files.map(PathBuf::from).collect();
            message.images = images::read_all(&files)?;
        }
        self.messages = messages;
        self.raw = field(&all, "text").unwrap_or_default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_may_have_several_lines() {
        let read = |lines: &[&str]| {
            let mut lines = lines.iter();
            let text = read(&mut |_| {
                let next = lines.next().ok_or(ReadlineError::Eof)?;
                Ok(next.to_string())
            });
            (text.ok(), lines.count())
        };
        let some = |text: &str, left: usize| (Some(text.to_string()), left);
        assert_eq!(read(&["hello", "x"]), some("hello", 1));
        assert_eq!(read(&["a\\", "b"]), some("a\nb", 0));
        assert_eq!(
            read(&["\"\"\"a", "b\\", "", "c\"\"\"", "x"]),
            some("a\nb\\\n\nc", 1)
        );
        assert_eq!(read(&["\"\"\"", "a", "\"\"\" "]), some("a", 0));
        assert_eq!(read(&["\"\"\"one line\"\"\"", "x"]), some("one line", 1));
        // The input ends within the message.
        assert_eq!(read(&["\"\"\"a", "b"]), (None, 0));
    }
}
