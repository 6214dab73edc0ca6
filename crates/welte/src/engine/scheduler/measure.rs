//! What steps took: it decides how prompts are cut and how much is guessed.

use super::Scheduler;
use super::work::Work;
use web_time::Duration;
use welte_device::Context;

impl Scheduler {
    /// Takes note of a step's time, and of the rows of prompts in it.
    pub(super) fn measure_rows(&mut self, context: &dyn Context, work: Work, took: Duration) {
        let generated = self.step.generated();
        let others = self.step.rows.len() - generated;
        self.totals.prompt_tokens += others as u64;
        let waiting = self.waiting_for_each();
        match work {
            _ if others == 0 || work == Work::Texts => {}
            _ if generated > 0 => {
                self.totals.decode_steps += 1;
                self.pace.mixed(others, took, waiting);
            }
            _ => {
                if !self.can_mix(context) {
                    self.pace.prompted(others, took, waiting);
                }
                if let Some(disk) = &mut self.pages.disk {
                    disk.computed(others, took);
                }
            }
        }
        if let (Some(drafting), Some(speculator)) = (&self.drafting, &mut self.speculator) {
            let longest = self.owners.iter().map(|owner| owner.picks - 1).max();
            let guessing = drafting.only_guesses.then_some(drafting.took);
            speculator.verified(generated, longest.unwrap_or(0), guessing, took);
        }
    }

    /// Takes note of the time in which those who decode have made tokens.
    pub(super) fn measure_tokens(
        &mut self,
        context: &dyn Context,
        tokens: usize,
        steps: usize,
        took: Duration,
    ) {
        if tokens == 0 {
            return;
        }
        self.totals.decode_steps += steps as u64;
        let sequences = self.starts.len();
        let drafting = self.drafting.as_ref();
        let each = (took + drafting.map_or(Duration::ZERO, |d| d.took)) / steps as u32;
        // Mixed steps are compared with steps without guesses.
        if drafting.is_none() || !self.can_mix(context) {
            self.pace.decoded(sequences, each);
        }
        if let Some(speculator) = self.speculator.as_mut().filter(|_| drafting.is_none()) {
            speculator.decoded(sequences, tokens, each);
        }
    }

    /// Requests that wait for their prompts, for each one that decodes.
    fn waiting_for_each(&self) -> f64 {
        let filling = self.running.iter().filter(|s| s.is_filling()).count();
        let decoding = self.running.len() - filling;
        (self.waiting.len() + filling) as f64 / decoding.max(1) as f64
    }
}
