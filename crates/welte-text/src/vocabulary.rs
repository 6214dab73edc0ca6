//! Tokenizers from the fields of a GGUF file.

use crate::Error;
use crate::bpe::{Bpe, Merge, Spellings, Table};
use crate::growth::{LONGEST_REPLACEMENT, longest_replacement};
use crate::pretokenizers;
use crate::token::{InfillTokens, TokenType, shortened};
use crate::tokenizer::{Kind, Parts, SPACE, Tokenizer, Words, byte_token};
use std::panic::resume_unwind;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::{BertNormalizer, Precompiled, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// No merge produces a longer token. Real vocabularies have none; a hostile one could make merging slow.
const LONGEST_MERGED: usize = 1024;

/// Merges are read by at most this many threads.
const MOST_THREADS: usize = 4;
/// The least merges that are worth a thread.
const LEAST_MERGES: usize = 8192;

/// The score of tokens that unigram never finds in a text.
const NEVER: f64 = -1e12;

/// The fields `tokenizer.ggml.*` of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// `model`: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE with scores), `gemma4` (the same with listed merges),
    /// `t5` (SentencePiece unigram) or `bert` (WordPiece).
    pub model: String,
    /// `pre`: the pre-tokenizer of byte-level BPE.
    pub pre: Option<String>,
    /// `tokens`: all spellings, by id.
    pub tokens: Vec<String>,
    /// `scores`: one per token, or none.
    pub scores: Vec<f32>,
    /// `token_type`: one per token, or none (all normal).
    pub token_types: Vec<i32>,
    /// `merges`: `left right`, best first.
    pub merges: Vec<String>,
    /// `bos_token_id`
    pub bos: Option<u32>,
    /// `cls_token_id`: begins a text of an encoder. Without it, `bos` does.
    pub cls: Option<u32>,
    /// `eos_token_id`
    pub eos: Option<u32>,
    /// `eot_token_id`: end of a turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of a message.
    pub eom: Option<u32>,
    /// `fim_pre_token_id`, `fim_suf_token_id` and `fim_mid_token_id`: the marks of a prompt with a gap.
    pub infill: Option<InfillTokens>,
    /// `unknown_token_id`
    pub unk: Option<u32>,
    /// `seperator_token_id` (so spelt in the format)
    pub sep: Option<u32>,
    /// `padding_token_id`
    pub pad: Option<u32>,
    /// `add_bos_token`
    pub add_bos: Option<bool>,
    /// `add_eos_token`
    pub add_eos: Option<bool>,
    /// `add_space_prefix`
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`
    pub remove_extra_whitespaces: Option<bool>,
    /// `precompiled_charsmap`: how SentencePiece normalises characters; empty if it does not.
    pub charsmap: Vec<u8>,
}

impl Vocabulary {
    pub(crate) fn type_of(&self, id: usize) -> TokenType {
        self.token_types
            .get(id)
            .map_or(TokenType::Normal, |&number| TokenType::of(number))
    }

    /// Checks the fields. Returns the table of the spellings.
    fn check(&self) -> Result<Table, Error> {
        let n = self.tokens.len();
        if n == 0 {
            return Err(Error::field(
                "tokenizer.ggml.tokens",
                "is empty or missing; the file contains no vocabulary",
            ));
        }
        if n > i32::MAX as usize {
            return Err(Error::field(
                "tokenizer.ggml.tokens",
                format!("has {n} tokens; the limit is 2^31 - 1"),
            ));
        }
        for (field, len) in [
            ("scores", self.scores.len()),
            ("token_type", self.token_types.len()),
        ] {
            if len != 0 && len != n {
                let problem =
                    format!("has {len} entries for {n} tokens; it must have one per token");
                return Err(Error::field(format!("tokenizer.ggml.{field}"), problem));
            }
        }
        if let Some(at) = self.scores.iter().position(|score| score.is_nan()) {
            return Err(Error::field(
                "tokenizer.ggml.scores",
                format!("the score of token {at} is not a number"),
            ));
        }
        let ids = [
            ("bos_token_id", self.bos),
            ("cls_token_id", self.cls),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("fim_pre_token_id", self.infill.map(|t| t.prefix)),
            ("fim_suf_token_id", self.infill.map(|t| t.suffix)),
            ("fim_mid_token_id", self.infill.map(|t| t.middle)),
            ("unknown_token_id", self.unk),
            ("seperator_token_id", self.sep),
            ("padding_token_id", self.pad),
        ];
        for (field, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= n) {
                let problem = format!("is {id}, but there are only {n} tokens");
                return Err(Error::field(format!("tokenizer.ggml.{field}"), problem));
            }
        }
        let (table, twice) = Table::new(&self.tokens);
        if let Some((first, id)) = twice {
            let problem = format!(
                "tokens {first} and {id} are both '{}'; spellings must be unique",
                shortened(&self.tokens[id as usize])
            );
            return Err(Error::field("tokenizer.ggml.tokens", problem));
        }
        Ok(table)
    }

    /// The tokens of single bytes, if there are all of them.
    fn bytes(&self, table: &Table) -> Option<Vec<u32>> {
        let id = |byte| table.id(&self.tokens, &byte_token(byte));
        (0..=255).map(id).collect()
    }

    fn added(&self) -> Vec<AddedToken> {
        let all = self
            .tokens
            .iter()
            .enumerate()
            .filter(|(_, token)| !token.is_empty());
        all.filter_map(|(id, token)| match self.type_of(id) {
            TokenType::Control => Some(AddedToken::from(token.as_str(), true).normalized(false)),
            TokenType::UserDefined => {
                Some(AddedToken::from(token.as_str(), false).normalized(false))
            }
            _ => None,
        })
        .collect()
    }

    /// The token that begins a text of WordPiece. Files name it in different keys, or in none.
    fn begin(&self) -> Option<u32> {
        self.cls.or(self.bos).or_else(|| self.control("[CLS]"))
    }

    /// The control token with this spelling.
    fn control(&self, text: &str) -> Option<u32> {
        let at = self.tokens.iter().position(|token| token == text)?;
        (self.type_of(at) == TokenType::Control).then_some(at as u32)
    }

    fn unknown_id(&self, default: Option<usize>) -> Option<usize> {
        let by_type = || (0..self.tokens.len()).find(|&id| self.type_of(id) == TokenType::Unknown);
        self.unk.map(|id| id as usize).or_else(by_type).or(default)
    }

    fn unknown_text(&self, default: Option<usize>) -> Option<String> {
        let id = self.unknown_id(default)?;
        self.tokens.get(id).filter(|text| !text.is_empty()).cloned()
    }

    /// The merges that the file lists, in order. Parts that the vocabulary lacks never meet.
    pub(crate) fn listed_merges(&self, table: &Table) -> Result<Vec<Merge>, Error> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = self
            .merges
            .len()
            .div_ceil(threads.min(MOST_THREADS))
            .max(LEAST_MERGES);
        let read = |(at, lines): (usize, &[String])| self.merges_of(at * part, lines, table);
        let parts = std::thread::scope(|scope| {
            let mut parts = self.merges.chunks(part).enumerate();
            let first = parts.next();
            let spawned: Vec<_> = parts
                .map(|part| {
                    let reader =
                        std::thread::Builder::new().spawn_scoped(scope, move || read(part));
                    reader.map_err(|_| part)
                })
                .collect();
            let mut all: Vec<_> = first.map(read).into_iter().collect();
            all.extend(spawned.into_iter().map(|reader| match reader {
                Ok(reader) => reader.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // A browser has no threads.
                Err(part) => read(part),
            }));
            all
        });
        let parts: Result<Vec<Vec<Merge>>, Error> = parts.into_iter().collect();
        Ok(parts?.concat())
    }

    /// The merges of some lines, the first of which is number `first`.
    fn merges_of(
        &self,
        first: usize,
        lines: &[String],
        table: &Table,
    ) -> Result<Vec<Merge>, Error> {
        let mut merges = Vec::with_capacity(lines.len());
        let mut text = String::new();
        // Results mostly follow each other in the vocabulary.
        let mut next = 0;
        for (at, line) in lines.iter().enumerate() {
            // The left part may begin with a space, so the search starts after the first character.
            let start = line.chars().next().map_or(0, char::len_utf8);
            let cut = line
                .get(start..)
                .and_then(|rest| rest.find(' '))
                .map(|cut| start + cut);
            let Some((left, right)) = cut
                .map(|cut| (&line[..cut], &line[cut + 1..]))
                .filter(|(_, r)| !r.is_empty())
            else {
                let problem = format!(
                    "entry {}, '{}', is not two parts separated by a space",
                    first + at,
                    shortened(line)
                );
                return Err(Error::field("tokenizer.ggml.merges", problem));
            };
            text.clear();
            text.push_str(left);
            text.push_str(right);
            let id = |text: &str| table.id(&self.tokens, text);
            let guessed = self.tokens.get(next as usize) == Some(&text);
            let joined = if guessed { Some(next) } else { id(&text) };
            next = joined.map_or(next, |id| id + 1);
            if let (Some(left), Some(right), Some(joined)) = (id(left), id(right), joined) {
                merges.push(Merge {
                    left,
                    right,
                    joined,
                });
            }
        }
        Ok(merges)
    }

    /// SentencePiece files have no merges. Any two tokens may join if the result is a token; better scores go first.
    fn scored_merges(&self, table: &Table) -> Vec<Merge> {
        let score = |id: usize| self.scores.get(id).copied().unwrap_or(0.0);
        let mut results: Vec<usize> = (0..self.tokens.len())
            .filter(|&id| {
                matches!(
                    self.type_of(id),
                    TokenType::Normal | TokenType::UserDefined | TokenType::Unused
                )
            })
            .filter(|&id| self.tokens[id].len() <= LONGEST_MERGED)
            .collect();
        results.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
        let id = |text: &str| table.id(&self.tokens, text);
        let mut merges = Vec::new();
        for joined in results {
            let text = &self.tokens[joined];
            let mut pairs: Vec<(u32, u32)> = text
                .char_indices()
                .skip(1)
                .filter_map(|(cut, _)| Some((id(&text[..cut])?, id(&text[cut..])?)))
                .collect();
            pairs.sort_unstable();
            merges.extend(pairs.into_iter().map(|(left, right)| Merge {
                left,
                right,
                joined: joined as u32,
            }));
        }
        merges
    }

    fn byte_level(&self, table: &Table) -> Result<Parts, Error> {
        // Old files lack this field. llama.cpp uses "default" for them too.
        let pre = pretokenizers::named(self.pre.as_deref().unwrap_or("default"))?;
        let merges = self.listed_merges(table)?;
        Ok(Parts {
            kind: Kind::ByteLevel,
            model: Words::Merges(Bpe::new(&merges, pre.ignore_merges)),
            normalizer: None,
            pre_tokenizer: Some(pre.build()?),
            prefix: self
                .bos
                .filter(|_| self.add_bos.unwrap_or(pre.add_bos))
                .into_iter()
                .collect(),
            suffix: self
                .eos
                .filter(|_| self.add_eos == Some(true))
                .into_iter()
                .collect(),
            space_prefix: false,
        })
    }

    fn sentence_piece(&self, table: &Table) -> Result<Parts, Error> {
        let merges = self.scored_merges(table);
        let id_or = |id: Option<u32>, default: u32| {
            id.or(Some(default).filter(|&id| (id as usize) < self.tokens.len()))
        };
        let space_prefix = self.add_space_prefix.unwrap_or(true);
        let mut steps = vec![spaces()?];
        if space_prefix {
            steps.insert(
                0,
                NormalizerWrapper::Prepend(Prepend::new(SPACE.to_owned())),
            );
        }
        Ok(Parts {
            kind: Kind::SentencePiece,
            model: self.spelled(&merges, Some(0), table),
            normalizer: Some(NormalizerWrapper::Sequence(Sequence::new(steps))),
            pre_tokenizer: None,
            prefix: id_or(self.bos, 1)
                .filter(|_| self.add_bos.unwrap_or(true))
                .into_iter()
                .collect(),
            suffix: id_or(self.eos, 2)
                .filter(|_| self.add_eos == Some(true))
                .into_iter()
                .collect(),
            space_prefix,
        })
    }

    /// Gemma 4: spelt like SentencePiece, with listed merges. Nothing merges across the end of a run of newlines.
    fn listed_pieces(&self, table: &Table) -> Result<Parts, Error> {
        let merges = self.listed_merges(table)?;
        Ok(Parts {
            kind: Kind::SentencePiece,
            model: self.spelled(&merges, None, table),
            normalizer: Some(spaces()?),
            pre_tokenizer: Some(pretokenizers::newlines()?),
            // Gemma needs its first token. llama.cpp adds it whatever the file says.
            prefix: self.bos.into_iter().collect(),
            suffix: self
                .eos
                .filter(|_| self.add_eos == Some(true))
                .into_iter()
                .collect(),
            space_prefix: false,
        })
    }

    /// BPE over characters. Characters that the vocabulary lacks become bytes, if it has tokens for all bytes.
    fn spelled(&self, merges: &[Merge], unknown: Option<usize>, table: &Table) -> Words {
        let unknown = self.unknown_text(unknown);
        let unknown = unknown.and_then(|text| table.id(&self.tokens, &text));
        Words::Merges(Bpe::new(merges, false).with_unknown(self.bytes(table), unknown))
    }

    /// Unigram: the most likely division of each word into tokens.
    fn unigram(&self, table: &Table) -> Result<Parts, Error> {
        let field = |name: &str, problem: &str| {
            Error::field(format!("tokenizer.ggml.{name}"), problem.to_owned())
        };
        let space_prefix = self.add_space_prefix.unwrap_or(true);
        let unknown = self
            .unknown_id(None)
            .ok_or_else(|| field("unknown_token_id", "unigram needs an unknown token"))?;
        if self.scores.is_empty() {
            return Err(field("scores", "is missing; unigram needs it"));
        }
        if let Some(id) = self.tokens.iter().position(String::is_empty) {
            return Err(field("tokens", &format!("token {id} is empty")));
        }
        let is_text = |id: usize| {
            use TokenType::{Byte, Normal, UserDefined};
            matches!(self.type_of(id), Normal | UserDefined | Byte)
        };
        let score = |id: usize| {
            if is_text(id) {
                f64::from(self.scores[id])
            } else {
                NEVER
            }
        };
        let entries = self.tokens.iter().enumerate();
        let entries = entries.map(|(id, text)| (text.clone(), score(id)));
        let byte_fallback = self.bytes(table).is_some();
        let mut model = Unigram::from(entries.collect(), Some(unknown), byte_fallback)
            .map_err(|error| field("tokens", &error.to_string()))?;
        // What an unknown character costs depends on the least likely text.
        let texts = (0..self.tokens.len()).filter(|id| is_text(*id));
        model.min_score = texts.map(score).fold(0.0, f64::min);
        let scheme = if space_prefix {
            PrependScheme::Always
        } else {
            PrependScheme::Never
        };
        let space = SPACE.chars().next().unwrap_or(' ');
        let words = PreTokenizerWrapper::Metaspace(Metaspace::new(space, scheme, true));
        let pre_tokenizer = if self.remove_extra_whitespaces == Some(true) {
            let split = PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit);
            PreTokenizerWrapper::Sequence(pre_tokenizers::sequence::Sequence::new(vec![
                split, words,
            ]))
        } else {
            words
        };
        if self.remove_extra_whitespaces == Some(true) && !space_prefix {
            let problem = "is false; with remove_extra_whitespaces it must be true";
            return Err(field("add_space_prefix", problem));
        }
        Ok(Parts {
            kind: Kind::SentencePiece,
            model: Words::Backend(Box::new(ModelWrapper::Unigram(model))),
            normalizer: self.precompiled()?.map(NormalizerWrapper::Precompiled),
            pre_tokenizer: Some(pre_tokenizer),
            prefix: self
                .bos
                .or(self.cls)
                .filter(|_| self.add_bos == Some(true))
                .into_iter()
                .collect(),
            suffix: self
                .eos
                .or(Some(1).filter(|_| self.tokens.len() > 1))
                .filter(|_| self.add_eos != Some(false))
                .into_iter()
                .collect(),
            space_prefix,
        })
    }

    /// The map of characters, if there is one.
    fn precompiled(&self) -> Result<Option<Precompiled>, Error> {
        if self.charsmap.is_empty() {
            return Ok(None);
        }
        // The length of a search tree of u32, the tree, and the replacements. The backend trusts the length.
        let tree = self.charsmap.split_first_chunk().and_then(|(size, rest)| {
            let size = u32::from_le_bytes(*size) as usize;
            (size >= 4 && size.is_multiple_of(4) && size <= rest.len()).then_some(())
        });
        let map = tree.and_then(|()| Precompiled::from(&self.charsmap).ok());
        let failed = |problem: String| Error::field("tokenizer.ggml.precompiled_charsmap", problem);
        let longest = longest_replacement(&self.charsmap);
        if longest > LONGEST_REPLACEMENT {
            return Err(failed(format!(
                "has a replacement of {longest} bytes; the limit is {LONGEST_REPLACEMENT}"
            )));
        }
        let problem = "is not a map of characters as SentencePiece writes it";
        map.map(Some).ok_or_else(|| failed(problem.to_owned()))
    }

    /// GGUF marks the beginnings of words, the model needs their continuations marked.
    fn word_piece(&self) -> Result<Parts, Error> {
        let mut ids = Vocab::default();
        for (id, token) in self
            .tokens
            .iter()
            .enumerate()
            .filter(|(_, token)| !token.is_empty())
        {
            let text = match (self.type_of(id), token.strip_prefix(SPACE)) {
                (TokenType::Normal, Some(word)) => word.to_owned(),
                (TokenType::Normal, None) => format!("##{token}"),
                _ => token.clone(),
            };
            ids.entry(text).or_insert(id as u32);
        }
        let unknown = self
            .unknown_text(None)
            .unwrap_or_else(|| "[UNK]".to_owned());
        if !ids.contains_key(&unknown) {
            return Err(Error::field(
                "tokenizer.ggml.unknown_token_id",
                "WordPiece needs an unknown token",
            ));
        }
        let model = WordPiece::builder()
            .vocab(ids)
            .unk_token(unknown)
            .build()
            .map_err(|error| Error::field("tokenizer.ggml.tokens", error.to_string()))?;
        Ok(Parts {
            kind: Kind::WordPiece,
            model: Words::Backend(Box::new(ModelWrapper::WordPiece(model))),
            normalizer: Some(NormalizerWrapper::BertNormalizer(BertNormalizer::new(
                true, true, None, true,
            ))),
            pre_tokenizer: Some(PreTokenizerWrapper::BertPreTokenizer(BertPreTokenizer)),
            prefix: self
                .begin()
                .filter(|_| self.add_bos != Some(false))
                .into_iter()
                .collect(),
            suffix: self
                .sep
                .or(self.eos)
                .or_else(|| self.control("[SEP]"))
                .filter(|_| self.add_eos != Some(false))
                .into_iter()
                .collect(),
            space_prefix: false,
        })
    }
}

/// Spaces are spelt `▁`.
fn spaces() -> Result<NormalizerWrapper, Error> {
    let replace = Replace::new(" ", SPACE).map_err(|error| Error::Backend(error.to_string()))?;
    Ok(NormalizerWrapper::Replace(replace))
}

impl Tokenizer {
    /// A tokenizer from the fields of a GGUF file.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Tokenizer, Error> {
        let table = vocabulary.check()?;
        let parts = match vocabulary.model.as_str() {
            "gpt2" => vocabulary.byte_level(&table)?,
            "llama" => vocabulary.sentence_piece(&table)?,
            "gemma4" => vocabulary.listed_pieces(&table)?,
            "t5" => vocabulary.unigram(&table)?,
            "bert" => vocabulary.word_piece()?,
            other => {
                return Err(Error::UnknownModel {
                    name: shortened(other),
                    known: "gpt2, llama, gemma4, t5, bert".to_owned(),
                });
            }
        };
        let added = vocabulary.added();
        let scored = vocabulary.model == "llama";
        let default =
            |id: u32| Some(id).filter(|&id| scored && (id as usize) < vocabulary.tokens.len());
        let bos = match vocabulary.model.as_str() {
            "bert" => vocabulary.begin(),
            _ => vocabulary.bos.or(default(1)),
        };
        let eos = vocabulary.eos.or(default(2));
        let types = (0..vocabulary.tokens.len())
            .map(|id| vocabulary.type_of(id))
            .collect();
        let ends = [eos, vocabulary.eot, vocabulary.eom];
        let infill = vocabulary.infill;
        let mut tokenizer = Tokenizer::assemble(
            parts,
            added,
            Spellings::new(vocabulary.tokens, Some(table)),
            types,
            bos,
            eos,
            ends.into_iter().flatten().collect(),
        )?;
        tokenizer.infill = infill.or(tokenizer.infill);
        Ok(tokenizer)
    }
}
