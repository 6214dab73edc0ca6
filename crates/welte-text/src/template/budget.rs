//! The bytes that one rendering may produce.
//!
//! Steps are limited, but a step may copy a long text. What an operation is about to produce is charged before it runs, so
//! a rendering never holds more than its budget, whatever it keeps.

use crate::python;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::cell::Cell;

/// The budget of a rendering, apart from that for its input.
const BUDGET: usize = 512 << 20;
/// More bytes for each byte of input.
const PER_BYTE: usize = 32;
/// The most items of a list that `+` or `*` makes. Such lists take no memory before they are read.
const MOST_ITEMS: usize = 1 << 20;
/// The size of an item of a list.
const ITEM: usize = 32;

/// Before `+`: counts a text or a list.
pub(super) const GROW: &str = "operand of +";
/// `~`
pub(super) const CONCAT: &str = "~";
/// `*`
pub(super) const TIMES: &str = "*";
/// Before something that copies a text or a list once or twice.
pub(super) const COPY: &str = "copy";
/// Before something that makes a value of every character or every item.
pub(super) const EXPAND: &str = "expand";
/// Before something that copies every text in a list.
pub(super) const WALK: &str = "walk";

thread_local! {
    /// What the rendering on this thread may still produce.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering with `input` bytes of input.
pub(super) fn begin(input: usize) {
    LEFT.set(BUDGET.saturating_add(input.saturating_mul(PER_BYTE)));
}

/// Takes bytes from the budget.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let left = LEFT.get().checked_sub(bytes);
    LEFT.set(left.ok_or_else(|| invalid("takes too much memory".to_owned()))?);
    Ok(())
}

/// Charges for a text that was made within the limit of a single text.
pub(super) fn charged(text: String) -> Result<String, Error> {
    charge(text.len())?;
    Ok(text)
}

fn invalid(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// The check before a filter; `None` if it only looks, or if it charges itself.
pub(super) fn filter_cost(name: &str) -> Option<&'static str> {
    match name {
        "length" | "count" | "default" | "d" | "first" | "last" | "int" | "float" | "bool"
        | "abs" | "round" | "attr" | "safe" | "tojson" | "string" | "pprint" | "join"
        | "replace" | "indent" => None,
        "lower" | "upper" | "title" | "capitalize" | "trim" => Some(COPY),
        "map" => Some(WALK),
        _ => Some(EXPAND),
    }
}

/// The number of items of a list or a map.
fn items(value: &Value) -> Result<usize, Error> {
    let count = match (value.kind(), value.len()) {
        (ValueKind::Seq | ValueKind::Map | ValueKind::Iterable, Some(count)) => count,
        (ValueKind::Seq | ValueKind::Map | ValueKind::Iterable, None) => {
            value.try_iter()?.take(MOST_ITEMS + 1).count()
        }
        _ => 0,
    };
    if count > MOST_ITEMS {
        return Err(invalid(format!("a list has more than {MOST_ITEMS} items")));
    }
    Ok(count)
}

fn check(value: &Value, per_byte: usize, per_item: usize) -> Result<Value, Error> {
    let size = match value.as_str() {
        Some(text) => text.len() * per_byte,
        None => items(value)? * per_item,
    };
    charge(size)?;
    Ok(value.clone())
}

/// Before a method: counts its receiver.
pub(super) fn check_method(value: &Value, name: &str) -> Result<(), Error> {
    let (per_byte, per_item) = match name {
        "split" | "rsplit" | "splitlines" => (ITEM, ITEM),
        "keys" | "values" | "items" => (0, ITEM),
        "upper" | "lower" | "title" | "capitalize" | "strip" | "lstrip" | "rstrip" => (2, 0),
        _ => return Ok(()),
    };
    check(value, per_byte, per_item).map(drop)
}

/// Refuses `text.format(…)` that could print more than a text may have, and charges for it.
pub(super) fn check_format(text: &str, args: &[Value]) -> Result<(), Error> {
    python::check_format(text)?;
    let mut longest = 0;
    for argument in args {
        longest = longest.max(python::text(argument)?.len());
    }
    // A field may be padded to 9,999 characters.
    let fields = text.matches('{').count().saturating_mul(longest + 40_000);
    if fields > python::LONGEST {
        return Err(invalid(format!(
            "format: may produce more than {} bytes",
            python::LONGEST
        )));
    }
    charge(text.len().saturating_add(fields))
}

