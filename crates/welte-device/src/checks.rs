//! Validation of requests, made once for all devices. Nothing here allocates after [`Checks::new`].

use crate::{
    ChainStart, Choice, Error, LogprobQuery, Logprobs, Role, SlotAdapter, SlotState, Stage, Step,
    StepOptions, Want,
};
use welte_table::{BufferId, BufferSpec, CacheKind, CacheSpec, Pass, PassKind, Program, Row};

/// Checks requests against a program, with room for its largest step.
#[derive(Debug)]
pub struct Checks {
    /// Slot and position of each row, sorted.
    keys: Vec<u64>,
    /// Any cache is recurrent: the rows of a slot must follow each other.
    recurrent: bool,
    /// The device can mix generated rows and rows of prompts.
    mixes: bool,
    /// Rows may read features, and have axes and a reach of their own.
    features: bool,
    /// How many features the program has room for, and their parts. Known here, because the program is long and rows are many.
    feature_count: u32,
    feature_parts: u32,
    /// By slot.
    adapters: Vec<Option<SlotAdapter>>,
    /// The step that was begun and has not ended.
    begun: Option<StepPlan>,
}

/// What a valid step comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// The pass that computes it.
    pub pass: usize,
    /// Input rows.
    pub rows: usize,
    /// How many of them are generated. They come first.
    pub generated: usize,
    /// Output rows.
    pub outputs: usize,
}

impl Checks {
    /// For requests of this program.
    pub fn new(program: &Program) -> Checks {
        let recurrent = |kind| matches!(kind, CacheKind::Recurrent { .. });
        Checks {
            keys: Vec::with_capacity(program.most_rows().max(program.slots) as usize),
            recurrent: program.caches.iter().any(|cache| recurrent(cache.kind)),
            mixes: false,
            features: false,
            feature_count: program.feature_count(),
            feature_parts: program.feature_parts(),
            adapters: vec![None; program.slots as usize],
            begun: None,
        }
    }

    /// For a device that can mix generated rows and rows of prompts.
    pub fn mixing(self, mixes: bool) -> Checks {
        Checks { mixes, ..self }
    }

    /// For a device whose rows may read features, and have axes and a reach of their own.
    pub fn taking_features(self) -> Checks {
        let features = true;
        Checks { features, ..self }
    }

    /// Bytes that the checks of a program take.
    pub fn bytes(program: &Program) -> usize {
        program.most_rows().max(program.slots) as usize * 8
            + program.slots as usize * size_of::<Option<SlotAdapter>>()
    }

    /// The adapters of all slots.
    pub fn adapters(&self) -> &[Option<SlotAdapter>] {
        &self.adapters
    }

    /// The pass for rows of these slots: if any of them has an adapter, that with adapters.
    fn pass_for(
        &self,
        program: &Program,
        kind: PassKind,
        mut slots: impl Iterator<Item = u32>,
    ) -> Option<usize> {
        let has = |slot: u32| matches!(self.adapters.get(slot as usize), Some(Some(_)));
        let adapts = matches!(kind, PassKind::Decode | PassKind::Prompt);
        program.pass_with(kind, adapts && slots.any(has))
    }

    /// Checks a step that begins, or that a step which goes on is the one that was begun. A chain or another step ends
    /// it.
    pub fn step(
        &mut self,
        program: &Program,
        step: &Step,
        options: &StepOptions<'_>,
    ) -> Result<StepPlan, Error> {
        let begun = self.begun.take();
        let plan = if options.stage.begins() {
            self.whole(program, step)?
        } else {
            begun.ok_or_else(|| Error::request("no step was begun"))?
        };
        if plan.rows != step.rows.len() {
            let (given, rows) = (step.rows.len(), plan.rows);
            return Err(Error::request(format!(
                "a step of {given} rows goes on; the one that was begun has {rows}"
            )));
        }
        if let Some(tokens) = &options.tokens {
            let (wanted, room) = (step.tokens(), tokens.len());
            if wanted != room {
                return Err(Error::request(format!(
                    "{wanted} picks want a token, and there is room for {room}"
                )));
            }
        }
        if matches!(options.stage, Stage::Begin | Stage::Run(_)) {
            self.begun = Some(plan);
        }
        Ok(plan)
    }

    /// Checks the spans, rows and picks of a step.
    fn whole(&mut self, program: &Program, step: &Step) -> Result<StepPlan, Error> {
        let kind = step.pass();
        let slots = step.rows.iter().map(|row| row.slot);
        let pass = self.pass_for(program, kind, slots).ok_or_else(|| {
            Error::request(format!("the {} pass; the program has none", kind.name()))
        })?;
        let spec = self.rows(program, pass, &step.rows)?;
        self.spans(step)?;
        let generated = step.generated();
        if spec.is_middle() && kind == PassKind::Decode {
            return Ok(StepPlan {
                pass,
                rows: step.rows.len(),
                generated,
                outputs: 0,
            });
        }
        let outputs = picked(spec, step, generated)?;
        Ok(StepPlan {
            pass,
            rows: step.rows.len(),
            generated,
            outputs,
        })
    }

