//! Runs what was planned, a step or a chain, and hands the tokens to their sequences.

use super::work::{Plan, Share, Work, shares};
use super::{ContextLost, Scheduler};
use crate::Error;
use crate::cache::GENERATED;
use crate::engine::channel::Finish;
use crate::engine::guide::Guide;
use crate::engine::sequence::{Part, Sequence};
use web_time::Duration;
use welte_device::{Context, Logprobs, NO_MASK, NO_TOKEN, Role, StepOptions, Want, is_token};

/// Forced tokens that a step over all of them makes sooner than a chain.
const FORCED_RUN: usize = 4;

impl Scheduler {
    /// Plans work of a kind, runs it and settles it.
    pub(super) fn work(
        &mut self,
        context: &mut dyn Context,
        work: Work,
    ) -> Result<(), ContextLost> {
        self.drafting = None;
        match self.plan(context, work)? {
            Plan::Nothing => return Ok(()),
            Plan::Step => self.run_step(context, work)?,
            Plan::Chain => self.run_chain(context)?,
        }
        for sequence in &mut self.running {
            self.pages.settle(context, sequence);
        }
        self.retire();
        Ok(())
    }

    /// Runs the planned step.
    fn run_step(&mut self, context: &mut dyn Context, work: Work) -> Result<(), ContextLost> {
        self.chosen.clear();
        self.chosen.resize(self.step.tokens(), 0);
        let options = match work {
            Work::Texts => StepOptions::default(),
            Work::Prompts | Work::Known | Work::Next { .. } => {
                StepOptions::tokens(&mut self.chosen)
            }
        };
        let begun = self.shared.clock.now();
        match context.step(&self.step, options) {
            Ok(values) if work == Work::Texts => self.settle_texts(values),
            Ok(_) => {}
            Err(error) => return self.fault(context, error),
        }
        let took = self.shared.clock.since(begun);
        self.measure_rows(context, work, took);
        let Some(tokens) = self.settle(context, took)? else {
            return Ok(());
        };
        let decodes = self.step.pass() == Role::Generated.pass();
        self.follow(context, work)?;
        if matches!(work, Work::Next { .. }) && decodes {
            self.measure_tokens(context, tokens, 1, took);
        }
        Ok(())
    }

    /// Runs the planned chain.
    fn run_chain(&mut self, context: &mut dyn Context) -> Result<(), ContextLost> {
        let begun = self.shared.clock.now();
        let (running, shared) = (&mut self.running, &self.shared);
        let control = &shared.control;
        let waits = !self.waiting.is_empty();
        let deadline = self.waiting.iter().filter_map(|s| s.deadline).min();
        let (speculator, sequences) = (&self.speculator, self.starts.len());
        let mut tokens = 0;
        let done = context.chain(&self.starts, control, &mut |emitted| {
            let running = running.iter_mut().find(|s| s.slot == emitted.slot);
            let Some(sequence) = running else {
                return false;
            };
            tokens += usize::from(is_token(emitted.token));
            let goes_on = sequence.take_of_chain(emitted.token, emitted.logprobs.as_ref());
            if sequence.has_forced_run() {
                control.stop();
            }
            // A slot is free, or somebody has waited too long.
            if waits && !goes_on || deadline.is_some_and(|at| shared.clock.now() >= at) {
                control.stop();
            }
            if let (Some(speculator), Some(draft)) = (speculator, &sequence.draft)
                && speculator.pays(draft, sequence.remaining(), sequences)
            {
                control.stop();
            }
            goes_on
        });
        if let Err(error) = done {
            return self.fault(context, error);
        }
        self.running.iter_mut().for_each(|s| s.part = Part::Idle);
        self.totals.generated_tokens += tokens as u64;
        let took = self.shared.clock.since(begun);
        self.measure_tokens(context, tokens, tokens.div_ceil(sequences), took);
        self.look_back(sequences);
        Ok(())
    }

