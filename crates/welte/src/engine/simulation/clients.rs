//! The clients of a simulation: they arrive, read, stall, leave and cancel. Each knows what it must get.

use super::Shape;
use super::world::{BYTES, END, Known, Marks, Random, WORD, WORDS, World, choice};
use crate::engine::{Embedding, Engine, Stream};
use crate::{Error, Request, StopReason, SyntheticDraft};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use web_time::{Duration, Instant};

/// The bytes of a token.
pub(super) fn bytes_of(token: u32) -> Vec<u8> {
    match token {
        BYTES..WORD => vec![(token - BYTES) as u8],
        WORD.. => WORDS
            .get((token - WORD) as usize)
            .map_or(Vec::new(), |word| word.as_bytes().to_vec()),
        _ => Vec::new(),
    }
}

/// What a request gets by itself.
#[derive(Clone, Debug)]
pub(super) struct Lone {
    /// All tokens that it chooses, but an end token.
    pub(super) chosen: Vec<u32>,
    /// Those before a stop string.
    pub(super) tokens: Vec<u32>,
    pub(super) text: String,
    /// With the stop string, and whatever is chosen with it.
    raw: String,
    pub(super) stop: StopReason,
}

impl Lone {
    /// Runs a request as it is defined, without any engine.
    pub(super) fn of(request: &Request, context: usize, roles: bool) -> Lone {
        let options = &request.options;
        let (prompt, mut history) = (request.prompt.len(), request.prompt.clone());
        let most = prompt + options.max_tokens.min(context - prompt);
        let start = Marks::START;
        let mut marks = history
            .iter()
            .fold(start, |m, token| m.after(*token, false));
        let mut ends = vec![END];
        let mut bias = Vec::new();
        if options.ignore_end {
            bias.append(&mut ends);
        }
        ends.extend_from_slice(&options.stop_tokens);
        let (mut raw, mut cuts) = (Vec::new(), Vec::new());
        let stop = loop {
            if history.len() == most {
                break if options.max_tokens == most - prompt {
                    StopReason::Length
                } else {
                    StopReason::ContextFull
                };
            }
            let forbidden = if history.len() - prompt < options.min_tokens {
                [&bias[..], &ends].concat()
            } else {
                bias.clone()
            };
            let token = choice(
                options.sampling.seed,
                marks.seen(roles),
                &history,
                &forbidden,
            );
            if ends.contains(&token) {
                break StopReason::End(token);
            }
            history.push(token);
            marks = marks.after(token, true);
            raw.extend(bytes_of(token));
            cuts.push(raw.len());
            if let Some((_, stop)) = met(&raw, &options.stop) {
                break StopReason::StopString(stop);
            }
        };
        let chosen = history.split_off(prompt);
        let (text, kept) = match &stop {
            StopReason::StopString(stop) => {
                let text = String::from_utf8_lossy(&raw);
                let at = text.find(stop.as_str()).unwrap();
                let begins = raw.windows(stop.len()).position(|w| w == stop.as_bytes());
                let before = cuts.iter().filter(|cut| **cut <= begins.unwrap());
                (text[..at].to_string(), before.count())
            }
            _ => (String::from_utf8_lossy(&raw).into_owned(), chosen.len()),
        };
        Lone {
            raw: String::from_utf8_lossy(&raw).into_owned(),
            tokens: chosen[..kept].to_vec(),
            chosen,
            text,
            stop,
        }
    }
}

/// The stop string that a text has met, and where. Characters that later bytes may complete are not text yet.
fn met(raw: &[u8], stops: &[String]) -> Option<(usize, String)> {
    let open = raw.utf8_chunks().last().map_or(0, |chunk| {
        let rest = chunk.invalid();
        match std::str::from_utf8(rest) {
            Err(error) if error.error_len().is_none() => rest.len(),
            _ => 0,
        }
    });
    let text = String::from_utf8_lossy(&raw[..raw.len() - open]);
    let found = stops
        .iter()
        .filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
    let first = found.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len()));
    first.map(|(at, stop)| (at, stop.clone()))
}

/// How a client reads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    Text,
    Tokens,
    /// Not before its request has ended.
    Late,
    /// A vector in place of a text.
    Vector,
}

/// What a client will do.
struct Plan {
    at: Duration,
    request: Request,
    /// The deadline, after the arrival.
    patience: Option<Duration>,
    reading: Reading,
    /// It leaves after a number of tokens or pieces, or cancels after some time.
    leaves_after: Option<usize>,
    cancels_after: Option<Duration>,
    lone: Option<Lone>,
}

