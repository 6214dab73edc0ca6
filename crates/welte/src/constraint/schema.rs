//! JSON Schema: which keywords can be enforced. Every other keyword of the standard is an error that names its place.

use super::closed::closed;
use crate::Error;
use serde_json::{Map, Value, json};

/// Keywords of the standard that the compiler cannot enforce.
const UNSUPPORTED: [&str; 20] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "$vocabulary",
    // Not of the standard: options of the compiler, some of which loosen it.
    "x-guidance",
];

/// Keywords that say nothing about values and that the compiler does not know.
const ANNOTATIONS: [&str; 2] = ["deprecated", "contentSchema"];

/// Formats of strings that can be enforced.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

/// What a format's value must match besides: the compiler's own expressions allow the 29th of any February, seconds of 60, and
/// labels of any length.
fn narrowed(format: &str) -> Option<String> {
    const DATE: &str = "^(?:....-(?:0[13-9]|1[0-2])-..|....-02-(?:[01].|2[0-8]))";
    const TIME: &str = "..:..:[0-5][0-9](?:[.][0-9]{1,9})?(?:[zZ]|[+-]..:..)$";
    const HOST: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,40}[A-Za-z0-9])?";
    Some(match format {
        "date" => format!("{DATE}$"),
        "time" => format!("^{TIME}"),
        "date-time" => format!("{DATE}[tT]{TIME}"),
        "hostname" => format!("^{HOST}(?:[.]{HOST}){{0,4}}$"),
        "email" => format!(
            "^[A-Za-z0-9_+-]{{1,30}}(?:[.][A-Za-z0-9_+-]{{1,30}})?@{HOST}(?:[.]{HOST}){{0,4}}$"
        ),
        _ => return None,
    })
}

/// Keywords whose value is a schema, an array of schemas, or an object of schemas.
const SCHEMAS: [&str; 3] = ["additionalProperties", "additionalItems", "items"];
const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// White space between the parts of a JSON text: one space, or a line break and an indentation. A bound keeps a model
/// from writing white space for ever.
const WHITE_SPACE: &str = r"\x20|\x0A[\x20\x09]{0,40}";

/// A schema that the compiler can enforce in full.
pub(super) fn checked(schema: &Value) -> Result<Value, Error> {
    let mut schema = schema.clone();
    check(&mut schema, &mut String::new())?;
    Ok(with_options(closed(schema)))
}

/// Any object.
pub(super) fn object() -> Value {
    with_options(json!({"type": "object"}))
}

fn with_options(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        // True or false.
        other => Map::from_iter([("allOf".to_string(), json!([other]))]),
    };
    let options = json!({"whitespace_pattern": WHITE_SPACE});
    schema.insert("x-guidance".to_string(), options);
    Value::Object(schema)
}

/// Checks a schema at a JSON pointer and all schemas in it, and removes what says nothing.
fn check(schema: &mut Value, at: &mut String) -> Result<(), Error> {
    let schema = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(schema) => schema,
        _ => return Err(refused(at, "a schema must be an object or a boolean")),
    };
    schema.retain(|key, value| {
        let unique = key == "uniqueItems" && *value == Value::Bool(false);
        !ANNOTATIONS.contains(&key.as_str()) && !unique
    });
    check_counts(schema, at)?;
    for (key, value) in schema.iter_mut() {
        let length = at.len();
        at.push('/');
        at.push_str(&key.replace('~', "~0").replace('/', "~1"));
        let key = key.as_str();
        if UNSUPPORTED.contains(&key) {
            return Err(refused(at, format!("the keyword {key:?} is not supported")));
        }
        match (key, &mut *value) {
            ("$ref", Value::String(to)) if !to.starts_with('#') => {
                let problem = format!("{to:?} is outside the schema; a $ref must begin with '#'");
                return Err(refused(at, problem));
            }
            ("format", Value::String(format)) if !FORMATS.contains(&format.as_str()) => {
                let known = FORMATS.join(", ");
                let problem = format!("the format {format:?} is not supported; those are {known}");
                return Err(refused(at, problem));
            }
            (_, Value::Array(all)) if LISTS.contains(&key) => {
                for (index, one) in all.iter_mut().enumerate() {
                    within(at, &index.to_string(), |at| check(one, at))?;
                }
            }
            (_, Value::Object(all)) if MAPS.contains(&key) => {
                for (name, one) in all {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    within(at, &name, |at| check(one, at))?;
                }
            }
            (_, value) if SCHEMAS.contains(&key) => check(value, at)?,
            _ => {}
        }
        at.truncate(length);
    }
    let format = schema.get("format").and_then(Value::as_str);
    if let Some(pattern) = format.and_then(narrowed) {
        let all = schema.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(all) = all {
            all.push(json!({"type": "string", "pattern": pattern}));
        }
    }
    Ok(())
}

