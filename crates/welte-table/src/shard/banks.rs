//! The banks of a rank: of every adapted matrix the rows that it has.

use super::part::BankPart;
use crate::{Adapters, BankSpec, BufferId, BufferSpec, Command, NO_WEIGHT, Program};
use std::ops::Range;

/// The parts of banks that a rank's commands read.
#[derive(Default)]
pub(super) struct Banks {
    specs: Vec<BankSpec>,
    pub(super) parts: Vec<BankPart>,
    /// The first half of the pair of commands at hand, which reads the bank of the second half: its number in the pass.
    first_half: Option<usize>,
}

/// The number of a command's operand that is a bank.
fn operand(c: &Command) -> Option<usize> {
    let roles = c.op.is_low_rank().then(|| c.op.reads())?;
    roles.iter().position(|role| *role == "bank")
}

impl Banks {
    /// Gives command `at` of a pass, which has these rows of its matrix or all, the bank of the same rows. First halves wait for
    /// the second ones, which decide.
    pub(super) fn place(
        &mut self,
        program: &Program,
        buffers: &mut Vec<BufferSpec>,
        commands: &mut [Command],
        at: usize,
        rows: Option<&[Range<u32>]>,
    ) {
        let Some(bank) = operand(&commands[at]) else {
            return;
        };
        if commands[at].op.writes() == ["h"] {
            self.first_half = Some(at);
            return;
        }
        let (buffer, n) = self.take(program, buffers, commands[at].buffers[bank].buffer, rows);
        for at in self.first_half.take().into_iter().chain([at]) {
            let command = &mut commands[at];
            if let Some(bank) = operand(command) {
                command.buffers[bank].buffer = buffer;
                super::forms::set(command, "n", n);
            }
        }
    }

    /// The buffer of a part of a bank, and its rows.
    fn take(
        &mut self,
        program: &Program,
        buffers: &mut Vec<BufferSpec>,
        of: BufferId,
        rows: Option<&[Range<u32>]>,
    ) -> (BufferId, u32) {
        let Some((adapters, whole)) = bank_of(program, of) else {
            return (of, 0);
        };
        let all = 0..whole.bank.n;
        let rows = rows.unwrap_or(std::slice::from_ref(&all));
        let n = rows.iter().map(|rows| rows.len() as u32).sum();
        let mut of_bank = self.parts.iter().filter(|part| part.of == of).peekable();
        let is_first = of_bank.peek().is_none();
        if let Some(known) = of_bank.find(|part| part.rows == rows) {
            return (known.buffer, n);
        }
        let mut bank = whole.bank;
        bank.n = n;
        let bytes = bank.place_bytes().unwrap_or(0) * u64::from(adapters.places);
        let buffer = if is_first {
            of
        } else {
            buffers.push(buffers[of as usize].clone());
            buffers.len() as BufferId - 1
        };
        buffers[buffer as usize].bytes = bytes;
        self.specs.push(BankSpec {
            buffer,
            // Who fills banks knows the whole program.
            weight: NO_WEIGHT,
            bank,
            ..whole.clone()
        });
        self.parts.push(BankPart {
            of,
            buffer,
            rows: rows.to_vec(),
        });
        (buffer, n)
    }

    /// What the rank's program has of the whole one's adapters.
    pub(super) fn adapters(&self, program: &Program) -> Option<Adapters> {
        let whole = program.adapters.as_ref()?;
        Some(Adapters {
            banks: self.specs.clone(),
            ..*whole
        })
    }
}

fn bank_of(program: &Program, buffer: BufferId) -> Option<(&Adapters, &BankSpec)> {
    let adapters = program.adapters.as_ref()?;
    let bank = adapters.banks.iter().find(|bank| bank.buffer == buffer)?;
    Some((adapters, bank))
}
