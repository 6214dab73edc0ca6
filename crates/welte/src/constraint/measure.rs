//! What a constraint may consist of. A constraint is measured before it is compiled, without calling itself for its parts.

use super::Constraint;
use crate::Error;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// The largest source of a constraint, in bytes.
const LARGEST: usize = 1 << 20;
/// Values in a schema, names of properties not counted.
const MOST_VALUES: usize = 50_000;
/// Levels of a schema, and of groups in a grammar.
const DEEPEST: usize = 100;
/// Different targets of `$ref`.
const MOST_REFERENCES: usize = 2_000;
/// Properties of all objects of a schema.
const MOST_PROPERTIES: usize = 10_000;
/// Schemas in one `allOf`, `anyOf` or `oneOf`.
const MOST_BRANCHES: usize = 1_000;
/// Patterns of one `patternProperties`: every two of them are compared.
const MOST_PATTERNS: usize = 50;
/// Combinations of alternatives that `allOf`, references and siblings of `anyOf` make.
const MOST_COMBINATIONS: usize = 1_000;
/// Rules of a grammar.
pub(super) const MOST_RULES: usize = 10_000;
/// Parts of a form.
const MOST_PARTS: usize = 20_000;

impl Constraint {
    /// Refuses what is too large for the compiler.
    pub(super) fn measure(&self) -> Result<(), Error> {
        let (mut parts, mut size) = (0, 0);
        let mut left = vec![(self, 0)];
        while let Some((part, depth)) = left.pop() {
            parts += 1;
            if depth > DEEPEST {
                return Err(part.refused(format!("more than {DEEPEST} of its parts are nested")));
            }
            size += part.source_size();
            match part {
                Constraint::JsonSchema(schema) => schema_of(schema)?,
                Constraint::Lark(text) => {
                    grammar(text).map_err(|problem| part.refused(problem))?;
                }
                Constraint::Choice(texts) if texts.len() > MOST_PARTS => parts += texts.len(),
                Constraint::Sequence(all) | Constraint::OneOf(all) => {
                    left.extend(all.iter().map(|part| (part, depth + 1)));
                }
                Constraint::Repeated(one) => left.push((one, depth + 1)),
                _ => {}
            }
        }
        if size > LARGEST {
            return Err(self.refused(format!("it has {size} bytes; the most are {LARGEST}")));
        }
        if parts > MOST_PARTS {
            return Err(self.refused(format!("it has {parts} parts; the most are {MOST_PARTS}")));
        }
        Ok(())
    }

    /// The size of its source without that of its parts, in bytes.
    fn source_size(&self) -> usize {
        let texts = |texts: &[String]| texts.iter().map(|text| text.len() + 1).sum();
        match self {
            Constraint::JsonSchema(schema) => bytes_of(schema),
            Constraint::Json => 0,
            Constraint::Regex(text)
            | Constraint::Lark(text)
            | Constraint::Gbnf(text)
            | Constraint::Text(text) => text.len(),
            Constraint::Choice(all) | Constraint::Without(all) => texts(all),
            Constraint::Until { mark, without } => mark.len() + texts(without),
            Constraint::Sequence(_) | Constraint::OneOf(_) | Constraint::Repeated(_) => 1,
        }
    }
}

/// About how many bytes a JSON text of a value has.
fn bytes_of(value: &Value) -> usize {
    let (mut bytes, mut left) = (0, vec![value]);
    while let Some(value) = left.pop() {
        bytes += match value {
            Value::String(text) => text.len() + 3,
            Value::Array(all) => {
                left.extend(all);
                2
            }
            Value::Object(all) => {
                left.extend(all.values());
                all.keys().map(|key| key.len() + 4).sum::<usize>() + 2
            }
            _ => 6,
        };
    }
    bytes
}

