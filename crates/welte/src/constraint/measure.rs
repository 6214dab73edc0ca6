//! What a constraint may consist of. A constraint is measured before it is compiled, without calling itself for its parts.

use super::kinds::Constraint;
use crate::Error;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// The largest source of a constraint, in bytes.
const LARGEST: usize = 1 << 20;
/// The largest regular expression or grammar, and the patterns of a schema together, in bytes.
const LARGEST_GRAMMAR: usize = 128 << 10;
/// Values in a schema, names of properties not counted.
const MOST_VALUES: usize = 50_000;
/// Levels of a schema, and of groups in a grammar.
const DEEPEST: usize = 100;
/// Different targets of `$ref`.
const MOST_REFERENCES: usize = 2_000;
/// Properties of all objects of a schema. The compiler's time grows with the square of those of an object.
const MOST_PROPERTIES: usize = 2_000;
/// Schemas in one `allOf`, `anyOf` or `oneOf`.
const MOST_BRANCHES: usize = 1_000;
/// Patterns of one `patternProperties`: every two of them are compared.
const MOST_PATTERNS: usize = 50;
/// Combinations of alternatives that `allOf`, references and siblings of `anyOf` make in one place.
const MOST_COMBINATIONS: usize = 1_000;
/// Schemas and properties in all combinations of all places.
const MOST_COMBINED: usize = 10_000;
/// Rules of a grammar.
pub(super) const MOST_RULES: usize = 5_000;
/// Alternatives in a grammar.
const MOST_ALTERNATIVES: usize = 10_000;
/// Texts of a choice: the compiler follows all of them at once.
const MOST_TEXTS: usize = 2_000;
/// Parts of a form.
const MOST_PARTS: usize = 5_000;

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
                Constraint::Regex(text) | Constraint::Lark(text) | Constraint::Gbnf(text)
                    if text.len() > LARGEST_GRAMMAR =>
                {
                    let size = text.len();
                    let problem = format!("it has {size} bytes; the most are {LARGEST_GRAMMAR}");
                    return Err(part.refused(problem));
                }
                Constraint::Lark(text) => {
                    grammar(text).map_err(|problem| part.refused(problem))?;
                    schemas_in(text)?;
                }
                Constraint::Choice(texts) if texts.len() > MOST_TEXTS => {
                    let count = texts.len();
                    let problem = format!("it has {count} texts; the most are {MOST_TEXTS}");
                    return Err(part.refused(problem));
                }
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
    let most = |count: usize, most: usize, what: &str| {
        if count > most {
            Err(refused(format!(
                "it has {count} {what}; the most are {most}"
            )))
        } else {
            Ok(())
        }
    };
    let (mut values, mut properties, mut patterns) = (0, 0, 0);
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
                properties += properties_of(all);
                for (key, one) in all {
                    match (key.as_str(), one) {
                        ("pattern", Value::String(pattern)) => patterns += pattern.len(),
                        ("patternProperties", Value::Object(named)) => {
                            patterns += named.keys().map(String::len).sum::<usize>();
                            most(
                                named.len(),
                                MOST_PATTERNS,
                                "patterns of properties in one place",
                            )?;
                        }
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
    most(patterns, LARGEST_GRAMMAR, "bytes of patterns")?;
    let mut combiner = Combiner {
        root: schema,
        known: HashMap::new(),
        combined: 0,
    };
    objects
        .into_iter()
        .try_for_each(|object| combiner.combine(object, 0).map(|_| ()))
        .map_err(refused)
}

/// Properties that a schema itself names.
fn properties_of(schema: &Map<String, Value>) -> usize {
    let named = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let (named, required) = (named.map_or(0, Map::len), required.map_or(0, Vec::len));
    named.max(required)
}

/// Finds how much the compiler has to combine: it merges the parts of a schema, in every combination of their alternatives.
struct Combiner<'a> {
    root: &'a Value,
    /// Those of objects, by address. One at work counts as one: references may form cycles.
    known: HashMap<*const Map<String, Value>, Combined>,
    /// Parts in all places where schemas are merged.
    combined: usize,
}

/// What a schema consists of once its parts are merged.
#[derive(Clone, Copy)]
struct Combined {
    alternatives: usize,
    /// Schemas and properties in all alternatives.
    parts: usize,
}

impl Combined {
    const ONE: Combined = Combined {
        alternatives: 1,
        parts: 1,
    };

    fn and(self, other: Combined) -> Combined {
        let ours = self.parts.saturating_mul(other.alternatives);
        let theirs = other.parts.saturating_mul(self.alternatives);
        Combined {
            alternatives: self.alternatives.saturating_mul(other.alternatives),
            parts: ours.saturating_add(theirs),
        }
    }

