//! JSON as metadata.

use crate::{Error, Metadata, Value};
use serde_json::Value as Json;
use std::path::Path;

/// The longest key and the most keys of a file: each value's key has the names of all objects around it.
const LONGEST_KEY: usize = 1024;
const MOST_KEYS: usize = 200_000;

/// Objects become keys with dots. Lists of plain values stay lists, other lists become numbered keys. Null is left out, so a list with one
/// is numbered.
pub(super) fn flatten(
    path: &Path,
    key: String,
    json: &Json,
    out: &mut Metadata,
) -> Result<(), Error> {
    if key.len() > LONGEST_KEY || out.len() > MOST_KEYS {
        let beginning: String = key.chars().take(60).collect();
        let problem = format!(
            "is not accepted: keys have at most {LONGEST_KEY} bytes, and files at most {MOST_KEYS} keys"
        );
        return Err(Error::malformed(path, beginning, problem));
    }
    let under = |name: &str| {
        if key.is_empty() {
            name.to_string()
        } else {
            format!("{key}.{name}")
        }
    };
    match json {
        Json::Null => return Ok(()),
        Json::Object(members) => {
            return members
                .iter()
                .try_for_each(|(name, member)| flatten(path, under(name), member, out));
        }
        Json::Array(members)
            if members
                .iter()
                .any(|m| m.is_object() || m.is_array() || m.is_null()) =>
        {
            let mut numbered = members.iter().enumerate();
            return numbered
                .try_for_each(|(i, member)| flatten(path, under(&i.to_string()), member, out));
        }
        _ => {}
    }
    let value = match json {
        Json::Array(members) => Value::Array(members.iter().filter_map(plain).collect()),
        other => plain(other)
            .ok_or_else(|| Error::malformed(path, key.as_str(), "is not a number, text or list"))?,
    };
    match out.insert(key.clone(), value) {
        None => Ok(()),
        Some(_) => Err(Error::malformed(path, key, "appears twice")),
    }
}

fn plain(json: &Json) -> Option<Value> {
    match json {
        Json::Bool(b) => Some(Value::Bool(*b)),
        Json::String(s) => Some(Value::String(s.clone())),
        Json::Number(n) => n
            .as_u64()
            .map(Value::U64)
            .or(n.as_i64().map(Value::I64))
            .or(n.as_f64().map(Value::F64)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flattened(json: &Json) -> Result<Metadata, Error> {
        let mut out = Metadata::new();
        flatten(Path::new("config.json"), String::new(), json, &mut out).map(|()| out)
    }

    /// Every value has its whole key, so a small file could take all memory.
    #[test]
    fn keys_are_bounded() {
        let inner = serde_json::json!({ "a": 1 });
        let named =
            |bytes: usize| Json::Object([("x".repeat(bytes), inner.clone())].into_iter().collect());
        let known = flattened(&named(1000)).unwrap();
        assert!(known.contains_key(&format!("{}.a", "x".repeat(1000))));
        let error = flattened(&named(2000)).unwrap_err().to_string();
        assert!(
            error.contains("config.json") && error.contains("1024 bytes"),
            "{error}"
        );
        let many: Vec<Json> = (0..MOST_KEYS + 2).map(|_| inner.clone()).collect();
        let error = flattened(&serde_json::json!({ "all": many })).unwrap_err();
        assert!(error.to_string().contains("200000 keys"), "{error}");
    }
}