/// A count of properties can be enforced only where it does not depend on which of the named ones are there.
fn check_counts(schema: &Map<String, Value>, at: &str) -> Result<(), Error> {
    let count = ["minProperties", "maxProperties"];
    let Some(count) = count.into_iter().find(|count| schema.contains_key(*count)) else {
        return Ok(());
    };
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &String| {
        required.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(name)))
    };
    let named = schema.get("properties").and_then(Value::as_object);
    match named.and_then(|named| named.keys().find(|name| !is_required(name))) {
        Some(name) => Err(refused(
            &format!("{at}/{count}"),
            format!(
                "{count} is supported only where all named properties are required; {name:?} is not"
            ),
        )),
        None => Ok(()),
    }
}

/// Does something one step down.
fn within<T>(at: &mut String, name: &str, act: impl FnOnce(&mut String) -> T) -> T {
    let length = at.len();
    at.push('/');
    at.push_str(name);
    let result = act(at);
    at.truncate(length);
    result
}

fn refused(at: &str, problem: impl Into<String>) -> Error {
    Error::Constraint {
        kind: "JSON schema",
        at: Some(at.to_string()),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A format that the compiler itself takes too widely has a pattern, at every depth.
    #[test]
    fn wide_formats_are_narrowed() {
        for format in FORMATS {
            let schema = json!({ "properties": { "a": { "type": "string", "format": format } } });
            let checked = checked(&schema).unwrap();
            let pattern = &checked["properties"]["a"]["allOf"][0]["pattern"];
            let narrow = ["date-time", "time", "date", "email", "hostname"].contains(&format);
            assert_eq!(pattern.is_string(), narrow, "{format}");
        }
        let begins = |format: &str, part: &str| narrowed(format).unwrap().starts_with(part);
        assert!(begins("date", "^(?:....-") && begins("date-time", "^(?:....-"));
        assert!(begins("time", "^..:..") && begins("hostname", "^[A-Z"));
    }

    /// Every keyword that cannot be enforced is an error that names its place, wherever a schema can be.
    #[test]
    fn errors_name_their_place() {
        let place = |schema: Value| match checked(&schema).unwrap_err() {
            Error::Constraint { at, .. } => at.unwrap(),
            other => panic!("{other}"),
        };
        for keyword in UNSUPPORTED {
            assert_eq!(place(json!({ keyword: {} })), format!("/{keyword}"));
        }
        let not = json!({ "not": {} });
        for (schema, expected) in [
            (
                json!({ "properties": { "a/~": not } }),
                "/properties/a~1~0/not",
            ),
            (json!({ "$defs": { "a": not } }), "/$defs/a/not"),
            (json!({ "items": not }), "/items/not"),
            (json!({ "items": [true, not] }), "/items/1/not"),
            (
                json!({ "additionalProperties": not }),
                "/additionalProperties/not",
            ),
            (
                json!({ "anyOf": [{ "allOf": [not] }] }),
                "/anyOf/0/allOf/0/not",
            ),
            (json!({ "items": 1 }), "/items"),
            (json!({ "format": "phone" }), "/format"),
            (json!({ "$ref": "other.json" }), "/$ref"),
            (
                json!({ "minProperties": 1, "properties": { "a": {} } }),
                "/minProperties",
            ),
            (
                json!({ "maxProperties": 1, "properties": { "a": {}, "b": {} }, "required": ["a"] }),
                "/maxProperties",
            ),
        ] {
            assert_eq!(place(schema.clone()), expected, "{schema}");
        }
        for fine in [
            json!({ "uniqueItems": false, "deprecated": true }),
            json!({ "$ref": "#" }),
            json!({ "minProperties": 1, "properties": { "a": {} }, "required": ["a"] }),
            json!({ "maxProperties": 1 }),
            json!({ "properties": { "not": {} }, "enum": [{ "not": 1 }] }),
            json!(true),
        ] {
            checked(&fine).unwrap();
        }
        assert_eq!(place(json!({ "uniqueItems": true })), "/uniqueItems");
    }
}
