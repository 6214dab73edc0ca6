//! The form of calls whose values are not JSON: Gemma's and Python's.

use super::super::json::quoted;
use super::tree::{Form, optional, text};
use serde_json::{Map, Value, json};

/// A name that both syntaxes take as a key.
pub(super) const NAME: &str = "[A-Za-z_][A-Za-z0-9_]{0,63}";
/// A number.
pub(super) const NUMBER: &str = "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?";
/// A character of a string in Python. Its escapes mean the same in JSON.
pub(super) const PYTHON_CHARACTER: &str = "([^\"\\\\\\x00-\\x1f\\x7f]|\\\\[\"\\\\nrt])";

/// How deep a schema may nest. References can nest without end.
const DEEPEST: usize = 8;
/// The most parts of a form.
const MOST_PARTS: usize = 4000;
/// The most nodes of the forms of all functions together. A constraint has no more, and a schema of a few bytes can take hundreds.
const MOST_NODES: usize = 5000;
/// The longest list whose length is part of the form.
const LONGEST_LIST: u64 = 32;
/// How deep values without a schema may nest.
const DEEPEST_FREE: usize = 2;

/// Keywords that say nothing about a value.
pub(super) const ANNOTATIONS: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$comment",
    "$schema",
    "strict",
];

/// How a syntax writes values.
#[derive(Clone, Copy)]
pub(super) enum Writing {
    /// Strings between these marks, keys without any.
    Gemma(&'static str),
    /// Python's literals.
    Python,
}

/// A call of one of these functions. `None`: a schema cannot be enforced in this syntax.
pub(super) fn call(writing: Writing, functions: &[(&str, &Value)]) -> Option<Form> {
    let mut all = Vec::new();
    let mut nodes = MOST_NODES;
    for (name, schema) in functions {
        let mut writer = Writer {
            writing,
            root: schema,
            left: MOST_PARTS,
            nodes,
        };
        let (begin, end) = match writing {
            Writing::Gemma(_) => (format!("call:{name}{{"), "}"),
            Writing::Python => (format!("{name}("), ")"),
        };
        let entries = writer.entries(schema, Entry::Argument, 0)?;
        nodes = nodes.checked_sub(size(&entries))?;
        all.push(Form::Sequence(vec![text(&begin), entries, text(end)]));
    }
    Some(Form::OneOf(all))
}

/// What an object's entries look like.
#[derive(Clone, Copy, PartialEq)]
enum Entry {
    /// Of a call.
    Argument,
    /// Of an object within a value.
    Pair,
}

struct Writer<'a> {
    writing: Writing,
    /// The function's schema, to which references point.
    root: &'a Value,
    /// Parts that the form may still get.
    left: usize,
    /// Nodes that values without a schema may still get.
    nodes: usize,
}