    /// Checks that the spans cover the rows, in the order of their roles, and each has rows of one slot.
    fn spans(&self, step: &Step) -> Result<(), Error> {
        let all: usize = step.spans.iter().map(|span| span.rows as usize).sum();
        if all != step.rows.len() {
            let rows = step.rows.len();
            return Err(Error::request(format!("spans of {all} rows for {rows}")));
        }
        if !step.spans.is_sorted_by_key(|span| span.role) {
            return Err(Error::request(
                "spans in disorder; generated rows come first, then prompts",
            ));
        }
        let roles = |role| step.spans.iter().any(|span| span.role == role);
        for (role, what) in [(Role::Text, "texts"), (Role::Draft, "guesses")] {
            if roles(role) && step.spans.iter().any(|span| span.role != role) {
                return Err(Error::request(format!(
                    "a step of {what} and of other rows"
                )));
            }
        }
        if roles(Role::Generated) && roles(Role::Prompt) && !self.mixes {
            return Err(Error::request(
                "a step of generated rows and rows of prompts; this device computes them one after the other",
            ));
        }
        let mut rows = &step.rows[..];
        for (number, span) in step.spans.iter().enumerate() {
            let (own, others) = rows.split_at(span.rows as usize);
            rows = others;
            if own.is_empty() || own.iter().any(|row| row.slot != own[0].slot) {
                return Err(Error::request(format!(
                    "span {number}; it must have rows of one slot"
                )));
            }
            let last = own.iter().map(|row| row.position).max().unwrap_or(0);
            let within = |row: &&Row| (row.position..=last.max(row.position)).contains(&row.reach);
            if let Some(row) = own.iter().find(|row| !within(row)) {
                return Err(Error::request(format!(
                    "reach {} of position {}; it must be from its position to the span's last, {last}",
                    row.reach, row.position
                )));
            }
        }
        Ok(())
    }

