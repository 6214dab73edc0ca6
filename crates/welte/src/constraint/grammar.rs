//! The compiler and the matcher of llguidance, behind the few calls that the engine makes.

use super::form::Controls;
use super::kinds::{Constraint, Source};
use crate::Error;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{
    InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use welte_text::Tokenizer;

/// Limits of the compiler and the matcher: bounds of time and memory, whatever the grammar is. A schema of 1,000 properties
/// takes a quarter of the size.
const GRAMMAR_SIZE: usize = 200_000;
const COMPILE_FUEL: u64 = 1_000_000;
const STEP_FUEL: u64 = 200_000;
const STEP_ITEMS: usize = 50_000;
const LEXER_STATES: usize = 50_000;
/// Compiled constraints that are kept for further answers.
const KEPT: usize = 4;

/// Sets of tokens that a mask takes as a whole where the grammar allows all texts of the expression: texts within JSON strings, words,
/// and white space. The matcher looks at every other token that may follow. An expression that lies within another one refines it.
fn slices() -> Vec<String> {
    let words = [
        "[a-zA-Z0-9_ ]{1,10}",
        "[a-zA-Z0-9_]{1,10}",
        "[a-z0-9 ]{1,10}",
        "[a-z]{1,10}",
    ];
    let mut slices = llguidance::earley::SlicedBiasComputer::json_slices();
    slices.extend(words.map(String::from));
    slices
}

/// Compiles constraints for one vocabulary.
pub(crate) struct Grammars {
    factory: ParserFactory,
    ends: Vec<u32>,
    controls: Controls,
    /// The constraints compiled last: the answers to a request share one, and so do requests alike.
    kept: Mutex<VecDeque<Kept>>,
}

struct Kept {
    constraint: Constraint,
    matching: Matching,
    first: Progress,
}

/// The vocabulary for the matcher.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The tokens of forced text, as the tokenizer divides it. A tokenizer that changes text (it adds a space in front, say) is
    /// passed over: the longest tokens then.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.encode(text, false, false).ok());
        let spelled = |tokens: &Vec<u32>| {
            let all = tokens
                .iter()
                .flat_map(|token| self.tokenizer.token_bytes(*token));
            all.eq(bytes)
        };
        let tokens = tokens.filter(spelled);
        tokens.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}

/// What follows a token.
#[derive(Clone)]
pub(crate) struct Progress {
    /// Tokens without an alternative. The last one may be an end token.
    pub(crate) forced: Vec<u32>,
    /// Which tokens may follow these, unless the answer has ended.
    pub(crate) mask: Option<SimpleVob>,
}

/// A compiled constraint, and how much of an answer it has seen.
#[derive(Clone)]
pub(crate) struct Matching {
    matcher: Matcher,
    end: u32,
    /// Finds forced tokens.
    forces: bool,
}

