//! A request in the scheduler's hands: its tokens, its pages and how far it is.

use super::channel::{Channel, Finish, Room};
use super::draft::Draft;
use super::guide::Guide;
use super::media::{self, Placed};
use super::restore::{Fetching, Restore};
use super::spelling::Stops;
use crate::cache::{GENERATED, Key, MediaNumbers, feature_key, sha256};
use crate::generate::check_options;
use crate::{Adapter, Error, GenerateOptions, Model, Request};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use web_time::Instant;
use welte_device::{Context, Error as DeviceError, Role, SlotState};
use welte_table::Sampling;

/// A sequence's part in the call of the device at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    #[default]
    Idle,
    /// Rows in a step, or steps in a chain.
    Planned(usize),
    /// The call was made for this sequence alone, and has failed.
    Victim,
}

impl Part {
    /// Rows or steps.
    pub(crate) fn count(self) -> usize {
        match self {
            Part::Planned(count) => count,
            Part::Idle | Part::Victim => 0,
        }
    }
}

/// The output rows of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Picked {
    Last,
    First,
    /// All of them: their first values, and the vector of the first or the last one.
    Each {
        first: bool,
    },
}

/// A sequence. The caller allocates it with room for all its tokens and pages.
pub(crate) struct Sequence {
    /// Its age: requests are numbered as they arrive.
    pub(crate) number: u64,
    pub(crate) priority: i32,
    pub(crate) deadline: Option<Instant>,
    pub(crate) exact: bool,
    /// Uses the prefix cache.
    pub(crate) shared: bool,
    /// Spans of the prompt that attend both ways, in order. No step cuts them.
    both_ways: Vec<Range<usize>>,
    /// Its media, in order.
    pub(crate) media: Vec<Placed>,
    /// Its vector is wanted in place of tokens.
    pub(crate) embeds: bool,
    /// Its output rows, if it embeds.
    pub(crate) picked: Picked,
    /// The number of first tokens that are not pooled.
    pub(crate) left_out: usize,
    /// Where the second text of a pair begins, and what positions skip there.
    pub(crate) second: (usize, u32),
    /// The longest chain.
    pub(crate) chain: usize,
    /// What follows its constraint, if it has one.
    pub(crate) guide: Option<Guide>,
    /// Its guide does not know yet what comes next.
    pub(crate) stalled: bool,
    sampling: Sampling,
    /// Biases of the request, then those that forbid the end tokens.
    bias: Vec<(u32, f32)>,
    pub(crate) ends: Vec<u32>,
    /// What its text must not contain.
    pub(crate) stops: Option<Stops>,
    /// Tokens at which a repeated run ends: a bit per token.
    breakers: Vec<u32>,
    /// Biases in force once a number of tokens are generated.
    biases: usize,
    pub(crate) min_tokens: usize,
    /// The device has another sampling state.
    pub(crate) slot_changed: bool,
    /// How many likeliest tokens are wanted with each generated token.
    pub(crate) top: Option<u32>,
    /// The same for tokens of the prompt.
    pub(crate) prompt_top: Option<u32>,
    /// The prompt and what was generated.
    pub(crate) tokens: Vec<u32>,
    /// The same tokens with the roles in which they are computed, and the features of the media.
    pub(crate) keys: Vec<Key>,
    /// Tokens of the prompt. The rest is the answer.
    pub(crate) prompt: usize,
    /// Tokens at which the sequence is complete.
    max_len: usize,
    /// Tokens whose keys and values are in the caches.
    pub(crate) computed: usize,
    /// Tokens in the prefix tree that this sequence has left there.
    pub(crate) inserted: usize,
    /// The pages of each cache.
    pub(crate) lists: Vec<Vec<u32>>,
    /// Copies of its recurrent states before the guesses that are being verified: caches and pages.
    pub(crate) kept: Vec<(usize, u32)>,
    /// Its slot while it runs.
    pub(crate) slot: u32,
    /// Its part in the call at hand.
    pub(crate) part: Part,
    /// Stored pages that are on their way to it. It computes nothing until they have come.
    pub(crate) restore: Option<Box<Restore>>,
    /// The same for pages in host memory.
    pub(crate) fetching: Option<Fetching>,
    /// It gave its pages to others, and comes back when one of them ends. Otherwise it would give them back at once.
    pub(crate) set_back: bool,
    /// It has run before, so the roles of its tokens are settled.
    pub(crate) begun: bool,
    /// What is guessed of its next tokens.
    pub(crate) draft: Option<Box<Draft>>,
    /// Why it ends, once it does.
    pub(crate) end: Option<Result<Finish, Error>>,
    pub(crate) out: Arc<Channel>,
    /// What is added to its products. Its place stays its own until the sequence ends.
    pub(crate) adapter: Option<Adapter>,
    /// It leaves this turn to those with an adapter, or to those without one.
    pub(crate) rests: bool,
    /// The number of what the adapter adds; 0 without one. Part of the keys of its tokens.
    adapted: u32,
    /// The engine that counts it, once it has been accepted.
    pub(crate) counted_by: Option<Arc<AtomicUsize>>,
}

