//! `--logprobs`: the probabilities of the tokens of an answer, a line of JSON per token.

use serde_json::{Value, json};
use std::io::Write;
use welte::{GenerateOptions, Logprobs, Model, Outcome, Prompt, Session};

/// Generates, and writes a line per token as soon as its text is final.
pub(crate) fn answer(
    session: &mut Session,
    prompt: &Prompt,
    options: &GenerateOptions,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let model = session.model().clone();
    let mut stream = session.pieces(prompt, options)?;
    loop {
        let piece = stream.next().transpose()?;
        for logprobs in stream.take_logprobs() {
            writeln!(out, "{}", line(&model, logprobs))?;
        }
        out.flush()?;
        if piece.is_none() {
            break;
        }
    }
    let outcome = stream.outcome().cloned();
    outcome.ok_or_else(|| welte::Error::EngineStopped { why: None }.into())
}

/// A probability of 0 has the logarithm `null`.
fn line(model: &Model, logprobs: &Logprobs) -> Value {
    let one = |token: u32, logprob: f32| {
        let text = match model.tokenizer() {
            Ok(tokenizer) => String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned(),
            Err(_) => String::new(),
        };
        json!({ "token": token, "text": text, "logprob": logprob })
    };
    let mut line = one(logprobs.token(), logprobs.logprob());
    let top = logprobs
        .top()
        .iter()
        .map(|(token, value)| one(*token, *value));
    line["top"] = top.collect();
    line
}
