//! Constraints that are made to harm: each is compiled or refused, and the engine goes on.

mod common;

use common::{load, with};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use welte::{Constraint, Error, LoadOptions, Model, Request};

fn model() -> Model {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
    let options = with(LoadOptions::default(), |o| {
        o.device = "cpu".parse().unwrap();
        (o.context, o.threads, o.slots) = (256, Some(2), 2);
    });
    load(demo, &options)
}

/// Definitions `d0` to `d<count>`, made from the name of the next one.
fn definitions(count: usize, one: impl Fn(String) -> Value) -> Value {
    let name = |index: usize| (format!("d{index}"), one(format!("#/$defs/d{}", index + 1)));
    let mut all: Map<String, Value> = (0..count).map(name).collect();
    all.insert(format!("d{count}"), json!({"type": "boolean"}));
    json!({"$defs": all, "$ref": "#/$defs/d0"})
}

fn properties(count: usize) -> Map<String, Value> {
    let property = |index| (format!("p{index}"), json!({"type": "integer"}));
    (0..count).map(property).collect()
}

/// Schemas, with a part of the problem if they are refused.
fn schemas() -> Vec<(&'static str, Value, &'static str)> {
    let required: Vec<String> = properties(6000).into_iter().map(|(name, _)| name).collect();
    let union = |part: usize| {
        let branch = |index: usize| json!({"properties": {format!("p{part}"): {"const": index}}});
        json!({"anyOf": (0..8).map(branch).collect::<Vec<Value>>()})
    };
    let deep = |depth: usize| {
        (0..depth).fold(
            json!({"type": "null"}),
            |inner, _| json!({"type": "array", "items": inner}),
        )
    };
    vec![
        (
            "a chain of 1,000 references",
            definitions(1000, |next| json!({"$ref": next})),
            "more than 100 references",
        ),
        (
            "arrays through references, 500 deep",
            definitions(
                500,
                |next| json!({"type": "array", "items": {"$ref": next}}),
            ),
            "",
        ),
        (
            "objects through references, 2,000 deep",
            definitions(
                1900,
                |next| json!({"properties": {"a": {"$ref": next}}, "required": ["a"]}),
            ),
            "",
        ),
        (
            "parts through references",
            definitions(
                90,
                |next| json!({"allOf": [{"$ref": next}, {"$ref": next}]}),
            ),
            "references lead to each other",
        ),
        (
            "6,000 required properties",
            json!({"properties": properties(6000), "required": required}),
            "it has 6000 properties",
        ),
        (
            "1,900 properties",
            json!({"properties": properties(1900)}),
            "",
        ),
        (
            "combinations of properties",
            json!({"properties": properties(900), "anyOf": (0..12).map(|i| json!({"properties": {format!("q{i}"): {}}})).collect::<Vec<Value>>()}),
            "more than 10000 schemas and properties",
        ),
        (
            "parts that double",
            definitions(
                45,
                |next| json!({"allOf": [{"$ref": next}, {"$ref": next}]}),
            ),
            "more than 10000 schemas and properties",
        ),
        (
            "branches that double",
            definitions(
                45,
                |next| json!({"anyOf": [{"$ref": next}, {"$ref": next}]}),
            ),
            "more than 1000 combinations",
        ),
        (
            "5,000 optional properties",
            json!({"properties": properties(5000)}),
            "it has 5000 properties",
        ),
        (
            "allOf of 5,000",
            json!({"allOf": (0..5000).map(|i| json!({"properties": {format!("p{i}"): {"type": "integer"}}})).collect::<Vec<Value>>()}),
            "5000 schemas in one allOf",
        ),
        (
            "allOf of 900",
            json!({"allOf": (0..900).map(|i| json!({"properties": {format!("p{i}"): {"type": "integer"}}})).collect::<Vec<Value>>()}),
            "schema too large",
        ),
        (
            "combinations",
            json!({"allOf": (0..8).map(union).collect::<Vec<Value>>()}),
            "more than 1000 combinations",
        ),
        (
            "few combinations",
            json!({"allOf": (0..3).map(union).collect::<Vec<Value>>()}),
            "",
        ),
        ("90 levels", deep(90), ""),
        ("120 levels", deep(120), "more than 100 levels"),
        (
            "a long string",
            json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000_000}),
            "",
        ),
        (
            "a long list",
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
            "",
        ),
        (
            "a long list of strings",
            json!({"type": "array", "items": {"type": "string", "maxLength": 5000}, "maxItems": 1_000_000}),
            "",
        ),
        (
            "counts of counts",
            json!({"type": "string", "pattern": "^(((a{1,200}b){1,200}c){1,200}d){1,200}$"}),
            "",
        ),
        (
            "patterns of names",
            json!({"patternProperties": (0..50).map(|i| (format!("^{i}(a|b)*.{{{i}}}$"), json!({}))).collect::<Map<String, Value>>()}),
            "",
        ),
        (
            "an enum",
            json!({"enum": (0..20_000).map(|i| format!("value {i}")).collect::<Vec<String>>()}),
            "",
        ),
        (
            "a message cut within a letter",
            json!({"required": "é".repeat(200)}),
            "the grammar compiler fails on it",
        ),
        (
            "multiples",
            json!({"type": "number", "multipleOf": 1e-300, "minimum": -1e300, "maximum": 1e300}),
            "too many digits",
        ),
        (
            "a reference to itself",
            json!({"$ref": "#"}),
            "NoExtensionBias",
        ),
        (
            "a part that is itself",
            json!({"properties": {"a": {}}, "allOf": [{"$ref": "#"}]}),
            "circular references",
        ),
        (
            "branches that are all",
            json!({"properties": {"a": {}}, "anyOf": [{"$ref": "#"}, {"properties": {"b": {"$ref": "#"}}}]}),
            "circular references",
        ),
    ]
}

