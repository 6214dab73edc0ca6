//! Whisper models in whisper.cpp's own files (`ggml-base.bin`), which are older than GGUF.
//!
//! A file consists of a magic number, eleven sizes, the filters of the spectrogram, the vocabulary, and tensors one after the
//! other, each with its sizes, type and name. Here they have the names and keys of transformers; the vocabulary has GGUF's keys.

use crate::checkpoint::{Checkpoint, Dialect, Error, Metadata, TensorInfo, Value};
use crate::gguf::format_of;
use crate::mapped;
use crate::tensors::Tensors;
use memmap2::Mmap;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The first four bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"lmgg";

/// The order of the sizes, by the keys of transformers.
const SIZES: [&str; 11] = [
    "vocab_size",
    "max_source_positions",
    "d_model",
    "encoder_attention_heads",
    "encoder_layers",
    "max_target_positions",
    "decoder_d_model",
    "decoder_attention_heads",
    "decoder_layers",
    "num_mel_bins",
    "ftype",
];
/// Quantised blocks have their present layout from this version on, which is a part of the file's type.
const VERSION: u32 = 2;
const VERSION_FACTOR: u32 = 1000;
/// Bounds of what is allocated before the file's size is known to hold it.
const MOST_VOCAB: u32 = 1 << 20;
const MOST_NAME: u32 = 256;
/// The vocabulary of Whisper's models of English; larger ones know several languages.
pub const WHISPER_ENGLISH: u32 = 51_864;
/// Whisper's languages by the codes of their tokens, with English names. The order is that of the tokens.
pub const WHISPER_LANGUAGES: [(&str, &str); 100] = [
    ("en", "english"),
    ("zh", "chinese"),
    ("de", "german"),
    ("es", "spanish"),
    ("ru", "russian"),
    ("ko", "korean"),
    ("fr", "french"),
    ("ja", "japanese"),
    ("pt", "portuguese"),
    ("tr", "turkish"),
    ("pl", "polish"),
    ("ca", "catalan"),
    ("nl", "dutch"),
    ("ar", "arabic"),
    ("sv", "swedish"),
    ("it", "italian"),
    ("id", "indonesian"),
    ("hi", "hindi"),
    ("fi", "finnish"),
    ("vi", "vietnamese"),
    ("he", "hebrew"),
    ("uk", "ukrainian"),
    ("el", "greek"),
    ("ms", "malay"),
    ("cs", "czech"),
    ("ro", "romanian"),
    ("da", "danish"),
    ("hu", "hungarian"),
    ("ta", "tamil"),
    ("no", "norwegian"),
    ("th", "thai"),
    ("ur", "urdu"),
    ("hr", "croatian"),
    ("bg", "bulgarian"),
    ("lt", "lithuanian"),
    ("la", "latin"),
    ("mi", "maori"),
    ("ml", "malayalam"),
    ("cy", "welsh"),
    ("sk", "slovak"),
    ("te", "telugu"),
    ("fa", "persian"),
    ("lv", "latvian"),
    ("bn", "bengali"),
    ("sr", "serbian"),
    ("az", "azerbaijani"),
    ("sl", "slovenian"),
    ("kn", "kannada"),
    ("et", "estonian"),
    ("mk", "macedonian"),
    ("br", "breton"),
    ("eu", "basque"),
    ("is", "icelandic"),
    ("hy", "armenian"),
    ("ne", "nepali"),
    ("mn", "mongolian"),
    ("bs", "bosnian"),
    ("kk", "kazakh"),
    ("sq", "albanian"),
    ("sw", "swahili"),
    ("gl", "galician"),
    ("mr", "marathi"),
    ("pa", "punjabi"),
    ("si", "sinhala"),
    ("km", "khmer"),
    ("sn", "shona"),
    ("yo", "yoruba"),
    ("so", "somali"),
    ("af", "afrikaans"),
    ("oc", "occitan"),
    ("ka", "georgian"),
    ("be", "belarusian"),
    ("tg", "tajik"),
    ("sd", "sindhi"),
    ("gu", "gujarati"),
    ("am", "amharic"),
    ("yi", "yiddish"),
    ("lo", "lao"),
    ("uz", "uzbek"),
    ("fo", "faroese"),
    ("ht", "haitian creole"),
    ("ps", "pashto"),
    ("tk", "turkmen"),
    ("nn", "nynorsk"),
    ("mt", "maltese"),
    ("sa", "sanskrit"),
    ("lb", "luxembourgish"),
    ("my", "myanmar"),
    ("bo", "tibetan"),
    ("tl", "tagalog"),
    ("mg", "malagasy"),
    ("as", "assamese"),
    ("tt", "tatar"),
    ("haw", "hawaiian"),
    ("ln", "lingala"),
    ("ha", "hausa"),
    ("ba", "bashkir"),
    ("jw", "javanese"),
    ("su", "sundanese"),
    ("yue", "cantonese"),
];

