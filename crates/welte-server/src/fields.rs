//! The fields of a request's body. Every field is taken by name; those left over are ignored and named, or refused.

use crate::error::Failure;
use crate::ignored::Ignored;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The fields of a JSON object that have not been taken yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where the object is, such as `messages[2]`; empty for the body.
    path: String,
    /// Notes the fields that nobody takes.
    ignored: Ignored,
}

impl Fields {
    /// Parses a body.
    pub(crate) fn parse(body: &[u8], ignored: &Ignored) -> Result<Fields, Failure> {
        let text = std::str::from_utf8(body)
            .map_err(|e| Failure::request(format!("the body is not UTF-8: {e}")))?;
        let value = serde_json::from_str(text)
            .map_err(|e| Failure::request(format!("the body is not valid JSON: {e}")))?;
        Fields::of(value, String::new(), ignored)
    }

    /// The fields of a parsed body.
    pub(crate) fn root(map: Map<String, Value>, ignored: &Ignored) -> Result<Fields, Failure> {
        Fields::of(map.into(), String::new(), ignored)
    }

    /// The fields of an object inside this one, such as `tools[2]`.
    pub(crate) fn inner(&self, value: Value, name: &str) -> Result<Fields, Failure> {
        Fields::of(value, self.name(name), &self.ignored)
    }

    /// The fields of a value at `path`. Fields that are null count as missing.
    pub(crate) fn of(value: Value, path: String, ignored: &Ignored) -> Result<Fields, Failure> {
        let Value::Object(mut map) = value else {
            let place = if path.is_empty() { "the body" } else { &path };
            return Err(Failure::request(format!("{place} must be a JSON object")));
        };
        map.retain(|_, value| !value.is_null());
        let ignored = ignored.clone();
        Ok(Fields { map, path, ignored })
    }

    /// The full name of a field.
    pub(crate) fn name(&self, field: &str) -> String {
        if self.path.is_empty() {
            field.to_string()
        } else {
            format!("{}.{field}", self.path)
        }
    }

    /// An error that names a field.
    pub(crate) fn wrong(&self, field: &str, problem: impl std::fmt::Display) -> Failure {
        Failure::field(self.name(field), problem)
    }

    pub(crate) fn take<T: DeserializeOwned>(&mut self, field: &str) -> Result<Option<T>, Failure> {
        let Some(value) = self.map.remove(field) else {
            return Ok(None);
        };
        match serde_json::from_value(value) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(self.wrong(field, in_words(&error.to_string()))),
        }
    }

    /// A field that stays to be taken.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        self.map.get(field)
    }

    /// Changes the text of a field, if it is a text.
    pub(crate) fn rename(&mut self, field: &str, change: impl FnOnce(&str) -> String) {
        if let Some(Value::String(text)) = self.map.get_mut(field) {
            *text = change(text);
        }
    }

    pub(crate) fn need<T: DeserializeOwned>(&mut self, field: &str) -> Result<T, Failure> {
        match self.take(field)? {
            Some(value) => Ok(value),
            None => Err(self.wrong(field, "is required")),
        }
    }

    /// The objects of a list.
    pub(crate) fn objects(&mut self, field: &str) -> Result<Vec<Fields>, Failure> {
        let all: Vec<Value> = self.take(field)?.unwrap_or_default();
        let all = all.into_iter().enumerate();
        all.map(|(i, value)| self.inner(value, &format!("{field}[{i}]")))
            .collect()
    }

    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Fields>, Failure> {
        let value: Option<Value> = self.take(field)?;
        value.map(|value| self.inner(value, field)).transpose()
    }

    /// Fields that change nothing here, such as labels for accounting.
    pub(crate) fn ignore(&mut self, fields: &[&str]) {
        for field in fields {
            self.map.remove(*field);
        }
    }

    /// A field of which only some values are supported. They change nothing.
    pub(crate) fn only(&mut self, field: &str, supported: &[Value]) -> Result<(), Failure> {
        match self.map.remove(field) {
            Some(value) if !supported.contains(&value) => {
                let all: Vec<String> = supported.iter().map(Value::to_string).collect();
                let problem = format!("only {} is supported", all.join(" or "));
                Err(self.wrong(field, problem))
            }
            _ => Ok(()),
        }
    }

    /// Refuses fields that are known and would change the answer, but that cannot be honoured.
    pub(crate) fn refuse(&mut self, fields: &[&str]) -> Result<(), Failure> {
        for field in fields {
            if self.map.remove(*field).is_some() {
                return Err(self.wrong(field, "is not supported"));
            }
        }
        Ok(())
    }

    /// Notes that a part of the request is ignored, or refuses it.
    pub(crate) fn pass_over(&self, field: &str, problem: &str) -> Result<(), Failure> {
        if self.ignored.is_strict() {
            return Err(self.wrong(field, problem));
        }
        self.ignored.add(&self.name(field));
        Ok(())
    }

    /// Passes over the fields that nobody has taken.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let mut left = self.map.keys();
        left.try_for_each(|field| self.pass_over(field, "is not a supported field"))
    }
}

/// A message of the JSON parser without names of Rust's types.
fn in_words(message: &str) -> String {
    let Some((found, expected)) = message.split_once("expected ") else {
        return message.to_string();
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a map" => "an object",
        "a sequence" => "a list",
        other => other,
    };
    format!("{found}expected {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_field() {
        let body = br#"{"a": "x", "b": [{"c": 1, "d": null}], "e": 2}"#;
        let mut body = Fields::parse(body, &Ignored::new(true)).unwrap();
        let error = body.take::<f32>("a").unwrap_err();
        assert_eq!(
            error.message,
            "a: invalid type: string \"x\", expected a number"
        );
        let mut inner = body.objects("b").unwrap().remove(0);
        assert_eq!(
            inner.need::<u32>("f").unwrap_err().message,
            "b[0].f: is required"
        );
        assert_eq!(inner.finish().unwrap_err().field.as_deref(), Some("b[0].c"));
        let error = body.only("e", &[json!(1)]).unwrap_err();
        assert_eq!(error.message, "e: only 1 is supported");
        body.finish().unwrap();
    }

    #[test]
    fn bodies_that_are_no_objects_are_refused() {
        for body in [&b"[1]"[..], b"{", b"\xff", b"", b"3"] {
            let failure = Fields::parse(body, &Ignored::default()).err().unwrap();
            assert_eq!(failure.status, 400);
        }
        let deep = "[".repeat(100_000);
        assert!(Fields::parse(deep.as_bytes(), &Ignored::default()).is_err());
    }
}