    fn or(self, other: Combined) -> Combined {
        Combined {
            alternatives: self.alternatives.saturating_add(other.alternatives),
            parts: self.parts.saturating_add(other.parts),
        }
    }
}

impl<'a> Combiner<'a> {
    fn combine(
        &mut self,
        schema: &'a Map<String, Value>,
        depth: usize,
    ) -> Result<Combined, String> {
        if let Some(known) = self.known.get(&std::ptr::from_ref(schema)) {
            return Ok(*known);
        }
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} references lead to each other"));
        }
        self.known.insert(schema, Combined::ONE);
        let mut whole = Combined {
            alternatives: 1,
            parts: 1 + properties_of(schema),
        };
        let (mut merges, mut refers, mut keys) = (false, false, 0);
        for (key, value) in schema {
            keys += usize::from(!PASSIVE.contains(&key.as_str()));
            let part = match (key.as_str(), value) {
                ("allOf", Value::Array(all)) => {
                    merges = true;
                    let parts = all.iter().map(|one| self.of(one, depth));
                    parts.reduce(|a, b| Ok(a?.and(b?)))
                }
                ("anyOf" | "oneOf", Value::Array(all)) => {
                    let parts = all.iter().map(|one| self.of(one, depth));
                    parts.reduce(|a, b| Ok(a?.or(b?)))
                }
                ("$ref", Value::String(to)) => {
                    let target = to
                        .strip_prefix('#')
                        .and_then(|path| self.root.pointer(path));
                    target.map(|target| self.of(target, depth))
                }
                _ => continue,
            };
            refers = true;
            whole = whole.and(part.unwrap_or(Ok(Combined::ONE))?);
        }
        if whole.alternatives > MOST_COMBINATIONS {
            return Err(format!(
                "its alternatives make more than {MOST_COMBINATIONS} combinations in one place"
            ));
        }
        // Other keys beside the reference or the alternatives are merged with them, in whatever order they stand.
        if merges || refers && keys > 1 {
            self.combined = self.combined.saturating_add(whole.parts);
        }
        if self.combined > MOST_COMBINED {
            return Err(format!(
                "its combined parts have more than {MOST_COMBINED} schemas and properties"
            ));
        }
        self.known.insert(schema, whole);
        Ok(whole)
    }

    fn of(&mut self, schema: &'a Value, depth: usize) -> Result<Combined, String> {
        schema
            .as_object()
            .map_or(Ok(Combined::ONE), |schema| self.combine(schema, depth + 1))
    }
}

/// Keywords beside which a reference or a choice is not merged with anything.
const PASSIVE: [&str; 9] = [
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
];

/// Refuses a grammar in Lark for what is too large in its schemas.
fn schemas_in(text: &str) -> Result<(), Error> {
    const MARK: &str = "%json";
    for (at, _) in text.match_indices(MARK) {
        let rest = &text[at + MARK.len()..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(schema)) = values.next() {
            schema_of(&schema)?;
        }
    }
    Ok(())
}

