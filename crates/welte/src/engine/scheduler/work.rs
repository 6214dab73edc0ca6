//! The kinds of work of a turn, and whose it is.

use std::time::Duration;
use welte_device::{Pick, Role, Span, Step, Want};

/// The kinds of work of a turn, in their order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Pieces of prompts, without those who decode.
    Prompts,
    /// Texts whose vectors are wanted. Their rows take turns with those of prompts.
    Texts,
    /// Generated tokens that are known already: of sequences that were preempted, and forced ones.
    Known,
    /// The next tokens, with pieces of prompts where the device mixes them.
    Next { mixed: bool },
}

/// What the planner found to do.
pub(super) enum Plan {
    Nothing,
    /// The scheduler's step.
    Step,
    /// A chain from its starts.
    Chain,
}

/// Whose span of the step it is.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    /// Where the sequence runs.
    pub(super) at: usize,
    /// Picks of its rows.
    pub(super) picks: usize,
}

/// A sequence's part of a step.
pub(super) struct Share<'a> {
    pub(super) at: usize,
    pub(super) span: Span,
    pub(super) picks: &'a [Pick],
    /// The output row of its first pick; the others follow.
    pub(super) output: usize,
}

/// The parts of a step by sequence.
pub(super) fn shares<'a>(step: &'a Step, owners: &'a [Owner]) -> impl Iterator<Item = Share<'a>> {
    let (mut rows, mut picks, mut output) = (0, 0, step.generated());
    step.spans.iter().zip(owners).map(move |(span, owner)| {
        let first = match span.role {
            Role::Generated => rows,
            Role::Prompt | Role::Text | Role::Draft => output,
        };
        let share = Share {
            at: owner.at,
            span: *span,
            picks: &step.picks[picks..picks + owner.picks],
            output: first,
        };
        rows += span.rows as usize;
        picks += owner.picks;
        if span.role != Role::Generated {
            output += owner.picks;
        }
        share
    })
}

/// The guesses of the step at hand.
pub(super) struct Drafting {
    /// How long they took.
    pub(super) took: Duration,
    /// Nothing else was computed in that time.
    pub(super) only_guesses: bool,
}

pub(super) fn pick(row: u32, want: Want) -> Pick {
    Pick { row, want }
}
