//! Mistral's `tekken.json`: the bytes of tokens by rank. Merges follow from the ranks.

use crate::pretokenizers::TEKKEN;
use crate::tokenizer::letter_byte;
use crate::{Error, Vocabulary, from_base64};
use serde::Deserialize;
use std::collections::HashMap;

/// The vocabulary has its pre-tokenizer in GGUF's list under this name.
const NAME: &str = "tekken";
const FILE: &str = "tekken.json";
/// The most tokens, and the most work for their merges: the sum of the squares of their lengths.
const MOST_TOKENS: usize = 1 << 20;
const MOST_WORK: usize = 1 << 28;
const CONTROL: i32 = 3;
const NORMAL: i32 = 1;

/// What files before version 7 do not list.
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Token {
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::Json {
        file: FILE,
        problem: problem.into(),
    }
}

impl Vocabulary {
    /// The vocabulary of a `tekken.json`.
    pub fn from_tekken(text: &str) -> Result<Vocabulary, Error> {
        let file: File = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let Config {
            pattern,
            default_vocab_size,
            default_num_special_tokens: special,
        } = file.config;
        if pattern != TEKKEN {
            return Err(wrong("config.pattern: is not the one that is known"));
        }
        let count = default_vocab_size.checked_sub(special);
        let count = count.filter(|count| *count <= file.vocab.len().min(MOST_TOKENS));
        let count = count.filter(|_| special <= MOST_TOKENS).ok_or_else(|| {
            wrong(format!(
                "config: {default_vocab_size} tokens with {special} special ones, of {}",
                file.vocab.len()
            ))
        })?;
        let mut tokens: Vec<String> = (0..special).map(|id| format!("<SPECIAL_{id}>")).collect();
        let listed = match file.special_tokens {
            Some(listed) => listed.into_iter().map(|s| (s.rank, s.token_str)).collect(),
            None => (0..).zip(SPECIAL.map(String::from)).collect::<Vec<_>>(),
        };
        for (rank, text) in listed {
            let token = tokens.get_mut(rank);
            *token.ok_or_else(|| wrong(format!("special_tokens: rank {rank} of {special}")))? =
                text;
        }
        let spelled = file.vocab[..count].iter().enumerate();
        let spelled = spelled.map(|(rank, token)| {
            let bytes = from_base64(&token.token_bytes).filter(|bytes| !bytes.is_empty());
            bytes.ok_or_else(|| wrong(format!("vocab[{rank}].token_bytes: is not base64")))
        });
        let spelled = spelled.collect::<Result<Vec<Vec<u8>>, Error>>()?;
        let letters = letters();
        let text = |bytes: &[u8]| -> String {
            bytes
                .iter()
                .map(|byte| letters[usize::from(*byte)])
                .collect()
        };
        let pairs = merges(&spelled)?;
        let merges = pairs
            .iter()
            .map(|[left, right]| format!("{} {}", text(left), text(right)));
        let merges = merges.collect();
        tokens.extend(spelled.iter().map(|bytes| text(bytes)));
        let id = |text: &str| tokens[..special].iter().position(|token| token == text);
        let id = |text: &str| id(text).map(|id| id as u32);
        let mut types = vec![CONTROL; special];
        types.resize(tokens.len(), NORMAL);
        Ok(Vocabulary {
            model: "gpt2".into(),
            pre: Some(NAME.into()),
            bos: id("<s>"),
            eos: id("</s>"),
            unk: id("<unk>"),
            pad: id("<pad>"),
            add_bos: Some(true),
            token_types: types,
            merges,
            tokens,
            ..Vocabulary::default()
        })
    }
}

/// The characters of the byte alphabet.
fn letters() -> Vec<char> {
    let all = (0..0x144).filter_map(char::from_u32);
    let mut letters: Vec<(u8, char)> = all
        .filter_map(|letter| Some((letter_byte(letter)?, letter)))
        .collect();
    letters.sort_unstable();
    letters.into_iter().map(|(_, letter)| letter).collect()
}