/// A model of whisper.cpp.
pub struct GgmlWhisper {
    origin: String,
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    tensors: Tensors,
    /// Where each tensor's data begins.
    starts: Vec<usize>,
}

impl GgmlWhisper {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<GgmlWhisper, Error> {
        let map = mapped::map(path)?;
        let mut reader = Reader {
            bytes: &map,
            at: MAGIC.len(),
            path,
        };
        let mut metadata = Metadata::new();
        let mut sizes = HashMap::new();
        for key in SIZES {
            let value = reader.number(key)?;
            sizes.insert(key, value);
            if key != "ftype" && key != "decoder_d_model" {
                metadata.insert(key.to_string(), Value::U64(value.into()));
            }
        }
        let kind = sizes["ftype"];
        if kind >= VERSION_FACTOR && kind / VERSION_FACTOR != VERSION
            || (2..VERSION_FACTOR).contains(&kind)
        {
            return Err(reader.wrong(
                "ftype",
                format!("is {kind}: an older layout of quantised blocks; quantise the model anew"),
            ));
        }
        if sizes["d_model"] != sizes["decoder_d_model"] {
            return Err(reader.wrong("sizes", "encoder and decoder differ in their width"));
        }
        for part in ["encoder_ffn_dim", "decoder_ffn_dim"] {
            let width = 4 * u64::from(sizes["d_model"]);
            metadata.insert(part.to_string(), Value::U64(width));
        }
        metadata.insert(
            "general.architecture".into(),
            Value::String("whisper".into()),
        );
        reader.skip_filters()?;
        let vocab = sizes["vocab_size"];
        let words = reader.words(vocab)?;
        vocabulary(&words, vocab, &mut metadata)
            .map_err(|problem| reader.wrong("vocabulary", problem))?;
        let (mut tensors, mut starts) = (Tensors::default(), Vec::new());
        while reader.at < map.len() {
            let (tensor, start) = reader.tensor()?;
            let name = tensor.name.clone();
            if !tensors.add(tensor) {
                return Err(reader.wrong(&name, "is there twice"));
            }
            starts.push(start);
        }
        Ok(GgmlWhisper {
            origin: path.display().to_string(),
            path: path.to_path_buf(),
            metadata,
            tensors,
            starts,
            map,
        })
    }
}

impl Checkpoint for GgmlWhisper {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn dialect(&self) -> Dialect {
        Dialect::HuggingFace
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.tensors.list()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let (number, rows) = self.tensors.rows(&self.path, tensor, first, rows)?;
        let bytes = mapped::rows(&self.map, tensor, self.starts[number], rows);
        bytes
            .map(Cow::Borrowed)
            .ok_or_else(|| tensor.wrong(&self.path, "is not completely in the file"))
    }

    fn release(&self) {
        mapped::release(&self.map);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl<'a> Reader<'a> {
    fn wrong(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::malformed(self.path, field, problem)
    }

    fn take(&mut self, what: &str, count: usize) -> Result<&'a [u8], Error> {
        let end = self
            .at
            .checked_add(count)
            .filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| {
            self.wrong(
                what,
                "the file ends here; the download may be incomplete: download it again",
            )
        })?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn number(&mut self, what: &str) -> Result<u32, Error> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn skip_filters(&mut self) -> Result<(), Error> {
        let what = "filters of the spectrogram";
        let (bins, values) = (self.number(what)? as usize, self.number(what)? as usize);
        let bytes = bins.saturating_mul(values).saturating_mul(4);
        self.take(what, bytes).map(drop)
    }

    /// The words of the vocabulary, as bytes.
    fn words(&mut self, vocab: u32) -> Result<Vec<&'a [u8]>, Error> {
        let what = "vocabulary";
        let count = self.number(what)?;
        if vocab > MOST_VOCAB || count > vocab {
            return Err(self.wrong(
                what,
                format!("has {count} words, and {vocab} tokens in all"),
            ));
        }
        let mut words = Vec::new();
        for _ in 0..count {
            let length = self.number(what)? as usize;
            words.push(self.take(what, length)?);
        }
        Ok(words)
    }

