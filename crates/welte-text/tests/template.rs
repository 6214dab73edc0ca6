//! Chat templates against what Python's jinja2 makes of them (tools/text-fixtures), and against bad ones.

use proptest::prelude::*;
use serde_json::{Map, Value};
use std::path::PathBuf;
use welte_text::{ChatTemplate, Error, Message, RenderOptions};

fn read(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn templates_render_as_python_renders_them() {
    let chats: Vec<Map<String, Value>> = serde_json::from_str(&read("chats.json")).unwrap();
    let rendered: Vec<Value> = serde_json::from_str(&read("rendered.json")).unwrap();
    for expected in rendered {
        let name = expected["template"].as_str().unwrap();
        let mut chat = chats[expected["chat"].as_u64().unwrap() as usize].clone();
        let template =
            ChatTemplate::new(&read(&format!("templates/{name}")), "<s>", "</s>").unwrap();
        let messages = chat.remove("messages").unwrap();
        let add_generation_prompt = chat.remove("add_generation_prompt") == Some(true.into());
        let options = RenderOptions {
            add_generation_prompt,
            variables: chat,
            now: Some(1_709_210_096),
        };
        let result = template.render_with(messages.as_array().unwrap(), &options);
        match (result, expected["text"].as_str()) {
            (Ok(text), Some(expected_text)) => {
                assert_eq!(text, expected_text, "{name} {}", expected["chat"])
            }
            (Err(error), None) => {
                let message = expected["error"].as_str().unwrap();
                assert!(
                    error.to_string().contains(message),
                    "{name}: {error} is not {message}"
                );
            }
            (result, _) => panic!("{name}: {result:?} instead of {expected}"),
        }
    }
}

fn render(source: &str) -> Result<String, Error> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(&[Message::new("user", "Hi")], true)
}

#[test]
fn keys_are_escaped_as_python_escapes_them() {
    let value = serde_json::json!({
        "a\"b": 1,
        "c\\d": [1, 2],
        "e\nf\t\r\u{8}\u{c}\u{1}": {"é\u{2028}": "é"},
        "": {},
    });
    let shown = |value: &Value, expression: &str| {
        let template = ChatTemplate::new(&format!("{{{{ {expression} }}}}"), "", "").unwrap();
        let options = RenderOptions {
            variables: Map::from_iter([("value".to_owned(), value.clone())]),
            ..RenderOptions::default()
        };
        template.render_with(&[], &options).unwrap()
    };
    // Printed by Python's json.dumps, with ensure_ascii off as chat templates have it, and by str.
    assert_eq!(
        shown(&value, "value | tojson"),
        "{\"a\\\"b\": 1, \"c\\\\d\": [1, 2], \"e\\nf\\t\\r\\b\\f\\u0001\": {\"é\u{2028}\": \"é\"}, \"\": {}}"
    );
    assert_eq!(
        shown(&value, "value | tojson(ensure_ascii=true)"),
        r#"{"a\"b": 1, "c\\d": [1, 2], "e\nf\t\r\b\f\u0001": {"\u00e9\u2028": "\u00e9"}, "": {}}"#
    );
    assert_eq!(
        shown(&serde_json::json!({"a\"b": 1}), "value | tojson(indent=2)"),
        "{\n  \"a\\\"b\": 1\n}"
    );
    assert_eq!(
        shown(
            &serde_json::json!({"a\"b": 1, "c'd": "e\n", "f\\": "'\""}),
            "value | string"
        ),
        r#"{'a"b': 1, "c'd": 'e\n', 'f\\': '\'"'}"#
    );
}

#[test]
fn generation_tags_only_mark() {
    let source = "{% for m in messages %}\n  {%- generation -%}\n {{ m.content }}\n{%- endgeneration %}\n.{% endfor %}";
    assert_eq!(render(source).unwrap(), "Hi.");
    assert!(render("{% generation %}").is_err());
}

#[test]
fn errors_name_the_line() {
    let line = |source: &str| match render(source).unwrap_err() {
        Error::Template { line, problem } => (line, problem),
        other => panic!("{other}"),
    };
    assert_eq!(line("a\n\n{% if %}").0, 3);
    assert_eq!(line("a\n{{ nothing.at.all }}").0, 2);
    let (at, problem) = line("\n\n\n{{ raise_exception('roles must alternate') }}");
    assert_eq!(at, 4);
    assert!(problem.contains("roles must alternate"), "{problem}");
    assert_eq!(line("{{ messages | unheard_of }}").0, 1);
    assert!(line("\n{{ missing | tojson }}").1.contains("undefined"));
}

#[test]
fn hostile_templates_end() {
    let ends = |source: &str| assert!(render(source).is_err(), "{source}");
    ends("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    ends("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    ends("{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}");
    ends("{{ 'x' * 99999999999 }}");
    ends("{{ messages | tojson(indent=99999999) }}");
    ends(&format!("{}1{}", "{{ (", "(".repeat(100_000)));
    ends(&"{% if 1 %}".repeat(100_000));
    ends(&" ".repeat(2 << 20));
    ends("{{ 'x' | indent(99999999999) }}");
    ends("{% include 'chat' %}");
}

#[test]
fn hostile_templates_do_not_take_all_memory() {
    let ends = |source: &str| assert!(render(source).is_err(), "{source}");
    ends("{% set s = 'x' * 99999 %}{{ s.replace('x', s).replace('x', s) }}");
    ends("{% set s = 'x' * 99999 %}{{ s | replace('x', s) | replace('x', s) }}");
    ends("{% set s = 'x' * 99999 %}{{ ([s] * 99999) | join('') }}");
    ends("{% set s = 'x' * 99999 %}{{ ''.join([s] * 99999) }}");
    ends("{% set s = 'x' * 99999 %}{{ ([s] * 99999) | tojson }}");
    ends("{% set s = 'x' * 99999 %}{{ ([s] * 99999) | string }}");
    ends("{% set s %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_template_is_rendered_or_refused(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "{% for m in messages %}", "{% endfor %}", "{% if m %}", "{% else %}", "{% endif %}", "{{ m.role }}",
            "{{", "}}", "{%", "%}", "{#", "#}", "{%- generation %}", "{% endgeneration %}", "{{ m | tojson }}",
            "{% set x = messages %}", "{{ x[0]['content'][1:] }}", "{{ range(9) | list }}", "'", "\"", "ä", "\n  ",
            "{% macro f(a) %}", "{% endmacro %}", "{{ f(f(1)) }}", "{{ -1 ** 99 }}", "{{ 1 / 0 }}", "{{ 'a' * 9 }}",
            "{{ strftime_now('%Y%') }}", "{{ loop.index }}", "{% raw %}", "{% endraw %}", "{{ x.split(x) }}",
        ]), 0..12),
    ) {
        let _ = render(&pieces.concat());
    }

    #[test]
    fn any_text_is_a_template_or_refused(source in "\\PC{0,80}|[{}%#'a-c .|()\\[\\]-]{0,80}") {
        let _ = render(&source);
    }
}