fn walk(value: &Value) -> Result<Value, Error> {
    let mut size = items(value)? * ITEM;
    if value.as_str().is_none() && size > 0 {
        for item in value.try_iter()? {
            size += item.as_str().map_or(0, |text| 2 * text.len());
        }
    }
    charge(size)?;
    Ok(value.clone())
}

fn concat(left: &Value, right: &Value) -> Result<String, Error> {
    let (mut text, right) = (python::text(left)?, python::text(right)?);
    python::check_length(text.len().saturating_add(right.len()))?;
    charge(text.len() + 2 * right.len())?;
    text.push_str(&right);
    Ok(text)
}

fn times(left: &Value, right: &Value) -> Result<Value, Error> {
    for (value, count) in [(left, right), (right, left)] {
        let count = count.as_usize();
        if let Some(text) = value.as_str() {
            let problem = || invalid("a text can only be multiplied by a whole number".to_owned());
            let count = count.ok_or_else(problem)?;
            let size = text.len().saturating_mul(count);
            python::check_length(size)?;
            charge(size)?;
            return Ok(text.repeat(count).into());
        }
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            let problem = || invalid("a list can only be multiplied by a whole number".to_owned());
            let count = count.ok_or_else(problem)?;
            let size = items(value)?.saturating_mul(count);
            if size > MOST_ITEMS {
                return Err(invalid(format!("a list has more than {MOST_ITEMS} items")));
            }
            charge(size * ITEM)?;
            let items: Vec<Value> = value.try_iter()?.collect();
            let all = std::iter::repeat_n(&items, count).flatten().cloned();
            return Ok(all.collect::<Vec<Value>>().into());
        }
    }
    let whole = |value: &Value| i128::try_from(value.clone()).ok();
    let float = |value: &Value| f64::try_from(value.clone()).ok();
    let product =
        match (left.is_integer() && right.is_integer()).then(|| whole(left).zip(whole(right))) {
            Some(Some((a, b))) => a.checked_mul(b).map(Value::from),
            _ => float(left)
                .zip(float(right))
                .map(|(a, b)| Value::from(a * b)),
        };
    let problem = || {
        let (left, right) = (left.kind(), right.kind());
        invalid(format!("cannot multiply {left} by {right}"))
    };
    product.ok_or_else(problem)
}

