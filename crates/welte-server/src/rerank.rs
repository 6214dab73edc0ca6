//! Documents in the order of their relevance for a query: `/v1/rerank` and `/rerank`, as llama.cpp and Jina have them.

use crate::app::App;
use crate::error::{Failure, Outcome, ok};
use crate::fields::Fields;
use crate::length;
use crate::models::Lease;
use serde_json::{Value, json};
use std::sync::Arc;
use welte::Pair;

/// The most documents of a request.
const MOST_DOCUMENTS: usize = 2048;

/// `POST /v1/rerank`
pub(crate) async fn rerank(app: Arc<App>, mut fields: Fields) -> Outcome {
    let served = app.lease_of(&mut fields).await?.without_adapter()?;
    let query: String = fields.need("query")?;
    // TEI's name, and its form of the response.
    let tei: Option<Vec<Value>> = fields.take("texts")?;
    let is_tei = tei.is_some();
    let (name, documents) = match tei {
        Some(texts) => ("texts", texts),
        None => ("documents", fields.need("documents")?),
    };
    let documents = texts(&fields, name, &documents)?;
    let instruction: Option<String> = fields.take("instruction")?;
    let top: usize = fields.take("top_n")?.unwrap_or(usize::MAX);
    let returns: Option<bool> = fields.take("return_documents")?;
    let returns_text: Option<bool> = fields.take("return_text")?;
    let returns = returns.or(returns_text).unwrap_or(false);
    fields.finish()?;
    if !served.model.scores_pairs() {
        let message = format!("model {:?} is not a reranker", served.id);
        return Err(Failure::request(message));
    }
    let pairs = encode(&app, &served, query, documents.clone(), instruction).await?;
    let tokens: usize = pairs.iter().map(|pair| pair.tokens.len()).sum();
    served.metrics.embedded(tokens);
    let deadline = served.deadline(&app.options);
    let mut scored = Vec::with_capacity(pairs.len());
    // As many as the engine computes together, so that a large request does not fill its queue.
    let together = served.model.program().slots.max(1) as usize;
    for some in pairs.chunks(together) {
        let begin = |pair: &Pair| {
            let score = served.engine.score(pair.clone(), deadline);
            score.map_err(|error| served.refused(error))
        };
        let begun: Vec<_> = some.iter().map(begin).collect::<Result<_, _>>()?;
        for score in begun {
            scored.push((scored.len(), score.await?));
        }
    }
    scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if is_tei {
        let result = |(index, score): (usize, f32)| {
            let mut result = json!({ "index": index, "score": score });
            if returns {
                result["text"] = documents[index].as_str().into();
            }
            result
        };
        return Ok(ok(&scored.into_iter().take(top).map(result).collect()));
    }
    let result = |(index, score): (usize, f32)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if returns {
            result["document"] = json!({ "text": documents[index] });
        }
        result
    };
    let results: Vec<Value> = scored.into_iter().take(top).map(result).collect();
    Ok(ok(&json!({
        "object": "list", "model": served.id, "results": results,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

/// The documents: texts, or objects with a text.
fn texts(fields: &Fields, name: &str, documents: &[Value]) -> Result<Vec<String>, Failure> {
    if documents.is_empty() || documents.len() > MOST_DOCUMENTS {
        let problem = format!(
            "must have 1 to {MOST_DOCUMENTS} texts, not {}",
            documents.len()
        );
        return Err(fields.wrong(name, problem));
    }
    let text = |(i, document): (usize, &Value)| {
        let text = document.as_str().or_else(|| document["text"].as_str());
        let problem = "must be a text, or an object whose field `text` is one";
        text.map(str::to_string)
            .ok_or_else(|| fields.wrong(&format!("{name}[{i}]"), problem))
    };
    documents.iter().enumerate().map(text).collect()
}

async fn encode(
    app: &App,
    served: &Lease,
    query: String,
    documents: Vec<String>,
    instruction: Option<String>,
) -> Result<Vec<Pair>, Failure> {
    let lease = served.clone();
    let encode = move || {
        let instruction = instruction.as_deref();
        let instruction = instruction.unwrap_or(welte::RERANK_INSTRUCTION);
        length::check(&lease, &query)?;
        let pair = |text: &String| {
            length::check(&lease, text)?;
            Ok(lease.model.encode_pair(&query, text, instruction)?)
        };
        documents.iter().map(pair).collect()
    };
    app.bodies.aside(encode).await
}