    /// Checks the rows of a step.
    fn rows<'p>(
        &mut self,
        program: &'p Program,
        pass: usize,
        rows: &[Row],
    ) -> Result<&'p Pass, Error> {
        self.begun = None;
        let known = program.passes.len();
        let spec = program
            .passes
            .get(pass)
            .ok_or_else(|| Error::request(format!("pass {pass}; the program has {known}")))?;
        if rows.is_empty() || rows.len() > spec.rows as usize {
            return Err(Error::request(format!(
                "{} rows; the {} pass takes 1 to {}",
                rows.len(),
                spec.kind.name(),
                spec.rows
            )));
        }
        // Only prompts add the later parts of features.
        let parts = match spec.kind {
            PassKind::Decode => self.feature_parts,
            PassKind::Prompt | PassKind::Embed | PassKind::Draft => 1,
        };
        for row in rows {
            self.row(program, row)?;
            if parts > 1 && row.input.feature().is_some() {
                return Err(Error::request(format!(
                    "a generated row with a feature of {parts} parts; rows of prompts read those"
                )));
            }
        }
        self.distinct(rows.iter().map(|row| (row.slot, row.position)))?;
        if self.recurrent {
            follow_each_other(rows)?;
        }
        Ok(spec)
    }

    fn row(&self, program: &Program, row: &Row) -> Result<(), Error> {
        let Program {
            vocab,
            context,
            slots,
            ..
        } = program;
        let problem = if !self.features && !row.is_text() {
            format!(
                "position {} of slot {} with a feature, axes or a reach of its own; this device takes tokens of texts only",
                row.position, row.slot
            )
        } else if row.token() >= *vocab {
            format!("token {} is not in the vocabulary of {vocab}", row.token())
        } else if row.position >= *context {
            format!(
                "position {} is beyond the context of {context}",
                row.position
            )
        } else if row.slot >= *slots {
            format!("slot {}; there are {slots}", row.slot)
        } else if let Some(number) = row.input.feature()
            && number >= self.feature_count
        {
            let known = self.feature_count;
            format!("feature {number}; the program has {known}")
        } else {
            return Ok(());
        };
        Err(Error::Request(problem))
    }

    /// Two rows of one step may not write the same place.
    fn distinct(&mut self, keys: impl Iterator<Item = (u32, u32)>) -> Result<(), Error> {
        self.keys.clear();
        self.keys
            .extend(keys.map(|(slot, position)| u64::from(slot) << 32 | u64::from(position)));
        self.keys.sort_unstable();
        match self.keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(same) => Err(Error::request(format!(
                "position {} of slot {} appears twice",
                same[0] as u32,
                same[0] >> 32
            ))),
            None => Ok(()),
        }
    }

    /// Checks the start of a chain. Returns the pass that computes it.
    pub fn chain(
        &mut self,
        program: &Program,
        starts: &[ChainStart],
        max_slots: usize,
    ) -> Result<usize, Error> {
        self.begun = None;
        if program.passes.first().is_some_and(Pass::is_middle) {
            return Err(Error::request("the middle of a pass yields no tokens"));
        }
        if starts.is_empty() || starts.len() > max_slots {
            return Err(Error::request(format!(
                "a chain of {} slots; this device takes 1 to {max_slots}",
                starts.len()
            )));
        }
        for start in starts {
            let row = start.row();
            self.row(program, &row)?;
            let end = u64::from(start.position) + u64::from(start.steps);
            if end > u64::from(program.context) {
                return Err(Error::request(format!(
                    "{} tokens from position {} exceed the context of {}",
                    start.steps, start.position, program.context
                )));
            }
        }
        self.distinct(starts.iter().map(|start| (start.slot, 0)))?;
        let slots = starts.iter().map(|start| start.slot);
        let pass = self.pass_for(program, PassKind::Decode, slots);
        pass.ok_or_else(|| Error::request("a chain; the program has no decode pass"))
    }

    /// Checks what tokens are chosen from; `outputs` is what the last step yielded.
    pub fn choices(
        &self,
        program: &Program,
        choices: &[Choice],
        tokens: &[u32],
        outputs: usize,
    ) -> Result<(), Error> {
        if choices.len() != tokens.len() {
            return Err(Error::request(format!(
                "{} choices and room for {} tokens",
                choices.len(),
                tokens.len()
            )));
        }
        for choice in choices {
            output(choice.output, outputs)?;
            self.slot(program, choice.slot)?;
        }
        Ok(())
    }

    /// Checks which probabilities are asked for; `outputs` is what the last step yielded.
    pub fn logprobs(
        &self,
        program: &Program,
        queries: &[LogprobQuery],
        answers: &[Logprobs],
        outputs: usize,
    ) -> Result<(), Error> {
        if queries.len() != answers.len() {
            return Err(Error::request(format!(
                "{} queries and room for {} answers",
                queries.len(),
                answers.len()
            )));
        }
        for query in queries {
            output(query.output, outputs)?;
            if query.token >= program.vocab {
                return Err(Error::request(format!(
                    "token {} is not in the vocabulary of {}",
                    query.token, program.vocab
                )));
            }
            likeliest(query.top)?;
        }
        Ok(())
    }

    /// Checks a slot's number.
    pub fn slot(&self, program: &Program, slot: u32) -> Result<(), Error> {
        if slot < program.slots {
            Ok(())
        } else {
            Err(Error::request(format!(
                "slot {slot}; there are {}",
                program.slots
            )))
        }
    }

    /// Checks a slot's number, the lengths of its lists and its adapter, which it has from now on.
    pub fn slot_state(
        &mut self,
        program: &Program,
        slot: u32,
        state: &SlotState<'_>,
    ) -> Result<(), Error> {
        self.slot(program, slot)?;
        for (what, count, max) in [
            ("biases", state.bias.len(), SlotState::MOST_BIASES),
            ("end tokens", state.ends.len(), SlotState::MOST_ENDS),
        ] {
            if count > max {
                return Err(Error::request(format!(
                    "{count} {what}; a slot takes at most {max}"
                )));
            }
        }
        likeliest(state.logprobs.unwrap_or(0))?;
        if let Some(adapter) = state.adapter {
            let places = program.adapters.as_ref().map_or(0, |a| a.places);
            if adapter.place >= places || !adapter.scale.is_finite() {
                return Err(Error::request(format!(
                    "the adapter at place {} times {}; the program has {places} places",
                    adapter.place, adapter.scale
                )));
            }
        }
        self.adapters[slot as usize] = state.adapter;
        Ok(())
    }

    /// Checks entries of a page list. Returns the index of the first in the cache's table `[slot][entry]`.
    pub fn pages(
        &self,
        program: &Program,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<usize, Error> {
        self.slot(program, slot)?;
        let spec = self.cache(program, cache, pages.iter().copied())?;
        let entries = spec.entries(program) as usize;
        if first as usize + pages.len() > entries {
            return Err(Error::request(format!(
                "entries {first} to {} of cache '{}', which has {entries} per slot",
                first as usize + pages.len(),
                spec.name
            )));
        }
        Ok(slot as usize * entries + first as usize)
    }

    /// Checks page numbers of a cache.
    pub fn cache<'p>(
        &self,
        program: &'p Program,
        cache: usize,
        pages: impl IntoIterator<Item = u32>,
    ) -> Result<&'p CacheSpec, Error> {
        let known = program.caches.len();
        let spec = program
            .caches
            .get(cache)
            .ok_or_else(|| Error::request(format!("cache {cache}; the program has {known}")))?;
        match pages.into_iter().find(|page| *page >= spec.pages) {
            Some(page) => Err(Error::request(format!(
                "page {page} of cache '{}', which has {}",
                spec.name, spec.pages
            ))),
            None => Ok(spec),
        }
    }

    /// Checks a page's number in a cache, and that `bytes` is the size of a page.
    pub fn page<'p>(
        &self,
        program: &'p Program,
        cache: usize,
        page: u32,
        bytes: usize,
    ) -> Result<&'p CacheSpec, Error> {
        let spec = self.cache(program, cache, [page])?;
        match spec.page_bytes(program.page) {
            Some(size) if size == bytes as u64 => Ok(spec),
            size => Err(Error::request(format!(
                "{bytes} bytes for a page of cache '{}', which has {}",
                spec.name,
                size.unwrap_or(u64::MAX)
            ))),
        }
    }

    /// Checks a buffer's number, and that it has `bytes` bytes from byte `first` on.
    pub fn buffer<'p>(
        &self,
        program: &'p Program,
        id: BufferId,
        first: u64,
        bytes: usize,
    ) -> Result<&'p BufferSpec, Error> {
        let known = program.buffers.len();
        let spec = program.buffers.get(id as usize);
        let spec =
            spec.ok_or_else(|| Error::request(format!("buffer {id}; the program has {known}")))?;
        match first.checked_add(bytes as u64) {
            Some(end) if end <= spec.bytes => Ok(spec),
            _ => Err(Error::request(format!(
                "{bytes} bytes from byte {first} of buffer '{}', which has {}",
                spec.name, spec.bytes
            ))),
        }
    }

    /// The page lists at the start: entry `i` of slot `s` is page `(s * entries + i) % pages`.
    pub fn first_pages(program: &Program, cache: usize) -> Vec<u32> {
        let Some(spec) = program.caches.get(cache) else {
            return Vec::new();
        };
        let all = u64::from(spec.entries(program)) * u64::from(program.slots);
        let pages = u64::from(spec.pages.max(1));
        (0..all).map(|i| (i % pages) as u32).collect()
    }
}

