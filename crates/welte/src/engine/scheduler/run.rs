//! Running what was planned: a step, or a chain.

use super::work::{Plan, Work};
use super::{ContextLost, Scheduler};
use welte_device::{Context, Role, StepOptions};

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
        let tokens = self.settle(context, took)?;
        if let Work::Next { .. } = work
            && self.step.pass() == Role::Generated.pass()
        {
            self.measure_tokens(context, tokens, 1, took);
        }
        Ok(())
    }
}