enum Answer {
    Stream(Box<Stream>),
    Vector(Embedding),
}

/// How a request has ended, for its client.
enum End {
    Stopped,
    Vector(Vec<f32>),
    Left,
    Refused,
    Failed(Error),
}

#[derive(Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Client {
    plan: Plan,
    arrived: Option<Instant>,
    number: Option<u64>,
    answer: Option<Answer>,
    bell: Arc<Bell>,
    /// The last look found nothing.
    pends: bool,
    cancelled: bool,
    text: String,
    tokens: Vec<u32>,
    logprobs: usize,
    end: Option<End>,
}

/// What came out, over all clients.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) complete: usize,
    pub(super) stopped: usize,
    pub(super) cached: usize,
    pub(super) accepted: usize,
    pub(super) preempted: usize,
    pub(super) cut: usize,
    pub(super) failed: usize,
    pub(super) inexact: usize,
    pub(super) encoded: usize,
    /// Pages that came back from host memory.
    pub(super) fetched: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.complete += other.complete;
        self.stopped += other.stopped;
        self.cached += other.cached;
        self.accepted += other.accepted;
        self.preempted += other.preempted;
        self.cut += other.cut;
        self.failed += other.failed;
        self.inexact += other.inexact;
        self.encoded += other.encoded;
        self.fetched += other.fetched;
    }
}

/// All clients of a simulation.
pub(super) struct Clients {
    engine: Option<Engine>,
    start: Instant,
    all: Vec<Client>,
}

impl Clients {
    /// Random clients, whose requests are numbered from `first`.
    pub(super) fn new(
        shape: &Shape,
        random: &mut Random,
        first: u64,
        start: Instant,
        earlier: &mut Vec<Vec<u32>>,
    ) -> Clients {
        let count = random.from(1, 12);
        let hurry = random.from(1, 40) as u64;
        let mut at = Duration::ZERO;
        let mut all = Vec::new();
        for number in first..first + count as u64 {
            at += Duration::from_millis(
                random.below(3) as u64 * random.below(1 + hurry as usize) as u64,
            );
            let plan = Plan::new(shape, random, number, at, earlier);
            all.push(Client {
                plan,
                arrived: None,
                number: None,
                answer: None,
                bell: Arc::default(),
                pends: false,
                cancelled: false,
                text: String::new(),
                tokens: Vec::new(),
                logprobs: 0,
                end: None,
            });
        }
        Clients {
            engine: None,
            start,
            all,
        }
    }

    pub(super) fn meet(&mut self, engine: &Engine) {
        self.engine = Some(engine.clone());
    }

    /// When the next client arrives or cancels; `None`: nothing comes by itself.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let times = self.all.iter().filter_map(|client| match client.arrived {
            None => Some(self.start + client.plan.at),
            Some(arrived) if client.end.is_none() && !client.cancelled => {
                client.plan.cancels_after.map(|time| arrived + time)
            }
            Some(_) => None,
        });
        times.min()
    }

    /// All clients do what is due.
    pub(super) fn act(&mut self, world: &World) {
        let now = world.clock.now();
        let Some(engine) = self.engine.clone() else {
            return;
        };
        for at in 0..self.all.len() {
            if self.all[at].arrived.is_none() && self.start + self.all[at].plan.at <= now {
                let client = &mut self.all[at];
                client.arrive(&engine, world);
            }
            self.all[at].read(now, false);
        }
    }

    /// Those that have not been woken find nothing. The stalled ones read once the engine is idle.
    pub(super) fn look(&mut self, world: &World, idle: bool) {
        let now = world.clock.now();
        for client in &mut self.all {
            let woken = client.bell.0.load(Ordering::Relaxed) || client.cancelled;
            if client.pends && !woken && client.take().is_ready() {
                let number = client.plan.request.options.sampling.seed;
                world.wrong(format!("the reader of request {number} was not woken"));
            }
            client.read(now, idle);
        }
    }

    /// True once all have arrived and ended.
    pub(super) fn is_over(&self) -> bool {
        self.all.iter().all(|client| client.end.is_some())
    }

    /// The requests that have deadlines, by the engine's numbers.
    pub(super) fn deadlines(&self) -> Vec<(u64, Instant)> {
        let deadline = |client: &Client| {
            let deadline = client.arrived? + client.plan.patience?;
            Some((client.number?, deadline))
        };
        self.all.iter().filter_map(deadline).collect()
    }

    /// Numbers and first tokens of the requests that have arrived.
    pub(super) fn first_tokens(&self) -> Vec<(u64, u32)> {
        let first = |client: &Client| Some((client.number?, client.plan.request.prompt[0]));
        self.all.iter().filter_map(first).collect()
    }

    /// The engine's numbers of requests that nobody wants any more.
    pub(super) fn gone(&self) -> Vec<u64> {
        let left = |client: &&Client| matches!(client.end, Some(End::Left)) || client.cancelled;
        let gone = self.all.iter().filter(left);
        gone.filter_map(|client| client.number).collect()
    }

    /// The identities of requests by the engine's numbers, for messages.
    pub(super) fn describe(&self) -> String {
        let line = |client: &Client| {
            let request = &client.plan.request;
            format!(
                "  request {} ({:?}): at {:?}, prompt {}, at most {}, {:?}, priority {}, exact {}, cache {}, deadline {:?}\n",
                request.options.sampling.seed,
                client.number,
                client.plan.at,
                request.prompt.len(),
                request.options.max_tokens,
                client.plan.reading,
                request.priority,
                request.exact,
                request.prefix_cache,
                client.plan.patience,
            )
        };
        self.all.iter().map(line).collect()
    }

    /// Compares what everybody got with what they must get.
    pub(super) fn judge(&self, world: &World, counts: &mut Counts) {
        for client in &self.all {
            if let Err(what) = client.judge(world, counts) {
                let request = client.plan.request.options.sampling.seed;
                world.wrong(format!("request {request}: {what}"));
            }
        }
    }

    /// Lets go of the engine.
    pub(super) fn leave(&mut self) {
        self.engine = None;
        self.all.iter_mut().for_each(|client| client.answer = None);
    }
}