/// How each token is made of two others: those that remain when neighbours of the lowest rank below its own are merged.
fn merges(spelled: &[Vec<u8>]) -> Result<Vec<[&[u8]; 2]>, Error> {
    let work = spelled.iter().try_fold(0usize, |sum, bytes| {
        sum.checked_add(bytes.len().checked_pow(2)?)
    });
    if work.is_none_or(|work| work > MOST_WORK) {
        return Err(wrong("vocab: its tokens are too long"));
    }
    let ranks: HashMap<&[u8], usize> = (0..)
        .zip(spelled)
        .map(|(rank, bytes)| (bytes.as_slice(), rank))
        .collect();
    let mut all = Vec::with_capacity(spelled.len());
    for (rank, bytes) in spelled.iter().enumerate() {
        // Where each part begins, and where the last one ends.
        let mut borders: Vec<usize> = (0..=bytes.len()).collect();
        while borders.len() > 3 {
            let pairs = borders.windows(3).enumerate();
            let known = pairs.filter_map(|(at, border)| {
                let rank = ranks.get(&bytes[border[0]..border[2]])?;
                Some((*rank, at))
            });
            match known.filter(|(own, _)| *own < rank).min() {
                Some((_, at)) => borders.remove(at + 1),
                None => break,
            };
        }
        if let [_, middle, _] = borders[..] {
            all.push([&bytes[..middle], &bytes[middle..]]);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokenizer;

    /// All bytes, then these words.
    fn file(words: &[&str], special: &str) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let base64 = |bytes: &[u8]| {
            let mut text = String::new();
            for part in bytes.chunks(3) {
                let word = part
                    .iter()
                    .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
                let word = word << (8 * (3 - part.len()));
                for letter in 0..=part.len() {
                    let at = (word >> (18 - 6 * letter)) & 63;
                    text.push(LETTERS[at as usize].into());
                }
            }
            text
        };
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        let tokens: Vec<String> = bytes.chain(words).map(|b| base64(&b)).collect();
        let vocab: Vec<_> = tokens
            .iter()
            .map(|text| serde_json::json!({ "token_bytes": text }))
            .collect();
        let config = serde_json::json!({
            "pattern": TEKKEN, "default_vocab_size": vocab.len() + 30, "default_num_special_tokens": 30,
        });
        let vocab = serde_json::Value::from(vocab);
        format!(r#"{{"config": {config}, "vocab": {vocab}{special}}}"#)
    }

    const WORDS: [&str; 7] = ["he", "ll", "llo", "hello", " wo", "wor", "é"];

    #[test]
    fn merges_follow_from_ranks() {
        let special = r#", "special_tokens": [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"},
            {"rank": 24, "token_str": "[AUDIO]"}]"#;
        let vocabulary = Vocabulary::from_tekken(&file(&WORDS, special)).unwrap();
        // "hello" is "he" and "llo"; "wor" cannot be made of two.
        let merges: Vec<&str> = vocabulary.merges.iter().map(String::as_str).collect();
        assert_eq!(merges, ["h e", "l l", "ll o", "he llo", "Ã ©"]);
        let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
        let first = 30 + 256;
        let encode = |text: &str| tokenizer.encode(text, false, true).unwrap();
        assert_eq!(encode("hello"), [first + 3]);
        assert_eq!(encode("hell"), [first, first + 1]);
        assert_eq!(encode("[AUDIO]é"), [24, first + 6]);
        assert_eq!(encode("<SPECIAL_7>"), [7]);
        assert_eq!(tokenizer.encode("h", true, true).unwrap(), [1, 30 + 104]);
        assert!(tokenizer.is_control(24) && !tokenizer.is_control(first));
        // Older files list no special tokens.
        let older = Vocabulary::from_tekken(&file(&WORDS, "")).unwrap();
        assert_eq!(older.tokens[3], "[INST]");
    }

    #[test]
    fn damaged_files_are_refused() {
        let whole = file(&WORDS, "");
        let long = "x".repeat(20_000);
        for (text, said) in [
            ("{}".to_string(), "missing field"),
            (whole.replace(r"\\p{N}|", r"\\p{N}{1,3}|"), "config.pattern"),
            (
                whole.replace(
                    r#""default_vocab_size":293"#,
                    r#""default_vocab_size":9999"#,
                ),
                "9999 tokens",
            ),
            (
                whole.replace(r#""default_vocab_size":293"#, r#""default_vocab_size":2"#),
                "2 tokens",
            ),
            (
                whole.replace(r#""token_bytes":"aGU""#, r#""token_bytes":"!""#),
                "vocab[256]",
            ),
            (
                file(
                    &WORDS,
                    r#", "special_tokens": [{"rank": 30, "token_str": "x"}]"#,
                ),
                "rank 30 of 30",
            ),
            (file(&[&long], ""), "too long"),
        ] {
            let error = Vocabulary::from_tekken(&text).unwrap_err().to_string();
            assert!(
                error.contains("tekken.json") && error.contains(said),
                "{said}: {error}"
            );
        }
    }
}
