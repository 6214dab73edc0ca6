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
                assert_eq!(text.text(), expected_text, "{name} {}", expected["chat"])
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
    let template = ChatTemplate::new(source, "<s>", "</s>")?;
    let rendered = template.render(&[Message::new("user", "Hi")], true)?;
    Ok(rendered.text().to_owned())
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
        let rendered = template.render_with(&[], &options).unwrap();
        rendered.text().to_owned()
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
    assert_eq!(problem, "the template raised: roles must alternate");
    let (at, problem) = line("{{ messages | unheard_of }}");
    assert_eq!(at, 1);
    assert!(problem.starts_with("unknown filter: "), "{problem}");
    assert_eq!(
        line("{% for i in range(1000) %}{% for j in range(1000) %}{{ i }}{% endfor %}{% endfor %}")
            .1,
        "takes more than 2000000 steps"
    );
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

/// Doubles a text or a list forty times, in every way that a template has.
#[test]
fn nothing_doubles_for_ever() {
    let doubling = |start: &str, step: &str| {
        let source = format!(
            "{{% set n = namespace(s={start}, l=[]) %}}{{% for i in range(40) %}}{{% set n.s = {step} %}}{{% endfor %}}{{{{ n.s | length }}}}"
        );
        let error = render(&source).unwrap_err().to_string();
        let bounded = ["produces more", "too much memory", "more than"]
            .iter()
            .any(|text| error.contains(text));
        assert!(bounded, "{step}: {error}");
    };
    for step in [
        "n.s ~ n.s",
        "n.s + n.s",
        "n.s * 2",
        "2 * n.s",
        "n.s.replace('x', 'xx')",
        "n.s | replace('x', 'xx')",
        "[n.s, n.s] | join",
        "''.join([n.s, n.s])",
        "n.s | indent(width=9) ~ n.s",
        "'{0}{0}'.format(n.s)",
        "([n.s, n.s] | string).replace(\"'\", 'x')",
        "(n.s | e) ~ n.s | e",
        "(n.s ~ n.s)[:]",
        "n.s[::-1] ~ n.s",
        "([n.s, n.s] | tojson).replace('\"', 'x')",
        "n.s | upper ~ n.s | lower",
    ] {
        doubling("'xx'", step);
    }
    for step in [
        "n.s + n.s",
        "n.s * 2",
        "2 * n.s",
        "(n.s + n.s) | list",
        "n.s + n.s | map('upper') | list",
        "(n.s + n.s)[:]",
    ] {
        doubling("['x']", step);
    }
}

/// Keeps many copies of a long text.
#[test]
fn nothing_is_kept_without_end() {
    let keeping = |copy: &str| {
        let source = format!(
            "{{% set n = namespace(l=[]) %}}{{% set s = 'x' * 9999999 %}}{{% for i in range(9999) %}}{{% set n.l = n.l + [{copy}] %}}{{% endfor %}}"
        );
        let error = render(&source).unwrap_err().to_string();
        assert!(error.contains("too much memory"), "{copy}: {error}");
    };
    for copy in [
        "s ~ i",
        "s[1:]",
        "s | upper",
        "s.replace('y', '')",
        "s | list",
        "s.split('x')",
        "[s] | map('upper') | list",
        "'{}'.format(s)",
        "dict(a=1, b=s ~ i)",
    ] {
        keeping(copy);
    }
}

#[test]
fn long_conversations_stay_within_the_bounds() {
    let source = "{% set n = namespace(text='', all=[]) %}{% for m in messages %}{% set n.text = n.text + m.content ~ '\n' %}{% set n.all = n.all + [m.content.split('x')[0] | trim] %}{% if loop.index < messages[loop.index0:] | length %}{% endif %}{{ m.content[:-1] | upper }}{% endfor %}{{ n.text }}{{ n.all | length }}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let messages: Vec<Message> = (0..1000)
        .map(|i| Message::new("user", format!("{i} {}", "y".repeat(200))))
        .collect();
    let prompt = template.render(&messages, true).unwrap();
    assert!(prompt.ends_with("\n1000"));
}