impl Plan {
    fn new(
        shape: &Shape,
        random: &mut Random,
        number: u64,
        at: Duration,
        earlier: &mut Vec<Vec<u32>>,
    ) -> Plan {
        let vocab = (WORD as usize) + WORDS.len();
        let most = shape.context as usize - 1;
        // Prompts begin alike, or go on where an earlier text ended.
        let mut prompt = match random.below(3) {
            0 if !earlier.is_empty() => {
                let text = &earlier[random.below(earlier.len())];
                text[..random.from(0, text.len())].to_vec()
            }
            _ => Vec::new(),
        };
        let longest = if random.once_in(4) { most } else { most / 4 };
        let more = random.from(1, longest);
        prompt.extend((0..more).map(|_| random.below(vocab) as u32));
        prompt.truncate(most);
        let mut request = Request::new(prompt);
        let options = &mut request.options;
        options.sampling.seed = number;
        options.max_tokens = match random.below(8) {
            0 => usize::MAX,
            1 => random.below(3),
            _ => random.below(most),
        };
        options.ignore_end = random.once_in(3);
        if random.once_in(4) {
            options.min_tokens = random.below(20);
        }
        if random.once_in(6) {
            options.stop_tokens = vec![WORD + random.below(WORDS.len()) as u32];
        }
        if random.once_in(3) {
            let words = |random: &mut Random| -> String {
                let count = random.from(1, 3);
                (0..count)
                    .map(|_| WORDS[random.below(WORDS.len())])
                    .collect()
            };
            options.stop = (0..random.from(1, 3)).map(|_| words(random)).collect();
        }
        options.chain = random.once_in(3).then(|| random.from(1, 12));
        options.logprobs = random.once_in(8).then_some(2);
        options.prompt_logprobs = random.once_in(12).then_some(1);
        request.priority = random.below(3) as i32 - 1;
        request.exact = random.once_in(2);
        request.prefix_cache = !random.once_in(5);
        request.speculate = random.once_in(2);
        // Where roles have bits of their own, a request that takes both gets texts of its own.
        let exact = request.exact || !shape.roles;
        let lone = exact.then(|| Lone::of(&request, shape.context as usize, shape.roles));
        if let Some(lone) = &lone {
            let begun = [&request.prompt[..], &lone.chosen].concat();
            earlier.push(begun);
            if random.once_in(2) {
                request.synthetic_draft = Some(SyntheticDraft {
                    answer: lone.chosen.clone(),
                    agreement: 0.8,
                    ..SyntheticDraft::default()
                });
            }
        }
        let millis = |random: &mut Random| Duration::from_millis(random.from(0, 200) as u64);
        let reading = match random.below(8) {
            0 | 1 => Reading::Tokens,
            2 | 3 => Reading::Late,
            4 if shape.embeds => Reading::Vector,
            _ => Reading::Text,
        };
        Plan {
            at,
            patience: random.once_in(5).then(|| millis(random)),
            leaves_after: random.once_in(8).then(|| random.below(10)),
            cancels_after: random.once_in(10).then(|| millis(random)),
            reading,
            request,
            lone,
        }
    }
}

