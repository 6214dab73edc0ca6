//! A step as a value: which rows are computed, in which role, and which of them yield something.

use std::ops::Range;
use welte_table::{Op, PassKind, Program, Row};

/// How rows are computed. With the sequence, all that decides the bits of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Tokens that follow a prompt, as the decode pass computes them. All of them are output rows.
    Generated,
    /// Prompts, as the prompt pass computes them.
    Prompt,
    /// Texts whose vectors are wanted, as the embed pass computes them.
    Text,
    /// Positions after which the model's own draft layer guesses, as the draft pass computes them. A row reads the token at
    /// the next position. Tokens that are chosen leave no trace in their slots, and masks do not count.
    Draft,
}

impl Role {
    /// The pass that computes a step of rows of this role alone.
    pub const fn pass(self) -> PassKind {
        match self {
            Role::Generated => PassKind::Decode,
            Role::Prompt => PassKind::Prompt,
            Role::Text => PassKind::Embed,
            Role::Draft => PassKind::Draft,
        }
    }

    /// The role of the rows of a pass.
    pub const fn of(kind: PassKind) -> Role {
        match kind {
            PassKind::Decode => Role::Generated,
            PassKind::Prompt => Role::Prompt,
            PassKind::Embed => Role::Text,
            PassKind::Draft => Role::Draft,
        }
    }
}

/// Consecutive rows of a step that belong to one sequence and have one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Their role.
    pub role: Role,
    /// How many there are. They follow those of the spans before.
    pub rows: u32,
}

/// What is wanted of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Its output row: logits, or the vector of the text that ends there.
    Values,
    /// The token after it, chosen by its slot's sampling state. The output row is computed, too.
    Token {
        /// The token that the slot's next row has read as a guess. If another token is chosen, later picks of the slot
        /// are skipped.
        draft: Option<u32>,
    },
}

/// A row of a step that yields something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Its number in the step.
    pub row: u32,
    /// What it yields.
    pub want: Want,
}

/// Where the tokens lie that a draft step guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guesses {
    /// After the token that the row reads. The next guess is one position further on.
    #[default]
    Moving,
    /// Likewise, but all rows that follow stay at the position of the first one ([`Program::guesses_stay`]): the guesses before it.
    ///
    /// [`Program::guesses_stay`]: welte_table::Program::guesses_stay
    Staying(u32),
    /// At the row's own position, in place of a mask ([`Program::block`](welte_table::Program::block)). Nothing follows them.
    Masked,
}

impl Guesses {
    /// From a row's position to that of its guess.
    pub const fn ahead(self) -> u32 {
        match self {
            Guesses::Moving => 2,
            Guesses::Staying(before) => 2 + before,
            Guesses::Masked => 0,
        }
    }
}

/// Rows to compute in one call of [`Context::step`](crate::Context::step).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The rows' roles: spans of generated rows, then spans of prompts; or spans of texts.
    pub spans: Vec<Span>,
    /// The rows, span by span.
    pub rows: Vec<Row>,
    /// What is wanted, in ascending order of rows. Generated rows are output rows anyway.
    pub picks: Vec<Pick>,
    /// What a draft step guesses.
    pub guesses: Guesses,
}

impl Step {
    /// An empty step that may grow to `rows` rows without an allocation.
    pub fn with_room(rows: usize) -> Step {
        Step {
            spans: Vec::with_capacity(rows),
            rows: Vec::with_capacity(rows),
            picks: Vec::with_capacity(rows),
            guesses: Guesses::Moving,
        }
    }

    /// Rows of one role, of any slots. `values` names the rows whose output rows are wanted.
    pub fn of(role: Role, rows: &[Row], values: &[u32]) -> Step {
        let mut step = Step::default();
        step.add_all(role, rows);
        step.picks.extend(values.iter().map(|row| Pick {
            row: *row,
            want: Want::Values,
        }));
        step
    }

