//! Reads texts as the template's author meant: comparisons, searches and sorting see the characters that
//! [`shield`](super::shield) has covered. What they return stays covered, so it makes no marks.

use super::budget::{charge, charged};
use super::shield::{opened, uncovered};
use crate::python;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::ops::Range;

/// Before an operand of a comparison.
pub(super) const OPEN: &str = "operand of a comparison";
/// How deep lists and maps are opened.
const DEEPEST: usize = 32;
/// The size of a value in a list.
const ITEM: usize = 32;

/// The tests that compare, by their names.
type Comparison = fn(&Value, &Value) -> bool;
const COMPARISONS: [(&[&str], Comparison); 6] = [
    (&["eq", "equalto", "=="], |a, b| a == b),
    (&["ne", "!="], |a, b| a != b),
    (&["lt", "lessthan", "<"], |a, b| a < b),
    (&["le", "<="], |a, b| a <= b),
    (&["gt", "greaterthan", ">"], |a, b| a > b),
    (&["ge", ">="], |a, b| a >= b),
];

pub(super) fn add_functions(environment: &mut Environment<'static>) {
    environment.add_function(OPEN, opened_value);
    for (names, holds) in COMPARISONS {
        for name in names {
            environment.add_test(*name, move |a: &Value, b: &Value| {
                Ok::<bool, Error>(holds(&opened_value(a)?, &opened_value(b)?))
            });
        }
    }
    environment.add_test("in", |state: &State, item: &Value, all: &Value| {
        minijinja::tests::is_in(state, &opened_value(item)?, &opened_value(all)?)
    });
    environment.add_filter("sort", sort);
    environment.add_filter("dictsort", dictsort);
}

/// A value without covers.
fn opened_value(value: &Value) -> Result<Value, Error> {
    Ok(open(value, DEEPEST)?.unwrap_or_else(|| value.clone()))
}

/// A value without covers. `None` if it has none.
fn open(value: &Value, depth: usize) -> Result<Option<Value>, Error> {
    if let Some(text) = value.as_str() {
        return match opened(text) {
            Some(text) => charged(text).map(|text| Some(text.into())),
            None => Ok(None),
        };
    }
    if depth == 0 {
        return Ok(None);
    }
    let mut changed = false;
    let mut inner = |value: &Value| {
        let new = open(value, depth - 1)?;
        changed |= new.is_some();
        Ok::<Value, Error>(new.unwrap_or_else(|| value.clone()))
    };
    let new = match value.kind() {
        ValueKind::Seq => {
            charge(value.len().unwrap_or(0).saturating_mul(ITEM))?;
            let items = value.try_iter()?.map(|item| inner(&item));
            Value::from(items.collect::<Result<Vec<Value>, Error>>()?)
        }
        ValueKind::Map => {
            charge(value.len().unwrap_or(0).saturating_mul(2 * ITEM))?;
            let pair = |key: Value| Ok((inner(&key)?, inner(&value.get_item(&key)?)?));
            let pairs = value.try_iter()?.map(pair);
            Value::from_pairs(pairs.collect::<Result<Vec<(Value, Value)>, Error>>()?)
        }
        _ => return Ok(None),
    };
    Ok(changed.then_some(new))
}

/// A method of a text that compares or searches. `None`: it is another one, or nothing is covered.
pub(super) fn method(
    state: &mut State,
    text: &str,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    if name == "replace" {
        let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
        return replace(text, old, new, count).map(|text| Some(text.into()));
    }
    let texts = args.iter().filter_map(Value::as_str);
    let is_covered = |text: &str| text.chars().any(|c| uncovered(c).is_some());
    if !is_covered(text) && !texts.into_iter().any(is_covered) {
        return Ok(None);
    }
    match name {
        "startswith" | "endswith" | "count" | "find" | "rfind" | "isascii" => {
            let args = args.iter().map(opened_value);
            let args = args.collect::<Result<Vec<Value>, Error>>()?;
            unknown_method_callback(state, &opened_value(&text.into())?, name, &args).map(Some)
        }
        "strip" | "lstrip" | "rstrip" => {
            let (signs,): (Option<&str>,) = from_args(args)?;
            let Some(signs) = signs else {
                return Ok(None);
            };
            let signs = opened(signs).unwrap_or_else(|| signs.to_owned());
            let (text, strips) = (Opened::new(text)?, |c: char| signs.contains(c));
            let open = &text.open;
            let end = match name {
                "lstrip" => open.len(),
                _ => open.trim_end_matches(strips).len(),
            };
            let start = match name {
                "rstrip" => 0,
                _ => end - open[..end].trim_start_matches(strips).len(),
            };
            charged(text.part(start..end).to_owned()).map(|text| Some(text.into()))
        }
        "split" => {
            let (separator, count): (Option<&str>, Option<i64>) = from_args(args)?;
            let Some(separator) = separator.filter(|one| !one.is_empty()) else {
                return Ok(None);
            };
            let text = Opened::new(text)?;
            let parts = text.between(separator, count.unwrap_or(-1));
            charge(text.covered.len() + parts.len().saturating_mul(ITEM))?;
            let parts = parts.into_iter().map(|part| text.part(part).into());
            Ok(Some(Value::from(parts.collect::<Vec<Value>>())))
        }
        _ => Ok(None),
    }
}