impl Client {
    fn arrive(&mut self, engine: &Engine, world: &World) {
        let now = world.clock.now();
        self.arrived = Some(now);
        let mut request = self.plan.request.clone();
        request.deadline = self.plan.patience.map(|patience| now + patience);
        if self.plan.reading == Reading::Vector {
            match engine.embed(request.prompt, request.deadline) {
                Ok(vector) => self.answer = Some(Answer::Vector(vector.unnormalised())),
                Err(Error::Busy { .. }) => self.end = Some(End::Refused),
                Err(error) => self.end = Some(End::Failed(error)),
            }
            return;
        }
        let chosen =
            self.plan.lone.as_ref().map(|lone| {
                lone.chosen.len() + usize::from(matches!(lone.stop, StopReason::End(_)))
            });
        world.arrives(
            request.options.sampling.seed,
            Known {
                deadline: request.deadline,
                prompt: request.prompt.len(),
                chosen,
            },
        );
        match engine.submit(request) {
            Ok(stream) => {
                self.number = Some(stream.number());
                world.has_arrived();
                self.answer = Some(Answer::Stream(Box::new(stream)));
            }
            Err(Error::Busy { .. }) => self.end = Some(End::Refused),
            Err(error) => self.end = Some(End::Failed(error)),
        }
    }

    /// Takes what has come. Those who read late do so only if `late`.
    fn read(&mut self, now: Instant, late: bool) {
        let due = self.plan.cancels_after.zip(self.arrived);
        if due.is_some_and(|(after, arrived)| arrived + after <= now) && !self.cancelled {
            self.cancelled = true;
            match &self.answer {
                Some(Answer::Stream(stream)) => stream.cancel_handle().cancel(),
                Some(Answer::Vector(_)) => {
                    self.answer = None;
                    self.end = Some(End::Left);
                }
                None => {}
            }
        }
        if self.plan.reading == Reading::Late && !late {
            return;
        }
        while self.end.is_none() && self.answer.is_some() {
            if self
                .plan
                .leaves_after
                .is_some_and(|count| self.taken() >= count)
            {
                self.answer = None;
                self.end = Some(End::Left);
                return;
            }
            if self.take().is_pending() {
                return;
            }
        }
    }

    /// Tokens or bytes that it has taken.
    fn taken(&self) -> usize {
        self.tokens.len().max(self.text.len())
    }

    fn take(&mut self) -> Poll<()> {
        self.bell.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(self.bell.clone());
        let mut context = Context::from_waker(&waker);
        self.pends = false;
        match &mut self.answer {
            Some(Answer::Vector(vector)) => match Pin::new(vector).poll(&mut context) {
                Poll::Ready(Ok(vector)) => self.end = Some(End::Vector(vector)),
                Poll::Ready(Err(error)) => self.end = Some(End::Failed(error)),
                Poll::Pending => {
                    self.pends = true;
                    return Poll::Pending;
                }
            },
            Some(Answer::Stream(stream)) if self.plan.reading == Reading::Tokens => {
                match stream.poll_token() {
                    Poll::Ready(Some(Ok(token))) => self.tokens.push(token),
                    Poll::Ready(Some(Err(error))) => self.end = Some(End::Failed(error)),
                    Poll::Ready(None) => self.end = Some(End::Stopped),
                    Poll::Pending => return Poll::Pending,
                }
            }
            Some(Answer::Stream(stream)) => {
                match futures_core::Stream::poll_next(Pin::new(stream.as_mut()), &mut context) {
                    Poll::Ready(Some(Ok(piece))) => self.text.push_str(&piece),
                    Poll::Ready(Some(Err(error))) => self.end = Some(End::Failed(error)),
                    Poll::Ready(None) => self.end = Some(End::Stopped),
                    Poll::Pending => {
                        self.pends = true;
                        return Poll::Pending;
                    }
                }
                self.logprobs += stream.take_logprobs().len();
            }
            None => {}
        }
        Poll::Ready(())
    }