/// Refuses schemas that are too large.
fn schema_of(schema: &Value) -> Result<(), Error> {
    let refused = |problem: String| Error::Constraint {
        kind: "JSON schema",
        at: None,
        problem,
    };
    let most = |count: usize, most: usize, what: &str| match count > most {
        true => Err(refused(format!(
            "it has {count} {what}; the most are {most}"
        ))),
        false => Ok(()),
    };
    let (mut values, mut properties) = (0, 0);
    let mut references = HashSet::new();
    let mut left = vec![(schema, 0)];
    let mut objects = Vec::new();
    while let Some((value, depth)) = left.pop() {
        values += 1;
        if depth > DEEPEST {
            return Err(refused(format!("it has more than {DEEPEST} levels")));
        }
        match value {
            Value::Array(all) => left.extend(all.iter().map(|one| (one, depth + 1))),
            Value::Object(all) => {
                objects.push(all);
                for (key, one) in all {
                    match (key.as_str(), one) {
                        ("properties", Value::Object(named)) => properties += named.len(),
                        ("patternProperties", Value::Object(named)) => {
                            most(
                                named.len(),
                                MOST_PATTERNS,
                                "patterns of properties in one place",
                            )?;
                        }
                        ("required", Value::Array(names)) => properties += names.len() / 2,
                        ("allOf" | "anyOf" | "oneOf", Value::Array(branches)) => {
                            most(
                                branches.len(),
                                MOST_BRANCHES,
                                &format!("schemas in one {key}"),
                            )?;
                        }
                        ("$ref", Value::String(to)) => {
                            references.insert(to.as_str());
                        }
                        _ => {}
                    }
                    left.push((one, depth + 1));
                }
            }
            _ => {}
        }
        if values > MOST_VALUES {
            return Err(refused(format!("it has more than {MOST_VALUES} values")));
        }
    }
    most(properties, MOST_PROPERTIES, "properties")?;
    most(references.len(), MOST_REFERENCES, "references")?;
    let mut unions = Unions {
        root: schema,
        known: HashMap::new(),
    };
    objects
        .into_iter()
        .try_for_each(|object| unions.combinations(object, 0).map(|_| ()))
        .map_err(refused)
}

/// How many alternatives schemas have once the compiler has combined their parts.
struct Unions<'a> {
    root: &'a Value,
    /// Those of objects, by address. One at work counts as one: references may form cycles.
    known: HashMap<*const Map<String, Value>, usize>,
}

impl<'a> Unions<'a> {
    fn combinations(
        &mut self,
        schema: &'a Map<String, Value>,
        depth: usize,
    ) -> Result<usize, String> {
        if let Some(known) = self.known.get(&std::ptr::from_ref(schema)) {
            return Ok(*known);
        }
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} references lead to each other"));
        }
        self.known.insert(schema, 1);
        let mut product = 1usize;
        for (key, value) in schema {
            let count = match (key.as_str(), value) {
                ("allOf", Value::Array(all)) => {
                    let mut product = 1usize;
                    for one in all {
                        product = product.saturating_mul(self.of(one, depth)?);
                    }
                    product
                }
                ("anyOf" | "oneOf", Value::Array(all)) => {
                    let mut sum = 0usize;
                    for one in all {
                        sum = sum.saturating_add(self.of(one, depth)?);
                    }
                    sum
                }
                ("$ref", Value::String(to)) => {
                    let target = to
                        .strip_prefix('#')
                        .and_then(|path| self.root.pointer(path));
                    target.map_or(Ok(1), |target| self.of(target, depth))?
                }
                _ => 1,
            };
            product = product.saturating_mul(count.max(1));
        }
        if product > MOST_COMBINATIONS {
            return Err(format!(
                "its alternatives make more than {MOST_COMBINATIONS} combinations in one place"
            ));
        }
        self.known.insert(schema, product);
        Ok(product)
    }

    fn of(&mut self, schema: &'a Value, depth: usize) -> Result<usize, String> {
        schema
            .as_object()
            .map_or(Ok(1), |schema| self.combinations(schema, depth + 1))
    }
}

/// Refuses grammars in Lark that are too large.
fn grammar(text: &str) -> Result<(), String> {
    let (mut depth, mut rules) = (0usize, 0);
    let mut letters = text.bytes().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            b'"' => skip(&mut letters, b'"'),
            // A regular expression, or a comment.
            b'/' if letters.peek() == Some(&b'/') => skip(&mut letters, b'\n'),
            b'/' => skip(&mut letters, b'/'),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b':' => rules += 1,
            _ => {}
        }
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} of its groups are nested"));
        }
        if rules > MOST_RULES {
            return Err(format!("there are more than {MOST_RULES} rules"));
        }
    }
    Ok(())
}

/// Skips to the end of a literal.
fn skip(letters: &mut impl Iterator<Item = u8>, end: u8) {
    while let Some(letter) = letters.next() {
        match letter {
            b'\\' if end != b'\n' => {
                letters.next();
            }
            b'\n' => return,
            _ if letter == end => return,
            _ => {}
        }
    }
}
