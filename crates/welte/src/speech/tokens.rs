//! The tokens with a meaning of their own, and the languages.

use crate::Error;
use welte_formats::{WHISPER_ENGLISH, WHISPER_LANGUAGES};
use welte_text::Tokenizer;

/// The code of a language that is given by its code or its English name.
pub(crate) fn language_code(text: &str) -> Option<&'static str> {
    let text = text.trim().to_lowercase();
    let known = |(code, name): &&(&str, &str)| *code == text || *name == text;
    // Chinese, Norwegian and others have more than one usual code.
    let text = match text.split(['-', '_']).next()? {
        "jv" => "jw",
        "nb" => "no",
        "iw" => "he",
        "fil" => "tl",
        first => first,
    };
    let short = |(code, _): &&(&str, &str)| *code == text;
    let found = WHISPER_LANGUAGES.iter().find(known);
    found
        .or_else(|| WHISPER_LANGUAGES.iter().find(short))
        .map(|(code, _)| *code)
}

/// The English name of a language.
pub(crate) fn language_name(code: &str) -> &'static str {
    let found = WHISPER_LANGUAGES.iter().find(|(known, _)| *known == code);
    found.map_or("unknown", |(_, name)| name)
}

/// Tokens with a meaning of their own, by their ids.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    /// Ends a text. Tokens below it are text.
    pub(super) end: u32,
    pub(super) start: u32,
    pub(super) previous: u32,
    pub(super) transcribe: Option<u32>,
    pub(super) translate: Option<u32>,
    /// Stands in place of a text if nobody speaks.
    pub(super) no_speech: Option<u32>,
    pub(super) no_timestamps: u32,
    /// The first timestamp: 0 s. They are 20 ms apart.
    pub(super) timestamps: u32,
    /// The languages that the model knows, with their tokens. A model of English has none.
    pub(super) languages: Vec<(&'static str, u32)>,
    /// Never chosen.
    pub(super) suppressed: Vec<u32>,
    /// Not chosen as the first token of a window.
    pub(super) suppressed_first: Vec<u32>,
    /// Size of the vocabulary.
    pub(super) vocab: u32,
}

impl Tokens {
    pub(super) fn of(tokenizer: &Tokenizer, origin: &str, vocab: u32) -> Result<Tokens, Error> {
        let find = |name: &str| tokenizer.id_of(name).filter(|id| *id < vocab);
        let need = |name: &str| {
            find(name).ok_or_else(|| Error::File {
                path: origin.to_string(),
                problem: format!("its vocabulary has no token {name}, which models of speech have"),
            })
        };
        let no_timestamps = need("<|notimestamps|>")?;
        let languages = WHISPER_LANGUAGES.iter();
        let languages =
            languages.filter_map(|(code, _)| Some((*code, find(&format!("<|{code}|>"))?)));
        let mut tokens = Tokens {
            end: need("<|endoftext|>")?,
            start: need("<|startoftranscript|>")?,
            previous: need("<|startofprev|>")?,
            transcribe: find("<|transcribe|>"),
            translate: find("<|translate|>"),
            no_speech: find("<|nospeech|>").or(find("<|nocaptions|>")),
            no_timestamps,
            timestamps: no_timestamps + 1,
            languages: languages.collect(),
            suppressed: Vec::new(),
            suppressed_first: Vec::new(),
            vocab,
        };
        // The vocabularies of models of English have the tokens of languages, too, but these models were not trained with them.
        if vocab == WHISPER_ENGLISH {
            tokens.languages.clear();
        }
        let own = [
            tokens.transcribe,
            tokens.translate,
            Some(tokens.start),
            Some(tokens.previous),
            find("<|startoflm|>"),
            tokens.no_speech,
        ];
        tokens.suppressed.extend(own.into_iter().flatten());
        Ok(tokens)
    }

    /// The model knows several languages, so its prompts name the language and the task.
    pub(super) fn multilingual(&self) -> bool {
        !self.languages.is_empty()
    }

    pub(super) fn is_timestamp(&self, token: u32) -> bool {
        token >= self.timestamps
    }
}

/// Tokens of symbols and of music, which stand for what is not speech.
pub(super) fn symbols(tokenizer: &Tokenizer) -> Result<Vec<u32>, Error> {
    const SINGLE: &str = "\"#()*+/:;<=>@[\\]^_`{|}~「」『』";
    const JOINED: &str = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
    const NOTES: &str = "♩♪♫♬♭♮♯";
    let encode = |text: &str| tokenizer.encode(text, false, false);
    let mut found = Vec::new();
    for text in [" -", " '"] {
        found.extend(encode(text)?.first());
    }
    let single = SINGLE.chars().chain(NOTES.chars()).map(String::from);
    let all = single.chain(JOINED.split(' ').map(String::from));
    for symbol in all {
        let is_note = symbol.chars().count() == 1 && NOTES.contains(&symbol);
        for text in [symbol.clone(), format!(" {symbol}")] {
            let tokens = encode(&text)?;
            if tokens.len() == 1 || is_note {
                found.extend(tokens.first());
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_found_by_code_name_and_region() {
        for (text, code) in [
            ("de", Some("de")),
            ("German", Some("de")),
            ("pt-BR", Some("pt")),
            ("zh_TW", Some("zh")),
            ("haitian creole", Some("ht")),
            ("nb", Some("no")),
            ("xx", None),
            ("", None),
        ] {
            assert_eq!(language_code(text), code, "{text}");
        }
        assert_eq!(language_name("yue"), "cantonese");
    }
}
