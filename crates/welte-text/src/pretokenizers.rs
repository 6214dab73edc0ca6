//! The pre-tokenizers of byte-level BPE, by their names in GGUF files. They split a text into words before merging.

use crate::Error;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";

const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";

pub(crate) const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const KIMI: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Letters of cased scripts, as listed in the first DeepSeek vocabularies.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1f7d}ᾀ-ᾴᾶ-ᾼ\u{1fbe}ῂ-ῄῆ-ῌῐ-\u{1fd3}ῖ-\u{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+";
const DEEPSEEK_CJK: &str = r"[一-龥ࠀ-一가-\x{d7ff}]+";
const DEEPSEEK3_CJK: &str = r"[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK3_REST: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const SPARK_REST: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;

const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s";

/// Numbers are cut before it.
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Turkish suffixes stay with their apostrophe.
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words may contain single spaces.
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";

/// Groups of three digits from the right.
const AFMOE_DIGITS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
const AFMOE_SCRIPTS: &str = r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{0e40}-\x{0e7f}\x{0e80}-\x{0eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+";
const TINY_AYA_DIGITS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";

const YOUTU_SCRIPTS: &str = r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[！…“”‘’—：；，\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// Its names in GGUF files.
    pub names: &'static [&'static str],
    /// Regexes, applied in order, each to the pieces that the previous one left.
    pub regexes: &'static [&'static str],
    /// A word that is in the vocabulary becomes one token without merging.
    pub ignore_merges: bool,
    /// Add a beginning-of-text token if the file does not say.
    pub add_bos: bool,
}

const fn row(names: &'static [&'static str], regexes: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        names,
        regexes,
        ignore_merges: false,
        add_bos: false,
    }
}

/// The same, and a word that is in the vocabulary becomes one token without merging.
const fn words(names: &'static [&'static str], regexes: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        ignore_merges: true,
        ..row(names, regexes)
    }
}

