//! Random JSON schemas that cover the keywords which constraints enforce.

#![allow(unreachable_pub)]

use super::Random;
use serde_json::{Map, Value, json};

/// A schema. Small bounds keep answers short.
pub fn schema(random: &mut Random) -> Value {
    if random.once_in(8) {
        return recursive(random);
    }
    let mut schema = value(random, 3);
    if random.once_in(3) {
        let inner = std::mem::replace(&mut schema, json!({"$ref": "#/$defs/inner"}));
        schema["$defs"] = json!({ "inner": inner });
    }
    if random.once_in(4)
        && let Value::Object(schema) = &mut schema
    {
        schema.insert("title".into(), json!("a title"));
        schema.insert("description".into(), json!("what it is"));
        schema.insert("default".into(), Value::Null);
        schema.insert("deprecated".into(), json!(true));
    }
    schema
}

fn pick<T: Clone>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize].clone()
}

fn value(random: &mut Random, depth: u64) -> Value {
    let kinds = if depth == 0 { 6 } else { 13 };
    match random.below(kinds) {
        0 => string(random),
        1 => number(random),
        2 => {
            json!({"type": "integer", "minimum": random.below(50), "maximum": 60 + random.below(10_000)})
        }
        3 => pick(
            random,
            &[json!({"type": "boolean"}), json!({"type": "null"})],
        ),
        4 => constants(random),
        5 => formatted(random),
        6 | 7 => object(random, depth - 1),
        8 | 9 => array(random, depth - 1),
        10 => json!({"anyOf": [value(random, depth - 1), value(random, depth - 1)]}),
        11 => json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "of": value(random, depth - 1)},
             "required": ["kind", "of"], "additionalProperties": false},
            {"type": "array", "items": value(random, depth - 1), "minItems": 1, "maxItems": 2},
            {"type": "integer", "minimum": 0, "maximum": 99},
        ]}),
        _ => json!({"allOf": [
            {"type": "object", "properties": {"a": value(random, depth - 1)}, "required": ["a"]},
            {"type": "object", "properties": {"b": value(random, depth - 1)}, "required": ["b"]},
        ], "maxProperties": 2}),
    }
}

fn string(random: &mut Random) -> Value {
    let patterns = [
        "^[a-z]{1,8}$",
        "^(yes|no|perhaps)$",
        "^[A-Z][a-z]+( [A-Z][a-z]+)?$",
        "^\\d{3}-\\d{4}$",
        "^#[0-9a-f]{6}$",
        "ab?c",
        "^[^\"\\\\]{2,5}$",
    ];
    match random.below(4) {
        0 => json!({"type": "string", "maxLength": 1 + random.below(12)}),
        1 => {
            let least = random.below(5);
            json!({"type": "string", "minLength": least, "maxLength": least + random.below(6)})
        }
        2 => json!({"type": "string", "pattern": pick(random, &patterns)}),
        _ => json!({"type": ["string", "null"], "maxLength": 6}),
    }
}

fn number(random: &mut Random) -> Value {
    let low = random.below(200) as i64 - 100;
    let high = low + 1 + random.below(500) as i64;
    match random.below(7) {
        0 => json!({"type": "number", "minimum": low, "maximum": high}),
        1 => json!({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}),
        2 => json!({"type": "integer", "exclusiveMinimum": low, "maximum": high}),
        3 => {
            json!({"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 1 + random.below(12)})
        }
        4 => json!({"type": "number", "minimum": low as f64 + 0.25, "maximum": high as f64 + 0.75}),
        5 => json!({"type": "integer", "minimum": -5, "exclusiveMaximum": 1_000_000_007u64}),
        _ => json!({"type": ["integer", "boolean"], "minimum": low, "maximum": high}),
    }
}

fn constants(random: &mut Random) -> Value {
    pick(
        random,
        &[
            json!({"const": {"a": [1, "b", null]}}),
            json!({"const": "a \"quoted\" text, ü and \n"}),
            json!({"enum": ["red", "green", "blue"]}),
            json!({"enum": [1, 2.5, "three", null, true, ["x"]]}),
            json!({"type": "string", "enum": ["north", "south"]}),
            json!({"enum": [{"x": 1, "y": 2}, {"x": 3}]}),
        ],
    )
}

fn formatted(random: &mut Random) -> Value {
    let formats = [
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
    json!({"type": "string", "format": pick(random, &formats)})
}

fn object(random: &mut Random, depth: u64) -> Value {
    let names = ["name", "age", "a b", "tags", "größe", "x-y", "kind"];
    let mut properties = Map::new();
    for name in names {
        if random.once_in(2) {
            properties.insert(name.into(), value(random, depth));
        }
    }
    // Bounds on the number of properties need all of them.
    let form = random.below(5);
    let bounded = form == 1 || form == 2;
    let is_required = |_: &&String| bounded || random.once_in(2);
    let required: Vec<&String> = properties.keys().filter(is_required).collect();
    let mut schema = json!({"type": "object", "required": required});
    match form {
        0 => schema["additionalProperties"] = json!(false),
        1 => {
            schema["additionalProperties"] = json!({"type": "integer", "minimum": 0, "maximum": 9});
            schema["maxProperties"] = json!(properties.len() + 1);
        }
        2 => {
            schema["patternProperties"] = json!({"^p_[a-z]{1,3}$": {"type": "boolean"}});
            schema["additionalProperties"] = json!(false);
            schema["maxProperties"] = json!(properties.len() + 1);
        }
        3 => {
            schema = json!({
                "type": "object",
                "additionalProperties": value(random, depth),
                "minProperties": 1,
                "maxProperties": 2,
            });
            return schema;
        }
        _ => schema["additionalProperties"] = json!(false),
    }
    schema["properties"] = Value::Object(properties);
    schema
}

fn array(random: &mut Random, depth: u64) -> Value {
    let least = random.below(3);
    let most = least + random.below(3);
    match random.below(4) {
        0 => json!({"type": "array", "prefixItems": [value(random, depth), value(random, depth)],
            "items": false, "minItems": 2}),
        1 => json!({"type": "array", "prefixItems": [value(random, depth)],
            "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}),
        2 => {
            json!({"type": "array", "items": value(random, depth), "minItems": least, "maxItems": most})
        }
        _ => {
            json!({"type": "array", "items": {"enum": ["u", "v"]}, "maxItems": 4, "uniqueItems": false})
        }
    }
}

fn recursive(random: &mut Random) -> Value {
    let leaf = value(random, 1);
    match random.below(2) {
        0 => json!({
            "$ref": "#/$defs/node",
            "$defs": {"node": {
                "type": "object",
                "properties": {
                    "value": leaf,
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": false,
            }},
        }),
        _ => json!({
            "definitions": {"tree": {"oneOf": [
                {"type": "array", "items": {"$ref": "#/definitions/tree"}, "maxItems": 2},
                {"type": "integer", "minimum": 0, "maximum": 9},
            ]}},
            "type": "object",
            "properties": {"tree": {"$ref": "#/definitions/tree"}, "leaf": leaf},
            "required": ["tree"],
            "additionalProperties": false,
        }),
    }
}
