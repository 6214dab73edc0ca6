//! Objects with listed properties have no others, unless the schema says `additionalProperties`. A model would fill an open
//! object with keys that nobody asked for.
//!
//! A schema may consist of parts: those of `allOf`, the target of a `$ref`, and one branch of `anyOf` or `oneOf`. Its
//! properties are those of all parts, so no part is closed on its own.

use serde_json::{Map, Value, json};
use std::collections::HashSet;

type Object = Map<String, Value>;

/// Values that copies of parts may add to a schema. A schema that needs more stays open.
const MOST_ADDED: usize = 20_000;
/// Parts within parts.
const DEEPEST: usize = 64;

/// A schema whose objects are closed.
pub(super) fn closed(root: Value) -> Value {
    let mut closer = Closer {
        root: &root,
        copies: Vec::new(),
        added: 0,
    };
    let mut done = closer.whole(&root, &[]);
    let mut definitions = Object::new();
    let mut next = 0;
    while let Some(path) = closer.copies.get(next).cloned() {
        let mut part = match root.pointer(&path) {
            Some(Value::Object(part)) => part.clone(),
            _ => return root,
        };
        part.retain(|key, _| !matches!(key.as_str(), "$defs" | "definitions" | "$schema" | "$id"));
        definitions.insert(closer.name(next), closer.part(&Value::Object(part)));
        next += 1;
    }
    if closer.added > MOST_ADDED {
        return root;
    }
    if let (Some(done), false) = (done.as_object_mut(), definitions.is_empty()) {
        match done.entry("$defs").or_insert_with(|| json!({})) {
            Value::Object(all) => all.extend(definitions),
            _ => return root,
        }
    }
    done
}

struct Closer<'a> {
    root: &'a Value,
    /// Targets of references that are also parts. A part refers to an open copy.
    copies: Vec<String>,
    /// Values in these copies.
    added: usize,
}

/// What is known of the parts of a schema.
#[derive(Default)]
struct Parts {
    /// Names in `properties` and `required`, in their order.
    names: Vec<String>,
    known: HashSet<String>,
    /// Some of them are in `properties`.
    listed: bool,
    /// They must not be closed: the schema says so, or not all names are known.
    open: bool,
    least: u64,
}

impl Parts {
    fn add(&mut self, name: &str) {
        if self.known.insert(name.to_string()) {
            self.names.push(name.to_string());
        }
    }
}

