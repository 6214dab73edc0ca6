//! Guesses that follow guesses: what every device checks, and how the host drives them.

use crate::{Error, Guesses, Pick, Role, Span, Step, Want};
use welte_table::{Input, Program, Row};

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
    if step.guesses == Guesses::Masked && most > 1 {
        return Err(Error::request(format!("{most} guesses of a mask")));
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
        let moves = match step.guesses {
            Guesses::Moving => (*wanted).min(most - 1),
            Guesses::Staying(_) | Guesses::Masked => 0,
        };
        let last = u64::from(row.position) + u64::from(moves);
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
        if let Guesses::Staying(before) = &mut self.guesses {
            *before += 1;
        }
        for at in 0..self.picks.len() {
            let row = self.rows[self.picks[at].row as usize];
            // In place: no pick has a lower number than those before it.
            self.rows[at] = match self.guesses {
                _ if nth > wanted[at] => row,
                Guesses::Moving => row.later(chosen[at], 1),
                Guesses::Staying(_) | Guesses::Masked => Row {
                    input: Input::Token(chosen[at]),
                    ..row
                },
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two picks of a step of five rows, which want one guess and three.
    fn step() -> Step {
        let mut step = Step::default();
        let want = Want::Token { draft: None };
        for (slot, rows, first) in [(2, 3u32, 10), (0, 2, 40)] {
            let rows = (0..rows).map(|at| Row::new(100 + at, first + at, slot));
            let row = step.add(Role::Draft, rows).end - 1;
            step.picks.push(Pick { row, want });
        }
        step
    }

    #[test]
    fn guesses_are_read_by_the_rows_that_follow() {
        let mut steps = Vec::new();
        let mut tokens = vec![0; 6];
        draft_by_steps(&mut step(), &[1, 3], &mut tokens, &mut |step, tokens| {
            tokens.fill(steps.len() as u32);
            tokens[1] += 10;
            steps.push(step.rows.clone());
            Ok(())
        })
        .unwrap();
        assert_eq!(tokens, [0, 10, 1, 11, 2, 12]);
        assert_eq!(steps[0], step().rows);
        // The first pick stays where its guess is.
        let first = Row::new(0, 13, 2);
        assert_eq!(steps[1], [first, Row::new(10, 42, 0)]);
        assert_eq!(steps[2], [first, Row::new(11, 43, 0)]);
        assert_eq!(steps.len(), 3);
    }

    /// They have the noise of the positions that they guess.
    #[test]
    fn guesses_may_stay_at_one_position() {
        let mut steps = Vec::new();
        let (mut tokens, mut first) = (vec![0; 6], step());
        first.guesses = Guesses::Staying(0);
        draft_by_steps(&mut first, &[1, 3], &mut tokens, &mut |step, tokens| {
            tokens.fill(20 + steps.len() as u32);
            let positions: Vec<u32> = step.choices().map(|choice| choice.position).collect();
            steps.push((step.rows.clone(), positions));
            Ok(())
        })
        .unwrap();
        let [a, b] =
            [(2, 12, 102), (0, 41, 101)].map(|(slot, at, token)| Row::new(token, at, slot));
        let reads = |row: Row, token| Row {
            input: Input::Token(token),
            ..row
        };
        assert_eq!(steps[0], (step().rows, vec![14, 43]));
        assert_eq!(steps[1], (vec![reads(a, 20), reads(b, 20)], vec![15, 44]));
        assert_eq!(steps[2], (vec![reads(a, 20), reads(b, 21)], vec![16, 45]));
    }

    /// They have the noise of the positions of their rows, and nothing follows them.
    #[test]
    fn masks_guess_once() {
        let mut step = step();
        step.guesses = Guesses::Masked;
        let positions: Vec<u32> = step.choices().map(|choice| choice.position).collect();
        assert_eq!(positions, [12, 41]);
        let mut tokens = [0; 2];
        draft_by_steps(&mut step, &[1, 1], &mut tokens, &mut |_, tokens| {
            tokens.copy_from_slice(&[7, 8]);
            Ok(())
        })
        .unwrap();
        assert_eq!(tokens, [7, 8]);
        let refused = draft_by_steps(&mut step, &[2, 1], &mut [0; 4], &mut |_, _| Ok(()));
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("2 guesses of a mask"), "{why}");
    }

    #[test]
    fn a_step_without_picks_is_run() {
        let (mut step, mut ran) = (step(), false);
        step.picks.clear();
        let run: &mut RunDraftStep<'_> = &mut |_, tokens| {
            ran = tokens.is_empty();
            Ok(())
        };
        draft_by_steps(&mut step, &[], &mut [], run).unwrap();
        assert!(ran);
    }

    #[test]
    fn a_failed_step_is_the_last_one() {
        let mut steps = 0;
        let failed = draft_by_steps(&mut step(), &[2, 2], &mut [0; 4], &mut |_, _| {
            steps += 1;
            Err(Error::request("no"))
        });
        assert!(failed.is_err());
        assert_eq!(steps, 1);
    }
}
