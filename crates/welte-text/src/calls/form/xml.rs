//! The form of calls in XML. Strings stand as they are, and other values as JSON.

use super::super::schema::Tool;
use super::super::xml::Xml;
use super::tree::{Form, optional, text};
use super::values::{ANNOTATIONS, NAME};
use serde_json::{Map, Value};

/// Keywords of a function's schema that the form enforces.
const OF_FUNCTIONS: [&str; 6] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
];
/// Where a schema has those that its parameters refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The most bytes of definitions that the schemas of all parameters copy. A constraint has no more.
const MOST_COPIED: usize = 1 << 20;

/// A call of one of these functions, after the mark of the block (`block`) or the mark before the name. `None`: a schema cannot
/// be enforced in this syntax.
pub(super) fn calls(syntax: &Xml, block: bool, functions: &[(&str, &Value)]) -> Option<Form> {
    let line = || optional(text("\n"));
    let mut left = MOST_COPIED;
    let mut all = Vec::new();
    for (name, schema) in functions {
        let mut parts = Vec::new();
        if block {
            parts.extend([line(), text(syntax.call)]);
        }
        parts.push(text(&format!("{name}{}", syntax.name_end)));
        if syntax.lines {
            parts.push(line());
        }
        parts.extend(parameters(syntax, name, schema, &mut left)?);
        parts.push(text(syntax.ends.first()?));
        all.push(Form::Sequence(parts));
    }
    Some(Form::OneOf(all))
}

/// `left`: bytes of definitions that may still be copied.
fn parameters(syntax: &Xml, name: &str, schema: &Value, left: &mut usize) -> Option<Vec<Form>> {
    let empty = Map::new();
    let schema = schema.as_object()?;
    let known = |key: &String| {
        let key = key.as_str();
        OF_FUNCTIONS.contains(&key) || ANNOTATIONS.contains(&key)
    };
    let properties = match (schema.get("properties"), schema.get("additionalProperties")) {
        (Some(properties), _) => properties.as_object()?,
        (None, None | Some(Value::Bool(true))) if schema.keys().all(known) => {
            return Some(vec![Form::Repeated(Box::new(any_parameter(syntax)))]);
        }
        (None, Some(Value::Bool(false))) => &empty,
        (None, _) => return None,
    };
    let required = schema.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let named = |key: &&str| properties.contains_key(*key);
    if !schema.keys().all(known) || !required.iter().all(named) {
        return None;
    }
    let tool = Tool {
        name: name.to_string(),
        parameters: Value::Object(schema.clone()),
    };
    let definitions = DEFINITIONS.into_iter().filter_map(|name| schema.get(name));
    let bytes: usize = definitions.map(|all| all.to_string().len()).sum();
    let mut all = Vec::new();
    for (key, property) in properties {
        let (parameter, copies) = parameter(syntax, &tool, key, property)?;
        if copies {
            *left = left.checked_sub(bytes)?;
        }
        all.push(if required.contains(&key.as_str()) {
            parameter
        } else {
            optional(parameter)
        });
    }
    Some(all)
}

/// A parameter, and whether it has a copy of the definitions.
fn parameter(syntax: &Xml, tool: &Tool, key: &str, schema: &Value) -> Option<(Form, bool)> {
    let line = || optional(text("\n"));
    let types = tool.types(key);
    let value = text_form(schema, syntax);
    let copies = value.is_none();
    let value = match value {
        Some(value) => value,
        None if types.allows_text() => return None,
        None => {
            let mut schema = schema.clone();
            for definitions in DEFINITIONS {
                if let (Some(all), Value::Object(schema)) =
                    (tool.parameters.get(definitions), &mut schema)
                {
                    schema.insert(definitions.to_string(), all.clone());
                }
            }
            Form::Sequence(vec![Form::Json(schema), line(), text(syntax.value_end)])
        }
    };
    let quoted = syntax.key.ends_with('"');
    let mut parts = vec![text(&format!(
        "{}{key}{}",
        syntax.key,
        if quoted { "\"" } else { "" }
    ))];
    if quoted {
        // DeepSeek says whether the value is a string.
        let is_text = types.allows_text();
        parts.push(optional(text(&format!(" string=\"{is_text}\""))));
    }
    parts.push(text(syntax.key_end));
    if let Some(mark) = syntax.value {
        parts.extend([line(), text(mark)]);
    }
    if syntax.lines {
        parts.push(text("\n"));
    }
    parts.extend([value, line()]);
    Some((Form::Sequence(parts), copies))
}

/// A parameter without a schema.
fn any_parameter(syntax: &Xml) -> Form {
    let line = || optional(text("\n"));
    let quoted = syntax.key.ends_with('"');
    let mut parts = vec![text(syntax.key), Form::Pattern(NAME.to_string())];
    if quoted {
        parts.push(text("\""));
    }
    parts.push(text(syntax.key_end));
    if let Some(mark) = syntax.value {
        parts.extend([line(), text(mark)]);
    }
    parts.push(Form::Until {
        mark: syntax.value_end.to_string(),
        without: Vec::new(),
    });
    parts.push(line());
    Form::Sequence(parts)
}

/// The form of a string's value and the mark after it. `None`: the schema allows other values, or strings that must look special.
fn text_form(schema: &Value, syntax: &Xml) -> Option<Form> {
    let schema = schema.as_object()?;
    let only = |allowed: &[&str]| {
        let mut keys = schema.keys().map(String::as_str);
        keys.all(|key| allowed.contains(&key) || ANNOTATIONS.contains(&key))
    };
    let end = || Form::Until {
        mark: syntax.value_end.to_string(),
        without: Vec::new(),
    };
    let is_text = |schema: &Value| {
        schema["type"] == "string" && text_form(schema, syntax).is_some_and(|form| form == end())
    };
    if let Some(Value::Array(union)) = schema.get("anyOf") {
        // An optional string: the text "null" is not a string.
        let fits = |one: &Value| is_text(one) || *one == serde_json::json!({ "type": "null" });
        return (only(&["anyOf"]) && union.iter().all(fits)).then(end);
    }
    let (name, values) = (schema.get("type"), schema.get("enum"));
    if name.or(values).is_none() || name.is_some_and(|name| name != "string") {
        return None;
    }
    match values {
        Some(values) => {
            let values: Option<Vec<&str>> = values.as_array()?.iter().map(Value::as_str).collect();
            let line = optional(text("\n"));
            let all = values?.iter().map(|value| text(value)).collect();
            let fixed = Form::Sequence(vec![Form::OneOf(all), line, text(syntax.value_end)]);
            only(&["type", "enum"]).then_some(fixed)
        }
        None => only(&["type"]).then(end),
    }
}
