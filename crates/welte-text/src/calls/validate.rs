//! Whether the arguments of a call fit the schema of its tool.

use super::schema::Tool;
use serde_json::Value as Json;

/// How many parts of schemas are looked at. References may form cycles.
const MOST_PARTS: usize = 100_000;
/// The deepest nesting of schemas.
const DEEPEST: usize = 64;

impl Tool {
    /// Whether the tool takes these arguments. What a schema says about texts, such as patterns and formats, is not checked.
    pub(super) fn takes(&self, arguments: &Json) -> bool {
        let mut check = Check {
            root: &self.parameters,
            left: MOST_PARTS,
        };
        arguments.is_object() && check.fits(arguments, &self.parameters, 0)
    }
}

struct Check<'a> {
    root: &'a Json,
    left: usize,
}

impl<'a> Check<'a> {
    fn fits(&mut self, value: &Json, schema: &'a Json, depth: usize) -> bool {
        if self.left == 0 || depth == DEEPEST {
            return false;
        }
        self.left -= 1;
        let Json::Object(rules) = schema else {
            return schema != &Json::Bool(false);
        };
        rules
            .iter()
            .all(|(name, rule)| self.obeys(value, name, rule, schema, depth + 1))
    }

    fn obeys(
        &mut self,
        value: &Json,
        name: &str,
        rule: &'a Json,
        schema: &'a Json,
        depth: usize,
    ) -> bool {
        let all = rule.as_array();
        match name {
            "$ref" => {
                let path = rule.as_str().and_then(|path| path.strip_prefix('#'));
                let target = path.and_then(|path| self.root.pointer(path));
                target.is_some_and(|schema| self.fits(value, schema, depth))
            }
            "type" => match rule {
                Json::Array(names) => names.iter().any(|name| is_of(value, name)),
                name => is_of(value, name),
            },
            "enum" => all.is_none_or(|all| all.iter().any(|one| equal(one, value))),
            "const" => equal(rule, value),
            "allOf" => all
                .into_iter()
                .flatten()
                .all(|schema| self.fits(value, schema, depth)),
            "anyOf" => all
                .into_iter()
                .flatten()
                .any(|schema| self.fits(value, schema, depth)),
            "oneOf" => {
                let schemas = all.into_iter().flatten();
                schemas
                    .filter(|schema| self.fits(value, schema, depth))
                    .count()
                    == 1
            }
            "not" => !self.fits(value, rule, depth),
            "minimum" => limit(value, rule, |value, limit| value >= limit),
            "maximum" => limit(value, rule, |value, limit| value <= limit),
            "exclusiveMinimum" => limit(value, rule, |value, limit| value > limit),
            "exclusiveMaximum" => limit(value, rule, |value, limit| value < limit),
            "minLength" => value.as_str().is_none_or(|text| {
                rule.as_u64()
                    .is_none_or(|n| text.chars().count() as u64 >= n)
            }),
            "maxLength" => value.as_str().is_none_or(|text| {
                rule.as_u64()
                    .is_none_or(|n| text.chars().count() as u64 <= n)
            }),
            "minItems" => value
                .as_array()
                .is_none_or(|items| rule.as_u64().is_none_or(|n| items.len() as u64 >= n)),
            "maxItems" => value
                .as_array()
                .is_none_or(|items| rule.as_u64().is_none_or(|n| items.len() as u64 <= n)),
            "items" => {
                let first = schema["prefixItems"].as_array().map_or(0, Vec::len);
                let items = value.as_array().into_iter().flatten().skip(first);
                items.into_iter().all(|item| self.fits(item, rule, depth))
            }
            "prefixItems" => {
                let items = value.as_array().into_iter().flatten();
                items
                    .zip(all.into_iter().flatten())
                    .all(|(item, schema)| self.fits(item, schema, depth))
            }
            "required" => {
                let names = all.into_iter().flatten().filter_map(Json::as_str);
                let fields = value.as_object();
                fields.is_none_or(|fields| names.into_iter().all(|name| fields.contains_key(name)))
            }
            "properties" => {
                let fields = value.as_object().into_iter().flatten();
                fields.into_iter().all(|(name, value)| {
                    rule.get(name)
                        .is_none_or(|schema| self.fits(value, schema, depth))
                })
            }
            "additionalProperties" => {
                let named = |name: &str| schema["properties"].get(name).is_some();
                let fields = value.as_object().into_iter().flatten();
                let mut others = fields.filter(|(name, _)| !named(name));
                schema.get("patternProperties").is_some()
                    || others.all(|(_, value)| self.fits(value, rule, depth))
            }
            _ => true,
        }
    }
}

/// Whether a value is of the type with this name.
fn is_of(value: &Json, name: &Json) -> bool {
    match name.as_str() {
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|v| v.fract() == 0.0)
        }
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        _ => true,
    }
}

/// Whether values are equal. Whole numbers may be written as `1` or `1.0`.
fn equal(a: &Json, b: &Json) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