impl Sequence {
    /// Checks a request and allocates everything that it will need.
    pub(crate) fn new(
        model: &Model,
        request: &Request,
        out: impl FnOnce(Room) -> Channel,
    ) -> Result<Sequence, Error> {
        let options = &request.options;
        let (context, vocab) = (model.context(), model.vocab());
        let length = request.prompt.len().saturating_sub(request.answered);
        let (prompt, answered) = request.prompt.split_at(length);
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        // A text of which only a vector is wanted may fill the context.
        let needed = prompt.len() + usize::from(options.max_tokens > 0);
        if needed > context {
            return Err(Error::ContextFull {
                prompt: prompt.len(),
                context,
            });
        }
        if let Some(&token) = request.prompt.iter().find(|token| **token >= vocab) {
            return Err(Error::Token { token, vocab });
        }
        check_options(options, vocab)?;
        media::check(model, request)?;
        let both_ways = media::both_ways(request);
        check_spans(model, request, &both_ways)?;
        let budget = options.max_tokens.min(context - prompt.len());
        let max_len = prompt.len() + budget;
        let (mut tokens, mut keys) = (Vec::with_capacity(max_len), Vec::with_capacity(max_len));
        tokens.extend_from_slice(prompt);
        keys.extend(prompt.iter().copied().map(Key::from));
        let (mut bias, mut ends) = (options.bias.clone(), model.end_tokens().to_vec());
        if options.ignore_end {
            bias.extend(ends.drain(..).map(|token| (token, f32::NEG_INFINITY)));
        }
        ends.extend_from_slice(&options.stop_tokens);
        // A whole answer has its end.
        let (answered, ended) = match answered.split_last() {
            Some((last, before)) if ends.contains(last) => (before, Some(*last)),
            _ => (answered, None),
        };
        check_answered(request, (length, answered), budget, &ends)?;
        tokens.extend_from_slice(answered);
        keys.extend(answered.iter().map(|token| Key::from(*token) | GENERATED));
        let biases = bias.len();
        if options.min_tokens > 0 {
            bias.extend(ends.iter().map(|token| (*token, f32::NEG_INFINITY)));
        }
        for (what, count, max) in [
            ("biases", bias.len(), SlotState::MOST_BIASES),
            ("end tokens", ends.len(), SlotState::MOST_ENDS),
        ] {
            if count > max {
                return Err(Error::TooMany { what, count, max });
            }
        }
        let program = model.program();
        let entries = |cache: &welte_table::CacheSpec| cache.entries(program) as usize;
        let lists = program.caches.iter().map(entries).map(Vec::with_capacity);
        let longest = model.inner.max_chain;
        let room = Room {
            tokens: budget,
            logprobs: options.logprobs.map_or(0, |_| budget),
            prompt_logprobs: options.prompt_logprobs.map_or(0, |_| prompt.len()),
        };
        // A forced token has no logits, so where probabilities are wanted every token is chosen.
        let forces = options.logprobs.is_none();
        let guide = options.constraint.as_ref();
        let guide = guide.map(|c| Guide::start(model, c, prompt.len(), answered, budget, forces));
        let guide = guide.transpose()?;
        let mut stops = Stops::new(model, &options.stop, &options.printed_controls);
        let mut met = answered.iter().map(|token| stops.as_mut()?.take(*token));
        // What was answered may be all.
        let full = answered.len() == budget && budget > 0;
        let end = met.find_map(|which| which).map(Finish::Stop);
        let end = end.or(ended.map(Finish::End));
        let end = end.or(full.then_some(Finish::Length)).map(Ok);
        Ok(Sequence {
            number: 0,
            priority: request.priority,
            deadline: request.deadline,
            exact: request.exact,
            // Cached tokens have no logits. Of tokens that attend both ways the cache knows nothing.
            shared: request.prefix_cache
                && options.prompt_logprobs.is_none()
                && request.both_ways.is_empty(),
            both_ways,
            media: Placed::all(request),
            embeds: false,
            picked: Picked::Last,
            left_out: 0,
            second: (usize::MAX, 0),
            chain: options.chain.unwrap_or(longest).clamp(1, longest),
            guide,
            stalled: false,
            sampling: options.sampling,
            bias,
            ends,
            stops,
            breakers: breakers(model, options),
            biases,
            min_tokens: options.min_tokens,
            slot_changed: false,
            top: options.logprobs,
            prompt_top: options.prompt_logprobs,
            tokens,
            keys,
            prompt: prompt.len(),
            max_len,
            computed: 0,
            inserted: 0,
            lists: lists.collect(),
            kept: Vec::with_capacity(program.caches.len()),
            slot: 0,
            part: Part::Idle,
            restore: None,
            fetching: None,
            set_back: false,
            begun: false,
            draft: None,
            end,
            out: Arc::new(out(room)),
            adapter: options
                .adapter
                .clone()
                .filter(|adapter| adapter.of_slot().is_some()),
            rests: false,
            adapted: 0,
            counted_by: None,
        })
    }

