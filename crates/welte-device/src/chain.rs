//! Chains that the host drives: a step of the live slots, then a token for each of them, which the next step reads.

use crate::{ChainStart, Control, Emitted, Error, Logprobs, is_token};

/// What a step of a chain has made of an output row.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// The token, or why there is none.
    pub token: u32,
    /// Its probability, if the slot reports it.
    pub logprobs: Option<Logprobs>,
    /// The token ends chains of its slot.
    pub ends: bool,
}

/// A context whose chains the host drives by [`chain_by_steps`].
pub trait StepChain {
    /// The slots of the chain at hand that have not stopped, with room for all slots.
    fn live(&mut self) -> &mut Vec<ChainStart>;

    /// Computes the next step of the live slots.
    fn step_live(&mut self) -> Result<(), Error>;

    /// Chooses the token of live slot `row` from its output row.
    fn choose_live(&mut self, row: usize) -> Result<Made, Error>;
}

/// Decodes checked slots until all have stopped: see [`Context::chain`](crate::Context::chain).
pub fn chain_by_steps(
    context: &mut impl StepChain,
    starts: &[ChainStart],
    control: &Control,
    emit: &mut dyn FnMut(Emitted) -> bool,
) -> Result<(), Error> {
    let live = context.live();
    live.clear();
    live.extend(starts.iter().filter(|start| start.steps > 0));
    while !context.live().is_empty() && !control.is_stopped() {
        context.step_live()?;
        for row in 0..context.live().len() {
            let made = context.choose_live(row)?;
            context.live()[row].advance(made, emit);
        }
        context.live().retain(|start| start.steps > 0);
    }
    Ok(())
}

impl ChainStart {
    /// Emits a token and goes on to it. A slot that stops has no steps left.
    pub fn advance(&mut self, made: Made, emit: &mut dyn FnMut(Emitted) -> bool) {
        self.token = made.token;
        self.position += 1;
        let wanted = emit(Emitted {
            slot: self.slot,
            position: self.position,
            token: made.token,
            logprobs: made.logprobs,
        });
        let goes_on = wanted && is_token(made.token) && !made.ends;
        self.steps = if goes_on { self.steps - 1 } else { 0 };
    }
}
