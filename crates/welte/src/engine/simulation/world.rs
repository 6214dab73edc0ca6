//! What device, disk and clients of a simulation share: the time, chance, and what each request has seen.

use super::Shape;
use super::clients::Clients;
use super::encoders::{Encoders, Piece};
use crate::engine::Clock;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use web_time::{Duration, Instant};

/// Stands for a sequence of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// For the tokens.
    pub(super) content: u64,
    /// For the tokens in their roles.
    pub(super) bits: u64,
}

impl Marks {
    pub(super) const START: Marks = Marks {
        content: 0x5eed,
        bits: 0x5eed,
    };

    /// What choices see: the roles only where they have bits of their own.
    pub(super) fn seen(self, roles: bool) -> Marks {
        if roles {
            self
        } else {
            Marks {
                bits: self.content,
                ..self
            }
        }
    }

    /// The sequence with one more token.
    pub(super) fn after(self, token: u32, generated: bool) -> Marks {
        Marks {
            content: mix(self.content, token.into()),
            bits: mix(self.bits, u64::from(token) << 1 | u64::from(generated)),
        }
    }
}

/// A hash of two numbers (splitmix64).
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b ^ 0x6a09_e667_f3bc_c909);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random numbers of one seed.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mix(self.0, 0) % n.max(1) as u64) as usize
    }

    /// From `least` to `most`.
    pub(super) fn from(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most + 1 - least)
    }

    pub(super) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The token that ends every text.
pub(super) const END: u32 = 2;
/// Byte tokens begin here.
pub(super) const BYTES: u32 = 3;
/// Words begin here.
pub(super) const WORD: u32 = BYTES + 256;
/// Words that often make up stop strings, with a character of two bytes.
pub(super) const WORDS: [&str; 9] = ["a", "b", "ab", "ba", "aab", " a", "c", "é", "bé"];

/// The token that a request chooses after a sequence. `history` are its tokens.
pub(super) fn choice(request: u64, marks: Marks, history: &[u32], forbidden: &[u32]) -> u32 {
    let last = history.last().copied().unwrap_or(0);
    // Some texts repeat themselves, so that n-grams guess right.
    let hash = match mix(marks.bits, 7) % 3 {
        0 => mix(u64::from(last), request % 4),
        _ => mix(marks.bits, request),
    };
    let rest = (hash >> 8) as u32;
    let mut token = match hash % 24 {
        0 => END,
        1 => BYTES + 0xc3,
        2 => BYTES + 0xa9,
        3 => BYTES + rest % 256,
        _ => WORD + rest % WORDS.len() as u32,
    };
    while forbidden.contains(&token) {
        token += 1;
    }
    token
}

/// What the device has done for a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Rows of its prompt.
    pub(super) rows: usize,
    /// Guesses that were verified.
    pub(super) drafted: usize,
    /// When it got a slot.
    pub(super) entered: Option<Instant>,
    /// It took part in a call that failed.
    pub(super) faulted: bool,
}

/// What the world knows of a request when it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) deadline: Option<Instant>,
    pub(super) prompt: usize,
    /// Tokens that it chooses, if that is known.
    pub(super) chosen: Option<usize>,
}

pub(super) struct Inner {
    random: Random,
    /// What should never happen.
    pub(super) wrong: Vec<String>,
    pub(super) seen: HashMap<u64, Seen>,
    known: HashMap<u64, Known>,
    /// Deadlines of the requests that waited when the turn began.
    waiting: Vec<(u64, Instant)>,
    /// Those of them that a chain has not noticed.
    pub(super) missed: Vec<u64>,
    /// A request has arrived since the turn began.
    arrived: bool,
    /// A sequence has left the chain at hand.
    left: bool,
    /// Steps of chains after that, in this turn.
    pub(super) late_steps: usize,
    /// Rows of prompts in the largest step of the turn, and the time of that step.
    pub(super) piece: (usize, Duration),
    /// Pieces of encoders' passes in the turn, steps of those who decode, and those of them in chains.
    pub(super) encoded: Vec<Piece>,
    pub(super) decoded: usize,
    pub(super) chained: usize,
    /// Kinds of commands that encoders have run.
    pub(super) kinds: HashSet<u64>,
    /// Rows of prompts, and tokens chosen, in all.
    pub(super) computed: u64,
    pub(super) chosen: u64,
    /// Calls that have failed.
    pub(super) faults: usize,
    last_step: Duration,
}