    /// Hands each sequence of the step its tokens, with probabilities where these are wanted. Returns the number of tokens; `None`: a
    /// fault has ended sequences, and the step is over.
    fn settle(
        &mut self,
        context: &mut dyn Context,
        took: Duration,
    ) -> Result<Option<usize>, ContextLost> {
        self.ask();
        if let Err(error) = self.logprobs.fetch(context) {
            return self.fault(context, error).map(|()| None);
        }
        let mut spans = std::mem::take(&mut self.spans);
        let mut answers = self.logprobs.answers();
        let mut chosen = &self.chosen[..];
        let mut tokens = 0;
        for share in shares(&self.step, &self.owners) {
            let sequence = &mut self.running[share.at];
            let known;
            (known, answers) = answers.split_at(share.queries(sequence, chosen));
            let own;
            (own, chosen) = chosen.split_at(share.tokens());
            let first = sequence.computed;
            let made = sequence.settle(&share, own, known);
            tokens += made;
            if !sequence.kept.is_empty() {
                spans.push((share.at, first, share.span.rows as usize));
            }
            if let Some(drafting) = self.drafting.as_ref().filter(|_| own.len() > 1) {
                sequence.verified(own.len() - 1, made, drafting.took, took);
            }
        }
        self.totals.generated_tokens += tokens as u64;
        let mut settled = Ok(());
        for (at, first, rows) in spans.drain(..) {
            settled = settled.and(self.settle_states(context, at, (first, rows)));
        }
        self.spans = spans;
        match settled {
            Ok(()) => Ok(Some(tokens)),
            Err(error) => self.fault(context, error).map(|()| None),
        }
    }

    /// Asks for the probabilities that are wanted: of the prompts' tokens that output rows give, and of chosen tokens.
    fn ask(&mut self) {
        self.logprobs.clear();
        let mut chosen = &self.chosen[..];
        for share in shares(&self.step, &self.owners) {
            let sequence = &self.running[share.at];
            for (output, token) in (share.output..).zip(share.scored(sequence)) {
                let top = sequence.prompt_top.unwrap_or(0);
                self.logprobs.ask(output, *token, top);
            }
            for (output, pick) in (share.output..).zip(share.picks) {
                let Want::Token { .. } = pick.want else {
                    continue;
                };
                let Some((token, others)) = chosen.split_first() else {
                    continue;
                };
                chosen = others;
                if let Some(top) = sequence.top.filter(|_| is_token(*token)) {
                    self.logprobs.ask(output, *token, top);
                }
            }
        }
    }
}

impl Share<'_> {
    /// Picks that want a token.
    fn tokens(&self) -> usize {
        let tokens = self.picks.iter();
        let tokens = tokens.filter(|pick| matches!(pick.want, Want::Token { .. }));
        tokens.count()
    }

    /// The prompt's tokens whose probabilities its output rows give.
    fn scored<'s>(&self, sequence: &'s Sequence) -> &'s [u32] {
        if self.span.role == Role::Prompt && sequence.is_scoring() {
            sequence.scored()
        } else {
            &[]
        }
    }

    /// Probabilities that were asked for. `chosen` begins with its tokens.
    fn queries(&self, sequence: &Sequence, chosen: &[u32]) -> usize {
        let own = chosen[..self.tokens()].iter();
        let known = own.filter(|token| sequence.top.is_some() && is_token(**token));
        self.scored(sequence).len() + known.count()
    }
}

impl Sequence {
    /// Takes its share of a step: tokens, and the answers about probabilities. Returns the number of tokens.
    fn settle(&mut self, share: &Share<'_>, chosen: &[u32], answers: &[Logprobs]) -> usize {
        let (scores, answers) = answers.split_at(share.scored(self).len());
        let rows = std::mem::take(&mut self.part).count();
        if share.span.role == Role::Generated && !chosen.is_empty() {
            return self.accept(chosen, answers);
        }
        for (position, answer) in (self.computed + 1..).zip(scores) {
            self.out.push_prompt(position, answer);
        }
        self.computed += rows;
        if share.span.role == Role::Prompt && self.generated() == 0 && !self.embeds {
            self.out.progress(self.computed);
            if !self.is_filling() && self.remaining() == 0 {
                self.end = Some(Ok(Finish::Length));
            }
        }
        if let Some(token) = chosen.first() {
            self.take_with(*token, answers.first());
        }
        chosen.len()
    }

