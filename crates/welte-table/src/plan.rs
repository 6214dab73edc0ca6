//! The memory plan: what will be allocated, by name and class, known before anything is.

use crate::{Class, Program, WeightSpec};
use std::collections::BTreeMap;

/// One line of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    /// What it is: a buffer's name, or `weights`.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// Its size.
    pub bytes: u64,
}

/// Bytes by class, and what they are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The lines, weights first, then the program's buffers, then what the device added.
    pub entries: Vec<PlanEntry>,
}

impl MemoryPlan {
    /// The plan of a program: its weights (as many bytes as the device's layout takes) and its buffers. A device adds
    /// what it needs besides (lowered commands, page tables, prepared activations) with [`MemoryPlan::add`].
    pub fn of(program: &Program, weight_bytes: &dyn Fn(&WeightSpec) -> u64) -> MemoryPlan {
        let mut plan = MemoryPlan::default();
        let weights = program
            .weights
            .iter()
            .map(weight_bytes)
            .fold(0, u64::saturating_add);
        plan.add("weights", Class::Weights, weights);
        for b in &program.buffers {
            plan.add(&b.name, b.class, b.bytes);
        }
        plan
    }

    /// Adds a line.
    pub fn add(&mut self, name: &str, class: Class, bytes: u64) {
        self.entries.push(PlanEntry {
            name: name.to_string(),
            class,
            bytes,
        });
    }

    /// Bytes of one class.
    pub fn bytes(&self, class: Class) -> u64 {
        self.entries
            .iter()
            .filter(|e| e.class == class)
            .map(|e| e.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Bytes by class, only classes that have any line.
    pub fn by_class(&self) -> BTreeMap<Class, u64> {
        self.entries
            .iter()
            .map(|e| (e.class, self.bytes(e.class)))
            .collect()
    }

    /// Everything.
    pub fn total(&self) -> u64 {
        self.entries
            .iter()
            .map(|e| e.bytes)
            .fold(0, u64::saturating_add)
    }
}

/// Bytes as a person reads them.
pub fn human(bytes: u64) -> String {
    const UNITS: [(&str, usize); 5] = [("B", 0), ("KiB", 1), ("MiB", 1), ("GiB", 2), ("TiB", 2)];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    let (unit, decimals) = UNITS[power as usize];
    let value = bytes as f64 / 1024f64.powi(power as i32);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1024.0 KiB"),
            (5 << 20, "5.0 MiB"),
            (9 << 30, "9.00 GiB"),
            (3 << 39, "1.50 TiB"),
            (1 << 60, "1048576.00 TiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