/// A simulation's world.
pub(super) struct World {
    pub(super) shape: Shape,
    pub(super) clock: Clock,
    pub(super) start: Instant,
    costs: [Duration; 3],
    /// What a unit of encoders' commands costs, by its kind.
    pub(super) encoding: [Duration; 5],
    /// A call fails once in this many; 0: never.
    faults: usize,
    /// Places of the host tier; 0: there is none.
    pub(super) host_places: u64,
    /// How long a context takes to bring pages from its own shelf. `None`: it has none.
    pub(super) fetching: Option<Duration>,
    inner: Mutex<Inner>,
    pub(super) clients: Mutex<Clients>,
    pub(super) encoders: Mutex<Encoders>,
}

impl World {
    pub(super) fn new(
        shape: Shape,
        random: &mut Random,
        clients: Clients,
        encoders: Encoders,
        clock: Clock,
    ) -> World {
        let mut nanos = || Duration::from_nanos(random.from(10, 400) as u64);
        let encoding = std::array::from_fn(|_| nanos());
        let micros = |random: &mut Random, least, most| {
            Duration::from_micros(random.from(least, most) as u64)
        };
        World {
            costs: [
                micros(random, 500, 10_000),
                micros(random, 1, 500),
                micros(random, 5, 1_000),
            ],
            encoding,
            faults: match random.below(4) {
                0 => random.from(10, 60),
                _ => 0,
            },
            host_places: [0, 0, random.from(1, 60) as u64][random.below(3)],
            fetching: [None, Some(micros(random, 1, 20_000))][random.below(2)],
            shape,
            start: clock.now(),
            clock,
            inner: Mutex::new(Inner {
                random: random.clone(),
                wrong: Vec::new(),
                seen: HashMap::new(),
                known: HashMap::new(),
                waiting: Vec::new(),
                missed: Vec::new(),
                arrived: false,
                left: false,
                late_steps: 0,
                piece: (0, Duration::ZERO),
                encoded: Vec::new(),
                decoded: 0,
                chained: 0,
                kinds: HashSet::new(),
                computed: 0,
                chosen: 0,
                faults: 0,
                last_step: Duration::ZERO,
            }),
            clients: Mutex::new(clients),
            encoders: Mutex::new(encoders),
        }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// A turn begins. These requests wait, and have deadlines.
    pub(super) fn begin_turn(&self, waiting: Vec<(u64, Instant)>) {
        let mut inner = self.inner();
        inner.waiting = waiting;
        inner.missed.clear();
        (inner.arrived, inner.left, inner.late_steps) = (false, false, 0);
        inner.piece = (0, Duration::ZERO);
        inner.encoded.clear();
        (inner.decoded, inner.chained) = (0, 0);
    }

    /// A request is about to arrive.
    pub(super) fn arrives(&self, request: u64, known: Known) {
        self.inner().known.insert(request, known);
    }

    /// The engine has taken a request.
    pub(super) fn has_arrived(&self) {
        self.inner().arrived = true;
    }

    /// A sequence leaves the chain at hand, whose other sequences may go on.
    pub(super) fn leaves_chain(&self) {
        self.inner().left = true;
    }

    pub(super) fn wrong(&self, what: String) {
        self.inner().wrong.push(what);
    }

    /// True if a call fails in which these requests take part.
    pub(super) fn fails(&self, broken: &mut bool, requests: impl Iterator<Item = u64>) -> bool {
        let mut inner = self.inner();
        let faults = self.faults;
        if !*broken && (faults == 0 || !inner.random.once_in(faults)) {
            return false;
        }
        *broken |= inner.random.once_in(4);
        inner.faults += 1;
        for request in requests {
            inner.seen.entry(request).or_default().faulted = true;
        }
        true
    }

    /// The time of a step of `rows` rows.
    fn cost(&self, rows: usize, generated: bool) -> Duration {
        let [fixed, decoded, filled] = self.costs;
        fixed + if generated { decoded } else { filled } * rows as u32
    }

    /// The time of a step that decodes a number of sequences, and of a number of rows of prompts.
    pub(super) fn times(&self, decoding: usize, rows: usize) -> [Duration; 2] {
        [self.cost(decoding, true), self.costs[2] * rows as u32]
    }

    /// A step runs.
    pub(super) fn step(&self, rows: usize, generated: bool) {
        let cost = self.cost(rows, generated);
        self.clock.advance(cost);
        self.inner().last_step = cost;
    }

    /// The step was one of those who decode, perhaps with rows of prompts.
    pub(super) fn decoded(&self) {
        self.inner().decoded += 1;
    }

    /// A piece of an encoder's pass runs.
    pub(super) fn encoded(&self, piece: Piece) {
        self.inner().encoded.push(piece);
    }

    /// The rows of prompts that the step had.
    pub(super) fn piece(&self, rows: usize) {
        let mut inner = self.inner();
        inner.piece = inner.piece.max((rows, inner.last_step));
    }

    /// Rows of these requests' prompts were computed.
    pub(super) fn computed(&self, requests: impl Iterator<Item = u64>) {
        let mut inner = self.inner();
        for request in requests {
            inner.computed += 1;
            inner.seen.entry(request).or_default().rows += 1;
        }
    }

    /// A request has a slot.
    pub(super) fn entered(&self, request: u64) {
        let now = self.clock.now();
        let mut inner = self.inner();
        let seen = inner.seen.entry(request).or_default();
        seen.entered.get_or_insert(now);
    }

    /// A guess of a request was verified.
    pub(super) fn drafted(&self, request: u64) {
        self.inner().seen.entry(request).or_default().drafted += 1;
    }

    /// A token was chosen after a row that stands for `marks`, with this history.
    pub(super) fn chosen(
        &self,
        request: u64,
        position: u32,
        token: u32,
        marks: Marks,
        history: &[u32],
    ) {
        let all = history.iter();
        let own = all.fold(Marks::START, |marks, token| marks.after(*token, false));
        let mut inner = self.inner();
        inner.chosen += 1;
        if history.len() != position as usize || own.content != marks.content {
            inner.wrong.push(format!(
                "request {request} chose token {token} at {position} by other tokens than its {}",
                history.len()
            ));
        }
    }

    /// A chain has made a token of a request.
    pub(super) fn emitted(&self, request: u64, position: u32) {
        let mut inner = self.inner();
        let Some(known) = inner.known.get(&request).copied() else {
            return;
        };
        let nth = position as usize - known.prompt;
        if let Some(chosen) = known.chosen.filter(|chosen| nth >= *chosen) {
            inner.wrong.push(format!(
                "request {request} decodes token {nth} although its text ends with {chosen}"
            ));
        }
    }

    /// A chain goes on with these requests. Everything that has passed was seen by its last token.
    pub(super) fn chain_goes_on(&self, requests: impl Iterator<Item = u64>) {
        let now = self.clock.now();
        let mut inner = self.inner();
        let missed: Vec<u64> = inner
            .waiting
            .iter()
            .filter(|(_, deadline)| *deadline <= now)
            .map(|(number, _)| *number)
            .collect();
        inner.missed.extend(missed);
        inner.late_steps += usize::from(inner.left);
        if inner.arrived {
            let what = "a chain goes on although a request has arrived";
            inner.wrong.push(what.to_string());
        }
        for request in requests {
            let deadline = inner.known.get(&request).and_then(|known| known.deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                inner
                    .wrong
                    .push(format!("request {request} decodes after its deadline"));
            }
        }
    }

    /// The clients act while the device is at work.
    pub(super) fn others_act(&self) {
        if let Ok(mut clients) = self.clients.try_lock() {
            clients.act(self);
        }
        if let Ok(mut encoders) = self.encoders.try_lock() {
            encoders.act();
        }
    }
}