    /// The next tensor, and where its data begins.
    fn tensor(&mut self) -> Result<(TensorInfo, usize), Error> {
        let what = "tensor";
        let (count, length, kind) = (self.number(what)?, self.number(what)?, self.number(what)?);
        if !(1..=4).contains(&count) || length > MOST_NAME {
            let problem =
                format!("{count} dimensions and a name of {length} bytes: the file is damaged");
            return Err(self.wrong(what, problem));
        }
        let mut sizes = Vec::new();
        for _ in 0..count {
            sizes.push(self.number(what)? as usize);
        }
        let name = self.take(what, length as usize)?;
        let name =
            std::str::from_utf8(name).map_err(|_| self.wrong(what, "its name is not UTF-8"))?;
        let name = name_of(name);
        let format = format_of(kind)
            .ok_or_else(|| self.wrong(&name, format!("has the unknown type {kind}")))?;
        let (mut k, rest) = (sizes[0], &sizes[1..]);
        let rows = rest
            .iter()
            .try_fold(1usize, |all, size| all.checked_mul(*size));
        let mut n = rows.ok_or_else(|| self.wrong(&name, "is too large"))?;
        // Biases of convolutions are columns.
        if k == 1 {
            (n, k) = (1, n);
        }
        let row = format.bytes(k).filter(|_| k > 0 && n > 0);
        let row = row.ok_or_else(|| {
            self.wrong(
                &name,
                format!("rows of {k} are not whole blocks of {}", format.name()),
            )
        })?;
        let start = self.at;
        let size = row
            .checked_mul(n)
            .ok_or_else(|| self.wrong(&name, "is too large"))?;
        self.take(&name, size)?;
        let stack = 1;
        Ok((
            TensorInfo {
                name,
                format,
                n,
                k,
                stack,
            },
            start,
        ))
    }
}

/// The name that transformers has for a tensor.
fn name_of(name: &str) -> String {
    let Some((part, rest)) = name.split_once('.') else {
        return name.to_string();
    };
    let own = match rest {
        "positional_embedding" => "embed_positions.weight".to_string(),
        "token_embedding.weight" => "embed_tokens.weight".to_string(),
        _ => {
            let (stem, kind) = rest.rsplit_once('.').unwrap_or((rest, ""));
            let stem = match stem {
                "ln" | "ln_post" => "layer_norm".to_string(),
                _ => match stem.strip_prefix("blocks.").and_then(|s| s.split_once('.')) {
                    Some((layer, module)) => format!("layers.{layer}.{}", module_of(module)),
                    None => stem.to_string(),
                },
            };
            format!("{stem}.{kind}")
        }
    };
    format!("model.{part}.{own}")
}

fn module_of(module: &str) -> String {
    let known = match module {
        "mlp_ln" => "final_layer_norm",
        "mlp.0" => "fc1",
        "mlp.2" => "fc2",
        "attn_ln" => "self_attn_layer_norm",
        "cross_attn_ln" => "encoder_attn_layer_norm",
        _ => {
            let Some((attention, matrix)) = module.split_once('.') else {
                return module.to_string();
            };
            let attention = if attention == "cross_attn" {
                "encoder_attn"
            } else {
                "self_attn"
            };
            let matrix = match matrix {
                "query" => "q_proj",
                "key" => "k_proj",
                "value" => "v_proj",
                _ => "out_proj",
            };
            return format!("{attention}.{matrix}");
        }
    };
    known.to_string()
}

