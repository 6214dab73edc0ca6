//! JSON as metadata.

use crate::{Error, Metadata, Value};
use serde_json::Value as Json;
use std::path::Path;

/// Objects become keys with dots. Lists of plain values stay lists, other lists become numbered keys. Null is left out.
pub(super) fn flatten(
    path: &Path,
    key: String,
    json: &Json,
    out: &mut Metadata,
) -> Result<(), Error> {
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
        Json::Array(members) if members.iter().any(|m| m.is_object() || m.is_array()) => {
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
