//! The tools of a request, and the types of their parameters.

use super::json::{quoted, whole};
use serde_json::Value as Json;

/// How many parts of a schema are searched for types. References may form cycles.
const MOST_PARTS: usize = 256;

/// A function that the model may call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; null if there is none.
    pub parameters: Json,
}

/// The types that a parameter's schema allows, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const TEXT: Types = Types(1);
    const NUMBER: Types = Types(2);
    const BOOLEAN: Types = Types(4);
    const NULL: Types = Types(8);
    const OBJECT: Types = Types(16);
    const ARRAY: Types = Types(32);
    pub(super) const ANY: Types = Types(63);

    /// Strings only: the text is the value as it stands.
    pub(super) fn only_text(self) -> bool {
        self == Types::TEXT
    }

    /// A string is allowed.
    pub(super) fn allows_text(self) -> bool {
        self.overlaps(Types::TEXT)
    }

    fn named(name: &Json) -> Types {
        match name.as_str() {
            Some("string") => Types::TEXT,
            Some("number" | "integer") => Types::NUMBER,
            Some("boolean") => Types::BOOLEAN,
            Some("null") => Types::NULL,
            Some("object") => Types::OBJECT,
            Some("array") => Types::ARRAY,
            _ => Types::ANY,
        }
    }

    /// The type of a JSON value, by its first character.
    fn of(json: &str) -> Types {
        match json.as_bytes().first() {
            Some(b'"') => Types::TEXT,
            Some(b't' | b'f') => Types::BOOLEAN,
            Some(b'n') => Types::NULL,
            Some(b'{') => Types::OBJECT,
            Some(b'[') => Types::ARRAY,
            _ => Types::NUMBER,
        }
    }

    fn any_of(all: impl Iterator<Item = Types>) -> Types {
        Types(all.fold(0, |bits, types| bits | types.0))
    }

    fn overlaps(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// The JSON for a parameter's text: JSON if it is of a type allowed here, else a string.
    pub(super) fn to_json(self, text: &str) -> String {
        let json = match text.trim() {
            "True" => Some("true".to_owned()),
            "False" => Some("false".to_owned()),
            "None" => Some("null".to_owned()),
            _ => whole(text),
        };
        let plain_text = self.overlaps(Types::TEXT);
        json.filter(|json| {
            let found = Types::of(json);
            let quotes = found == Types::TEXT && self != Types::ANY;
            !plain_text || (self.overlaps(found) && !quotes)
        })
        .unwrap_or_else(|| quoted(text))
    }
}

impl Tool {
    /// A tool as the APIs write it: `{"type": "function", "function": {...}}` or the inner object alone, with the schema
    /// in `parameters` or `input_schema`. `None` if it has no name.
    pub fn from_json(tool: &Json) -> Option<Tool> {
        let function = tool
            .get("function")
            .filter(|inner| inner.is_object())
            .unwrap_or(tool);
        let parameters = ["parameters", "input_schema"]
            .into_iter()
            .find_map(|key| function.get(key));
        Some(Tool {
            name: function.get("name")?.as_str()?.to_owned(),
            parameters: parameters.cloned().unwrap_or(Json::Null),
        })
    }

    /// The types that a parameter may have.
    pub(super) fn types(&self, parameter: &str) -> Types {
        let schema = self
            .parameters
            .get("properties")
            .and_then(|properties| properties.get(parameter));
        schema.map_or(Types::ANY, |schema| {
            self.types_of(schema, &mut MOST_PARTS.clone())
        })
    }

    fn types_of(&self, schema: &Json, left: &mut usize) -> Types {
        if *left == 0 {
            return Types::ANY;
        }
        *left -= 1;
        if let Some(path) = schema.get("$ref").and_then(Json::as_str) {
            let target = path.strip_prefix('#').map(|p| self.parameters.pointer(p));
            let target = target.flatten();
            return target.map_or(Types::ANY, |schema| self.types_of(schema, left));
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(Json::Array(schemas)) = schema.get(union) {
                return Types::any_of(schemas.iter().map(|one| self.types_of(one, left)));
            }
        }
        match (schema.get("type"), schema.get("enum")) {
            (Some(Json::Array(names)), _) => Types::any_of(names.iter().map(Types::named)),
            (Some(name), _) => Types::named(name),
            (None, Some(Json::Array(values))) => {
                Types::any_of(values.iter().map(|value| Types::of(&value.to_string())))
            }
            _ => Types::ANY,
        }
    }
}

/// The types of a parameter of this function.
pub(super) fn types(tools: &[Tool], function: &str, parameter: &str) -> Types {
    let tool = tools.iter().find(|tool| tool.name == function);
    tool.map_or(Types::ANY, |tool| tool.types(parameter))
}

/// Whether a function can have this name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// The longest name of a function, in bytes.
pub(super) const LONGEST_NAME: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_character_tells_the_type() {
        let all = ["string", "number", "boolean", "null", "object", "array"];
        for (name, text) in [
            ("string", "\"a\""),
            ("number", "1"),
            ("number", "-1"),
            ("boolean", "true"),
            ("boolean", "false"),
            ("null", "null"),
            ("object", "{}"),
            ("array", "[]"),
        ] {
            for other in all {
                let named = Types::named(&other.into());
                assert_eq!(Types::of(text).overlaps(named), name == other, "{text}");
            }
        }
        assert_eq!(
            Types::named(&"integer".into()),
            Types::named(&"number".into())
        );
        assert_eq!(Types::named(&"anything".into()), Types::ANY);
    }
}