    /// Takes the tokens up to the first wrong guess, with their probabilities if these are wanted. What was computed beyond is
    /// overwritten later. Returns their number.
    fn accept(&mut self, chosen: &[u32], answers: &[Logprobs]) -> usize {
        // Without a token the first row ends the sequence. A later one is chosen again, or forced.
        let more = chosen.iter().skip(1).take_while(|token| is_token(**token));
        let right = &chosen[..1 + more.count()];
        for (nth, token) in right.iter().enumerate() {
            self.computed += 1;
            if !self.take_unreported(*token, answers.get(nth)) {
                return nth + 1;
            }
        }
        self.report(right);
        right.len()
    }

    /// Takes the next token, with its probability if that is wanted. Returns false if the sequence ends.
    fn take_with(&mut self, token: u32, logprobs: Option<&Logprobs>) -> bool {
        let goes_on = self.take_unreported(token, logprobs);
        if goes_on {
            self.report(&[token]);
        }
        goes_on
    }

    /// Takes a token that a chain has chosen. Returns false if the sequence leaves the chain: where it did not get a token,
    /// it tries again, unless that is in vain.
    fn take_of_chain(&mut self, token: u32, logprobs: Option<&Logprobs>) -> bool {
        let forced = self.guide.as_ref().map_or(0, Guide::forced);
        // A bias may forbid a forced token.
        if token == NO_MASK || token == NO_TOKEN && forced > 0 {
            return false;
        }
        self.computed += 1;
        self.take_with(token, logprobs)
    }

    /// True if enough forced tokens come next that a step over all of them is worth the end of a chain.
    fn has_forced_run(&self) -> bool {
        let forced = self.guide.as_ref().map_or(0, Guide::forced);
        forced >= FORCED_RUN
    }

    /// Reports to the guide the last tokens that were chosen, which [`Sequence::take_unreported`] has taken.
    fn report(&self, tokens: &[u32]) {
        if let Some(guide) = &self.guide {
            guide.report(tokens);
        }
    }

    /// As [`Sequence::take_with`], but the guide does not learn of it.
    fn take_unreported(&mut self, token: u32, logprobs: Option<&Logprobs>) -> bool {
        if self.end.is_some() {
            return false;
        }
        if !is_token(token) {
            let problem = match token {
                NO_TOKEN => "no token that it allows can be chosen",
                _ => "its mask did not come in time",
            };
            let problem = problem.into();
            self.end = Some(Err(Error::Guidance { problem }));
            return false;
        }
        self.append(token, logprobs)
    }

    /// Takes at most `count` tokens that the guide forces. Returns false if the sequence ends.
    pub(super) fn take_forced(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let forced = self.guide.as_ref().and_then(Guide::take_forced);
            let Some(token) = forced else { break };
            if !self.append(token, None) {
                return false;
            }
        }
        true
    }

    fn append(&mut self, token: u32, logprobs: Option<&Logprobs>) -> bool {
        if self.ends.contains(&token) {
            self.end = Some(Ok(Finish::End(token)));
            return false;
        }
        self.tokens.push(token);
        self.keys.push(self.key(token) | GENERATED);
        if let Some(draft) = &mut self.draft {
            draft.push(&self.tokens);
        }
        self.out.push(token, logprobs);
        self.slot_changed |= self.generated() == self.min_tokens;
        let stop = self.stops.as_mut().and_then(|stops| stops.take(token));
        if let Some(which) = stop {
            self.end = Some(Ok(Finish::Stop(which)));
        } else if self.remaining() == 0 {
            self.end = Some(Ok(Finish::Length));
        }
        self.is_wanted()
    }
}