    /// As [`Step::of`], for generated rows whose next tokens are wanted.
    pub fn choosing(rows: &[Row]) -> Step {
        let mut step = Step::of(Role::Generated, rows, &[]);
        step.picks.extend((0..rows.len() as u32).map(|row| Pick {
            row,
            want: Want::Token { draft: None },
        }));
        step
    }

    /// Appends rows of any slots: a span for each run of a slot.
    pub fn add_all(&mut self, role: Role, rows: &[Row]) {
        for run in rows.chunk_by(|a, b| a.slot == b.slot) {
            self.add(role, run.iter().copied());
        }
    }

    /// Appends a span. Returns the numbers of its rows.
    pub fn add(&mut self, role: Role, rows: impl IntoIterator<Item = Row>) -> Range<u32> {
        let first = self.rows.len() as u32;
        self.rows.extend(rows);
        let end = self.rows.len() as u32;
        if end > first {
            let rows = end - first;
            self.spans.push(Span { role, rows });
        }
        first..end
    }

    /// Makes it empty.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.rows.clear();
        self.picks.clear();
        self.guesses = Guesses::Moving;
    }

    /// Makes it equal to another one, in its own memory.
    pub fn copy_from(&mut self, other: &Step) {
        self.clear();
        self.spans.extend_from_slice(&other.spans);
        self.rows.extend_from_slice(&other.rows);
        self.picks.extend_from_slice(&other.picks);
        self.guesses = other.guesses;
    }

    /// True if it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The pass that computes it. The prompt pass computes a mixed step.
    pub fn pass(&self) -> PassKind {
        let last = self.spans.iter().map(|span| span.role).max();
        last.unwrap_or(Role::Generated).pass()
    }

    /// The number of generated rows, which come first.
    pub fn generated(&self) -> usize {
        let spans = self.spans.iter();
        let generated = spans.take_while(|span| span.role == Role::Generated);
        generated.map(|span| span.rows as usize).sum()
    }

    /// True if it has generated rows and rows of prompts.
    pub fn is_mixed(&self) -> bool {
        (1..self.rows.len()).contains(&self.generated())
    }

    /// The output rows besides the generated ones, by their numbers in the step.
    pub fn chosen(&self) -> impl Iterator<Item = u32> {
        let generated = self.generated() as u32;
        let rows = self.picks.iter().map(|pick| pick.row);
        rows.filter(move |row| *row >= generated)
    }

    /// The tokens that are wanted, as [`Context::sample`](crate::Context::sample) chooses them.
    pub fn choices(&self) -> impl Iterator<Item = Choice> {
        let generated = self.generated() as u32;
        let ahead = match self.pass() {
            PassKind::Draft => self.guesses.ahead(),
            _ => 1,
        };
        let mut prompts = 0;
        self.picks.iter().filter_map(move |pick| {
            let output = if pick.row < generated {
                pick.row
            } else {
                prompts += 1;
                generated + prompts - 1
            };
            let Want::Token { draft } = pick.want else {
                return None;
            };
            let row = self.rows.get(pick.row as usize)?;
            Some(Choice {
                output,
                slot: row.slot,
                position: row.position + ahead,
                draft,
            })
        })
    }

    /// How many tokens are wanted.
    pub fn tokens(&self) -> usize {
        let wants_token = |pick: &&Pick| matches!(pick.want, Want::Token { .. });
        self.picks.iter().filter(wants_token).count()
    }
}

/// How a step is run.
#[derive(Debug, Default)]
pub struct StepOptions<'a> {
    /// Which part of it.
    pub stage: Stage,
    /// Where the tokens go that its picks want. The output rows may then stay in the device's memory. `None`: no token
    /// is chosen, and the output rows are returned.
    pub tokens: Option<&'a mut [u32]>,
}

impl<'a> StepOptions<'a> {
    /// The whole step, with tokens.
    pub fn tokens(tokens: &'a mut [u32]) -> StepOptions<'a> {
        StepOptions {
            tokens: Some(tokens),
            ..StepOptions::default()
        }
    }

    /// A part of a step, without tokens.
    pub fn stage(stage: Stage) -> StepOptions<'a> {
        StepOptions {
            stage,
            tokens: None,
        }
    }
}