/// The vocabulary with GGUF's keys. Files have the words only; the tokens after them follow from their number.
fn vocabulary(words: &[&[u8]], vocab: u32, metadata: &mut Metadata) -> Result<(), String> {
    let multilingual = vocab > WHISPER_ENGLISH;
    let end = 50_256 + usize::from(multilingual);
    if words.len() < end || (vocab as usize) < end + 108 {
        return Err(format!(
            "has {} words and {vocab} tokens in all, expected {end} and more",
            words.len()
        ));
    }
    let words = &words[..end];
    let languages = (vocab as usize).saturating_sub(51_765 + usize::from(multilingual));
    let languages = languages.clamp(99, WHISPER_LANGUAGES.len());
    let mut tokens: Vec<String> = words.iter().map(|word| letters(word)).collect();
    let mut types = vec![1; end];
    let marks = [
        "translate",
        "transcribe",
        "startoflm",
        "startofprev",
        "nospeech",
        "notimestamps",
    ];
    let special = ["endoftext", "startoftranscript"].into_iter();
    let special = special
        .chain(WHISPER_LANGUAGES[..languages].iter().map(|(code, _)| *code))
        .chain(marks);
    tokens.extend(special.map(|name| format!("<|{name}|>")));
    // Control tokens are 3, unused ones 5.
    types.resize(tokens.len(), 3);
    let times = (vocab as usize).saturating_sub(tokens.len());
    tokens.extend((0..times).map(|i| format!("<|{}.{:02}|>", i / 50, i % 50 * 2)));
    types.resize(tokens.len(), 3);
    let strings = |all: Vec<String>| Value::Array(all.into_iter().map(Value::String).collect());
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    metadata.insert(key("merges"), strings(merges(words)));
    metadata.insert(key("model"), Value::String("gpt2".into()));
    metadata.insert(key("pre"), Value::String("gpt-2".into()));
    metadata.insert(key("tokens"), strings(tokens));
    let types = types.into_iter().map(Value::I64).collect();
    metadata.insert(key("token_type"), Value::Array(types));
    metadata.insert(key("eos_token_id"), Value::U64(end as u64));
    metadata.insert(key("add_bos_token"), Value::Bool(false));
    Ok(())
}

/// Bytes in the alphabet of byte-level vocabularies: printable ones are themselves, the others follow from U+0100 on.
fn letters(word: &[u8]) -> String {
    let letter = |byte: &u8| match *byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(*byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(*byte)).unwrap_or('?'),
        0x7f..=0xa0 => char::from_u32(0x121 + u32::from(*byte) - 0x7f).unwrap_or('?'),
        0xad => '\u{143}',
    };
    word.iter().map(letter).collect()
}

