//! Guesses that follow guesses: what every device checks, and how the host drives them.

use crate::{Error, Pick, Role, Span, Step, Want};
use welte_table::Program;

/// Runs a step and writes the token after each pick.
pub type RunDraftStep<'a> = dyn FnMut(&Step, &mut [u32]) -> Result<(), Error> + 'a;

/// Runs a draft step and goes on from its guesses, each by a step of its own: see [`Context::draft`](crate::Context::draft).
pub fn draft_by_steps(
    step: &mut Step,
    wanted: &[u32],
    tokens: &mut [u32],
    guess: &mut RunDraftStep<'_>,
) -> Result<(), Error> {
    let most = check_wanted(step, wanted, tokens)?;
    if wanted.is_empty() {
        return guess(step, tokens);
    }
    for (nth, chosen) in (1..).zip(tokens.chunks_mut(wanted.len())) {
        guess(step, chosen)?;
        if nth < most {
            step.follow_guesses(wanted, nth, chosen);
        }
    }
    Ok(())
}

/// The most guesses of any pick, if there is room for those of all.
fn check_wanted(step: &Step, wanted: &[u32], tokens: &[u32]) -> Result<u32, Error> {
    let most = wanted.iter().copied().max().unwrap_or(0);
    let (picks, room) = (step.picks.len(), tokens.len());
    if wanted.len() != picks || wanted.contains(&0) {
        return Err(Error::request(format!(
            "{picks} picks of a draft step; {} say how many guesses they want, at least one each",
            wanted.len()
        )));
    }
    if most as usize * picks != room {
        return Err(Error::request(format!(
            "{most} guesses of {picks} picks, and there is room for {room} tokens"
        )));
    }
    Ok(most)
}

/// Checks what [`draft_by_steps`] would find out step by step, beside the step itself. Returns the most guesses of any pick.
pub fn check_draft(
    program: &Program,
    step: &Step,
    wanted: &[u32],
    tokens: &[u32],
) -> Result<u32, Error> {
    let most = check_wanted(step, wanted, tokens)?;
    for (nth, (pick, wanted)) in step.picks.iter().zip(wanted).enumerate() {
        let Some(row) = step.rows.get(pick.row as usize) else {
            continue;
        };
        // Those that want fewer guesses than others go on once more and stay there.
        let last = u64::from(row.position) + u64::from((*wanted).min(most - 1));
        if last >= program.context.into() {
            let context = program.context;
            return Err(Error::request(format!(
                "position {last} of a guess is beyond the context of {context}"
            )));
        }
        let slots = step.picks[..nth].iter();
        let mut slots = slots.filter_map(|pick| Some(step.rows.get(pick.row as usize)?.slot));
        if most > 1 && slots.any(|slot| slot == row.slot) {
            let slot = row.slot;
            return Err(Error::request(format!(
                "guesses that follow guesses of slot {slot}, twice"
            )));
        }
    }
    Ok(most)
}

impl Step {
    /// Makes a draft step the one that follows it. After guess `nth` of each pick, those that wanted one more go on with its token, or
    /// with the position after it; the others repeat their row, because hidden states have the order of the last step.
    fn follow_guesses(&mut self, wanted: &[u32], nth: u32, chosen: &[u32]) {
        for at in 0..self.picks.len() {
            let row = self.rows[self.picks[at].row as usize];
            // In place: no pick has a lower number than those before it.
            self.rows[at] = if nth <= wanted[at] {
                row.later(chosen[at], 1)
            } else {
                row
            };
            self.picks[at] = Pick {
                row: at as u32,
                want: Want::Token { draft: None },
            };
        }
        let count = self.picks.len();
        self.rows.truncate(count);
        self.spans.clear();
        self.spans.extend((0..count).map(|_| Span {
            role: Role::Draft,
            rows: 1,
        }));
    }
}
