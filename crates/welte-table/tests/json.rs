//! The JSON view: every text in it is quoted, keys too.

use welte_table::{
    BufferSpec, Class, Format, KvLayout, Part, Program, Source, Usage, WeightSpec, dump,
};

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
        kv: KvLayout {
            format: Format::F16,
            layers: 1,
            kv_heads: 1,
            head_dim: 8,
            page: 1,
            pages: 1,
            sequences: 1,
            context: 1,
        },
        vocab: 10,
        tokens: 0,
        tables: Vec::new(),
    }
}

#[test]
fn every_text_is_quoted() {
    // A quotation mark, a backslash, a control character, and a letter that needs no escape.
    let (name, quoted) = ("a\"b\\c\n\u{1f}é", r#""a\"b\\c\u000a\u001fé""#);
    let header = dump::Header {
        title: name.into(),
        facts: vec![
            (name.into(), "first".into()),
            ("second".into(), name.into()),
        ],
        available: Some(5),
        ..dump::Header::default()
    };
    let json = dump::json(&named(name), &header);
    for part in [
        format!(
            r#"{{"title":{quoted},"facts":{{{quoted}:"first","second":{quoted}}},"memory":{{"weights":0,"#
        ),
        r#""total":0,"available":5},"vocab":10,"#.into(),
        format!(r#""buffers":[{{"name":{quoted},"class":"scratch decode","bytes":7}}]"#),
        format!(
            r#""weights":[{{"name":{quoted},"format":"Q8_0","n":2,"k":32,"usage":"matrix","source":[{{"tensor":{quoted},"first_row":3,"rows":2}}]}}]"#
        ),
        r#""tables":[]}"#.into(),
    ] {
        assert!(json.contains(&part), "{json} lacks {part}");
    }
}