/// Checks the picks of a step, whose first `generated` rows are output rows anyway. Returns the number of output rows.
fn picked(spec: &Pass, step: &Step, generated: usize) -> Result<usize, Error> {
    let rows = step.rows.len();
    let ascending = step.picks.windows(2).all(|pair| pair[0].row < pair[1].row);
    if !ascending || step.picks.iter().any(|pick| pick.row as usize >= rows) {
        return Err(Error::request(format!(
            "picks must be ascending row numbers below {rows}"
        )));
    }
    for pick in &step.picks {
        let generated = (pick.row as usize) < generated;
        match pick.want {
            Want::Values if generated => {
                return Err(Error::request(
                    "all generated rows are output rows; pick them for tokens only",
                ));
            }
            Want::Token { .. } if spec.kind == PassKind::Embed => {
                return Err(Error::request("a text yields no tokens"));
            }
            Want::Values | Want::Token { .. } => {}
        }
    }
    let all = generated + step.chosen().count();
    if all > spec.outputs as usize {
        return Err(Error::request(format!(
            "{all} outputs; the {} pass yields at most {}",
            spec.kind.name(),
            spec.outputs
        )));
    }
    Ok(all)
}

/// Checks the number of an output row.
fn output(number: u32, outputs: usize) -> Result<(), Error> {
    if (number as usize) < outputs {
        Ok(())
    } else {
        Err(Error::request(format!(
            "output {number}; the last step yielded {outputs}"
        )))
    }
}

/// Checks the number of likeliest tokens that are wanted.
fn likeliest(count: u32) -> Result<(), Error> {
    if count as usize <= Logprobs::MOST {
        Ok(())
    } else {
        Err(Error::request(format!(
            "the {count} likeliest tokens; at most {} can be had",
            Logprobs::MOST
        )))
    }
}

/// Recurrent state goes forward only: the rows of a slot are neighbours in time, in ascending order.
fn follow_each_other(rows: &[Row]) -> Result<(), Error> {
    for (i, row) in rows.iter().enumerate() {
        let before = rows[..i].iter().rev().find(|other| other.slot == row.slot);
        if before.is_some_and(|before| before.position + 1 != row.position) {
            return Err(Error::request(format!(
                "position {} of slot {} does not follow its last row; recurrent state needs consecutive rows",
                row.position, row.slot
            )));
        }
    }
    Ok(())
}
