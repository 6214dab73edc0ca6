//! What a step has yielded goes back to its sequences.

use super::work::{Share, shares};
use super::{ContextLost, Scheduler};
use crate::engine::channel::Finish;
use crate::engine::sequence::Sequence;
use web_time::Duration;
use welte_device::{Context, Logprobs, Role, Want, is_token};

impl Scheduler {
    /// Hands each sequence of the step its tokens, with probabilities where these are wanted. Returns the number of tokens.
    pub(super) fn settle(
        &mut self,
        context: &mut dyn Context,
        took: Duration,
    ) -> Result<usize, ContextLost> {
        self.ask();
        if let Err(error) = self.logprobs.fetch(context) {
            return self.fault(context, error).map(|()| 0);
        }
        let mut answers = self.logprobs.answers();
        let mut chosen = &self.chosen[..];
        let mut tokens = 0;
        for share in shares(&self.step, &self.owners) {
            let sequence = &mut self.running[share.at];
            let known;
            (known, answers) = answers.split_at(share.queries(sequence, chosen));
            let own;
            (own, chosen) = chosen.split_at(share.tokens());
            let made = sequence.settle(&share, own, known);
            tokens += made;
            if let Some(drafting) = self.drafting.as_ref().filter(|_| own.len() > 1) {
                sequence.verified(own.len() - 1, made, drafting.took, took);
            }
        }
        self.totals.generated_tokens += tokens as u64;
        Ok(tokens)
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
}