/// A place among the commands of a step: so many whole commands, and parts of the next one
/// ([`Context::parts`](crate::Context::parts)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Commands before it.
    pub command: usize,
    /// Parts of that command before it.
    pub part: u32,
}

impl Place {
    /// Before all commands.
    pub const START: Place = Place::before(0);
    /// After all commands.
    pub const END: Place = Place::before(usize::MAX);

    /// Before a command.
    pub const fn before(command: usize) -> Place {
        Place { command, part: 0 }
    }

    /// The first command of which nothing lies before it.
    fn untouched(self) -> usize {
        self.command.saturating_add(usize::from(self.part > 0))
    }
}

/// What a call does of a step. A step that is run part by part is [`Stage::Begin`], any number of [`Stage::Run`], and
/// [`Stage::End`], all with the same step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// All of it.
    #[default]
    Whole,
    /// Makes it the step at hand, and runs none of its commands.
    Begin,
    /// Runs the commands, and parts of commands, between two places. Numbers beyond the pass's end are ignored. The device may
    /// still be at work when the call returns; [`Context::read_bytes`](crate::Context::read_bytes) and [`Stage::End`] wait
    /// for it.
    Run(Range<Place>),
    /// Ends it, once all its commands have run.
    End,
}

impl Stage {
    /// Runs whole commands.
    pub fn run(commands: Range<usize>) -> Stage {
        Stage::Run(Place::before(commands.start)..Place::before(commands.end))
    }

    /// True if the call makes the step the one at hand.
    pub fn begins(&self) -> bool {
        matches!(self, Stage::Whole | Stage::Begin)
    }

    /// What runs.
    pub fn places(&self) -> Option<Range<Place>> {
        match self {
            Stage::Whole => Some(Place::START..Place::END),
            Stage::Run(places) => Some(places.clone()),
            Stage::Begin | Stage::End => None,
        }
    }

    /// The commands that run on a device that cuts none: those that begin there.
    pub fn commands(&self) -> Option<Range<usize>> {
        let places = self.places()?;
        Some(places.start.untouched()..places.end.untouched())
    }

    /// True if the call yields output rows or tokens.
    pub fn ends(&self) -> bool {
        matches!(self, Stage::Whole | Stage::End)
    }
}

/// A token to choose from an output row of the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index of the output row.
    pub output: u32,
    /// Whose sampling state chooses.
    pub slot: u32,
    /// Position of the new token: a key of its noise.
    pub position: u32,
    /// The token that the slot's next row of the step has read as a guess. If another token is chosen, later choices of
    /// the slot in the same call are skipped.
    pub draft: Option<u32>,
}

impl Choice {
    /// True if choice `nth` is skipped. `tokens` are those of the choices before it.
    pub fn is_skipped(choices: &[Choice], tokens: &[u32], nth: usize) -> bool {
        let earlier = choices[..nth].iter().zip(&tokens[..nth]).rev();
        let mut earlier = earlier.filter(|(choice, _)| choice.slot == choices[nth].slot);
        let rejected = |(choice, token): (&Choice, &u32)| {
            *token == crate::SKIPPED || choice.draft.is_some_and(|draft| draft != *token)
        };
        earlier.next().is_some_and(rejected)
    }
}

/// Whether a program's decode pass and prompt pass compute a row by the same commands. Without that, no step can mix them.
pub fn same_commands(program: &Program) -> bool {
    let ops = |kind: PassKind| {
        let pass = program.pass(kind)?;
        let commands = program.passes[pass].commands.iter();
        let ops = commands.map(|command| (command.op, command.weights));
        Some(ops.filter(|(op, _)| !matches!(op, Op::SelectRows | Op::Sample | Op::AddFeature)))
    };
    match (ops(PassKind::Decode), ops(PassKind::Prompt)) {
        (Some(decode), Some(prompt)) => decode.eq(prompt),
        _ => false,
    }
}