/// All known pre-tokenizers.
pub const PRE_TOKENIZERS: &[PreTokenizer] = &[
    row(
        &["default"],
        &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    ),
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        regexes: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    row(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    words(&["glm4", "glm5"], &[LLAMA3]),
    words(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]),
    row(&["jais-2"], &[JAIS2]),
    row(
        &[
            "qwen2",
            "stablelm2",
            "hunyuan",
            "megrez",
            "deepseek-r1-qwen",
            "solar-open",
            "grok-2",
            "kormo",
            "f2llmv2",
        ],
        &[QWEN2],
    ),
    row(&["qwen35"], &[QWEN35]),
    row(&["ufakzeka"], &[UFAKZEKA]),
    row(&["laguna"], &[r"[^\n]+|\n+", QWEN2]),
    row(&["exaone-moe"], &[EXAONE_MOE]),
    row(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "modern-bert",
        ],
        &[GPT2],
    ),
    row(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    row(
        &["falcon"],
        &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    ),
    row(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            DEEPSEEK_MARKS,
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}+",
        ],
    ),
    row(
        &["deepseek-coder"],
        &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            DEEPSEEK_CJK,
            r"\p{N}",
        ],
    ),
    row(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3_REST],
    ),
    row(
        &["spark2_5"],
        &[r"\p{N}{1,3}", DEEPSEEK3_CJK, SPARK_REST, r"\p{N}"],
    ),
    row(&["afmoe"], &[AFMOE_DIGITS, AFMOE_SCRIPTS, DEEPSEEK3_REST]),
    words(&["youtu"], &[YOUTU_SCRIPTS, YOUTU]),
    row(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    row(&["viking"], &[BLOOM, r"\p{N}"]),
    PreTokenizer {
        names: &["tekken"],
        regexes: &[TEKKEN],
        ignore_merges: true,
        add_bos: true,
    },
    row(
        &["gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"],
        &[GPT4O],
    ),
    words(&["granite-embed-multi-97m"], &[GPT4O]),
    row(&["tiny_aya", "cohere2moe"], &[TINY_AYA_DIGITS, GPT4O]),
    row(&["kimi-k2"], &[KIMI]),
    row(&["superbpe"], &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    row(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    row(&["seed-coder"], &[SEED_CODER]),
    PreTokenizer {
        add_bos: true,
        ..row(
            &["chameleon"],
            &[
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ],
        )
    },
];

/// Pre-tokenizers that llama.cpp knows, and the reason why they are refused.
pub const REFUSED: &[(&[&str], &str)] = &[
    (
        &["gemma4", "granite-embed-multi-311m", "sarvam-moe"],
        "its tokens are pieces of plain text; such files are read if tokenizer.ggml.model is gemma4",
    ),
    (&["whitespace"], "its tokens are plain text"),
    (
        &["jina-v1-en", "jina-v2-code", "roberta-bpe"],
        "it puts separators around texts",
    ),
];

/// The pre-tokenizer of this name. The error lists all names.
pub fn named(name: &str) -> Result<&'static PreTokenizer, Error> {
    if let Some((_, why)) = REFUSED.iter().find(|(names, _)| names.contains(&name)) {
        return Err(Error::RefusedPreTokenizer {
            name: name.to_owned(),
            why,
        });
    }
    PRE_TOKENIZERS
        .iter()
        .find(|row| row.names.contains(&name))
        .ok_or_else(|| Error::UnknownPreTokenizer {
            name: crate::token::shortened(name),
            known: PRE_TOKENIZERS
                .iter()
                .flat_map(|row| row.names)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Separates runs of newlines from everything else.
pub(crate) fn newlines() -> Result<PreTokenizerWrapper, Error> {
    let pattern = SplitPattern::Regex(r"\n+".to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| Error::Backend(error.to_string()))?;
    Ok(PreTokenizerWrapper::Split(split))
}

impl PreTokenizer {
    /// Splits by the regexes, then maps bytes to the byte alphabet.
    pub(crate) fn build(&self) -> Result<PreTokenizerWrapper, Error> {
        let mut steps = Vec::with_capacity(self.regexes.len() + 1);
        for regex in self.regexes {
            let pattern = SplitPattern::Regex((*regex).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| Error::Backend(format!("{}: {error}", self.names[0])))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(
            false, false, false,
        )));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::tokenizer::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
    };

    fn pieces<'a>(steps: &PreTokenizerWrapper, text: &'a str) -> Vec<&'a str> {
        let mut pieces = PreTokenizedString::from(text);
        steps.pre_tokenize(&mut pieces).unwrap();
        let found = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let piece = |(_, (from, to), _): &(_, (usize, usize), _)| &text[*from..*to];
        found.iter().map(piece).collect()
    }

    #[track_caller]
    fn split(name: &str, words: &[&str]) {
        let steps = named(name).unwrap().build().unwrap();
        assert_eq!(pieces(&steps, &words.concat()), words, "{name}");
    }

    /// `tools/text-fixtures/splits.py` wrote what is expected.
    #[test]
    fn texts_are_split_as_llama_cpps_regexes_split_them() {
        let fixture = include_str!("../tests/fixtures/splits.json");
        let fixture: serde_json::Value = serde_json::from_str(fixture).unwrap();
        let texts: Vec<String> = serde_json::from_value(fixture["texts"].clone()).unwrap();
        let (mut checked, mut wrong) = (0, Vec::new());
        for row in fixture["splits"].as_array().unwrap() {
            let names: Vec<String> = serde_json::from_value(row["names"].clone()).unwrap();
            let lengths: Vec<Vec<usize>> = serde_json::from_value(row["lengths"].clone()).unwrap();
            for name in &names {
                let Ok(known) = named(name) else {
                    continue;
                };
                checked += 1;
                let steps = known.build().unwrap();
                for (text, expected) in texts.iter().zip(&lengths) {
                    let found = pieces(&steps, text);
                    let each = found.iter().map(|piece| piece.chars().count());
                    if each.collect::<Vec<_>>() != *expected {
                        wrong.push(format!("{name}: {found:?}, expected {expected:?}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let refused: usize = REFUSED.iter().map(|(names, _)| names.len()).sum();
        assert_eq!(checked, 91 - refused);
    }

    #[test]
    fn numbers_spaces_and_apostrophes_are_split_as_the_regexes_say() {
        split("afmoe", &["a", " ", "12", "345", "678", " ", "901", "!"]);
        split("tiny_aya", &["1", "234", "567", " b"]);
        split("minicpm5", &["123", "45", " a"]);
        split("ufakzeka", &["Ankara", "'ya"]);
        split("exaone-moe", &["two words", "."]);
        split("jais-2", &["a", "    ", "  ", " b"]);
        split("chameleon", &["IMGIMGABZ", "1", "2", "!", "  ", "x"]);
        split("laguna", &["a", " b", "\n\n", "c"]);
        split("spark2_5", &["a", "!", "\n", "\n", "b"]);
        split("youtu", &["\u{c5ec}\u{c6b0}", "a", "1", "2"]);
    }
}