impl Closer<'_> {
    /// The name of a copy, which no definition of the schema has.
    fn name(&self, copy: usize) -> String {
        let taken = |name: &String| self.root.pointer(&format!("/$defs/{name}")).is_some();
        let mut name = format!("part-{copy}");
        while taken(&name) {
            name.push('-');
        }
        name
    }

    /// A reference to an open copy.
    fn copied(&mut self, to: &str) -> Value {
        let Some(path) = to.strip_prefix('#') else {
            return to.into();
        };
        let known = self.copies.iter().position(|known| known == path);
        let copy = known.unwrap_or_else(|| {
            self.added += self.root.pointer(path).map_or(0, count);
            self.copies.push(path.to_string());
            self.copies.len() - 1
        });
        format!("#/$defs/{}", self.name(copy)).into()
    }

    /// A schema that is not part of another one, or a branch beside properties of these names.
    fn whole(&mut self, schema: &Value, beside: &[String]) -> Value {
        let Value::Object(schema) = schema else {
            return schema.clone();
        };
        let is_reference = schema.contains_key("$ref") && !has_parts(schema);
        if is_reference && beside.is_empty() {
            return self.members(schema, Branches::Whole(&[]), false);
        }
        let mut parts = Parts::default();
        beside.iter().for_each(|name| parts.add(name));
        parts.listed = !beside.is_empty();
        self.collect(schema, &mut parts, 0);
        let unions = ["anyOf", "oneOf"].map(|union| schema.contains_key(union));
        if !parts.listed || !may_be_object(schema) {
            return self.members(schema, Branches::Whole(&[]), parts.listed);
        }
        if unions != [false, false] {
            // Each branch is closed. It lists what is beside it.
            let mut own = Parts::default();
            beside.iter().for_each(|name| own.add(name));
            let mut rest = schema.clone();
            rest.retain(|key, _| !matches!(key.as_str(), "anyOf" | "oneOf"));
            self.collect(&rest, &mut own, 1);
            let branches = if own.open || unions == [true, true] {
                Branches::Parts
            } else {
                Branches::Whole(&own.names)
            };
            return self.members(schema, branches, true);
        }
        if parts.open {
            return self.members(schema, Branches::Parts, true);
        }
        let mut done = self.members(schema, Branches::Parts, true);
        if parts.least > parts.names.len() as u64 {
            return done;
        }
        if let Some(done) = done.as_object_mut() {
            if let Value::Object(properties) = done.entry("properties").or_insert_with(|| json!({}))
            {
                for name in parts.names {
                    properties.entry(name).or_insert(Value::Bool(true));
                }
            }
            done.insert("additionalProperties".into(), Value::Bool(false));
        }
        done
    }

    /// A schema that is a part of another one: it stays open.
    fn part(&mut self, schema: &Value) -> Value {
        match schema {
            Value::Object(schema) => self.members(schema, Branches::Parts, true),
            other => other.clone(),
        }
    }

    /// Closes what is within a schema. `copies`: its reference is a part.
    fn members(&mut self, schema: &Object, branches: Branches<'_>, copies: bool) -> Value {
        let mut done = Object::new();
        for (key, value) in schema {
            let value = match (key.as_str(), value) {
                (
                    "properties" | "patternProperties" | "$defs" | "definitions",
                    Value::Object(all),
                ) => {
                    let whole =
                        |(name, one): (&String, &Value)| (name.clone(), self.whole(one, &[]));
                    Value::Object(all.iter().map(whole).collect())
                }
                ("prefixItems" | "items", Value::Array(all)) => {
                    all.iter().map(|one| self.whole(one, &[])).collect()
                }
                ("additionalProperties" | "additionalItems" | "items", one) => self.whole(one, &[]),
                ("allOf", Value::Array(all)) => all.iter().map(|one| self.part(one)).collect(),
                ("anyOf" | "oneOf", Value::Array(all)) => {
                    let branch = |one: &Value| match branches {
                        Branches::Whole(beside) => self.whole(one, beside),
                        Branches::Parts => self.part(one),
                    };
                    all.iter().map(branch).collect()
                }
                ("$ref", Value::String(to)) if copies => self.copied(to),
                (_, other) => other.clone(),
            };
            done.insert(key.clone(), value);
        }
        Value::Object(done)
    }

    /// Adds what is known of a schema and its parts.
    fn collect(&self, schema: &Object, parts: &mut Parts, depth: usize) {
        if depth > DEEPEST {
            parts.open = true;
            return;
        }
        let patterns = depth > 0 || schema.contains_key("allOf") || schema.contains_key("$ref");
        parts.open |= ["additionalProperties", "enum", "const"]
            .into_iter()
            .any(|key| schema.contains_key(key))
            || patterns && schema.contains_key("patternProperties");
        if let Some(Value::Object(named)) = schema.get("properties") {
            parts.listed |= !named.is_empty();
            named.keys().for_each(|name| parts.add(name));
        }
        if let Some(Value::Array(names)) = schema.get("required") {
            names
                .iter()
                .filter_map(Value::as_str)
                .for_each(|name| parts.add(name));
        }
        let least = schema.get("minProperties").and_then(Value::as_u64);
        parts.least = parts.least.max(least.unwrap_or(0));
        for key in ["allOf", "anyOf", "oneOf"] {
            let all = schema.get(key).and_then(Value::as_array);
            for one in all.into_iter().flatten().filter_map(Value::as_object) {
                self.collect(one, parts, depth + 1);
            }
        }
        if let Some(to) = schema.get("$ref").and_then(Value::as_str) {
            let target = to
                .strip_prefix('#')
                .and_then(|path| self.root.pointer(path));
            match target {
                Some(Value::Object(target)) => self.collect(target, parts, depth + 1),
                _ => parts.open = true,
            }
        }
    }
}

/// What the branches of `anyOf` and `oneOf` are.
#[derive(Clone, Copy)]
enum Branches<'a> {
    /// Schemas of their own, beside properties of these names.
    Whole(&'a [String]),
    Parts,
}

