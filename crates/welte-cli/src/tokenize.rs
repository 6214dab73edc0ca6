//! `welte tokenize`: text to token ids.

use crate::args::TokenizeArgs;
use crate::source;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

pub(crate) fn run(args: &TokenizeArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.model.as_deref(), args.source.as_deref())?;
    let tokenizer = welte::tokenizer(welte::open(&source)?.as_ref())?;
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => source::read_text(path)?,
        (None, None) if std::io::stdin().is_terminal() => {
            anyhow::bail!("no text is given; use -p TEXT, -f FILE or a pipe")
        }
        (None, None) => source::read_text("-".as_ref())?,
    };
    let ids = tokenizer.encode(&text, !args.no_bos, !args.no_parse_special)?;
    let mut out = std::io::BufWriter::new(crate::terminal::stdout());
    if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "[{}]", ids.join(", "))?;
    } else {
        for id in ids {
            let bytes = tokenizer.token_bytes(id);
            let shown = match std::str::from_utf8(bytes) {
                Ok("") => tokenizer.token_text(id).to_string(),
                Ok(text) => format!("{text:?}"),
                Err(_) => bytes.iter().map(|b| format!("<{b:02X}>")).collect(),
            };
            writeln!(out, "{id:>7}  {shown}")?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
