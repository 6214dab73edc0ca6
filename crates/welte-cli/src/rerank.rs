//! `welte rerank`: documents in the order of their relevance for a query, as JSON lines.

use crate::flags::LoadArgs;
use crate::source;
use crate::texts::{self, TextArgs};
use anyhow::{Context, bail};
use serde_json::json;
use std::collections::VecDeque;
use std::io::Write;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct RerankArgs {
    /// A model (file or directory) unless -m names it, the query, and documents
    #[arg(value_name = "[MODEL] QUERY DOCUMENT")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    texts: TextArgs,
    /// What makes a document relevant, for models that take an instruction
    #[arg(long, value_name = "TEXT", default_value = welte::RERANK_INSTRUCTION)]
    instruction: String,
    /// Print the N best documents only
    #[arg(long, value_name = "N")]
    top_n: Option<usize>,
    /// Print the documents too
    #[arg(long)]
    return_documents: bool,
}

pub(crate) fn run(args: &RerankArgs) -> anyhow::Result<ExitCode> {
    let (source, words) = texts::split_words(args.load.model.as_deref(), &args.words)?;
    let [query, words @ ..] = words else {
        bail!("no query is given; the first text is the query, the others are documents")
    };
    let documents = args.texts.read(words)?;
    let mut options = args.load.options()?;
    anyhow::ensure!(
        options.adapters.is_empty() && options.max_adapters == 0,
        "--lora: adapters are for texts that are generated"
    );
    (options.scores, options.slots) = (true, args.texts.batch);
    let model = source::load_with(&source, &options)?;
    if !model.vector_settings().scores {
        eprintln!(
            "note: {source} does not say that it is a reranker; the scores of a chat model mean little"
        );
    }
    let engine = model.engine()?;
    let (mut begun, mut scored) = (VecDeque::new(), Vec::new());
    let mut rest = documents.iter();
    loop {
        while begun.len() < 2 * args.texts.batch as usize
            && let Some(document) = rest.next()
        {
            let pair = model.encode_pair(query, &document.text, &args.instruction)?;
            let tokens = pair.tokens.len();
            begun.push_back((engine.score(pair, None)?, tokens));
        }
        let Some((score, tokens)) = begun.pop_front() else {
            break;
        };
        scored.push((scored.len(), score.wait()?, tokens));
    }
    scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut out = std::io::BufWriter::new(crate::terminal::stdout());
    for (index, score, tokens) in scored.into_iter().take(args.top_n.unwrap_or(usize::MAX)) {
        let document = documents.get(index).context("a document is lost")?;
        let mut line = json!({ "index": index, "relevance_score": score, "tokens": tokens });
        if let Some(id) = &document.id {
            line["id"] = id.clone();
        }
        if args.return_documents {
            line["document"] = document.text.as_str().into();
        }
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