fn limit(value: &Json, limit: &Json, holds: fn(f64, f64) -> bool) -> bool {
    let numbers = value.as_f64().zip(limit.as_f64());
    numbers.is_none_or(|(value, limit)| holds(value, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_of_their_type_and_of_no_other() {
        let values = [
            ("string", json!("1")),
            ("number", json!(1.5)),
            ("boolean", json!(false)),
            ("null", json!(null)),
            ("object", json!({})),
            ("array", json!([])),
        ];
        for (name, value) in &values {
            for (other, _) in &values {
                assert_eq!(
                    is_of(value, &json!(other)),
                    name == other,
                    "{value} {other}"
                );
            }
            assert!(is_of(value, &json!("a type to come")));
        }
        // A whole number may be written with a point.
        for (value, whole) in [
            (json!(1), true),
            (json!(-1), true),
            (json!(1.0), true),
            (json!(1.5), false),
        ] {
            assert_eq!(is_of(&value, &json!("integer")), whole, "{value}");
            assert!(is_of(&value, &json!("number")));
        }
    }

    #[test]
    fn numbers_are_equal_by_value() {
        assert!(equal(&json!(1), &json!(1.0)) && equal(&json!("a"), &json!("a")));
        assert!(!equal(&json!(1), &json!(2)) && !equal(&json!("1"), &json!(1)));
        assert!(!equal(&json!(null), &json!("a")) && !equal(&json!([1]), &json!([2])));
    }

    fn takes(rules: &Json, value: &Json) -> bool {
        let tool = Tool {
            name: "f".to_owned(),
            parameters: json!({ "properties": { "v": rules } }),
        };
        tool.takes(&json!({ "v": value }))
    }

    /// For each rule values that obey it and values that do not, at both sides of every border.
    #[test]
    fn every_rule_is_obeyed() {
        for (rules, fit, others) in [
            (json!(true), json!([1, "a"]), json!([])),
            (json!(false), json!([]), json!([1, "a"])),
            (json!({"minimum": 2}), json!([2, 3, "1"]), json!([1, 1.9])),
            (json!({"maximum": 2}), json!([2, 1, "3"]), json!([3, 2.1])),
            (
                json!({"exclusiveMinimum": 2}),
                json!([2.1, 3, "1"]),
                json!([2, 1]),
            ),
            (
                json!({"exclusiveMaximum": 2}),
                json!([1.9, 1, "3"]),
                json!([2, 3]),
            ),
            // Lengths count characters, not bytes.
            (
                json!({"minLength": 2}),
                json!(["éa", "abc", 1]),
                json!(["é"]),
            ),
            (
                json!({"maxLength": 2}),
                json!(["éa", "a", 100]),
                json!(["abc"]),
            ),
            (
                json!({"minItems": 1}),
                json!([[1], [1, 2], "a"]),
                json!([[]]),
            ),
            (
                json!({"maxItems": 1}),
                json!([[1], [], "ab"]),
                json!([[1, 2]]),
            ),
            (
                json!({"items": {"type": "null"}}),
                json!([[], [null, null], 1]),
                json!([[null, 1], [1, null]]),
            ),
            // Items follow those with schemas of their own.
            (
                json!({"prefixItems": [{"type": "string"}, {"type": "number"}], "items": {"type": "null"}}),
                json!([[], ["a"], ["a", 1], ["a", 1, null], "a"]),
                json!([[1], ["a", "b"], ["a", 1, 1], [null]]),
            ),
            (
                json!({"allOf": [{"minimum": 1}, {"maximum": 2}]}),
                json!([1, 2]),
                json!([0, 3]),
            ),
            (
                json!({"anyOf": [{"const": 1}, {"type": "integer"}]}),
                json!([1, 2]),
                json!(["a", 1.5]),
            ),
            (
                json!({"oneOf": [{"const": 1}, {"type": "integer"}]}),
                json!([2]),
                json!([1, "a"]),
            ),
            (json!({"anyOf": []}), json!([]), json!([1])),
            (
                json!({"not": {"const": 1}}),
                json!([2, "a"]),
                json!([1, 1.0]),
            ),
            (
                json!({"enum": [1, "a"]}),
                json!([1, 1.0, "a"]),
                json!([2, "b"]),
            ),
            (json!({"const": null}), json!([null]), json!([0, false])),
            (
                json!({"type": ["null", "array"]}),
                json!([null, []]),
                json!([1, {}]),
            ),
            (
                json!({"required": ["a", "b"]}),
                json!([{"a": 1, "b": 1, "c": 1}, 1]),
                json!([{"a": 1}, {"b": 1}, {}]),
            ),
            (
                json!({"properties": {"a": {"type": "null"}}}),
                json!([{"a": null}, {"b": 1}, {}, 1]),
                json!([{"a": 1}]),
            ),
            (
                json!({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}),
                json!([{"a": 1}, {"b": null}]),
                json!([{"b": 1}, {"a": 1, "c": 1}]),
            ),
            (
                json!({"patternProperties": {".": {}}, "additionalProperties": false}),
                json!([{"a": 1}]),
                json!([]),
            ),
            (
                json!({"pattern": "b", "format": "date"}),
                json!(["a"]),
                json!([]),
            ),
            (json!({"$ref": "#/properties/other"}), json!([]), json!([1])),
            (json!({"$ref": "other.json"}), json!([]), json!([1])),
        ] {
            for value in fit.as_array().unwrap() {
                assert!(takes(&rules, value), "{rules} refuses {value}");
            }
            for value in others.as_array().unwrap() {
                assert!(!takes(&rules, value), "{rules} takes {value}");
            }
        }
    }

    #[test]
    fn arguments_are_an_object_and_schemas_have_limits() {
        let takes = |parameters: Json, arguments: &Json| {
            let tool = Tool {
                name: "f".to_owned(),
                parameters,
            };
            tool.takes(arguments)
        };
        for no_object in [json!([]), json!("a"), json!(null)] {
            assert!(!takes(json!({}), &no_object) && !takes(Json::Null, &no_object));
        }
        let nested =
            |depth: usize| (0..depth).fold(json!(true), |inner, _| json!({"allOf": [inner]}));
        assert!(takes(nested(DEEPEST - 1), &json!({})));
        assert!(!takes(nested(DEEPEST), &json!({})));
        // The whole is a part, too.
        let wide = |count: usize| json!({ "allOf": vec![true; count] });
        assert!(takes(wide(MOST_PARTS - 1), &json!({})));
        assert!(!takes(wide(MOST_PARTS), &json!({})));
    }
}
