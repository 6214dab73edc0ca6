//! Ranges of numbers, as the description of an API writes them: `number[0,1]`, `number(0,1]` (without 0), `integer[1,]`.

use std::fmt;

/// A range of numbers; by default all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Range {
    /// The least number.
    pub min: Option<f64>,
    /// `min` itself is outside.
    pub excludes_min: bool,
    /// The greatest number.
    pub max: Option<f64>,
}

impl Range {
    /// Splits a type into its name and its range.
    pub fn of(kind: &str) -> (&str, Option<Range>) {
        let at = kind.find(['[', '(']);
        let Some((name, range)) = at.map(|at| kind.split_at(at)) else {
            return (kind, None);
        };
        // A list of numbers ends with brackets too.
        let Some((min, max)) = range[1..].trim_end_matches(']').split_once(',') else {
            return (kind, None);
        };
        let range = Range {
            min: min.parse().ok(),
            excludes_min: range.starts_with('('),
            max: max.parse().ok(),
        };
        (name, Some(range))
    }

    /// True if the number is in the range.
    pub fn contains(&self, value: f64) -> bool {
        let above_min = self.min.is_none_or(|min| {
            if self.excludes_min {
                value > min
            } else {
                value >= min
            }
        });
        above_min && self.max.is_none_or(|max| value <= max)
    }
}

/// After "must be": `at least 0 and at most 1`. The largest `f32` is left out: nobody needs to read it.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = self.max.filter(|max| *max < f64::from(f32::MAX) * 0.9);
        let min = self.min.filter(|min| *min > f64::from(f32::MIN) * 0.9);
        let above = if self.excludes_min {
            "above"
        } else {
            "at least"
        };
        match (min, max) {
            (Some(min), Some(max)) => write!(f, "{above} {min} and at most {max}"),
            (Some(min), None) => write!(f, "{above} {min}"),
            (None, Some(max)) => write!(f, "at most {max}"),
            (None, None) => f.write_str("a finite number"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_say_what_they_contain() {
        for (kind, name, inside, outside, text) in [
            (
                "number[0,1]",
                "number",
                &[0.0, 1.0][..],
                &[-0.1, 1.1, f64::NAN][..],
                "at least 0 and at most 1",
            ),
            (
                "number(0,1]",
                "number",
                &[0.1, 1.0],
                &[0.0, -1.0],
                "above 0 and at most 1",
            ),
            ("integer[1,]", "integer", &[1.0, 1e9], &[0.0], "at least 1"),
            ("number[0,3.4e38]", "number", &[3e38], &[1e39], "at least 0"),
        ] {
            let (found, range) = Range::of(kind);
            let range = range.unwrap();
            assert_eq!((found, range.to_string().as_str()), (name, text));
            assert!(inside.iter().all(|value| range.contains(*value)), "{kind}");
            assert!(
                !outside.iter().any(|value| range.contains(*value)),
                "{kind}"
            );
        }
        for kind in ["number", "integer[]", "any[]"] {
            assert_eq!(Range::of(kind), (kind, None));
        }
    }
}