/// The merges of a vocabulary whose words are ordered by them: each word is merged from the two that are left when all earlier
/// merges are done.
fn merges(words: &[&[u8]]) -> Vec<String> {
    let ranks: HashMap<&[u8], usize> = words.iter().copied().zip(0..).collect();
    let mut merges = Vec::new();
    for (rank, word) in words.iter().enumerate().filter(|(_, word)| word.len() > 1) {
        let mut ends: Vec<usize> = (0..=word.len()).collect();
        while ends.len() > 3 {
            let pair = |at: usize| {
                ranks
                    .get(&word[ends[at]..ends[at + 2]])
                    .filter(|r| **r < rank)
            };
            let best = (0..ends.len() - 2)
                .filter_map(|at| Some((pair(at)?, at)))
                .min();
            let Some((_, at)) = best else { break };
            ends.remove(at + 1);
        }
        if let [start, middle, end] = ends[..] {
            merges.push(format!(
                "{} {}",
                letters(&word[start..middle]),
                letters(&word[middle..end])
            ));
        }
    }
    merges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers() {
        for (theirs, ours) in [
            (
                "encoder.positional_embedding",
                "model.encoder.embed_positions.weight",
            ),
            ("encoder.conv1.bias", "model.encoder.conv1.bias"),
            ("encoder.ln_post.weight", "model.encoder.layer_norm.weight"),
            (
                "encoder.blocks.11.attn.query.bias",
                "model.encoder.layers.11.self_attn.q_proj.bias",
            ),
            (
                "decoder.blocks.0.cross_attn.key.weight",
                "model.decoder.layers.0.encoder_attn.k_proj.weight",
            ),
            (
                "decoder.blocks.0.cross_attn_ln.bias",
                "model.decoder.layers.0.encoder_attn_layer_norm.bias",
            ),
            (
                "decoder.blocks.3.mlp.2.weight",
                "model.decoder.layers.3.fc2.weight",
            ),
            (
                "decoder.token_embedding.weight",
                "model.decoder.embed_tokens.weight",
            ),
            ("decoder.ln.bias", "model.decoder.layer_norm.bias"),
        ] {
            assert_eq!(name_of(theirs), ours);
        }
    }

    #[test]
    fn merges_follow_from_the_order_of_words() {
        let words: Vec<&[u8]> = vec![b"a", b"b", b"c", b" ", b"ab", b"bc", b" a", b"abc", b" abc"];
        // "abc" is "ab" and "c", because "ab" comes before "bc".
        let merged = ["a b", "b c", "\u{120} a", "ab c", "\u{120} abc"];
        assert_eq!(merges(&words), merged);
    }

    /// A file with a vocabulary of English and one tensor.
    fn file() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut put = |number: u32| bytes.extend(number.to_le_bytes());
        [WHISPER_ENGLISH, 10, 4, 2, 1, 8, 4, 2, 1, 80, 1]
            .into_iter()
            .for_each(&mut put);
        [1, 2, 0, 0, 50_256].into_iter().for_each(&mut put);
        for number in 0..50_256u32 {
            put(4);
            put(number);
        }
        // Its sizes are those of a matrix of two rows of three.
        [2, 28, 0, 3, 2].into_iter().for_each(&mut put);
        bytes.extend(b"decoder.positional_embedding");
        bytes.extend([0; 24]);
        bytes
    }

    fn open(bytes: &[u8]) -> Result<GgmlWhisper, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.bin");
        std::fs::write(&path, bytes).unwrap();
        GgmlWhisper::open(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_is_read_and_a_damaged_one_refused() {
        let whole = file();
        let model = open(&whole).unwrap_or_else(|error| panic!("{error}"));
        let tensor = model
            .tensor("model.decoder.embed_positions.weight")
            .unwrap();
        assert_eq!((tensor.n, tensor.k, tensor.format.name()), (2, 3, "F32"));
        assert_eq!(model.rows(tensor, 1, 1).unwrap().len(), 12);
        let Some(Value::Array(tokens)) = model.metadata().get("tokenizer.ggml.tokens") else {
            panic!("no tokens");
        };
        assert_eq!(tokens.len() as u32, WHISPER_ENGLISH);
        for (at, text) in [
            (50_256, "<|endoftext|>"),
            (50_257, "<|startoftranscript|>"),
            (50_258, "<|en|>"),
            (50_362, "<|notimestamps|>"),
            (51_863, "<|30.00|>"),
        ] {
            assert_eq!(tokens[at], Value::String(text.to_string()));
        }
        for end in [
            3,
            20,
            47,
            60,
            70,
            5000,
            whole.len() - 60,
            whole.len() - 30,
            whole.len() - 1,
        ] {
            let error = open(&whole[..end])
                .err()
                .unwrap_or_else(|| panic!("cut at {end}"));
            assert!(error.contains("model.bin"), "{error}");
        }
        for (at, number, word) in [
            // Sizes, the vocabulary, and the tensor's dimensions, name, type and rows.
            (4, u32::MAX, "vocabulary"),
            (44, 7, "older layout"),
            (44, 3002, "older layout"),
            (48, u32::MAX, "spectrogram"),
            (64, 100, "vocabulary"),
            (whole.len() - 72, 9, "damaged"),
            (whole.len() - 68, u32::MAX, "damaged"),
            (whole.len() - 64, 77, "unknown type"),
            (whole.len() - 60, 0, "whole blocks"),
            (whole.len() - 56, u32::MAX, "ends here"),
        ] {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let error = open(&bytes)
                .err()
                .unwrap_or_else(|| panic!("{number} at {at}"));
            assert!(error.contains(word), "{number} at {at}: {error}");
        }
    }
}