impl Writer<'_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Option<Form> {
        self.left = self.left.checked_sub(1)?;
        if depth > DEEPEST {
            return None;
        }
        let map = match schema {
            Value::Bool(true) => return self.any(),
            schema => schema.as_object()?,
        };
        if only(map, &[]) {
            return self.any();
        }
        if let Some(reference) = map.get("$ref") {
            let target = self.root.pointer(reference.as_str()?.strip_prefix('#')?)?;
            return if only(map, &["$ref"]) {
                self.value(target, depth + 1)
            } else {
                None
            };
        }
        if let Some(all) = map.get("anyOf") {
            let all = all.as_array().filter(|_| only(map, &["anyOf"]))?;
            let forms: Option<Vec<Form>> =
                all.iter().map(|one| self.value(one, depth + 1)).collect();
            return Some(Form::OneOf(forms.filter(|forms| !forms.is_empty())?));
        }
        let values = match (map.get("const"), map.get("enum")) {
            (Some(one), None) => Some(vec![one]),
            (None, Some(all)) => Some(all.as_array()?.iter().collect()),
            (None, None) => None,
            _ => return None,
        };
        if let Some(values) = values {
            let fits = |value: &&Value| map.get("type").is_none_or(|name| is_of(value, name));
            let literals = values.into_iter().filter(fits);
            let literals: Option<Vec<Form>> = literals.map(|value| self.literal(value)).collect();
            let literals = literals.filter(|all| !all.is_empty())?;
            return only(map, &["type", "const", "enum"]).then_some(Form::OneOf(literals));
        }
        match map.get("type") {
            Some(Value::String(name)) => self.of_type(map, name, depth),
            Some(Value::Array(names)) => {
                let mut forms = Vec::new();
                for name in names {
                    let mut one = map.clone();
                    let others = names.iter().filter(|other| *other != name);
                    let theirs = others.filter_map(Value::as_str).flat_map(keywords);
                    let (own, name) = (keywords(name.as_str()?), name.as_str()?);
                    let theirs: Vec<&str> =
                        theirs.copied().filter(|key| !own.contains(key)).collect();
                    one.retain(|key, _| !theirs.contains(&key.as_str()));
                    forms.push(self.of_type(&one, name, depth)?);
                }
                (!forms.is_empty()).then_some(Form::OneOf(forms))
            }
            None if map.contains_key("properties") => self.of_type(map, "object", depth),
            _ => None,
        }
    }

    /// A value of a schema that has this type.
    fn of_type(&mut self, map: &Map<String, Value>, name: &str, depth: usize) -> Option<Form> {
        let known = |key: &&str| keywords(name).contains(key) || *key == "type";
        let mut keys = map.keys().map(String::as_str);
        if !keys.all(|key| known(&key) || ANNOTATIONS.contains(&key)) {
            return None;
        }
        match name {
            "string" => {
                let limit = |key: &str| map.get(key).map(Value::as_u64);
                let (least, most) = (limit("minLength"), limit("maxLength"));
                match (least, most) {
                    (None, None) => Some(self.text()),
                    _ => self.limited_text(least.unwrap_or(Some(0))?, most),
                }
            }
            "integer" | "number" => {
                let mut schema = map.clone();
                schema.retain(|key, _| !ANNOTATIONS.contains(&key.as_str()));
                schema.insert("type".to_string(), name.into());
                Some(Form::Json(schema.into()))
            }
            "boolean" => Some(Form::OneOf(vec![
                self.literal(&json!(true))?,
                self.literal(&json!(false))?,
            ])),
            "null" => self.literal(&Value::Null),
            "array" => self.list(map, depth),
            "object" => {
                let entries = self.entries(&map.clone().into(), Entry::Pair, depth)?;
                Some(Form::Sequence(vec![text("{"), entries, text("}")]))
            }
            _ => None,
        }
    }

    fn separator(&self) -> Form {
        text(match self.writing {
            Writing::Gemma(_) => ",",
            Writing::Python => ", ",
        })
    }

    /// A fixed value.
    fn literal(&mut self, value: &Value) -> Option<Form> {
        self.left = self.left.checked_sub(1)?;
        let python = matches!(self.writing, Writing::Python);
        Some(match value {
            Value::String(string) => match self.writing {
                Writing::Gemma(quote) => {
                    let marked = || text(&format!("{quote}{string}{quote}"));
                    (!string.contains(quote)).then(marked)?
                }
                Writing::Python => text(&quoted(string)),
            },
            Value::Bool(true) if python => text("True"),
            Value::Bool(false) if python => text("False"),
            Value::Null if python => text("None"),
            Value::Array(_) | Value::Object(_) => return None,
            value => text(&value.to_string()),
        })
    }

    fn text(&self) -> Form {
        match self.writing {
            Writing::Gemma(quote) => Form::Sequence(vec![
                text(quote),
                Form::Until {
                    mark: quote.to_string(),
                    without: Vec::new(),
                },
            ]),
            Writing::Python => Form::Pattern(format!("\"{PYTHON_CHARACTER}*\"")),
        }
    }

    /// A string with this many characters.
    fn limited_text(&self, least: u64, most: Option<Option<u64>>) -> Option<Form> {
        let count = match most {
            Some(most) => format!("{{{least},{}}}", most.filter(|most| *most >= least)?),
            None => format!("{{{least},}}"),
        };
        match self.writing {
            Writing::Gemma(_) => None,
            Writing::Python => Some(Form::Pattern(format!("\"{PYTHON_CHARACTER}{count}\""))),
        }
    }

    fn list(&mut self, map: &Map<String, Value>, depth: usize) -> Option<Form> {
        let number = |key: &str, otherwise| match map.get(key) {
            Some(value) => value.as_u64().map(Some),
            None => Some(otherwise),
        };
        let least = number("minItems", Some(0))??;
        let most = number("maxItems", None)?;
        if least > LONGEST_LIST || most.is_some_and(|most| most > LONGEST_LIST || most < least) {
            return None;
        }
        let any = json!({});
        let items = map.get("items").unwrap_or(&any);
        let mut item = |first: bool| {
            let value = self.value(items, depth + 1)?;
            Some(if first {
                value
            } else {
                Form::Sequence(vec![self.separator(), value])
            })
        };
        let mut parts = Vec::new();
        // From the last item to the first: an item may only follow another one.
        let mut rest = match most {
            None => Some(Form::Repeated(Box::new(item(false)?))),
            Some(_) => None,
        };
        for index in (0..most.unwrap_or(least.max(1))).rev() {
            let mut with = vec![item(index == 0)?];
            with.extend(rest.take());
            let with = Form::Sequence(with);
            rest = Some(if index < least { with } else { optional(with) });
        }
        parts.push(text("["));
        parts.extend(rest);
        parts.push(text("]"));
        Some(Form::Sequence(parts))
    }

    /// The entries of an object in the schema's order, without its brackets.
    fn entries(&mut self, schema: &Value, entry: Entry, depth: usize) -> Option<Form> {
        let map = schema.as_object()?;
        let known = |key: &str| keywords("object").contains(&key) || key == "type";
        let mut keys = map.keys().map(String::as_str);
        if !keys.all(|key| known(key) || ANNOTATIONS.contains(&key)) {
            return None;
        }
        if map.get("type").is_some_and(|name| name != "object") {
            return None;
        }
        let Some(properties) = map.get("properties") else {
            return match map.get("additionalProperties") {
                Some(Value::Bool(false)) => Some(text("")),
                None | Some(Value::Bool(true)) => {
                    let value = self.any()?;
                    Some(self.free_entries(entry, value))
                }
                Some(schema) => {
                    let value = self.value(schema, depth + 1)?;
                    Some(self.free_entries(entry, value))
                }
            };
        };
        let properties = properties.as_object()?;
        let required = match map.get("required") {
            Some(all) => all.as_array()?.as_slice(),
            None => &[],
        };
        let all_named = |key: &Value| key.as_str().is_some_and(|key| properties.contains_key(key));
        if !required.iter().all(all_named) {
            return None;
        }
        let mut entries = Vec::new();
        for (key, property) in properties {
            let key_form = self.key(key, entry)?;
            let value = self.value(property, depth + 1)?;
            let needed = required.iter().any(|name| name == key);
            entries.push((Form::Sequence(vec![key_form, value]), needed));
        }
        self.joined(entries)
    }

    /// Entries with separators between those that are there. Each has a flag: it must be there.
    fn joined(&mut self, entries: Vec<(Form, bool)>) -> Option<Form> {
        let separator = self.separator();
        let before = |form| Form::Sequence(vec![separator.clone(), form]);
        let then_separator = |form| Form::Sequence(vec![form, separator.clone()]);
        let choose = |form, needed| if needed { form } else { optional(form) };
        if let Some(first) = entries.iter().position(|(_, needed)| *needed) {
            let parts = entries
                .into_iter()
                .enumerate()
                .map(|(index, (form, needed))| match index.cmp(&first) {
                    std::cmp::Ordering::Less => optional(then_separator(form)),
                    std::cmp::Ordering::Equal => form,
                    std::cmp::Ordering::Greater => choose(before(form), needed),
                });
            return Some(Form::Sequence(parts.collect()));
        }
        // All are optional: a form for each one that may be the first.
        let mut forms = vec![text("")];
        for first in 0..entries.len() {
            let parts = entries[first..].iter().enumerate();
            let parts = parts.map(|(index, (form, _))| match index {
                0 => form.clone(),
                _ => optional(before(form.clone())),
            });
            let form = Form::Sequence(parts.collect());
            self.left = self.left.checked_sub(size(&form))?;
            forms.push(form);
        }
        Some(Form::OneOf(forms))
    }

    /// A key and the mark after it.
    fn key(&self, key: &str, entry: Entry) -> Option<Form> {
        let mut letters = key.chars();
        let begins = |c: char| c.is_alphabetic() || c == '_';
        let is_word =
            letters.next().is_some_and(begins) && letters.all(|c| c.is_alphanumeric() || c == '_');
        Some(match (self.writing, entry) {
            (Writing::Python, Entry::Pair) => text(&format!("{}: ", quoted(key))),
            (Writing::Python, Entry::Argument) => is_word.then(|| text(&format!("{key}=")))?,
            (Writing::Gemma(_), _) => {
                let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
                let is_plain = !key.is_empty() && key.chars().all(plain);
                is_plain.then(|| text(&format!("{key}:")))?
            }
        })
    }

    /// Entries with any keys.
    fn free_entries(&self, entry: Entry, value: Form) -> Form {
        let key = match (self.writing, entry) {
            (Writing::Python, Entry::Pair) => vec![self.text(), text(": ")],
            (Writing::Python, Entry::Argument) => vec![Form::Pattern(NAME.to_string()), text("=")],
            (Writing::Gemma(_), _) => vec![Form::Pattern(NAME.to_string()), text(":")],
        };
        let mut parts = key;
        parts.push(value);
        self.any_number(Form::Sequence(parts))
    }

    fn any_number(&self, one: Form) -> Form {
        let more = Form::Sequence(vec![self.separator(), one.clone()]);
        optional(Form::Sequence(vec![one, Form::Repeated(Box::new(more))]))
    }

    /// Any value, if its form has room.
    fn any(&mut self) -> Option<Form> {
        let form = self.free(DEEPEST_FREE);
        self.nodes = self.nodes.checked_sub(size(&form))?;
        Some(form)
    }

    /// Any value that does not nest deeper than this.
    fn free(&self, depth: usize) -> Form {
        let words: &[&str] = match self.writing {
            Writing::Gemma(_) => &["true", "false", "null"],
            Writing::Python => &["True", "False", "None"],
        };
        let mut all: Vec<Form> = words.iter().map(|word| text(word)).collect();
        all.push(Form::Pattern(NUMBER.to_string()));
        all.push(self.text());
        if depth > 0 {
            let items = self.any_number(self.free(depth - 1));
            let entries = self.free_entries(Entry::Pair, self.free(depth - 1));
            all.push(Form::Sequence(vec![text("["), items, text("]")]));
            all.push(Form::Sequence(vec![text("{"), entries, text("}")]));
        }
        Form::OneOf(all)
    }
}