/// Python's `replace`, which finds covered texts too.
pub(super) fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    if old.is_empty() || (opened(text).is_none() && opened(old).is_none()) {
        return charged(python::replace(text, old, new, count)?);
    }
    let text = Opened::new(text)?;
    let parts = text.between(old, count.unwrap_or(-1));
    python::check_length((parts.len() * new.len()).saturating_add(text.covered.len()))?;
    let parts = parts.into_iter().map(|part| text.part(part));
    charged(parts.collect::<Vec<&str>>().join(new))
}

/// A text with covers, and without.
struct Opened<'t> {
    covered: &'t str,
    open: String,
    /// The places in the covered text of characters that begin in the open one.
    places: Vec<usize>,
}

impl<'t> Opened<'t> {
    fn new(covered: &'t str) -> Result<Opened<'t>, Error> {
        charge(covered.len().saturating_mul(1 + size_of::<usize>()))?;
        let (mut open, mut places) = (String::with_capacity(covered.len()), Vec::new());
        for (at, c) in covered.char_indices() {
            open.push(uncovered(c).unwrap_or(c));
            places.resize(open.len(), at);
        }
        places.push(covered.len());
        Ok(Opened {
            covered,
            open,
            places,
        })
    }

    /// The covered text at a range of the open one.
    fn part(&self, range: Range<usize>) -> &'t str {
        &self.covered[self.places[range.start]..self.places[range.end]]
    }

    /// The ranges of the open text between its first `count` separators; below 0: between all.
    fn between(&self, separator: &str, count: i64) -> Vec<Range<usize>> {
        let separator = opened(separator).unwrap_or_else(|| separator.to_owned());
        let (mut parts, mut start) = (Vec::new(), 0);
        let limit = usize::try_from(count).unwrap_or(usize::MAX);
        for (at, found) in self.open.match_indices(&separator).take(limit) {
            parts.push(start..at);
            start = at + found.len();
        }
        parts.push(start..self.open.len());
        parts
    }
}

/// The values in order. With `attribute`, in the order of what is at these places in them.
fn sort(state: &State, values: &Value, options: Kwargs) -> Result<Value, Error> {
    let attribute: Option<&str> = options.get("attribute")?;
    let in_pair = |path: &str| format!("0.{}", path.trim());
    let by = match attribute {
        Some(paths) => paths.split(',').map(in_pair).collect::<Vec<_>>().join(","),
        None => "0".to_owned(),
    };
    let items: Vec<Value> = values.try_iter()?.collect();
    let items = items.into_iter().map(|item| (item.clone(), item));
    sorted(state, items.collect(), &by, &options)
}

/// The pairs of a map in the order of their keys, or with `by="value"` of their values.
fn dictsort(state: &State, map: &Value, options: Kwargs) -> Result<Value, Error> {
    let by_value = options.get::<Option<&str>>("by")? == Some("value");
    if map.kind() != ValueKind::Map {
        return Err(python::invalid("dictsort needs a map"));
    }
    let mut pairs = Vec::new();
    for key in map.try_iter()? {
        let value = map.get_item(&key)?;
        let by = if by_value { &value } else { &key };
        pairs.push((by.clone(), Value::from(vec![key, value])));
    }
    sorted(state, pairs, "0", &options)
}

/// The second ones of the pairs, in the order of the first ones.
fn sorted(
    state: &State,
    pairs: Vec<(Value, Value)>,
    by: &str,
    options: &Kwargs,
) -> Result<Value, Error> {
    let flag = |name: &str| options.get::<Option<bool>>(name);
    let flags = [
        ("case_sensitive", flag("case_sensitive")?),
        ("reverse", flag("reverse")?),
    ];
    options.assert_all_used()?;
    let flags = flags.map(|(name, is_set)| (name, is_set.unwrap_or(false).into()));
    let options = flags.into_iter().chain([("attribute", by.into())]);
    charge(pairs.len().saturating_mul(4 * ITEM))?;
    let pairs = pairs
        .into_iter()
        .map(|(by, item)| Ok(Value::from(vec![opened_value(&by)?, item])));
    let pairs = pairs.collect::<Result<Vec<Value>, Error>>()?;
    let pairs = minijinja::filters::sort(state, pairs.into(), options.collect())?;
    let items = pairs.try_iter()?.map(|pair| pair.get_item_by_index(1));
    Ok(items.collect::<Result<Vec<Value>, Error>>()?.into())
}
