//! Ranges of numbers. A type of `openapi/` may end with one: `number[0,1]`, `number(0,1]` (without 0), `integer[1,]`.

use serde_json::{Value, json};

/// A range of numbers; by default all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Range {
    least: Option<f64>,
    /// `least` itself is outside.
    above: bool,
    most: Option<f64>,
}

impl Range {
    /// Splits a type into its name and its range.
    pub(crate) fn of(kind: &str) -> (&str, Option<Range>) {
        let at = kind.find(['[', '(']);
        let Some((name, range)) = at.map(|at| kind.split_at(at)) else {
            return (kind, None);
        };
        // A list of numbers ends with brackets too.
        let Some((least, most)) = range[1..].trim_end_matches(']').split_once(',') else {
            return (kind, None);
        };
        let range = Range {
            least: least.parse().ok(),
            above: range.starts_with('('),
            most: most.parse().ok(),
        };
        (name, Some(range))
    }

    pub(crate) fn contains(&self, value: f64) -> bool {
        let low = self.least.is_some_and(|least| match self.above {
            true => value <= least,
            false => value < least,
        });
        !low && !self.most.is_some_and(|most| value > most)
    }

    /// What is wrong with other numbers.
    pub(crate) fn problem(&self) -> String {
        let least = self.least.map(|least| match self.above {
            true => format!("above {least}"),
            false => format!("at least {least}"),
        });
        let most = self.most.map(|most| format!("at most {most}"));
        let both: Vec<String> = [least, most].into_iter().flatten().collect();
        format!("must be {}", both.join(" and "))
    }

    /// Adds the range to a JSON schema.
    pub(crate) fn describe(&self, schema: &mut Value) {
        let number = |value: f64| match value.fract() == 0.0 && value.abs() < 1e15 {
            true => json!(value as i64),
            false => json!(value),
        };
        if let Some(least) = self.least {
            let name = match self.above {
                true => "exclusiveMinimum",
                false => "minimum",
            };
            schema[name] = number(least);
        }
        if let Some(most) = self.most {
            schema["maximum"] = number(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_say_what_they_contain() {
        for (kind, name, inside, outside, problem) in [
            (
                "number[0,1]",
                "number",
                &[0.0, 1.0][..],
                &[-0.1, 1.1][..],
                "must be at least 0 and at most 1",
            ),
            (
                "number(0,1]",
                "number",
                &[0.1, 1.0],
                &[0.0, -1.0],
                "must be above 0 and at most 1",
            ),
            (
                "integer[1,]",
                "integer",
                &[1.0, 1e9],
                &[0.0],
                "must be at least 1",
            ),
        ] {
            let (found, range) = Range::of(kind);
            let range = range.unwrap();
            assert_eq!((found, range.problem().as_str()), (name, problem));
            assert!(inside.iter().all(|value| range.contains(*value)), "{kind}");
            assert!(
                !outside.iter().any(|value| range.contains(*value)),
                "{kind}"
            );
        }
        for kind in ["number", "integer[]", "any[]"] {
            assert_eq!(Range::of(kind), (kind, None));
        }
        let mut schema = json!({});
        Range::of("number(0,2.5]").1.unwrap().describe(&mut schema);
        assert_eq!(schema, json!({ "exclusiveMinimum": 0, "maximum": 2.5 }));
    }
}