    /// Tokens of the answer so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Tokens at which the sequence is complete.
    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    /// Tokens that may still be generated.
    pub(crate) fn remaining(&self) -> usize {
        self.max_len - self.tokens.len()
    }

    /// Tokens that must be in the caches before the next one can be chosen or decoded. The last generated token is fed by
    /// the next chain.
    pub(crate) fn target(&self) -> usize {
        match self.generated() {
            0 => self.prompt,
            _ => self.tokens.len() - 1,
        }
    }

    /// True while tokens that are known already are being computed.
    pub(crate) fn is_filling(&self) -> bool {
        self.computed < self.target()
    }

    /// Computes its generated tokens again from this one on.
    pub(crate) fn look_back(&mut self, first: usize) {
        let generated = |key: &&Key| **key & GENERATED != 0;
        let last = self.keys[first.min(self.computed)..self.computed].iter();
        self.computed -= last.rev().take_while(generated).count();
    }

    /// True if a chain can go on with it.
    pub(crate) fn is_decoding(&self) -> bool {
        !self.is_filling() && !self.stalled && !self.rests
    }

    /// True if its complete prompt yields a token by choice.
    pub(crate) fn begins_by_choice(&self) -> bool {
        self.remaining() > 0 && self.guide.as_ref().is_none_or(|guide| guide.forced() == 0)
    }

    /// Computes nothing before pages have come.
    pub(crate) fn waits_for_pages(&self) -> bool {
        self.restore.is_some() || self.fetching.is_some()
    }

    /// The pages that it waited for have come.
    pub(crate) fn fetched(&mut self, fetched: Fetching) {
        self.computed += fetched.tokens;
        if fetched.first {
            self.out.report(|report| report.cached = self.computed);
        }
    }

    /// The most tokens that may be cached. The logits of the last token of a prompt are needed, so it is always computed.
    pub(crate) fn most_cached(&self) -> usize {
        self.target() - usize::from(self.generated() == 0)
    }

    /// The tokens to compute next: all those of one role.
    pub(crate) fn next_run(&self) -> (Role, usize) {
        let rest = &self.keys[self.computed..self.target()];
        let generated = |key: &Key| key & GENERATED != 0;
        let first = rest.first().is_some_and(generated);
        let run = rest.iter().take_while(|key| generated(key) == first);
        let role = if first { Role::Generated } else { Role::Prompt };
        (role, run.count())
    }

    /// Forgets how tokens of the prompt were computed, from this one on.
    pub(crate) fn forget_roles(&mut self, from: usize) {
        let prompt = self.keys[..self.prompt].iter_mut().skip(from);
        prompt.for_each(|key| *key &= !GENERATED);
    }

    /// The key of a token of a prompt.
    pub(crate) fn key(&self, token: u32) -> Key {
        feature_key(self.adapted, token)
    }

