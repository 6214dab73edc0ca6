//! Validation of requests, made once for all devices. Nothing here allocates after [`Checks::new`].

use crate::{ChainStart, Error, LogprobQuery, Logprobs, MixedStep, Pick, SlotState};
use welte_table::{BufferId, BufferSpec, CacheKind, CacheSpec, Pass, PassKind, Program, Row};

/// Checks requests against a program, with room for its largest step.
#[derive(Debug)]
pub struct Checks {
    /// Slot and position of each row, sorted.
    keys: Vec<u64>,
    /// Any cache is recurrent: the rows of a slot must follow each other.
    recurrent: bool,
    /// The pass whose step was begun.
    begun: Option<usize>,
}

/// What a valid step comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// Input rows.
    pub rows: usize,
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
            begun: None,
        }
    }

    /// Bytes that the checks of a program take.
    pub fn bytes(program: &Program) -> usize {
        program.most_rows().max(program.slots) as usize * 8
    }

    /// Checks a step that is run part by part, and remembers it.
    pub fn begin(
        &mut self,
        program: &Program,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
    ) -> Result<StepPlan, Error> {
        let plan = self.step(program, pass, rows, outputs)?;
        self.begun = Some(pass);
        Ok(plan)
    }

    /// The pass of the step that was begun. Another step or a chain ends it.
    pub fn begun(&self) -> Result<usize, Error> {
        self.begun
            .ok_or_else(|| Error::request("no step was begun"))
    }

    /// Ends the step that was begun, and returns its pass.
    pub fn end(&mut self) -> Result<usize, Error> {
        let pass = self.begun()?;
        self.begun = None;
        Ok(pass)
    }

    /// Checks the rows and chosen outputs of a step.
    pub fn step(
        &mut self,
        program: &Program,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
    ) -> Result<StepPlan, Error> {
        let spec = self.rows(program, pass, rows)?;
        if spec.kind == PassKind::Decode {
            if !outputs.is_empty() {
                return Err(Error::request("a decode pass yields all rows; choose none"));
            }
            return Ok(StepPlan {
                rows: rows.len(),
                outputs: match spec.is_middle() {
                    true => 0,
                    false => rows.len(),
                },
            });
        }
        chosen(spec, rows.len(), 0, outputs)
    }

    /// Checks a mixed step.
    pub fn mixed_step(
        &mut self,
        program: &Program,
        step: &MixedStep<'_>,
    ) -> Result<StepPlan, Error> {
        let spec = self.rows(program, step.pass, step.rows)?;
        if spec.kind != PassKind::Prompt {
            return Err(Error::request(format!(
                "a mixed step of the {} pass; only the prompt pass has them",
                spec.kind.name()
            )));
        }
        if step.generated > step.rows.len() {
            return Err(Error::request(format!(
                "{} generated rows among {}",
                step.generated,
                step.rows.len()
            )));
        }
        chosen(spec, step.rows.len(), step.generated, step.outputs)
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
        for row in rows {
            self.row(program, row)?;
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
        let problem = if row.token >= *vocab {
            format!("token {} is not in the vocabulary of {vocab}", row.token)
        } else if row.position >= *context {
            format!(
                "position {} is beyond the context of {context}",
                row.position
            )
        } else if row.slot >= *slots {
            format!("slot {}; there are {slots}", row.slot)
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

    /// Checks the start of a chain.
    pub fn chain(
        &mut self,
        program: &Program,
        starts: &[ChainStart],
        most: usize,
    ) -> Result<(), Error> {
        self.begun = None;
        if program.passes.first().is_some_and(Pass::is_middle) {
            return Err(Error::request("the middle of a pass yields no tokens"));
        }
        if starts.is_empty() || starts.len() > most {
            return Err(Error::request(format!(
                "a chain of {} slots; this device takes 1 to {most}",
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
        self.distinct(starts.iter().map(|start| (start.slot, 0)))
    }

    /// Checks what tokens are chosen from; `outputs` is what the last step yielded.
    pub fn picks(
        &self,
        program: &Program,
        picks: &[Pick],
        tokens: &[u32],
        outputs: usize,
    ) -> Result<(), Error> {
        if picks.len() != tokens.len() {
            return Err(Error::request(format!(
                "{} picks and room for {} tokens",
                picks.len(),
                tokens.len()
            )));
        }
        for pick in picks {
            output(pick.output, outputs)?;
            self.slot(program, pick.slot)?;
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
        match slot < program.slots {
            true => Ok(()),
            false => Err(Error::request(format!(
                "slot {slot}; there are {}",
                program.slots
            ))),
        }
    }

    /// Checks a slot's number and the lengths of its lists.
    pub fn slot_state(
        &self,
        program: &Program,
        slot: u32,
        state: &SlotState<'_>,
    ) -> Result<(), Error> {
        self.slot(program, slot)?;
        for (what, count, most) in [
            ("biases", state.bias.len(), SlotState::MOST_BIASES),
            ("end tokens", state.ends.len(), SlotState::MOST_ENDS),
        ] {
            if count > most {
                return Err(Error::request(format!(
                    "{count} {what}; a slot takes at most {most}"
                )));
            }
        }
        likeliest(state.logprobs.unwrap_or(0))
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

    /// Checks a page's number in a cache, and that so many bytes are the whole page.
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

    /// Checks a buffer's number, and that it has so many bytes from byte `first` on.
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

/// Checks the chosen outputs of a step, the first `generated` rows of which are outputs anyway.
fn chosen(spec: &Pass, rows: usize, generated: usize, outputs: &[u32]) -> Result<StepPlan, Error> {
    let all = generated + outputs.len();
    if all > spec.outputs as usize {
        return Err(Error::request(format!(
            "{all} outputs; the {} pass yields at most {}",
            spec.kind.name(),
            spec.outputs
        )));
    }
    let ascending = outputs.windows(2).all(|pair| pair[0] < pair[1]);
    let within = |row: &u32| (generated..rows).contains(&(*row as usize));
    if !ascending || !outputs.iter().all(within) {
        return Err(Error::request(format!(
            "outputs must be ascending row numbers from {generated} to below {rows}"
        )));
    }
    Ok(StepPlan { rows, outputs: all })
}

/// Checks the number of an output row.
fn output(number: u32, outputs: usize) -> Result<(), Error> {
    match (number as usize) < outputs {
        true => Ok(()),
        false => Err(Error::request(format!(
            "output {number}; the last step yielded {outputs}"
        ))),
    }
}

/// Checks the number of likeliest tokens that are wanted.
fn likeliest(count: u32) -> Result<(), Error> {
    match count as usize <= Logprobs::MOST {
        true => Ok(()),
        false => Err(Error::request(format!(
            "the {count} likeliest tokens; at most {} can be had",
            Logprobs::MOST
        ))),
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