impl Grammars {
    /// For a tokenizer. `vocab` is the number of logits; tokens beyond the tokenizer's are never allowed.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        vocab: u32,
        ends: &[u32],
    ) -> Result<Grammars, String> {
        let ends: Vec<u32> = ends.iter().copied().filter(|end| *end < vocab).collect();
        let Some(&end) = ends.first() else {
            return Err("the model has no end token, so a constrained answer could not end".into());
        };
        let words: Vec<Vec<u8>> = (0..vocab)
            .map(|token| {
                let has_text =
                    (token as usize) < tokenizer.vocab_size() && !tokenizer.is_control(token);
                // A form may name the others by number.
                if has_text {
                    tokenizer.token_bytes(token).to_vec()
                } else {
                    Vec::new()
                }
            })
            .collect();
        let controls = (0..vocab.min(tokenizer.vocab_size() as u32))
            .filter(|token| tokenizer.is_control(*token))
            .map(|token| (tokenizer.token_text(token).to_string(), token));
        let controls = Controls::new(controls.collect());
        let trie = TokTrie::from(&TokRxInfo::new(vocab, end), &words).with_eos_tokens(&ends);
        let tokenizer = tokenizer.clone();
        let environment: TokEnv = Arc::new(Vocabulary { trie, tokenizer });
        let capabilities = InferenceCapabilities {
            ff_tokens: true,
            ..InferenceCapabilities::default()
        };
        let factory = ParserFactory::new(&environment, capabilities, &slices());
        let mut factory = factory.map_err(|error| error.to_string())?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_grammar_size = GRAMMAR_SIZE;
        limits.initial_lexer_fuel = COMPILE_FUEL;
        limits.step_lexer_fuel = STEP_FUEL;
        limits.step_max_items = STEP_ITEMS;
        limits.max_lexer_states = LEXER_STATES;
        limits.verbose_errors = false;
        Ok(Grammars {
            factory,
            ends,
            controls,
            kept: Mutex::default(),
        })
    }

    /// A constraint that was compiled lately, with what may come first.
    pub(crate) fn kept(
        &self,
        constraint: &Constraint,
        forces: bool,
    ) -> Option<(Matching, Progress)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |kept: &&Kept| kept.matching.forces == forces && kept.constraint == *constraint;
        let found = kept.iter().find(same)?;
        Some((found.matching.apart(), found.first.clone()))
    }

    /// Keeps a compiled constraint.
    pub(crate) fn keep(&self, constraint: Constraint, matching: &Matching, first: &Progress) {
        let new = Kept {
            constraint,
            matching: matching.apart(),
            first: first.clone(),
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front(new);
    }

    /// Compiles a constraint. `forces`: find tokens without an alternative, so that these need not be chosen.
    pub(crate) fn compile(&self, constraint: &Constraint, forces: bool) -> Result<Matching, Error> {
        let grammar = match constraint.source(&self.controls)? {
            Source::Schema(schema) => GrammarWithLexer::from_json_schema(schema),
            Source::Regex(regex) => GrammarWithLexer::from_regex(&regex),
            Source::Lark(lark) => GrammarWithLexer::from_lark(lark),
        };
        let grammar = TopLevelGrammar::from_grammar(grammar);
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        if let Some(problem) = matcher.get_error() {
            return Err(constraint.refused(in_words(problem)));
        }
        // A warning says that a part of the grammar is not enforced.
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(constraint.refused(warning));
        }
        let end = self.ends[0];
        Ok(Matching {
            matcher,
            end,
            forces,
        })
    }
}

impl Matching {
    /// A copy that shares the compiled grammar, but no states of the lexer: these count towards a limit.
    fn apart(&self) -> Matching {
        Matching {
            matcher: self.matcher.deep_clone(),
            ..*self
        }
    }

    /// What may come first.
    pub(crate) fn start(&mut self) -> Result<Progress, String> {
        let forced = self.forced();
        self.progress(forced)
    }

    /// Takes the next tokens of the answer, at least one. Those that a token forces may follow it, or some of them if they
    /// are the last ones.
    pub(crate) fn take(&mut self, tokens: &[u32]) -> Result<Progress, String> {
        let (mut rest, mut forced) = (tokens, Vec::new());
        while let Some((token, after)) = rest.split_first() {
            if !forced.is_empty() {
                return Err("a token differs from the one that is forced".into());
            }
            let taken = self.matcher.consume_token(*token);
            taken.map_err(|error| in_words(error.to_string()))?;
            forced = self.forced();
            let same = forced.iter().zip(after).take_while(|(a, b)| a == b);
            let same = same.count();
            forced.drain(..same);
            rest = &after[same..];
        }
        self.progress(forced)
    }

    /// Follows guesses of the next tokens as far as the constraint allows them, and the tokens that are forced after them.
    /// Each is told with the mask of the token after it. `mask` is that of the first guess. Ends when `tell` returns false.
    /// The matching itself stays where it is.
    pub(crate) fn check(
        &self,
        guesses: &[u32],
        mask: &[u32],
        mut tell: impl FnMut(u32, &[u32]) -> bool,
    ) {
        let mut ahead = self.clone();
        let mut mask = mask.to_vec();
        let mut rest = guesses;
        while let Some((guess, after)) = rest.split_first() {
            let word = mask.get(*guess as usize / 32).copied().unwrap_or(0);
            if word >> (guess % 32) & 1 == 0 {
                return;
            }
            let Ok(progress) = ahead.take(&[*guess]) else {
                return;
            };
            let mut token = *guess;
            for next in &progress.forced {
                mask.fill(0);
                if let Some(word) = mask.get_mut(*next as usize / 32) {
                    *word = 1 << (next % 32);
                }
                if !tell(token, &mask) {
                    return;
                }
                token = *next;
            }
            let (Some(next), Some(others)) =
                (progress.mask, after.strip_prefix(&progress.forced[..]))
            else {
                return;
            };
            mask.clear();
            mask.extend_from_slice(next.as_slice());
            if !tell(token, &mask) {
                return;
            }
            rest = others;
        }
    }