    /// Gives its media and its adapter their numbers, and what depends on them keys. Without a number it does not use the prefix
    /// cache. The same medium has another number with another adapter.
    pub(crate) fn number_media(&mut self, numbers: &mut MediaNumbers) {
        let adapter = self.adapter.as_ref().and_then(Adapter::identity);
        if let Some(adapter) = &adapter {
            match numbers.number(adapter) {
                Some(number) => self.adapted = number,
                None => self.shared = false,
            }
            let adapted = feature_key(self.adapted, 0);
            self.keys.iter_mut().for_each(|key| *key |= adapted);
        }
        for placed in &mut self.media {
            let content = placed.medium.content();
            let joined = adapter.map(|adapter| sha256([adapter.as_slice(), content]));
            match numbers.number(joined.as_ref().unwrap_or(content)) {
                Some(number) => placed.number = number,
                None => self.shared = false,
            }
            let keys = self.keys[placed.rows.clone()].iter_mut();
            keys.zip(0..)
                .for_each(|(key, index)| *key = feature_key(placed.number, index));
        }
    }

    /// What coordinates are ahead of positions after all media.
    pub(crate) fn shift(&self) -> i32 {
        self.media.last().map_or(0, |placed| placed.shift.1)
    }

    /// The end of the span that attends both ways and has this token.
    pub(crate) fn end_of_span(&self, at: usize) -> Option<usize> {
        let next = self.both_ways.partition_point(|span| span.end <= at);
        let span = self.both_ways.get(next)?;
        span.contains(&at).then_some(span.end)
    }

    /// At most `count` of the tokens to compute next, so that no span that attends both ways is cut.
    pub(crate) fn whole_spans(&self, count: usize) -> usize {
        let end = self.computed + count;
        let cut = self.both_ways.iter().find(|s| s.start < end && end < s.end);
        cut.map_or(count, |span| span.start.saturating_sub(self.computed))
    }

    /// How its tokens are chosen.
    pub(crate) fn slot_state(&self) -> SlotState<'_> {
        SlotState {
            sampling: self.sampling,
            bias: if self.generated() < self.min_tokens {
                &self.bias
            } else {
                &self.bias[..self.biases]
            },
            history: &self.tokens,
            ends: &self.ends,
            breakers: &self.breakers,
            masked: self.guide.is_some(),
            logprobs: self.top,
            adapter: self.adapter.as_ref().and_then(Adapter::of_slot),
        }
    }

    /// Steps of its next chain at most. With drafts: a step for each guess, and one. The sampling state changes between
    /// chains only.
    pub(crate) fn longest_chain(&self, drafts: bool) -> usize {
        let guesses = self.draft.as_ref().map_or(0, |draft| draft.wanted);
        let steps = if drafts { guesses + 1 } else { self.chain };
        let steps = steps.min(self.remaining());
        match self.min_tokens.saturating_sub(self.generated()) {
            0 => steps,
            left => steps.min(left),
        }
    }

    /// The prompt's tokens that follow the rows of the step at hand.
    pub(crate) fn scored(&self) -> &[u32] {
        let next = self.computed + 1;
        &self.tokens[next..(next + self.part.count()).min(self.tokens.len())]
    }

    /// True while rows of the prompt are computed whose probabilities are wanted.
    pub(crate) fn is_scoring(&self) -> bool {
        self.prompt_top.is_some() && self.generated() == 0
    }

    /// Tells the device how its tokens are chosen.
    pub(crate) fn enter_slot(&self, context: &mut dyn Context) -> Result<(), DeviceError> {
        context.set_slot(self.slot, &self.slot_state())?;
        if let Some(guide) = &self.guide {
            guide.attach(context.masks(), self.slot);
        }
        Ok(())
    }

    /// Its slot goes to another sequence.
    pub(crate) fn leave_slot(&self) {
        if let Some(guide) = &self.guide {
            guide.detach();
        }
    }

    /// True if its deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| self.out.clock().now() >= deadline)
    }

    /// True while somebody wants the next token. If not, the sequence ends.
    pub(crate) fn is_wanted(&mut self) -> bool {
        if self.end.is_none() && !self.out.is_wanted() {
            self.end = Some(Ok(Finish::Cancelled));
        }
        if self.end.is_none() && self.is_late() {
            self.end = Some(if self.begun {
                Ok(Finish::Deadline)
            } else {
                Err(Error::Deadline)
            });
        }
        self.end.is_none()
    }
}