/// Adds the functions that the tree calls.
pub(super) fn add_functions(environment: &mut Environment<'static>) {
    environment.add_function(GROW, |value: &Value| {
        if let Some(text) = value.as_str() {
            python::check_length(text.len())?;
        }
        check(value, 1, 1)
    });
    environment.add_function(COPY, |value: &Value| check(value, 4, ITEM));
    environment.add_function(EXPAND, |value: &Value| check(value, ITEM, ITEM));
    environment.add_function(WALK, walk);
    environment.add_function(CONCAT, concat);
    environment.add_function(TIMES, times);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What something takes from the budget.
    fn taken(of: impl FnOnce() -> Result<(), Error>) -> usize {
        begin(0);
        let before = LEFT.get();
        of().unwrap();
        before - LEFT.get()
    }

    #[test]
    fn the_budget_grows_with_the_input_and_ends() {
        for input in [0, 1000] {
            let all = BUDGET + PER_BYTE * input;
            begin(input);
            charge(all - 1).unwrap();
            charge(1).unwrap();
            assert!(charge(1).is_err());
            begin(input);
            assert!(charge(all + 1).is_err());
        }
    }

    /// A character of a text, an item of a list or a map: by what an operation makes of them.
    #[test]
    fn operations_take_what_they_make() {
        let (text, list) = (Value::from("abc"), Value::from(vec!["ab", "c"]));
        let map = Value::from_iter([("a", 1), ("b", 2)]);
        let method = |value: &Value, name: &str| taken(|| check_method(value, name));
        for name in [
            "upper",
            "lower",
            "title",
            "capitalize",
            "strip",
            "lstrip",
            "rstrip",
        ] {
            assert_eq!(method(&text, name), 6, "{name}");
        }
        for name in ["split", "rsplit", "splitlines"] {
            assert_eq!(method(&text, name), 3 * ITEM, "{name}");
        }
        for name in ["keys", "values", "items"] {
            assert_eq!(method(&map, name), 2 * ITEM, "{name}");
        }
        assert_eq!(method(&text, "startswith"), 0);
        assert_eq!(taken(|| walk(&list).map(drop)), 2 * ITEM + 6);
        assert_eq!(taken(|| walk(&text).map(drop)), 0);
        let (a, b) = (Value::from("ab"), Value::from("cde"));
        assert_eq!(taken(|| concat(&a, &b).map(drop)), 8);
        assert_eq!(concat(&a, &b).unwrap(), "abcde");
        assert_eq!(taken(|| times(&text, &Value::from(5)).map(drop)), 15);
        assert_eq!(taken(|| times(&Value::from(5), &list).map(drop)), 10 * ITEM);
        // A field may be padded.
        let format = |text: &str| taken(|| check_format(text, &[Value::from("abc")]));
        assert_eq!(format("plain"), 5);
        assert_eq!(format("{} {}"), 5 + 2 * 40_003);
    }

    #[test]
    fn lists_have_a_most() {
        let list = |n: usize| Value::from(vec![1; n]);
        assert_eq!(items(&list(MOST_ITEMS)).unwrap(), MOST_ITEMS);
        assert!(items(&list(MOST_ITEMS + 1)).is_err());
        let half = Value::from(MOST_ITEMS / 2);
        begin(0);
        assert!(times(&list(2), &half).is_ok());
        assert!(times(&list(3), &half).is_err());
    }

    #[test]
    fn fields_may_print_no_more_than_a_text_has() {
        begin(0);
        let most = python::LONGEST / 40_000;
        assert!(check_format(&"{}".repeat(most), &[]).is_ok());
        assert!(check_format(&"{}".repeat(most + 1), &[]).is_err());
    }

    #[test]
    fn a_filter_is_charged_for_what_it_copies() {
        for name in [
            "length", "default", "first", "tojson", "join", "replace", "indent",
        ] {
            assert_eq!(filter_cost(name), None, "{name}");
        }
        for name in ["lower", "upper", "title", "capitalize", "trim"] {
            assert_eq!(filter_cost(name), Some(COPY), "{name}");
        }
        assert_eq!(filter_cost("map"), Some(WALK));
        for name in ["list", "reverse", "sort", "unique", "a filter to come"] {
            assert_eq!(filter_cost(name), Some(EXPAND), "{name}");
        }
        let unsized_items = Value::make_iterable(|| (0..5).filter(|n| *n != 2));
        assert_eq!(items(&unsized_items).unwrap(), 4);
        assert_eq!(items(&Value::from("abc")).unwrap(), 0);
        let endless = Value::make_iterable(|| (0..usize::MAX).filter(|_| true));
        assert!(items(&endless).is_err());
    }

    #[test]
    fn products_are_exact_or_refused() {
        begin(0);
        let product = |a: Value, b: Value| times(&a, &b).map(|value| value.to_string()).ok();
        for (a, b, expected) in [
            (Value::from(6), Value::from(7), Some("42")),
            (Value::from(-6), Value::from(7), Some("-42")),
            (Value::from(1.5), Value::from(2), Some("3.0")),
            (Value::from("ab"), Value::from(2), Some("abab")),
            (Value::from(0), Value::from("ab"), Some("")),
            (
                Value::from(vec![1, 2]),
                Value::from(2),
                Some("[1, 2, 1, 2]"),
            ),
            (Value::from("ab"), Value::from(-1), None),
            (Value::from("ab"), Value::from("c"), None),
            (Value::from(vec![1]), Value::from(1.5), None),
            (Value::from(i128::MAX), Value::from(2), None),
            (Value::from(()), Value::from(2), None),
        ] {
            assert_eq!(
                product(a.clone(), b.clone()).as_deref(),
                expected,
                "{a} {b}"
            );
        }
        let long = Value::from("x".repeat(1 << 20));
        assert!(times(&long, &Value::from(33)).is_err());
    }
}