/// Whether a schema with a reference has more to say about objects than the reference.
fn has_parts(schema: &Object) -> bool {
    let parts = [
        "properties",
        "required",
        "allOf",
        "anyOf",
        "oneOf",
        "minProperties",
    ];
    parts.into_iter().any(|key| schema.contains_key(key))
}

fn may_be_object(schema: &Object) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => true,
    }
}

/// Values in a value.
fn count(value: &Value) -> usize {
    let (mut count, mut left) = (0, vec![value]);
    while let Some(value) = left.pop() {
        count += 1;
        match value {
            Value::Array(all) => left.extend(all),
            Value::Object(all) => left.extend(all.values()),
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_with_listed_properties_are_closed() {
        let no = false;
        for (given, wanted) in [
            (
                json!({"properties": {"a": {"properties": {"b": {}}}, "c": {"type": "object"}}}),
                json!({
                    "properties": {
                        "a": {"properties": {"b": {}}, "additionalProperties": no},
                        "c": {"type": "object"},
                    },
                    "additionalProperties": no,
                }),
            ),
            // The schema decides.
            (
                json!({"properties": {"a": {}}, "additionalProperties": true}),
                json!({"properties": {"a": {}}, "additionalProperties": true}),
            ),
            // What is required may come.
            (
                json!({"properties": {"a": {}}, "required": ["b"]}),
                json!({"properties": {"a": {}, "b": true}, "required": ["b"], "additionalProperties": no}),
            ),
            (
                json!({"properties": {"a": {}}, "patternProperties": {"^b": {}}}),
                json!({"properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": no}),
            ),
            // Names of properties, not keywords.
            (
                json!({"properties": {"properties": {"type": "object"}}}),
                json!({"properties": {"properties": {"type": "object"}}, "additionalProperties": no}),
            ),
            (
                json!({"properties": {"a": {}}, "minProperties": 2}),
                json!({"properties": {"a": {}}, "minProperties": 2}),
            ),
            (
                json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {"properties": {"c": {}}}}}]}),
                json!({
                    "allOf": [
                        {"properties": {"a": {}}},
                        {"properties": {"b": {"properties": {"c": {}}, "additionalProperties": no}}},
                    ],
                    "properties": {"a": true, "b": true},
                    "additionalProperties": no,
                }),
            ),
            (
                json!({"allOf": [{"properties": {"a": {}}}, {"properties": {}, "additionalProperties": true}]}),
                json!({"allOf": [{"properties": {"a": {}}}, {"properties": {}, "additionalProperties": true}]}),
            ),
            // Each branch lists what is beside it.
            (
                json!({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {"required": ["a"]}, {"type": "null"}]}),
                json!({
                    "properties": {"a": {}},
                    "anyOf": [
                        {"properties": {"b": {}, "a": true}, "additionalProperties": no},
                        {"required": ["a"], "properties": {"a": true}, "additionalProperties": no},
                        {"type": "null"},
                    ],
                }),
            ),
            (
                json!({"anyOf": [{"properties": {"b": {}}}, {"type": "object"}]}),
                json!({"anyOf": [{"properties": {"b": {}}, "additionalProperties": no}, {"type": "object"}]}),
            ),
            // A definition is closed where it stands alone, and open where it is a part.
            (
                json!({
                    "$defs": {"base": {"properties": {"a": {}}}},
                    "properties": {
                        "x": {"$ref": "#/$defs/base"},
                        "y": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {}}}]},
                    },
                }),
                json!({
                    "$defs": {
                        "base": {"properties": {"a": {}}, "additionalProperties": no},
                        "part-0": {"properties": {"a": {}}},
                    },
                    "properties": {
                        "x": {"$ref": "#/$defs/base"},
                        "y": {
                            "allOf": [{"$ref": "#/$defs/part-0"}, {"properties": {"b": {}}}],
                            "properties": {"a": true, "b": true},
                            "additionalProperties": no,
                        },
                    },
                    "additionalProperties": no,
                }),
            ),
            // As many properties as are listed may be asked for.
            (
                json!({"properties": {"a": {}}, "minProperties": 1}),
                json!({"properties": {"a": {}}, "minProperties": 1, "additionalProperties": no}),
            ),
            (
                json!({"type": ["null", "object"], "properties": {"a": {}}}),
                json!({"type": ["null", "object"], "properties": {"a": {}}, "additionalProperties": no}),
            ),
            // A reference beside properties, and in a branch beside them.
            (
                json!({"$ref": "#/$defs/b", "properties": {"a": {}}, "$defs": {"b": {"properties": {"c": {}}}}}),
                json!({
                    "$ref": "#/$defs/part-0", "properties": {"a": {}, "c": true}, "additionalProperties": no,
                    "$defs": {
                        "b": {"properties": {"c": {}}, "additionalProperties": no},
                        "part-0": {"properties": {"c": {}}},
                    },
                }),
            ),
            (
                json!({
                    "properties": {"a": {}}, "anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}],
                    "$defs": {"b": {"properties": {"c": {}}}},
                }),
                json!({
                    "properties": {"a": {}},
                    "anyOf": [
                        {"$ref": "#/$defs/part-0", "properties": {"a": true, "c": true}, "additionalProperties": no},
                        {"type": "null"},
                    ],
                    "$defs": {
                        "b": {"properties": {"c": {}}, "additionalProperties": no},
                        "part-0": {"properties": {"c": {}}},
                    },
                }),
            ),
            // The name of a copy is taken.
            (
                json!({
                    "$defs": {"part-0": {"properties": {"a": {}}}},
                    "allOf": [{"$ref": "#/$defs/part-0"}, {"properties": {"b": {}}}],
                }),
                json!({
                    "$defs": {
                        "part-0": {"properties": {"a": {}}, "additionalProperties": no},
                        "part-0-": {"properties": {"a": {}}},
                    },
                    "allOf": [{"$ref": "#/$defs/part-0-"}, {"properties": {"b": {}}}],
                    "properties": {"a": true, "b": true},
                    "additionalProperties": no,
                }),
            ),
            (
                json!({"prefixItems": [{"properties": {"a": {}}}], "items": {"properties": {"b": {}}}}),
                json!({
                    "prefixItems": [{"properties": {"a": {}}, "additionalProperties": no}],
                    "items": {"properties": {"b": {}}, "additionalProperties": no},
                }),
            ),
            (
                json!({"additionalProperties": {"properties": {"a": {}}}}),
                json!({"additionalProperties": {"properties": {"a": {}}, "additionalProperties": no}}),
            ),
        ] {
            assert_eq!(closed(given.clone()), wanted, "{given}");
        }
    }

    /// Where other properties may be meant, or nobody knows the names.
    #[test]
    fn other_schemas_stay_as_they_are() {
        for given in [
            json!(true),
            json!({"type": "object"}),
            json!({"required": ["a"]}),
            json!({"type": "string", "properties": {"a": {}}}),
            json!({"type": ["null", "array"], "properties": {"a": {}}}),
            json!({"properties": {"a": {}}, "enum": [{}]}),
            json!({"properties": {"a": {}}, "const": {}}),
            json!({"allOf": [{"properties": {"a": {}}}, {"patternProperties": {"x": {}}}]}),
            json!({"allOf": [{"$ref": "#/nothing"}, {"properties": {"a": {}}}]}),
            json!({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}], "oneOf": [{"properties": {"c": {}}}]}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}),
        ] {
            assert_eq!(closed(given.clone()), given);
        }
    }

    #[test]
    fn parts_are_followed_so_far_and_copied_so_much() {
        let is_closed = |schema: Value| closed(schema).get("additionalProperties").is_some();
        let nested = |depth: usize| {
            let inner = json!({"properties": {"a": {}}});
            (0..depth).fold(inner, |inner, _| json!({"allOf": [inner]}))
        };
        assert!(is_closed(nested(DEEPEST)) && !is_closed(nested(DEEPEST + 1)));
        // The part itself and the list are values, too.
        let copied = |values: usize| {
            let part = json!({"examples": vec![0; values - 2]});
            let all =
                json!([{"$ref": "#/$defs/b"}, {"properties": {"a": {}}}, {"$ref": "#/$defs/b"}]);
            json!({"allOf": all, "$defs": {"b": part}})
        };
        assert!(is_closed(copied(MOST_ADDED)) && !is_closed(copied(MOST_ADDED + 1)));
    }
}