#[test]
fn arithmetic_is_as_before() {
    for (source, printed) in [
        (
            "{{ 2 * 3 }} {{ 2.5 * 2 }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ [1, 2] * 2 }} {{ -2 * 3 }}",
            "6 5.0 abab abab [1, 2, 1, 2] -6",
        ),
        (
            "{{ 1 + 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 1 ~ 2 }} {{ 'a' ~ none ~ true ~ missing }}",
            "3 ab [1, 2] 12 aNoneTrue",
        ),
        (
            "{{ 'abc'[1:] }} {{ 'abc'[::-1] }} {{ [1, 2, 3][:-1] }} {{ '<&' | e }}",
            "bc cba [1, 2] &lt;&amp;",
        ),
    ] {
        assert_eq!(render(source).unwrap(), printed);
    }
    assert!(render("{{ 'a' * 'b' }}").is_err());
    assert!(render("{{ {} * 2 }}").is_err());
    assert!(render("{{ 'a' + 1 }}").is_err());
}

#[test]
fn comparisons_hold_on_both_sides() {
    let tests = [
        ("eq", "equalto", "==", [false, true, false]),
        ("ne", "!=", "!=", [true, false, true]),
        ("lt", "lessthan", "<", [true, false, false]),
        ("le", "<=", "<=", [true, true, false]),
        ("gt", "greaterthan", ">", [false, false, true]),
        ("ge", ">=", ">=", [false, true, true]),
    ];
    for (name, other, sign, holds) in tests {
        for (number, holds) in [1, 2, 3].into_iter().zip(holds) {
            let list = format!("[{number}] | select('{name}', 2) | list | length == 1");
            let other = format!("[{number}] | select('{other}', 2) | list | length == 1");
            let source = format!(
                "{{{{ {number} is {name} 2 }}}} {{{{ {list} }}}} {{{{ {other} }}}} {{{{ {number} {sign} 2 }}}}"
            );
            let expected = if holds {
                "True True True True"
            } else {
                "False False False False"
            };
            assert_eq!(render(&source).unwrap(), expected, "{source}");
        }
    }
}

/// Such trees once overflowed the stack of the compiler.
#[test]
fn deep_templates_are_refused() {
    let refused = |source: String| {
        let error = render(&source).unwrap_err().to_string();
        assert!(
            error.contains("nests more") || error.contains("'elif'") || error.contains("recursion"),
            "{error}"
        );
    };
    refused(format!("{{{{ 1{} }}}}", " + 1".repeat(100_000)));
    refused(format!("{{{{ 'a'{} }}}}", " ~ ('a')".repeat(50_000)));
    refused(format!("{{{{ messages{} }}}}", "[0]".repeat(100_000)));
    refused(format!("{{{{ messages{} }}}}", ".a".repeat(100_000)));
    refused(format!("{{{{ messages{} }}}}", " | list".repeat(100_000)));
    refused(format!("{{{{ {}1 }}}}", "not ".repeat(100_000)));
    refused(format!("{{{{ {}1 }}}}", "-".repeat(100_000)));
    refused(format!(
        "{{% if 1 %}}{}{{% endif %}}",
        "{% elif 1 %}".repeat(50_000)
    ));
    // At the limits.
    let sum = |operators: usize| format!("{{{{ 1{} }}}}", " + 1".repeat(operators));
    assert_eq!(render(&sum(200)).unwrap(), "201");
    refused(sum(201));
    let branches = |count: usize| {
        let branches = "{% elif 0 %}b".repeat(count);
        format!("{{% if 0 %}}a{branches}{{% else %}}c{{% endif %}}")
    };
    assert_eq!(render(&branches(200)).unwrap(), "c");
    refused(branches(201));
    // Operators before a comma, in another bracket or in another tag are not nested.
    let half = "1".to_owned() + &" + 1".repeat(150);
    let printed = render(&format!("{{{{ [{half}, {half}] }}}}{{{{ {half} }}}}")).unwrap();
    assert_eq!(printed, "[151, 151]151");
    assert_eq!(
        render(&format!("{{{{ ({half}) }}}} {half}"))
            .unwrap()
            .split(' ')
            .next(),
        Some("151")
    );
    refused(format!("{{{{ {half} + ({half}) }}}}"));
    let long = format!("{{{{ [{}] | length }}}}", "(1 + 1) ~ 'a', ".repeat(5000));
    assert_eq!(render(&long).unwrap(), "5000");
    let chain = format!("{{{{ 'a'{} }}}}", " + 'a'".repeat(150));
    assert_eq!(render(&chain).unwrap().len(), 151);
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