/// Refuses grammars in Lark that are too large.
pub(super) fn grammar(text: &str) -> Result<(), String> {
    let (mut depth, mut rules, mut alternatives) = (0usize, 0, 0);
    let mut letters = text.bytes().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            b'"' => skip(&mut letters, b'"'),
            // A regular expression, or a comment.
            b'/' if letters.peek() == Some(&b'/') => skip(&mut letters, b'\n'),
            b'/' => skip(&mut letters, b'/'),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b':' if depth == 0 => rules += 1,
            b'|' => alternatives += 1,
            _ => {}
        }
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} of its groups are nested"));
        }
        if rules > MOST_RULES {
            return Err(format!("there are more than {MOST_RULES} rules"));
        }
        if alternatives > MOST_ALTERNATIVES {
            return Err(format!("it has more than {MOST_ALTERNATIVES} alternatives"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The most that is allowed, and one more.
    #[track_caller]
    fn most(count: usize, fits: impl Fn(usize) -> bool) {
        assert!(fits(count), "{count} are refused");
        assert!(!fits(count + 1), "{} are taken", count + 1);
    }

    #[test]
    fn groups_rules_and_alternatives_of_a_grammar_are_limited() {
        for (open, close) in [("(", ")"), ("[", "]"), ("{", "}")] {
            let nested = |n: usize| format!("a: {}b{}", open.repeat(n), close.repeat(n));
            most(DEEPEST, |n| grammar(&nested(n)).is_ok());
            // Beside each other.
            let beside = format!("a: {}", format!("{open}b{close} ").repeat(2 * DEEPEST));
            assert!(grammar(&beside).is_ok());
        }
        most(MOST_RULES, |n| grammar(&"a: b\n".repeat(n)).is_ok());
        // In a group it is not a rule.
        assert!(grammar(&"(a: b)\n".repeat(MOST_RULES + 1)).is_ok());
        most(MOST_ALTERNATIVES, |n| {
            grammar(&format!("a: b{}", "| b".repeat(n))).is_ok()
        });
    }

    /// What a literal, an expression or a comment contains is none of it.
    #[test]
    fn literals_and_comments_of_a_grammar_do_not_count() {
        let many = "(".repeat(DEEPEST + 1);
        for text in [
            format!("a: \"{many}\" /{many}/ // {many}"),
            format!("a: \"\\\"{many}\" /\\/{many}/"),
        ] {
            assert!(grammar(&text).is_ok(), "{text}");
            assert!(grammar(&format!("{text}\n{many}")).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_of_constraints_are_limited() {
        let fits = |constraint: Constraint| constraint.measure().is_ok();
        let letters = |n: usize| "a".repeat(n);
        most(LARGEST_GRAMMAR, |n| fits(Constraint::Regex(letters(n))));
        most(LARGEST_GRAMMAR, |n| fits(Constraint::Gbnf(letters(n))));
        most(LARGEST_GRAMMAR, |n| fits(Constraint::Lark(letters(n))));
        most(MOST_TEXTS, |n| {
            fits(Constraint::Choice(vec!["a".into(); n]))
        });
        most(LARGEST, |n| fits(Constraint::Text(letters(n))));
        // Of all parts together; a list is one of them.
        let half = LARGEST / 2;
        most(half - 1, |n| {
            let texts = [half, n].map(|n| Constraint::Text(letters(n)));
            fits(Constraint::Sequence(texts.into()))
        });
        most(MOST_PARTS - 1, |n| {
            fits(Constraint::OneOf(vec![Constraint::Json; n]))
        });
        most(DEEPEST, |n| {
            let mut nested = Constraint::Json;
            for _ in 0..n {
                nested = Constraint::Repeated(Box::new(nested));
            }
            fits(nested)
        });
        most(DEEPEST, |n| {
            let mut nested = Value::Bool(true);
            for _ in 0..n {
                nested = Value::Array(vec![nested]);
            }
            fits(Constraint::JsonSchema(nested))
        });
        let until = |n: usize| Constraint::Until {
            mark: letters(LARGEST - 9),
            without: vec![letters(n)],
        };
        most(8, |n| fits(until(n)));
    }

    /// About as many as the text of the value has.
    #[test]
    fn a_schema_has_the_bytes_of_its_text() {
        for text in [
            r#"{"enum": ["aaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbb", 12345]}"#,
            r#"{"type": "object", "properties": {"a": {"type": "string"}, "b": true}}"#,
            r#"[[], {}, [null], [[[["a"]]]]]"#,
        ] {
            let (bytes, real) = (bytes_of(&serde_json::from_str(text).unwrap()), text.len());
            assert!(bytes.abs_diff(real) <= real / 4, "{bytes} for {text}");
        }
    }

    #[test]
    fn schemas_are_limited() {
        let fits = |schema: &Value| schema_of(schema).is_ok();
        let names = |n: usize| (0..n).map(|i| (i.to_string(), json!(true)));
        let named = |n: usize| Value::Object(names(n).collect());
        // The whole and the list are values, too.
        most(MOST_VALUES - 2, |n| fits(&json!({ "enum": vec![1; n] })));
        most(MOST_PROPERTIES, |n| {
            fits(&json!({ "properties": named(n) }))
        });
        most(MOST_PROPERTIES, |n| {
            fits(&json!({ "required": vec!["a"; n] }))
        });
        // In all objects together, the larger number of each.
        most(MOST_PROPERTIES - 30, |n| {
            let object = json!({ "properties": named(30), "required": ["0", "1"] });
            fits(&json!({ "properties": { "a": object }, "required": vec!["a"; n] }))
        });
        most(MOST_PATTERNS, |n| {
            fits(&json!({ "patternProperties": named(n) }))
        });
        for key in ["allOf", "anyOf", "oneOf"] {
            most(MOST_BRANCHES, |n| fits(&json!({ key: vec![true; n] })));
        }
        most(MOST_REFERENCES, |n| {
            let to = |i: usize| json!({ "$ref": format!("#/{i}") });
            fits(&json!({ "$defs": (0..n).chain(0..n).map(to).collect::<Vec<Value>>() }))
        });
        // Two places, and a name.
        most(LARGEST_GRAMMAR - 5, |n| {
            let pattern = json!({ "pattern": "a".repeat(n) });
            fits(&json!({ "pattern": "bb", "patternProperties": { "ccc": pattern } }))
        });
        most(DEEPEST, |n| {
            let to = |i: usize| {
                (
                    i.to_string(),
                    json!({ "$ref": format!("#/$defs/{}", i + 1) }),
                )
            };
            let all: Map<String, Value> =
                (1..n).map(to).chain([(n.to_string(), json!({}))]).collect();
            fits(&json!({ "$ref": "#/$defs/1", "$defs": all }))
        });
    }

    /// Alternatives, parts, and what is merged, by hand.
    #[test]
    fn combinations_are_counted() {
        let counted = |schema: Value| {
            let mut combiner = Combiner {
                root: &schema,
                known: HashMap::new(),
                combined: 0,
            };
            let whole = combiner.combine(schema.as_object().unwrap(), 0).unwrap();
            (whole.alternatives, whole.parts, combiner.combined)
        };
        let two = json!({ "anyOf": [{}, {}] });
        let three = json!({ "oneOf": [{}, true, {}] });
        for (schema, expected) in [
            (json!({}), (1, 1, 0)),
            (json!({ "properties": { "a": {}, "b": {} } }), (1, 3, 0)),
            (
                json!({ "properties": { "a": {} }, "required": ["a", "b"] }),
                (1, 3, 0),
            ),
            // Each alternative is merged with the schema itself.
            (two.clone(), (2, 4, 0)),
            (three.clone(), (3, 6, 0)),
            (json!({ "anyOf": [{}, {}], "title": "t" }), (2, 4, 0)),
            (json!({ "anyOf": [{}, {}], "required": ["a"] }), (2, 6, 6)),
            (
                json!({ "anyOf": [{ "properties": { "a": {} } }, {}] }),
                (2, 5, 0),
            ),
            (json!({ "allOf": [{}, true] }), (1, 3, 3)),
            (
                json!({ "allOf": [{ "properties": { "a": {} } }, {}] }),
                (1, 4, 4),
            ),
            (
                json!({ "allOf": [two.clone(), three.clone()] }),
                (6, 30, 30),
            ),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "required": ["a"] } } }),
                (1, 3, 0),
            ),
            // In any order.
            (
                json!({ "$ref": "#/nothing", "properties": { "a": {} } }),
                (1, 3, 3),
            ),
            (
                json!({ "properties": { "a": {} }, "$ref": "#/nothing" }),
                (1, 3, 3),
            ),
            (json!({ "$ref": "#/nothing" }), (1, 2, 0)),
            (json!({ "$ref": "#" }), (1, 2, 0)),
            // One schema that is merged with alternatives of another.
            (
                json!({ "allOf": [{ "anyOf": [{}, {}], "type": "object" }] }),
                (2, 6, 10),
            ),
        ] {
            assert_eq!(counted(schema.clone()), expected, "{schema}");
        }
    }

    #[test]
    fn combinations_are_limited() {
        let fits = |schema: &Value| schema_of(schema).is_ok();
        let any = |n: usize| json!({ "anyOf": vec![true; n] });
        // 1000 and 1001 combinations.
        assert!(fits(&json!({ "allOf": [any(10), any(100)] })));
        assert!(!fits(&json!({ "allOf": [any(7), any(143)] })));
        // Each place counts its parts and itself.
        most(MOST_BRANCHES - 1, |n| {
            let all = json!({ "allOf": vec![true; MOST_BRANCHES - 1] });
            let mut places = vec![all; MOST_COMBINED / MOST_BRANCHES - 1];
            places.push(json!({ "allOf": vec![true; n] }));
            fits(&json!({ "prefixItems": places }))
        });
    }

    #[test]
    fn grammars_in_lark_are_limited_with_their_schemas() {
        let fits = |text: String| Constraint::Lark(text).measure().is_ok();
        most(DEEPEST, |n| {
            fits(format!("start: {}a{}", "(".repeat(n), ")".repeat(n)))
        });
        for before in ["", "%json {} "] {
            most(MOST_PATTERNS, |n| {
                let names: Vec<String> = (0..n).map(|i| format!("\"{i}\": {{}}")).collect();
                let schema = format!("{{\"patternProperties\": {{{}}}}}", names.join(", "));
                fits(format!("start: {before}%json {schema} a"))
            });
        }
        assert!(fits("start: %json".to_owned()));
    }
}
