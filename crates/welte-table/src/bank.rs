//! Banks: what adapters add to the matrices of a program, and where it lies.

use crate::{BufferId, Command, Part, Source, WeightId, WeightSpec};
use std::ops::Range;

/// The adapters that a program has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapters {
    /// How many may be loaded at a time.
    pub places: u32,
    /// Their highest rank.
    pub rank: u32,
    /// Where devices may note the adapter of each slot: two words each.
    pub slots: BufferId,
    /// One for each adapted matrix.
    pub banks: Vec<BankSpec>,
}

/// The bank of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankSpec {
    /// Where it is.
    pub buffer: BufferId,
    /// Whose rows are adapted; `NO_WEIGHT` in the program of a rank.
    pub weight: WeightId,
    /// The matrix is looked up, not multiplied.
    pub lookup: bool,
    /// The shape.
    pub bank: Bank,
}

/// The shape of a bank. A matrix may be joined of several tensors, its *parts*, and there may be one for each expert: each has an A and a B
/// of its own, which a *set* holds.
///
/// A place has, one after the other: a rank and a scale for each set, by expert, then by part (a rank of 0: the adapter leaves this tensor
/// as it is); the A of each set, `rank` rows of `k` values; a row of `rank` values of B for each of the matrix's `n` rows, by expert. Of a
/// table that is looked up, A has `k` rows of `rank` values. Values are F16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank {
    /// Rows of the matrix, of each expert.
    pub n: u32,
    /// Elements of a row; of a table: its rows.
    pub k: u32,
    /// Tensors of which it is joined.
    pub parts: u32,
    /// Values of A's columns and of B's rows.
    pub rank: u32,
    /// Matrices.
    pub experts: u32,
}

/// Places begin at multiples of this many bytes.
const ALIGN: u64 = 256;

impl Bank {
    /// Sets of a place.
    pub fn sets(&self) -> u64 {
        u64::from(self.parts).saturating_mul(self.experts.into())
    }

    /// Bytes before the values of A.
    pub fn head_bytes(&self) -> u64 {
        self.sets().saturating_mul(8).saturating_add(15) / 16 * 16
    }

    /// Bytes of the A of a set.
    pub fn a_bytes(&self) -> u64 {
        (2 * u64::from(self.rank)).saturating_mul(self.k.into())
    }

    /// Where the B of an expert begins in a place.
    pub fn b_at(&self, expert: u32) -> u64 {
        let rows = u64::from(expert) * u64::from(self.n);
        self.head_bytes() + self.sets() * self.a_bytes() + 2 * rows * u64::from(self.rank)
    }

    /// Bytes of a place; `None` if they exceed what can be.
    pub fn place_bytes(&self) -> Option<u64> {
        let wide = |a: u32, b: u32| u64::from(a).checked_mul(b.into());
        let a = self
            .sets()
            .checked_mul(wide(self.rank, self.k)?.checked_mul(2)?)?;
        let b = wide(self.n, self.experts)?.checked_mul(2 * u64::from(self.rank))?;
        let all = self.head_bytes().checked_add(a)?.checked_add(b)?;
        (all < 1 << 40).then(|| all.next_multiple_of(ALIGN))
    }

    /// The bank that a command reads.
    pub fn of(c: &Command) -> Option<Bank> {
        let word = |name: &str| c.word(name);
        c.op.is_low_rank().then_some(())?;
        Some(Bank {
            n: word("n")?,
            k: word("k")?,
            parts: word("parts").unwrap_or(1),
            rank: word("rank")?,
            experts: word("experts").unwrap_or(1),
        })
    }
}

/// Rows of a set's tensor, and where they are in the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRows {
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// Rows of the tensor.
    pub from: Range<u32>,
    /// The first of them in the expert's matrix.
    pub to: u32,
    /// Which expert, and which part.
    pub expert: u32,
    /// Which part of the matrix.
    pub part: u32,
}

impl BankSpec {
    /// Which rows of which tensors the matrix consists of. Empty if they cannot be told.
    pub fn rows(&self, weights: &[WeightSpec]) -> Vec<SetRows> {
        let weight = weights.get(self.weight as usize);
        weight.map_or(Vec::new(), |weight| match self.lookup {
            true => table_rows(weight),
            false => rows_of(weight, self.bank.experts).unwrap_or_default(),
        })
    }
}

/// A table's tensor. Its rows are the columns of A.
pub(crate) fn table_rows(weight: &WeightSpec) -> Vec<SetRows> {
    let Source::Parts(parts) = &weight.source else {
        return Vec::new();
    };
    let [part] = &parts[..] else {
        return Vec::new();
    };
    vec![SetRows {
        tensor: part.tensor.clone(),
        from: 0..weight.k,
        to: 0,
        expert: 0,
        part: 0,
    }]
}

/// The rows of the tensors that a matrix is joined of. `None` if its experts are not alike, or it has another source.
pub(crate) fn rows_of(weight: &WeightSpec, experts: u32) -> Option<Vec<SetRows>> {
    let Source::Parts(parts) = &weight.source else {
        return None;
    };
    let each = weight.n / experts.max(1);
    let mut rows = Vec::new();
    // Tensors of the expert at hand, in order.
    let mut known: Vec<&str> = Vec::new();
    let mut at = 0;
    for part in parts {
        let Part {
            tensor,
            first_row,
            rows: count,
        } = part;
        // One part may have all experts, one after the other.
        let mut left = *count;
        while left > 0 {
            let (expert, to) = (at / each, at % each);
            if to == 0 {
                known.clear();
            }
            let taken = left.min(each - to);
            let which = known.iter().position(|name| name == tensor);
            let which = which.unwrap_or_else(|| {
                known.push(tensor);
                known.len() - 1
            });
            let first = first_row + (count - left);
            rows.push(SetRows {
                tensor: tensor.clone(),
                from: first..first + taken,
                to,
                expert,
                part: which as u32,
            });
            at += taken;
            left -= taken;
        }
    }
    (at == weight.n).then_some(rows)
}
