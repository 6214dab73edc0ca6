//! Pictures and pages: a program as text, JSON, dot or HTML; a profile with its roofline and timelines; trace events.
//!
//! Nothing here measures or decides: every function turns plain data into text.

mod floor;
pub mod ladder;
mod lanes;
mod page;
pub mod profile;
mod program;
pub mod trace;

pub use floor::Floor;
pub use program::{Fold, Header, dot, fold, html, json, text};

/// Bytes with a binary unit.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

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
    fn bytes_get_the_largest_unit_that_leaves_a_whole_number() {
        let texts = [0, 1023, 1024, 1536, 5 << 20, 9 << 30, 3 << 40, 2000 << 40].map(human);
        assert_eq!(
            texts,
            [
                "0 B",
                "1023 B",
                "1.0 KiB",
                "1.5 KiB",
                "5.0 MiB",
                "9.0 GiB",
                "3.0 TiB",
                "2000.0 TiB"
            ]
        );
    }

    #[test]
    fn nouns_agree_with_their_number() {
        assert_eq!(
            [0, 1, 2].map(|n| count(n, "row")),
            ["0 rows", "1 row", "2 rows"]
        );
    }
}
