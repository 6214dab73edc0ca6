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

fn schemas() -> Vec<(&'static str, Value)> {
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
        ),
        (
            "arrays through references, 500 deep",
            definitions(
                500,
                |next| json!({"type": "array", "items": {"$ref": next}}),
            ),
        ),
        (
            "objects through references, 2,000 deep",
            definitions(
                1900,
                |next| json!({"properties": {"a": {"$ref": next}}, "required": ["a"]}),
            ),
        ),
        (
            "parts through references",
            definitions(
                90,
                |next| json!({"allOf": [{"$ref": next}, {"$ref": next}]}),
            ),
        ),
        (
            "6,000 required properties",
            json!({"properties": properties(6000), "required": required}),
        ),
        (
            "5,000 optional properties",
            json!({"properties": properties(5000)}),
        ),
        (
            "allOf of 5,000",
            json!({"allOf": (0..5000).map(|i| json!({"properties": {format!("p{i}"): {"type": "integer"}}})).collect::<Vec<Value>>()}),
        ),
        (
            "allOf of 900",
            json!({"allOf": (0..900).map(|i| json!({"properties": {format!("p{i}"): {"type": "integer"}}})).collect::<Vec<Value>>()}),
        ),
        (
            "combinations",
            json!({"allOf": (0..8).map(union).collect::<Vec<Value>>()}),
        ),
        (
            "few combinations",
            json!({"allOf": (0..3).map(union).collect::<Vec<Value>>()}),
        ),
        ("90 levels", deep(90)),
        ("120 levels", deep(120)),
        (
            "a long string",
            json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000_000}),
        ),
        (
            "a long list",
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
        ),
        (
            "a long list of strings",
            json!({"type": "array", "items": {"type": "string", "maxLength": 5000}, "maxItems": 1_000_000}),
        ),
        (
            "counts of counts",
            json!({"type": "string", "pattern": "^(((a{1,200}b){1,200}c){1,200}d){1,200}$"}),
        ),
        (
            "patterns of names",
            json!({"patternProperties": (0..50).map(|i| (format!("^{i}(a|b)*.{{{i}}}$"), json!({}))).collect::<Map<String, Value>>()}),
        ),
        (
            "an enum",
            json!({"enum": (0..20_000).map(|i| format!("value {i}")).collect::<Vec<String>>()}),
        ),
        (
            "a message cut within a letter",
            json!({"required": "é".repeat(200)}),
        ),
        (
            "multiples",
            json!({"type": "number", "multipleOf": 1e-300, "minimum": -1e300, "maximum": 1e300}),
        ),
        ("a reference to itself", json!({"$ref": "#"})),
        (
            "a part that is itself",
            json!({"properties": {"a": {}}, "allOf": [{"$ref": "#"}]}),
        ),
        (
            "branches that are all",
            json!({"properties": {"a": {}}, "anyOf": [{"$ref": "#"}, {"properties": {"b": {"$ref": "#"}}}]}),
        ),
    ]
}

fn rules(lark: bool) -> String {
    let (start, is) = if lark {
        ("start", ":")
    } else {
        ("root", "::=")
    };
    let mut text = format!("{start} {is} r0\n");
    for rule in 0..9000 {
        let _ = writeln!(text, "r{rule} {is} \"a\" r{}", rule + 1);
    }
    let _ = writeln!(text, "r9000 {is} \"b\"");
    text
}

fn others() -> Vec<(&'static str, Constraint)> {
    let nested = |n: usize| format!("{}\"a\"{}", "(".repeat(n), ")".repeat(n));
    vec![
        ("9,000 rules in GBNF", Constraint::Gbnf(rules(false))),
        ("9,000 rules in Lark", Constraint::Lark(rules(true))),
        (
            "groups in Lark",
            Constraint::Lark(format!("start: {}", nested(100_000))),
        ),
        (
            "groups in GBNF",
            Constraint::Gbnf(format!("root ::= {}", nested(100_000))),
        ),
        (
            "open groups",
            Constraint::Lark(format!("start: {}", "(".repeat(1_000_000))),
        ),
        (
            "alternatives in GBNF",
            Constraint::Gbnf(format!("root ::= \"a\"{}", " | \"a\"".repeat(150_000))),
        ),
        (
            "alternatives",
            Constraint::Lark(format!("start: \"a\"{}", " | \"a\"".repeat(150_000))),
        ),
        (
            "repeated",
            Constraint::Lark("start: (\"a\" | \"b\" \"c\"){1000000000}".into()),
        ),
        (
            "repeated, repeated",
            Constraint::Gbnf("root ::= (((\"a\"{1,1000} \"b\"){1,1000}) \"c\"){1,1000}".into()),
        ),
        (
            "groups in a regex",
            Constraint::Regex(format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000))),
        ),
        (
            "200 groups in a regex",
            Constraint::Regex(format!("{}a{}", "(".repeat(200), "b)*".repeat(200))),
        ),
        ("a long regex", Constraint::Regex("ab".repeat(250_000))),
        (
            "counts in a regex",
            Constraint::Regex("((a{1,1000}){1,1000}){1,1000}".into()),
        ),
        (
            "a regex of any letters",
            Constraint::Regex("(.*a.{20}|.*b.{19}c.*d.{15})*".into()),
        ),
        (
            "complements",
            Constraint::Lark(
                "start: A\nA: ~/(?s:.*)a(?s:.{20})b(?s:.*)/ & ~/(?s:.*)c(?s:.{18})d(?s:.*)/".into(),
            ),
        ),
        (
            "texts",
            Constraint::Choice((0..15_000).map(|i| format!("text {i}")).collect()),
        ),
        (
            "many texts",
            Constraint::Choice((0..100_000).map(|i| i.to_string()).collect()),
        ),
        (
            "rules that lead to themselves",
            Constraint::Lark("start: a\na: b\nb: a".into()),
        ),
        (
            "left recursion",
            Constraint::Lark("start: start start | \"a\" | \"\"".into()),
        ),
    ]
}

#[test]
fn hostile_constraints_end_no_process() {
    let model = model();
    let engine = model.engine().unwrap();
    let schemas = schemas()
        .into_iter()
        .map(|(name, schema)| (name, Constraint::JsonSchema(schema)));
    for (name, constraint) in schemas.chain(others()) {
        let begun = std::time::Instant::now();
        let mut request = Request::new(model.encode("Once upon a time").unwrap());
        request.options.constraint = Some(constraint);
        request.options.max_tokens = 20;
        let accepted = engine.submit(request);
        let compiled = begun.elapsed();
        let what = match accepted {
            Ok(stream) => match stream.complete() {
                Ok((text, _)) => format!("{:?}", text.chars().take(30).collect::<String>()),
                Err(Error::Guidance { problem }) => format!("gave up: {problem}"),
                Err(error) => panic!("{name}: {error}"),
            },
            Err(Error::Constraint { problem, .. }) => {
                assert!(!problem.contains("panic"), "{name}: {problem}");
                format!("refused: {}", problem.chars().take(100).collect::<String>())
            }
            Err(error) => panic!("{name}: {error}"),
        };
        println!("{name}: {compiled:.1?}, {:.1?}: {what}", begun.elapsed());
    }
    let (text, _) = {
        let mut request = Request::new(model.encode("Once upon a time").unwrap());
        request.options.constraint = Some(Constraint::Choice(vec!["yes".into()]));
        engine.submit(request).unwrap().complete().unwrap()
    };
    assert_eq!(text, "yes");
}