fn rules(lark: bool, count: usize) -> String {
    let (start, is) = if lark {
        ("start", ":")
    } else {
        ("root", "::=")
    };
    let mut text = format!("{start} {is} r0\n");
    for rule in 0..count {
        let _ = writeln!(text, "r{rule} {is} \"a\" r{}", rule + 1);
    }
    let _ = writeln!(text, "r{count} {is} \"b\"");
    text
}

/// Other constraints, with a part of the problem if they are refused.
fn others() -> Vec<(&'static str, Constraint, &'static str)> {
    let nested = |n: usize| format!("{}\"a\"{}", "(".repeat(n), ")".repeat(n));
    vec![
        (
            "4,900 rules in GBNF",
            Constraint::Gbnf(rules(false, 4900)),
            "",
        ),
        (
            "4,900 rules in Lark",
            Constraint::Lark(rules(true, 4900)),
            "",
        ),
        (
            "30,000 alternatives in GBNF",
            Constraint::Gbnf(format!("root ::= \"a\"{}", "|\"a\"".repeat(30_000))),
            "more than 10000 alternatives",
        ),
        (
            "30,000 alternatives",
            Constraint::Lark(format!("start: \"a\"{}", "|\"a\"".repeat(30_000))),
            "more than 10000 alternatives",
        ),
        (
            "a schema in a grammar",
            Constraint::Lark(format!(
                "start: %json {}",
                json!({"properties": properties(3100)})
            )),
            "it has 3100 properties",
        ),
        (
            "100,000 characters of a regex",
            Constraint::Regex("ab".repeat(50_000)),
            "",
        ),
        (
            "6,000 rules in GBNF",
            Constraint::Gbnf(rules(false, 6000)),
            "more than 5000 rules",
        ),
        (
            "6,000 rules in Lark",
            Constraint::Lark(rules(true, 6000)),
            "more than 5000 rules",
        ),
        (
            "groups in Lark",
            Constraint::Lark(format!("start: {}", nested(20_000))),
            "more than 100 of its groups",
        ),
        (
            "groups in GBNF",
            Constraint::Gbnf(format!("root ::= {}", nested(20_000))),
            "groups are nested too deeply",
        ),
        (
            "open groups",
            Constraint::Lark(format!("start: {}", "(".repeat(100_000))),
            "more than 100 of its groups",
        ),
        (
            "alternatives in GBNF",
            Constraint::Gbnf(format!("root ::= \"a\"{}", " | \"a\"".repeat(150_000))),
            "bytes; the most are",
        ),
        (
            "alternatives",
            Constraint::Lark(format!("start: \"a\"{}", " | \"a\"".repeat(150_000))),
            "bytes; the most are",
        ),
        (
            "repeated",
            Constraint::Lark("start: (\"a\" | \"b\" \"c\"){1000000000}".into()),
            "",
        ),
        (
            "repeated, repeated",
            Constraint::Gbnf("root ::= (((\"a\"{1,1000} \"b\"){1,1000}) \"c\"){1,1000}".into()),
            "",
        ),
        (
            "groups in a regex",
            Constraint::Regex(format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000))),
            "bytes; the most are",
        ),
        (
            "200 groups in a regex",
            Constraint::Regex(format!("{}a{}", "(".repeat(200), "b)*".repeat(200))),
            "invalid regex",
        ),
        (
            "a long regex",
            Constraint::Regex("ab".repeat(250_000)),
            "bytes; the most are",
        ),
        (
            "counts in a regex",
            Constraint::Regex("((a{1,1000}){1,1000}){1,1000}".into()),
            "",
        ),
        (
            "a regex of any letters",
            Constraint::Regex("(.*a.{20}|.*b.{19}c.*d.{15})*".into()),
            "",
        ),
        (
            "complements",
            Constraint::Lark(
                "start: A\nA: ~/(?s:.*)a(?s:.{20})b(?s:.*)/ & ~/(?s:.*)c(?s:.{18})d(?s:.*)/".into(),
            ),
            "",
        ),
        (
            "texts",
            Constraint::Choice((0..15_000).map(|i| format!("text {i}")).collect()),
            "it has 15000 texts",
        ),
        (
            "many texts",
            Constraint::Choice((0..100_000).map(|i| i.to_string()).collect()),
            "it has 100000 texts",
        ),
        (
            "rules that lead to themselves",
            Constraint::Lark("start: a\na: b\nb: a".into()),
            "NoExtensionBias",
        ),
        (
            "left recursion",
            Constraint::Lark("start: start start | \"a\" | \"\"".into()),
            "",
        ),
    ]
}

