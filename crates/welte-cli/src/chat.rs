//! The interactive chat: a conversation with history, line editing and a few commands.

use crate::args::RunArgs;
use crate::{conversation, figures, hints, source, terminal};
use anyhow::Context;
use rustyline::error::ReadlineError;
use std::io::IsTerminal;
use std::process::ExitCode;
use welte::{ChatTemplate, Message, Outcome, Session, StopReason};
use welte_formats::files;

const HELP: &str = "\
/help           this list
/clear          forget the conversation
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
        raw: String::new(),
    };
    chat.messages.extend(
        args.system_prompt
            .clone()
            .map(|text| conversation::message("system", text)),
    );
    let mut editor = rustyline::DefaultEditor::new()?;
    // The editor installs a handler that would swallow the signal, so ours comes after it.
    conversation::on_interrupt(cancel)?;
    loop {
        match read(&mut |prompt| editor.readline(prompt)) {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                let _ = editor.add_history_entry(line.as_str());
                let done = match line.trim().strip_prefix('/') {
                    Some(command) => chat.command(command),
                    None => chat.turn(args, &line).map(|()| Next::Go),
                };
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
    fn turn(&mut self, args: &RunArgs, line: &str) -> anyhow::Result<()> {
        let model = self.session.model().clone();
        let options = args.options()?;
        let Some(template) = &self.template else {
            let text = format!("{}{line}", self.raw);
            let tokens = model.encode(&text)?;
            let (outcome, answer) =
                conversation::answer(&mut self.session, &tokens, &options, false)?;
            self.raw = format!("{text}{answer}");
            self.close(&outcome);
            return Ok(());
        };
        self.messages
            .push(conversation::message("user", line.to_string()));
        let channels = conversation::in_channels(&model);
        let result = model
            .encode_chat(template, &self.messages)
            .map_err(anyhow::Error::from)
            .and_then(|tokens| {
                conversation::answer(&mut self.session, &tokens, &options, channels)
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
                // The question is not part of the conversation then.
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// The line after an answer.
    fn close(&self, outcome: &Outcome) {
        eprintln!("{}", figures::speeds(outcome));
        figures::note_full_context(self.session.model(), outcome);
    }

    fn command(&mut self, line: &str) -> anyhow::Result<Next> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match name {
            "help" | "?" => eprintln!("{HELP}"),
            "exit" | "quit" | "bye" => return Ok(Next::Leave),
            "clear" => self.clear(),
            "system" => {
                anyhow::ensure!(self.template.is_some(), "/system needs a chat template");
                self.messages.clear();
                if !rest.is_empty() {
                    self.messages
                        .push(conversation::message("system", rest.to_string()));
                }
            }
            "save" => self.save(rest)?,
            "load" => self.load(rest)?,
            _ => anyhow::bail!("/{name} is not a command; see /help"),
        }
        Ok(Next::Go)
    }

    fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
        self.raw.clear();
    }

    fn save(&self, path: &str) -> anyhow::Result<()> {
        anyhow::ensure!(!path.is_empty(), "/save FILE");
        let messages: Vec<serde_json::Value> = self
            .messages
            .iter()
            .map(|m| serde_json::json!({ "role": m.role, "content": m.content }))
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
        self.messages = messages
            .with_context(|| format!("{path}: messages: each needs a role and a content"))?;
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