    fn forced(&mut self) -> Vec<u32> {
        if self.forces {
            self.matcher.consume_ff_tokens()
        } else {
            Vec::new()
        }
    }

    /// What follows, if these tokens come next.
    fn progress(&mut self, mut forced: Vec<u32>) -> Result<Progress, String> {
        if self.matcher.is_stopped() {
            if let Some(error) = self.matcher.get_error() {
                return Err(in_words(error));
            }
            // Nothing may follow.
            if forced.last() != Some(&self.end) {
                forced.push(self.end);
            }
            return Ok(Progress { forced, mask: None });
        }
        let mask = self.matcher.compute_mask();
        let mask = Some(mask.map_err(|error| in_words(error.to_string()))?);
        Ok(Progress { forced, mask })
    }
}

/// A message without the traces of a panic, which the compiler and the matcher turn into errors.
fn in_words(problem: String) -> String {
    match problem.find("panic: ") {
        Some(_) => "the grammar compiler fails on it; simplify it".to_string(),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::{Duration, Instant};

    /// The bundled model's vocabulary.
    fn demo() -> (Arc<Tokenizer>, Grammars) {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
        let checkpoint = crate::open(demo).unwrap();
        let tokenizer = Arc::new(crate::tokenizer(checkpoint.as_ref()).unwrap());
        let vocab = tokenizer.vocab_size() as u32;
        let grammars = Grammars::new(&tokenizer, vocab, tokenizer.end_tokens()).unwrap();
        (tokenizer, grammars)
    }

    /// Walks that spell the marks, in pieces of any size, wherever the masks allow it.
    #[test]
    fn a_form_spells_no_mark_before_its_end() {
        let (tokenizer, grammars) = demo();
        let control = tokenizer.id_of("<|im_start|>").unwrap();
        let forbidden = "<tool_call>";
        let mut ended = 0;
        for mark in ["the", "</think>", "\n\n", "<|im_start|>"] {
            let until = Constraint::Until {
                mark: mark.into(),
                without: vec![forbidden.into()],
            };
            let form = Constraint::Sequence(vec![until, Constraint::Text("!".into())]);
            for seed in 0..6u64 {
                let mut matching = grammars.compile(&form, true).unwrap();
                let mut progress = matching.start().unwrap();
                let (mut tokens, mut bytes, mut state) = (Vec::new(), Vec::new(), seed);
                loop {
                    for token in &progress.forced {
                        bytes.extend_from_slice(tokenizer.token_bytes(*token));
                    }
                    tokens.append(&mut progress.forced);
                    let Some(mask) = progress.mask.filter(|_| tokens.len() < 150) else {
                        break;
                    };
                    let spells = |token: &u32| {
                        let mut all = bytes.clone();
                        all.extend_from_slice(tokenizer.token_bytes(*token));
                        let longer = all.len() > bytes.len();
                        let ends = |mark: &str| {
                            (1..=mark.len()).any(|end| all.ends_with(&mark.as_bytes()[..end]))
                        };
                        longer && [mark, forbidden].into_iter().any(ends)
                    };
                    let allowed = mask.to_list();
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let spelling: Vec<u32> = allowed.iter().copied().filter(spells).collect();
                    let from = if (state >> 40) % 4 < 3 && !spelling.is_empty() {
                        &spelling
                    } else {
                        &allowed
                    };
                    let token = from[(state >> 33) as usize % from.len()];
                    tokens.push(token);
                    bytes.extend_from_slice(tokenizer.token_bytes(token));
                    progress = matching.take(&[token]).unwrap();
                }
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains(forbidden), "{text:?}");
                let rest = match tokens.iter().position(|token| *token == control) {
                    Some(at) => {
                        assert!(mark == "<|im_start|>" && !text.contains(mark), "{text:?}");
                        assert!(tokens.len() <= at + 3, "{text:?}");
                        Some("!")
                    }
                    None => text.split_once(mark).map(|(_, rest)| rest),
                };
                assert!(
                    rest.is_none_or(|rest| ["", "!"].contains(&rest)),
                    "{text:?}"
                );
                ended += usize::from(rest.is_some());
            }
        }
        assert!(ended > 6, "{ended}");
    }

    #[test]
    fn constraints_are_kept() {
        let (_, grammars) = demo();
        let digits = |most: usize| Constraint::Regex(format!("[0-9]{{1,{most}}}"));
        for most in 0..=KEPT {
            let mut matching = grammars.compile(&digits(most + 1), true).unwrap();
            let first = matching.start().unwrap();
            grammars.keep(digits(most + 1), &matching, &first);
        }
        assert!(grammars.kept(&digits(1), true).is_none());
        assert!(grammars.kept(&digits(2), false).is_none());
        let kept = || grammars.kept(&digits(2), true).unwrap();
        let (mut one, first) = kept();
        let token = first.mask.unwrap().to_list()[0];
        let after = one.take(&[token]).unwrap().mask;
        // The kept one is where it was.
        let (mut two, again) = kept();
        assert_eq!(again.mask.unwrap().to_list()[0], token);
        assert_eq!(two.take(&[token]).unwrap().mask, after);
    }

    /// Prints how long masks of a vocabulary of 151,936 tokens take. `cargo test -p welte --lib -- --ignored masks_take`.
    #[test]
    #[ignore = "a measurement"]
    fn masks_take() {
        let checkpoint = crate::open("synthetic:qwen3-4b:q4_0").unwrap();
        let tokenizer = Arc::new(crate::tokenizer(checkpoint.as_ref()).unwrap());
        let begun = Instant::now();
        let vocab = tokenizer.vocab_size() as u32;
        let grammars = Grammars::new(&tokenizer, vocab, tokenizer.end_tokens()).unwrap();
        println!("{vocab} tokens: prepared in {:?}", begun.elapsed());
        let item = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "count": {"type": "integer", "minimum": 0, "maximum": 100_000},
                "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
            },
            "required": ["name", "count"],
        });
        for constraint in [
            Constraint::JsonSchema(json!({"type": "array", "items": item, "minItems": 100})),
            Constraint::Json,
            Constraint::Regex("[a-z0-9 ]{1000,}".into()),
            Constraint::Regex("[a-z0-9 ]{4000,}".into()),
            Constraint::Regex("([A-Z][a-z]+ ){1000,}".into()),
            Constraint::Regex("[a-zA-Z_][a-zA-Z0-9_]{4000,}".into()),
            Constraint::Regex("[^\n]{4000,}".into()),
            Constraint::Until {
                mark: "</think>".into(),
                without: vec!["<tool_call>".into()],
            },
            Constraint::grammar("root ::= ([a-z]+ \" \" [0-9]{1,3} \"\\n\"){100,}".into()),
        ] {
            let begun = Instant::now();
            let mut matching = grammars.compile(&constraint, true).unwrap();
            let mut progress = matching.start().unwrap();
            println!("{}: compiled in {:?}", constraint.kind(), begun.elapsed());
            let mut times: Vec<Duration> = Vec::new();
            let mut state = 1u64;
            while let (Some(mask), true) = (&progress.mask, times.len() < 2000) {
                let allowed = mask.to_list();
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let token = allowed[(state >> 33) as usize % allowed.len()];
                let begun = Instant::now();
                progress = matching.take(&[token]).unwrap();
                times.push(begun.elapsed());
            }
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            let (half, most, worst) = (at(0.5), at(0.99), at(1.0));
            println!(
                "  {} tokens: p50 {half:?}, p99 {most:?}, max {worst:?}",
                times.len()
            );
        }
    }
}