/// Whether a schema has these keywords and annotations only.
fn only(map: &Map<String, Value>, allowed: &[&str]) -> bool {
    map.keys().all(|key| {
        let key = key.as_str();
        allowed.contains(&key) || ANNOTATIONS.contains(&key)
    })
}

/// The keywords of a type that the form enforces.
fn keywords(name: &str) -> &'static [&'static str] {
    match name {
        "string" => &["minLength", "maxLength"],
        "integer" | "number" => &[
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ],
        "array" => &["items", "minItems", "maxItems"],
        "object" => &[
            "properties",
            "required",
            "additionalProperties",
            "$defs",
            "definitions",
        ],
        _ => &[],
    }
}

/// Whether a value has the type, or one of the types, of a schema.
fn is_of(value: &Value, name: &Value) -> bool {
    match name {
        Value::Array(names) => names.iter().any(|name| is_of(value, name)),
        Value::String(name) => match name.as_str() {
            "string" => value.is_string(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => false,
        },
        _ => false,
    }
}

/// Parts of a form.
fn size(form: &Form) -> usize {
    match form {
        Form::Sequence(all) | Form::OneOf(all) => 1 + all.iter().map(size).sum::<usize>(),
        Form::Repeated(one) => 1 + size(one),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [(&str, &[&str]); 7] = [
        ("string", &["\"a\"", "\"\""]),
        ("number", &["1", "-1", "1.5"]),
        ("integer", &["1", "-1"]),
        ("boolean", &["true", "false"]),
        ("null", &["null"]),
        ("array", &["[]", "[1]"]),
        ("object", &["{}"]),
    ];

    #[test]
    fn values_are_of_the_types_that_a_schema_names() {
        let values = TYPES.iter().flat_map(|(_, values)| values.iter());
        for text in values {
            let value: Value = serde_json::from_str(text).unwrap();
            for (name, own) in TYPES {
                let expected = own.contains(text);
                assert_eq!(is_of(&value, &json!(name)), expected, "{text} {name}");
                let names = json!(["nothing", name]);
                assert_eq!(is_of(&value, &names), expected, "{text} {name}");
            }
            assert!(!is_of(&value, &json!("nothing")) && !is_of(&value, &json!([])));
        }
    }

    #[test]
    fn the_size_of_a_form_counts_all_parts() {
        let text = || Form::Text("a".to_string());
        assert_eq!(size(&text()), 1);
        assert_eq!(size(&Form::Repeated(Box::new(text()))), 2);
        let parts = || vec![text(), Form::Repeated(Box::new(text())), Form::Content];
        assert_eq!(size(&Form::Sequence(parts())), 5);
        assert_eq!(size(&Form::OneOf(vec![Form::Sequence(parts()), text()])), 7);
    }

    /// Every text of a small form. Repetitions come up to twice; `P` is a pattern, `J` is JSON.
    fn texts(form: &Form) -> Vec<String> {
        let join = |all: Vec<String>, ends: &[String]| -> Vec<String> {
            let with = |begin: &String| ends.iter().map(|end| format!("{begin}{end}")).collect();
            all.iter().flat_map::<Vec<String>, _>(with).collect()
        };
        match form {
            Form::Text(text) => vec![text.clone()],
            Form::Until { mark, .. } => vec![format!("~{mark}")],
            Form::Pattern(_) => vec!["P".to_owned()],
            Form::Json(_) => vec!["J".to_owned()],
            Form::Sequence(parts) => {
                let parts = parts.iter().map(texts);
                parts.fold(vec![String::new()], |all, part| join(all, &part))
            }
            Form::OneOf(parts) => parts.iter().flat_map(texts).collect(),
            Form::Repeated(one) => {
                let one = texts(one);
                let twice = join(one.clone(), &one);
                [vec![String::new()], one, twice].concat()
            }
            Form::Without(_) | Form::Content => panic!("not in a value"),
        }
    }

    /// The calls `f(p=VALUE)` with a value of this schema.
    fn values(writing: Writing, schema: &Value) -> Option<Vec<String>> {
        let schema = json!({ "type": "object", "properties": { "p": schema }, "required": ["p"] });
        let (begin, end) = match writing {
            Writing::Python => ("f(p=", ")"),
            Writing::Gemma(_) => ("call:f{p:", "}"),
        };
        let form = call(writing, &[("f", &schema)])?;
        let value = |text: String| {
            let value = text
                .strip_prefix(begin)
                .and_then(|text| text.strip_suffix(end));
            value.unwrap().to_owned()
        };
        let mut all: Vec<String> = texts(&form).into_iter().map(value).collect();
        all.sort();
        Some(all)
    }

    /// A schema and its values, in Python and as Gemma writes them.
    #[test]
    fn a_schema_has_these_values_and_no_others() {
        let two = json!({ "a": { "const": 1 }, "b": { "const": 2 } });
        let three = json!({ "a": { "const": 1 }, "b": { "const": 2 }, "c": { "const": 3 } });
        let cases: [(Value, &[&str], &[&str]); 21] = [
            (json!({ "const": true }), &["True"], &["true"]),
            (json!({ "const": false }), &["False"], &["false"]),
            (json!({ "const": null }), &["None"], &["null"]),
            (json!({ "const": 4 }), &["4"], &["4"]),
            (json!({ "const": "it's" }), &["\"it's\""], &["|it's|"]),
            (
                json!({ "type": "boolean" }),
                &["False", "True"],
                &["false", "true"],
            ),
            (json!({ "type": "null" }), &["None"], &["null"]),
            (json!({ "type": "integer", "minimum": 1 }), &["J"], &["J"]),
            (json!({ "type": "string", "title": "T" }), &["P"], &["|~|"]),
            (
                json!({ "enum": [1, "a", true], "type": ["string", "boolean"] }),
                &["\"a\"", "True"],
                &["true", "|a|"],
            ),
            (
                json!({ "type": ["boolean", "null"] }),
                &["False", "None", "True"],
                &["false", "null", "true"],
            ),
            (
                json!({ "type": ["array", "null"], "maxItems": 0 }),
                &["None", "[]"],
                &["[]", "null"],
            ),
            (
                json!({ "anyOf": [{ "const": 1 }, { "const": 2 }] }),
                &["1", "2"],
                &["1", "2"],
            ),
            (
                json!({ "type": "array", "items": { "const": 1 } }),
                &["[1, 1, 1]", "[1, 1]", "[1]", "[]"],
                &["[1,1,1]", "[1,1]", "[1]", "[]"],
            ),
            (
                json!({ "type": "array", "items": { "const": 1 }, "minItems": 1, "maxItems": 2 }),
                &["[1, 1]", "[1]"],
                &["[1,1]", "[1]"],
            ),
            (
                json!({ "type": "array", "items": { "const": 1 }, "minItems": 2 }),
                &["[1, 1, 1, 1]", "[1, 1, 1]", "[1, 1]"],
                &["[1,1,1,1]", "[1,1,1]", "[1,1]"],
            ),
            (
                json!({ "type": "object", "properties": two }),
                &["{\"a\": 1, \"b\": 2}", "{\"a\": 1}", "{\"b\": 2}", "{}"],
                &["{a:1,b:2}", "{a:1}", "{b:2}", "{}"],
            ),
            // Properties are those of an object, even without a type.
            (
                json!({ "properties": three, "required": ["b"] }),
                &[
                    "{\"a\": 1, \"b\": 2, \"c\": 3}",
                    "{\"a\": 1, \"b\": 2}",
                    "{\"b\": 2, \"c\": 3}",
                    "{\"b\": 2}",
                ],
                &["{a:1,b:2,c:3}", "{a:1,b:2}", "{b:2,c:3}", "{b:2}"],
            ),
            (
                json!({ "properties": two, "required": ["a", "b"] }),
                &["{\"a\": 1, \"b\": 2}"],
                &["{a:1,b:2}"],
            ),
            (
                json!({ "type": "object", "additionalProperties": { "const": 1 } }),
                &["{P: 1, P: 1, P: 1}", "{P: 1, P: 1}", "{P: 1}", "{}"],
                &["{P:1,P:1,P:1}", "{P:1,P:1}", "{P:1}", "{}"],
            ),
            (
                json!({ "type": "object", "additionalProperties": false }),
                &["{}"],
                &["{}"],
            ),
        ];
        for (schema, python, gemma) in cases {
            assert_eq!(
                values(Writing::Python, &schema).unwrap(),
                python,
                "{schema}"
            );
            assert_eq!(
                values(Writing::Gemma("|"), &schema).unwrap(),
                gemma,
                "{schema}"
            );
        }
    }

    #[test]
    fn schemas_without_a_form_are_refused() {
        for schema in [
            json!(false),
            json!({ "minLength": 1 }),
            // Values of other types obey these as well.
            json!({ "additionalProperties": false }),
            json!({ "required": [] }),
            json!({ "const": 1, "enum": [1] }),
            json!({ "const": 1, "minimum": 1 }),
            json!({ "enum": 1 }),
            json!({ "anyOf": [] }),
            json!({ "anyOf": [{ "const": 1 }], "minimum": 1 }),
            json!({ "$ref": "#/properties/q" }),
            json!({ "type": [] }),
            json!({ "type": "what" }),
            json!({ "type": "array", "minItems": "1" }),
            json!({ "type": "array", "minItems": 3, "maxItems": 2 }),
            json!({ "type": "string", "minLength": 3, "maxLength": 2 }),
            json!({ "type": "string", "minLength": "1" }),
            json!({ "type": "object", "required": 1, "properties": {} }),
            json!({ "type": "object", "required": ["a"], "properties": {} }),
        ] {
            for writing in [Writing::Python, Writing::Gemma("|")] {
                assert_eq!(values(writing, &schema), None, "{schema}");
            }
        }
        // The quote would end the string.
        assert_eq!(
            values(Writing::Gemma("|"), &json!({ "const": "a|b" })),
            None
        );
    }

    #[test]
    fn limits_hold_at_their_borders() {
        let list = |key: &str, count: u64| {
            let schema = json!({ "type": "array", "items": { "const": 1 }, key: count });
            let schema = json!({ "type": "object", "properties": { "p": schema } });
            call(Writing::Python, &[("f", &schema)]).is_some()
        };
        for key in ["minItems", "maxItems"] {
            assert!(
                list(key, LONGEST_LIST) && !list(key, LONGEST_LIST + 1),
                "{key}"
            );
        }
        assert!(
            values(
                Writing::Python,
                &json!({ "type": "string", "minLength": 2, "maxLength": 2 })
            )
            .is_some()
        );
        let in_list = |schema: Value| json!({ "type": "array", "items": schema, "maxItems": 1 });
        let in_object = |schema: Value| json!({ "type": "object", "properties": { "a": schema } });
        let in_map = |schema: Value| json!({ "type": "object", "additionalProperties": schema });
        let in_choice = |schema: Value| json!({ "anyOf": [schema] });
        let wraps: [fn(Value) -> Value; 4] = [in_list, in_object, in_map, in_choice];
        for (at, wrap) in wraps.into_iter().enumerate() {
            // A parameter lies one deep itself.
            let nested = |depth: usize| {
                let schema = (1..depth).fold(json!({ "const": 1 }), |inner, _| wrap(inner));
                let schema = json!({ "type": "object", "properties": { "p": schema } });
                call(Writing::Python, &[("f", &schema)]).is_some()
            };
            assert!(nested(DEEPEST) && !nested(DEEPEST + 1), "{at}");
        }
        let chain = |depth: usize| {
            let next = |i: usize| {
                (
                    format!("r{i}"),
                    json!({ "$ref": format!("#/$defs/r{}", i + 1) }),
                )
            };
            let mut all: Map<String, Value> = (1..depth).map(next).collect();
            all.insert(format!("r{depth}"), json!({ "const": 1 }));
            let schema =
                json!({ "type": "object", "properties": { "p": all["r1"] }, "$defs": all });
            call(Writing::Python, &[("f", &schema)]).is_some()
        };
        assert!(chain(DEEPEST) && !chain(DEEPEST + 1));
    }

    #[test]
    fn keys_that_a_syntax_cannot_write_are_refused() {
        let has_key = |writing: Writing, key: &str, inner: bool| {
            let map = json!({ "type": "object", "properties": { key: { "const": 1 } } });
            let schema = if inner {
                json!({ "type": "object", "properties": { "p": map } })
            } else {
                map
            };
            call(writing, &[("f", &schema)]).is_some()
        };
        for (key, argument, gemma) in [
            ("a", true, true),
            ("_1", true, true),
            ("été", true, true),
            ("1a", false, true),
            ("a-b.c", false, true),
            ("a b", false, false),
            ("a:", false, false),
            ("", false, false),
        ] {
            assert_eq!(has_key(Writing::Python, key, false), argument, "{key}");
            // In a dictionary keys are strings.
            assert!(has_key(Writing::Python, key, true), "{key}");
            for inner in [false, true] {
                assert_eq!(has_key(Writing::Gemma("|"), key, inner), gemma, "{key}");
            }
        }
    }
}
