//! The JSON view: every text in it is quoted, keys too.

use welte_report::{Header, json};
use welte_table::{BufferSpec, Class, Format, Part, Program, Source, Usage, WeightSpec};

/// A program without commands, whose buffer and weight have this name.
fn named(name: &str) -> Program {
    Program {
        weights: vec![WeightSpec {
            name: name.into(),
            format: Format::Q8_0,
            n: 2,
            k: 32,
            usage: Usage::Matrix,
            add: 0.0,
            source: Source::Parts(vec![Part {
                tensor: name.into(),
                first_row: 3,
                rows: 2,
            }]),
        }],
        buffers: vec![BufferSpec {
            name: name.into(),
            class: Class::ScratchDecode,
            bytes: 7,
        }],
        caches: Vec::new(),
        vocab: 10,
        context: 1,
        page: 1,
        slots: 1,
        tokens: 0,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: Vec::new(),
    }
}

#[test]
fn every_text_is_quoted() {
    // A quotation mark, a backslash, a control character, and a letter that needs no escape.
    let (name, quoted) = ("a\"b\\c\n\u{1f}é", r#""a\"b\\c\n\u001fé""#);
    let header = Header {
        title: name.into(),
        facts: vec![
            (name.into(), "first".into()),
            ("second".into(), name.into()),
        ],
        available: Some(5),
        ..Header::default()
    };
    let json = json(&named(name), &header);
    for part in [
        format!(
            r#"{{"title":{quoted},"facts":{{{quoted}:"first","second":{quoted}}},"memory":{{"weights":0,"#
        ),
        r#""total":0,"available":5},"vocab":10,"#.into(),
        format!(r#""buffers":[{{"name":{quoted},"class":"scratch decode","bytes":7}}]"#),
        format!(
            r#""weights":[{{"name":{quoted},"format":"Q8_0","n":2,"k":32,"usage":"matrix","source":[{{"tensor":{quoted},"first_row":3,"rows":2}}]}}]"#
        ),
        r#""passes":[]}"#.into(),
    ] {
        assert!(json.contains(&part), "{json} lacks {part}");
    }
}