#[test]
fn hostile_constraints_end_no_process() {
    let model = model();
    let engine = model.engine().unwrap();
    let request = |constraint: Constraint| {
        let mut request = Request::new(model.encode("Once upon a time").unwrap());
        request.options.constraint = Some(constraint);
        request.options.max_tokens = 20;
        request
    };
    let schemas = schemas()
        .into_iter()
        .map(|(name, schema, refused)| (name, Constraint::JsonSchema(schema), refused));
    for (name, constraint, refused) in schemas.chain(others()) {
        let begun = std::time::Instant::now();
        match engine.submit(request(constraint)) {
            Ok(stream) => {
                assert!(refused.is_empty(), "{name}: accepted");
                match stream.complete() {
                    Ok(_) | Err(Error::Guidance { .. }) => (),
                    Err(error) => panic!("{name}: {error}"),
                }
            }
            Err(Error::Constraint { problem, .. }) => {
                assert!(!refused.is_empty(), "{name}: {problem}");
                assert!(problem.contains(refused), "{name}: {problem}");
            }
            Err(error) => panic!("{name}: {error}"),
        }
        println!("{name}: {:.1?}", begun.elapsed());
    }
    let yes = Constraint::Choice(vec!["yes".into()]);
    let (text, _) = engine.submit(request(yes)).unwrap().complete().unwrap();
    assert_eq!(text, "yes");
}
