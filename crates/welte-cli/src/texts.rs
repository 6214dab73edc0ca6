//! Texts to embed or to score: arguments, lines, or JSON lines.

use crate::source;
use anyhow::{Context, bail};
use serde_json::Value;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Where texts come from.
#[derive(clap::Args)]
pub(crate) struct TextArgs {
    /// File with one text per line, or JSON lines if its name ends in .jsonl (repeatable; -: standard input)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,
    /// Every line of a file is JSON: a text, or an object with the field `text`
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// Texts that are computed together
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batch: u32,
}

/// A text, and the `id` of its JSON line.
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) id: Option<Value>,
}

impl TextArgs {
    /// The texts of arguments and files; of standard input if there are none.
    pub(crate) fn read(&self, words: &[String]) -> anyhow::Result<Vec<Text>> {
        let plain = |text: &String| Text {
            text: text.clone(),
            id: None,
        };
        let mut texts: Vec<Text> = words.iter().map(plain).collect();
        for file in &self.file {
            self.add(file, &mut texts)?;
        }
        if words.is_empty() && self.file.is_empty() {
            if std::io::stdin().is_terminal() {
                bail!("no text is given; give texts as arguments, -f FILE or a pipe");
            }
            self.add(Path::new("-"), &mut texts)?;
        }
        Ok(texts)
    }

    fn add(&self, file: &Path, texts: &mut Vec<Text>) -> anyhow::Result<()> {
        let json = self.jsonl || file.extension().is_some_and(|end| end == "jsonl");
        for (number, line) in source::read_text(file)?.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            texts.push(if json {
                of_json(line).with_context(|| format!("{}: line {}", file.display(), number + 1))?
            } else {
                Text {
                    text: line.to_string(),
                    id: None,
                }
            });
        }
        Ok(())
    }
}

fn of_json(line: &str) -> anyhow::Result<Text> {
    let mut value: Value = serde_json::from_str(line).context("is not JSON")?;
    if let Value::String(text) = value {
        return Ok(Text { text, id: None });
    }
    let id = value.get_mut("id").map(Value::take);
    match value.get_mut("text").map(Value::take) {
        Some(Value::String(text)) => Ok(Text { text, id }),
        _ => bail!("is neither a text nor an object whose field `text` is a text"),
    }
}

/// The model among the arguments, and the words that follow it. Without `-m`, the first word may name it.
pub(crate) fn split_words<'a>(
    model: Option<&str>,
    words: &'a [String],
) -> anyhow::Result<(String, &'a [String])> {
    match words {
        [first, rest @ ..] if model.is_none() && source::is_model(first) => {
            Ok((first.clone(), rest))
        }
        _ => Ok((source::pick(model, None)?, words)),
    }
}

/// The tokens of a text that fit in the context. A longer text is cut if that is wanted.
pub(crate) fn fit(
    model: &welte::Model,
    mut tokens: Vec<u32>,
    truncate: bool,
) -> anyhow::Result<Vec<u32>> {
    if truncate {
        model.tokenizer()?.truncate(&mut tokens, model.context());
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_are_texts_or_objects() {
        let text = |line| of_json(line).map(|text| (text.text, text.id));
        assert_eq!(text("\"a\"").unwrap(), ("a".into(), None));
        let object = text(r#"{"id": 7, "text": "b", "more": []}"#).unwrap();
        assert_eq!(object, ("b".into(), Some(7.into())));
        for bad in ["a", "7", "{}", r#"{"text": 7}"#] {
            assert!(text(bad).is_err(), "{bad}");
        }
    }
}