/// Refuses an answer so far that a request with this budget and these end tokens cannot have had.
fn check_answered(
    request: &Request,
    (prompt, answered): (usize, &[u32]),
    budget: usize,
    ends: &[u32],
) -> Result<(), Error> {
    let wrong = |problem: String| Err(Error::Answered { problem });
    if answered.is_empty() {
        return Ok(());
    }
    if answered.len() > budget {
        let answered = answered.len();
        return wrong(format!(
            "{answered} tokens are more than the {budget} that it may have"
        ));
    }
    if let Some(end) = answered.iter().find(|token| ends.contains(token)) {
        return wrong(format!("it has ended, with token {end}"));
    }
    if request.options.prompt_logprobs.is_some() {
        return wrong("it cannot be combined with prompt_logprobs".into());
    }
    let spans = media::both_ways(request);
    let media = request
        .media
        .iter()
        .map(|at| at.at.saturating_add(at.medium.rows()));
    if spans
        .iter()
        .map(|span| span.end)
        .chain(media)
        .any(|end| end > prompt)
    {
        return wrong("media and spans that attend both ways must lie before it".into());
    }
    Ok(())
}

/// Refuses spans that attend both ways if they are out of order or too long for a step, or if the device knows none.
fn check_spans(model: &Model, request: &Request, spans: &[Range<usize>]) -> Result<(), Error> {
    let Some(last) = spans.last() else {
        return Ok(());
    };
    let wrong = |problem: String| Err(Error::BothWays { problem });
    let max_len = model.longest_span();
    if max_len == 0 {
        return wrong(format!("{} does not compute them", model.device().id));
    }
    let follow = |pair: &[Range<usize>]| pair[0].end <= pair[1].start;
    if last.end > request.prompt.len() || !spans.windows(2).all(follow) {
        return wrong("the spans must lie in the prompt, one after the other".into());
    }
    for span in spans {
        if span.is_empty() || span.len() > max_len {
            let (span, tokens) = (format!("{}..{}", span.start, span.end), span.len());
            return wrong(format!(
                "span {span} has {tokens} tokens; a step takes 1 to {max_len} (prompt rows of the load)"
            ));
        }
    }
    if request.options.prompt_logprobs.is_some() {
        return wrong("they cannot be combined with prompt_logprobs".into());
    }
    Ok(())
}

/// The tokens whose text contains one of DRY's sequence breakers. Empty if DRY is off.
fn breakers(model: &Model, options: &GenerateOptions) -> Vec<u32> {
    if !options.sampling.has_dry() || options.dry_breakers.is_empty() {
        return Vec::new();
    }
    let vocab = model.vocab();
    let mut bits = vec![0u32; vocab.div_ceil(32) as usize];
    for token in 0..vocab {
        let text = model.token_bytes(token);
        let contains = |breaker: &String| {
            let breaker = breaker.as_bytes();
            text.windows(breaker.len()).any(|part| part == breaker)
        };
        if options.dry_breakers.iter().any(contains) {
            bits[token as usize / 32] |= 1 << (token % 32);
        }
    }
    bits
}

/// Nobody hangs: a sequence that is dropped has ended.
impl Drop for Sequence {
    fn drop(&mut self) {
        if let Some(count) = self.counted_by.take() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        let stopped = || Err(Error::EngineStopped { why: None });
        self.out.end(self.end.take().unwrap_or_else(stopped));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadOptions;

    #[test]
    fn breakers_are_the_tokens_that_contain_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
        let mut load = LoadOptions::default();
        (load.context, load.slots) = (64, 1);
        load.device = "reference".parse().unwrap();
        let model = Model::load(path, &load, &mut |_| ()).unwrap();
        let mut options = GenerateOptions {
            dry_breakers: vec!["ox".into(), ".".into()],
            ..GenerateOptions::default()
        };
        assert!(breakers(&model, &options).is_empty());
        options.sampling.dry_multiplier = 0.8;
        let bits = breakers(&model, &options);
        let (mut found, mut all) = (Vec::new(), Vec::new());
        for token in 0..model.vocab() {
            let text = model.token_bytes(token);
            if text.contains(&b'.') || text.windows(2).any(|two| two == b"ox") {
                all.push(token);
            }
            if bits[token as usize / 32] >> (token % 32) & 1 == 1 {
                found.push(token);
            }
        }
        assert!(all.len() > 2 && all.last() > Some(&32), "{all:?}");
        assert_eq!(found, all);
    }
}
