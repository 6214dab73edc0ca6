//! Pictures and pages: a program as text, JSON, dot or HTML; a profile with its roofline and timelines; trace events.
//!
//! Nothing here measures or decides: every function turns plain data into text.

mod floor;
pub mod ladder;
mod lanes;
pub mod load;
mod page;
pub mod profile;
mod program;
pub mod trace;

pub use floor::Floor;
pub use program::{Fold, Header, dot, fold, html, json, text};
pub use welte_table::human;

/// A number with its noun: `1 row`, `2 rows`.
pub fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_agree_with_their_number() {
        assert_eq!(
            [0, 1, 2].map(|n| count(n, "row")),
            ["0 rows", "1 row", "2 rows"]
        );
    }
}
