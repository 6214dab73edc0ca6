//! Rows that are not tokens of a text, against transformers (`tools/goldens/rows.py`): features between tokens, three axes, and
//! spans that attend both ways, longer than the window.

use super::{PROMPT_ROWS, Target, compare, compile, cpu, reference};
use serde_json::Value;
use std::path::Path;
use welte_device::Context;
use welte_table::{Format, Input, PassKind, Row};

const VOCABULARY: usize = 251;

/// One entry of `rows.json` with its logits.
struct Golden {
    path: String,
    /// The first row with logits.
    first: usize,
    rows: Vec<Row>,
    logits: Vec<f32>,
}

fn floats(file: &str) -> Vec<f32> {
    let bytes = std::fs::read(welte_goldens::folder().join(file)).expect("the floats");
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn golden(name: &str) -> Golden {
    let text = std::fs::read_to_string(welte_goldens::folder().join("rows.json")).expect("a list");
    let list: Vec<Value> = serde_json::from_str(&text).expect("the list is JSON");
    let entry = list.iter().find(|entry| entry["name"] == name);
    let entry = entry.expect("the golden");
    let number = |value: &Value| value.as_u64().expect("a number") as u32;
    let row = |(position, row): (u32, &Value)| Row {
        input: match row.get("feature") {
            Some(feature) => Input::Feature(number(feature)),
            None => Input::Token(number(&row["token"])),
        },
        axes: [0, 1, 2].map(|axis| number(&row["axes"][axis])),
        reach: number(&row["reach"]),
        ..Row::new(0, position, 0)
    };
    let rows = (0..).zip(entry["rows"].as_array().expect("rows"));
    Golden {
        path: entry["path"].as_str().expect("a path").to_string(),
        first: number(&entry["first"]) as usize,
        rows: rows.map(row).collect(),
        logits: floats(&format!("rows/{name}.f32")),
    }
}

/// Cuts rows into steps of at most `most`, and no span that attends both ways.
fn pieces(rows: &[Row], most: usize) -> Vec<&[Row]> {
    let (mut pieces, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let last = rest.len().min(most) - 1;
        let crossing = |row: &Row| row.reach > rest[last].position;
        let cut = rest[..=last].iter().position(crossing);
        let (piece, others) = rest.split_at(cut.unwrap_or(last + 1));
        assert!(!piece.is_empty(), "a span of more than {most} rows");
        pieces.push(piece);
        rest = others;
    }
    pieces
}

/// All ways to compute the rows: the prompt in one step, in pieces, rows of the decode pass, and the last rows one by one.
fn check(golden: &Golden, folder: &Path, target: &Target) {
    let checkpoint = welte_formats::open(folder).expect("a checkpoint");
    let device = &*target.device;
    let features = floats("rows/features.f32");
    let bytes: Vec<u8> = features.iter().flat_map(|v| v.to_ne_bytes()).collect();
    let program = compile(&*checkpoint, device, 16).expect("the device takes features");
    let plan = device.plan(program.clone()).expect("a plan");
    let loaded = device.load(plan, &*checkpoint, &mut |_| ());
    let loaded = loaded.expect("the model");
    let pass = |kind| program.pass(kind).expect("a pass of this kind");
    let (decode, prompt) = (pass(PassKind::Decode), pass(PassKind::Prompt));
    let context = || {
        let mut context = loaded.context().expect("a context");
        let written = context.write_bytes(program.features, 0, &bytes);
        written.expect("features");
        context
    };
    let tolerance = (target.tolerance)(Format::BF16);
    let mut worst = 0.0f32;
    let mut judge = |path: &str, rows: &[Row], got: &[f32]| {
        assert_eq!(got.len(), rows.len() * VOCABULARY, "{path}");
        for (row, got) in rows.iter().zip(got.chunks_exact(VOCABULARY)) {
            let position = row.position as usize;
            let Some(at) = position.checked_sub(golden.first) else {
                continue;
            };
            let want = &golden.logits[at * VOCABULARY..][..VOCABULARY];
            match compare(got, want, tolerance) {
                Ok(error) => worst = worst.max(error),
                Err(why) => panic!(
                    "{} on {}: {path}, row {position}: {why}",
                    golden.path, target.name
                ),
            }
        }
    };
    let mut run = |context: &mut dyn Context, path: &str, pass: usize, rows: &[Row]| {
        let every: Vec<u32> = (0..rows.len() as u32).collect();
        let outputs = if pass == decode { &[] } else { &every[..] };
        let got = context.step_rows(pass, rows, outputs);
        judge(path, rows, got.expect("a valid step"));
    };
    let rows = &golden.rows[..];
    assert!(rows.len() <= PROMPT_ROWS);
    run(context().as_mut(), "prompt", prompt, rows);
    for (path, pass, most) in [("pieces", prompt, 11), ("decode pass", decode, 16)] {
        let mut context = context();
        for piece in pieces(rows, most) {
            run(context.as_mut(), path, pass, piece);
        }
    }
    let mut context = context();
    let (first, rest) = rows.split_at(rows.len() - 6);
    run(context.as_mut(), "a prompt", prompt, first);
    for row in rest {
        run(context.as_mut(), "one by one", decode, &[*row]);
    }
    println!("{} on {}: {worst:.2e}", golden.path, target.name);
}

fn check_all(name: &str, edit: &dyn Fn(String) -> String) {
    let golden = golden(name);
    assert_eq!(
        golden.logits.len(),
        (golden.rows.len() - golden.first) * VOCABULARY
    );
    let folder = tempfile::tempdir().expect("a folder");
    welte_goldens::write(&golden.path, folder.path());
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(&config, edit(text)).expect("a configuration");
    for target in reference().iter().chain(&cpu()) {
        check(&golden, folder.path(), target);
    }
}

#[test]
fn qwen2_vl() {
    check_all("qwen2_vl", &|text| {
        let with = |text: String, from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        };
        let text = with(text, r#""qwen2""#, r#""qwen2_vl_text""#);
        let kind = r#""rope_type": "default""#;
        with(
            text,
            kind,
            &format!(r#"{kind}, "mrope_section": [8, 12, 12]"#),
        )
    });
}

#[test]
fn gemma3() {
    check_all("gemma3", &|text| text);
}