    fn judge(&self, world: &World, counts: &mut Counts) -> Result<(), String> {
        let same = |what: &str, is: &dyn std::fmt::Debug, must: &dyn std::fmt::Debug| {
            let (is, must) = (format!("{is:?}"), format!("{must:?}"));
            if is == must {
                Ok(())
            } else {
                Err(format!("{what} is {is} and must be {must}"))
            }
        };
        let request = &self.plan.request;
        let seed = request.options.sampling.seed;
        let seen = world.inner().seen.get(&seed).cloned().unwrap_or_default();
        let lone = self.plan.lone.as_ref();
        let stream = match &self.answer {
            Some(Answer::Stream(stream)) => Some(stream),
            _ => None,
        };
        if let Some(lone) = lone.filter(|_| self.plan.reading != Reading::Vector) {
            // What is cut off gets what was held back, and perhaps a part of a character.
            let text = self.text.trim_end_matches('\u{fffd}');
            let begins = lone.raw.starts_with(text) && lone.chosen.starts_with(&self.tokens);
            if !begins {
                return Err(format!(
                    "{:?} {:?} is not the beginning of {:?} {:?}",
                    self.text, self.tokens, lone.text, lone.chosen
                ));
            }
        }
        match self.end.as_ref().ok_or("it has not ended")? {
            End::Left | End::Refused => {
                counts.cut += 1;
                return Ok(());
            }
            End::Failed(Error::Fault(_)) if seen.faulted || seed == 0 => {
                counts.failed += 1;
                return Ok(());
            }
            // The world does not tell texts to embed apart.
            End::Failed(Error::Fault(_)) if self.plan.reading == Reading::Vector => {
                counts.failed += 1;
                return Ok(());
            }
            End::Failed(Error::Deadline) if self.plan.patience.is_some() => {
                counts.cut += 1;
                return Ok(());
            }
            End::Failed(error) => return Err(format!("it failed: {error}")),
            End::Vector(vector) => {
                counts.complete += 1;
                let tokens = request.prompt.iter();
                let marks = tokens.fold(Marks::START, |m, token| m.after(*token, false));
                let must: Vec<f32> = super::device::vector(marks, vector.len()).collect();
                return same("the vector", vector, &must);
            }
            End::Stopped => {}
        }
        let outcome = stream
            .and_then(|stream| stream.outcome())
            .ok_or("no outcome")?;
        counts.complete += 1;
        counts.cached += usize::from(outcome.cached_tokens > 0);
        counts.accepted += outcome.speculated.accepted;
        counts.preempted += outcome.preemptions as usize;
        counts.inexact += usize::from(!request.exact && outcome.cached_tokens > 0);
        let prompt = request.prompt.len();
        same("the prompt", &outcome.prompt_tokens, &prompt)?;
        same(
            "the number of guesses",
            &outcome.speculated.drafted,
            &seen.drafted,
        )?;
        if outcome.preemptions == 0 && world.inner().faults == 0 && seen.entered.is_some() {
            let whole = !matches!(outcome.stop, StopReason::Cancelled | StopReason::Deadline);
            if whole || !outcome.tokens.is_empty() {
                let computed = prompt - outcome.cached_tokens;
                same("the number of computed tokens", &seen.rows, &computed)?;
            }
        }
        if let (Some(entered), Some(arrived)) = (seen.entered, self.arrived) {
            let queued = entered - arrived;
            same("the time in the queue", &outcome.timings.queued, &queued)?;
        }
        match &outcome.stop {
            StopReason::Cancelled if self.cancelled => counts.cut += 1,
            StopReason::Deadline if self.plan.patience.is_some() => counts.cut += 1,
            stop => {
                let Some(lone) = lone else { return Ok(()) };
                counts.stopped += usize::from(matches!(stop, StopReason::StopString(_)));
                same("the end", stop, &lone.stop)?;
                same("the tokens", &outcome.tokens, &lone.tokens)?;
                match self.plan.reading {
                    Reading::Tokens => same("what was read", &self.tokens, &lone.chosen)?,
                    _ => same("the text", &self.text, &lone.text)?,
                }
                let ended = usize::from(matches!(stop, StopReason::End(_)));
                let chosen = lone.chosen.len() + ended;
                same(
                    "the number of chosen tokens",
                    &outcome.timings.chosen,
                    &chosen,
                )?;
                if request.options.logprobs.is_some() && self.plan.reading != Reading::Tokens {
                    same(
                        "the number of probabilities",
                        &self.logprobs,
                        &lone.tokens.len(),
                    )?;
                }
            }
        }
        Ok(())
    }
}
