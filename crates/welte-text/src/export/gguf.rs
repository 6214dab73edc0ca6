//! A tokenizer as the fields of a GGUF file.

use crate::pretokenizers::{PRE_TOKENIZERS, PreTokenizer};
use crate::token::shortened;
use crate::tokenizer::{Kind, Tokenizer, Words};
use crate::{Error, Vocabulary};
use tokenizers::{
    NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
    PreTokenizerWrapper,
};

/// Texts that pre-tokenizers split differently, and that need every stage of a tokenizer.
const PROBES: [&str; 8] = [
    "Hello, World! It's 2026: she'LL say \"we'd\" or I'M 1 12 123 1234 12345 123456 1234567.",
    "  two  spaces\tand\ttabs \n\n\n  lines\r\n\r\n end   ",
    "d\u{e9}j\u{e0} vu na\u{ef}ve e\u{301}a\u{300} \u{dc}ber stra\u{df}e \u{130}stanbul'un \u{1c5}",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{ff01}\u{3053}\u{3093}\u{306b}\u{3061}\u{306f} \u{30ab}\u{30bf}\u{30ab}\u{30ca} \u{c548}\u{b155} \u{c138}\u{acc4} abc\u{4e2d}def",
    "\u{43f}\u{440}\u{438}\u{432}\u{435}\u{442} \u{645}\u{631}\u{62d}\u{628}\u{627} \u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35} \u{661}\u{662}\u{663}",
    "fn main() { let x_1 = a[0] + b->c; } // path/to/file.rs <tag attr=\"v\"> ## $100 100% a@b.de C++ camelCase XMLHttp",
    "\u{1f600}\u{1f680} \u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{2014}\u{2026} \u{ab}quoted\u{bb} \u{2018}so\u{2019} \u{3000}wide \u{a0}hard \u{200b}zero",
    "end.\nNext!!!\n\n?? ... --- ===\n/slash\n/ 'tis '90s o'clock rock'n'roll THEY'RE",
];

impl Tokenizer {
    /// The fields `tokenizer.ggml.*` of the same vocabulary. A tokenizer that GGUF cannot express is refused: what is written gives the
    /// same tokens for difficult texts.
    pub fn to_vocabulary(&self) -> Result<Vocabulary, Error> {
        let parts = self.parts();
        let Words::Merges(bpe) = &parts.model else {
            return Err(unsupported("only byte-pair encoding can be written"));
        };
        let ids = 0..self.vocab_size() as u32;
        let mut tokens: Vec<String> = ids.map(|id| self.token_text(id).to_owned()).collect();
        let mut token_types: Vec<i32> = self.types.iter().map(|kind| *kind as i32).collect();
        // Ids without a token need a spelling of their own.
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, t)| t.is_empty()) {
            *token = format!("[PAD{id}]");
            token_types[id] = crate::TokenType::Unused as i32;
        }
        let merges = bpe.merges();
        let text = |id: u32| self.token_text(id);
        let mut vocabulary = Vocabulary {
            bos: self.bos(),
            eos: self.eos(),
            eot: self
                .end_tokens()
                .iter()
                .copied()
                .find(|id| Some(*id) != self.eos()),
            infill: self.infill,
            unk: bpe.unknown(),
            add_bos: Some(self.bos().is_some() && parts.prefix.first().copied() == self.bos()),
            add_eos: Some(self.eos().is_some() && parts.suffix.first().copied() == self.eos()),
            token_types,
            ..Vocabulary::default()
        };
        match parts.kind {
            Kind::ByteLevel => {
                let pre = named_alike(parts.pre_tokenizer.as_ref(), bpe.takes_whole_words())?;
                vocabulary.model = "gpt2".into();
                vocabulary.pre = Some(pre.names[0].into());
                let line = |[left, right]: &[u32; 2]| format!("{} {}", text(*left), text(*right));
                vocabulary.merges = merges.iter().map(line).collect();
            }
            Kind::SentencePiece => {
                vocabulary.model = "llama".into();
                vocabulary.add_space_prefix = Some(parts.space_prefix);
                vocabulary.scores = scores(self, &merges);
            }
            Kind::WordPiece => return Err(unsupported("WordPiece cannot be written yet")),
        }
        vocabulary.tokens = tokens;
        self.check(&vocabulary)?;
        Ok(vocabulary)
    }

    /// The vocabulary must give the tokens that this tokenizer gives.
    fn check(&self, vocabulary: &Vocabulary) -> Result<(), Error> {
        let other = Tokenizer::from_vocabulary(vocabulary.clone())?;
        for probe in PROBES {
            // GGUF has no normal form of Unicode, so compare what has it already.
            let probe = match &self.parts().normalizer {
                Some(NormalizerWrapper::NFC(_)) => composed(probe),
                _ => probe.to_owned(),
            };
            let of = |tokenizer: &Tokenizer| tokenizer.encode(&probe, true, true);
            let (mine, theirs) = (of(self)?, of(&other)?);
            let at = mine.iter().zip(&theirs).position(|(a, b)| a != b);
            let at = at.or((mine.len() != theirs.len()).then_some(mine.len().min(theirs.len())));
            if let Some(at) = at {
                let named = |ids: &[u32]| {
                    let id = ids.get(at).copied();
                    id.map_or("the end".into(), |id| format!("'{}'", self.token_text(id)))
                };
                return Err(unsupported(&format!(
                    "token {at} of '{}' would be {} and is {}",
                    shortened(&probe),
                    named(&theirs),
                    named(&mine)
                )));
            }
        }
        Ok(())
    }
}

fn composed(text: &str) -> String {
    let mut text = tokenizers::NormalizedString::from(text);
    text.nfc();
    text.get().to_owned()
}

fn unsupported(problem: &str) -> Error {
    Error::field("tokenizer.json", format!("has no form in GGUF: {problem}"))
}

/// The known pre-tokenizer that splits the probes like this one.
fn named_alike(
    stage: Option<&PreTokenizerWrapper>,
    whole_words: bool,
) -> Result<&'static PreTokenizer, Error> {
    let Some(stage) = stage else {
        return Err(unsupported("it has no pre-tokenizer"));
    };
    let wanted = split(stage)?;
    for known in PRE_TOKENIZERS {
        if known.ignore_merges == whole_words && split(&known.build()?)? == wanted {
            return Ok(known);
        }
    }
    Err(unsupported("no known pre-tokenizer splits text as it does"))
}

/// Where a pre-tokenizer cuts the probes.
fn split(stage: &PreTokenizerWrapper) -> Result<Vec<usize>, Error> {
    let mut cuts = Vec::new();
    for probe in PROBES {
        let mut text = PreTokenizedString::from(probe);
        stage
            .pre_tokenize(&mut text)
            .map_err(|error| Error::Backend(error.to_string()))?;
        let pieces = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        cuts.extend(pieces.into_iter().map(|(_, (_, end), _)| end));
    }
    Ok(cuts)
}

/// Scores under which SentencePiece joins what the merges join, the best merge first.
fn scores(tokenizer: &Tokenizer, merges: &[[u32; 2]]) -> Vec<f32> {
    let mut scores = vec![0.0; tokenizer.vocab_size()];
    let mut joined = String::new();
    // The first merge that makes a token is its best.
    for (rank, [left, right]) in merges.iter().enumerate().rev() {
        joined.clear();
        joined.push_str(tokenizer.token_text(*left));
        joined.push_str(tokenizer.token_text(*right));
        if let Some(id) = tokenizer.id_of(&joined) {
            scores[id as usize] = -(rank as f32) - 1.0;
        }
    }
    scores
}
