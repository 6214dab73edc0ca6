//! Low-rank parts of products.
#![allow(unsafe_code)]

use super::{Lowered, Lowering};
use crate::dispatch::Phase;
use crate::ops::Bytes;
use crate::ops::adapt::{AdaptDown, AdaptLookup, AdaptUp, Chosen, Places};
use crate::unsupported;
use welte_device::Error;
use welte_table::{Bank, BufferRef, params};

impl Lowering<'_> {
    /// The command's bank, which has its size.
    fn places(&self, l: &Lowered<'_>, bank: BufferRef) -> Result<Places, Error> {
        let shape = Bank::of(l.command).and_then(|bank| Some((bank, bank.place_bytes()?)));
        let (shape, bytes) = shape.ok_or_else(|| unsupported("a command lacks its bank"))?;
        let places = self.program().adapters.as_ref().map_or(0, |a| a.places);
        let block = self.buffers.get(bank.buffer as usize);
        let block = block.filter(|block| bytes * u64::from(places) <= block.len() as u64);
        let block = block.ok_or_else(|| unsupported("the bank of a command is too small"))?;
        Ok(Places {
            start: Bytes(block.ptr()),
            bank: shape,
            place_bytes: bytes as usize,
            on_outputs: l.after_choice,
        })
    }

    pub(super) fn adapt_down(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AdaptDown::of(&l.command.params);
        let [x, bank, h, ..] = l.command.buffers;
        let width = (p.parts * p.rank) as usize;
        l.phases.push(Phase::AdaptDown(AdaptDown {
            places: self.places(l, bank)?,
            x: self.float_rows(x, p.x_stride, p.k as usize, l.rows)?,
            h: self.float_rows(h, p.h_stride, width, l.rows)?,
            chosen: None,
        }));
        Ok(())
    }

    pub(super) fn adapt_lookup(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AdaptLookup::of(&l.command.params);
        let [_, bank, h, ..] = l.command.buffers;
        if p.k < self.program().vocab {
            return Err(unsupported("the adapters know fewer tokens than there are"));
        }
        l.phases.push(Phase::AdaptLookup(AdaptLookup {
            places: self.places(l, bank)?,
            tokens: self.tokens(l.rows)?,
            scale: p.scale,
            h: self.float_rows(h, p.h_stride, p.rank as usize, l.rows)?,
        }));
        Ok(())
    }

    pub(super) fn adapt_up(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AdaptUp::of(&l.command.params);
        let [h, bank, y, ..] = l.command.buffers;
        let width = (p.parts * p.rank) as usize;
        l.phases.push(Phase::AdaptUp(AdaptUp {
            places: self.places(l, bank)?,
            h: self.float_rows(h, p.h_stride, width, l.rows)?,
            y: self.float_rows(y, p.y_stride, p.n as usize, l.rows)?,
            parts: self.floats(l.command.weights[0], p.n as usize)?,
            chosen: None,
        }));
        Ok(())
    }

    pub(super) fn adapt_experts_down(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AdaptExpertsDown::of(&l.command.params);
        let [x, choice, bank, h] = l.command.buffers;
        let (used, own) = (p.used as usize, p.own == 1);
        let width = if own {
            used * p.k as usize
        } else {
            p.k as usize
        };
        let low = used * (p.parts * p.rank) as usize;
        l.phases.push(Phase::AdaptDown(AdaptDown {
            places: self.places(l, bank)?,
            x: self.float_rows(x, p.x_stride, width, l.rows)?,
            h: self.float_rows(h, p.h_stride, low, l.rows)?,
            chosen: Some(Chosen {
                choice: self.float_rows(choice, p.choice_stride, 2 * used, l.rows)?,
                used,
                own,
            }),
        }));
        Ok(())
    }

    pub(super) fn adapt_experts_up(&self, l: &mut Lowered<'_>) -> Result<(), Error> {
        let p = params::AdaptExpertsUp::of(&l.command.params);
        let [h, choice, bank, y] = l.command.buffers;
        let (used, own) = (p.used as usize, p.sum == 0);
        let width = if own {
            used * p.n as usize
        } else {
            p.n as usize
        };
        let low = used * (p.parts * p.rank) as usize;
        l.phases.push(Phase::AdaptUp(AdaptUp {
            places: self.places(l, bank)?,
            h: self.float_rows(h, p.h_stride, low, l.rows)?,
            y: self.float_rows(y, p.y_stride, width, l.rows)?,
            parts: self.floats(l.command.weights[0], p.n as usize)?,
            chosen: Some(Chosen {
                choice: self.float_rows(choice, p.choice_stride, 2 * used, l.rows)?,
                used,
                own,
            }),
        }));
        Ok(())
    }
}
