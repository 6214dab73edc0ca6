//! Pictures of a program: equal layers are folded, texts are escaped, no program makes them panic.

use proptest::prelude::*;
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, compile, spec};
use welte_report::{Header, dot, fold, html, human, json, text};
use welte_table::{BufferRef, Format, MemoryPlan, Program, cost, from_lines, to_lines};

fn program(name: &str) -> Program {
    let checkpoint = Synthetic::parse(name).unwrap();
    let spec = spec(&checkpoint).unwrap();
    welte_table::fuse(
        compile(&spec, &checkpoint, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    )
}

fn small() -> Program {
    program("custom,arch=qwen3,layers=3:q4_0")
}

fn header(program: &Program) -> Header {
    Header {
        title: "a <model> \"quoted\"".into(),
        facts: vec![("a & b".into(), "<c>".into())],
        plan: MemoryPlan::of(program, &cost::stored_bytes),
        available: Some(1 << 30),
    }
}

/// First command, length and number of turns of each fold of the decode pass.
fn folds(program: &Program) -> Vec<(usize, usize, usize)> {
    let folds = fold(&program.passes[0]);
    folds.iter().map(|f| (f.first, f.len, f.times)).collect()
}

#[test]
fn equal_layers_are_folded() {
    let mut p = small();
    assert_eq!(folds(&p), [(0, 1, 1), (1, 6, 3), (19, 1, 1), (20, 1, 1)]);
    // The second layer differs from its neighbours.
    p.passes[0].commands[7].format = Format::Q6_K;
    assert_eq!(
        folds(&p),
        [
            (0, 1, 1),
            (1, 6, 1),
            (7, 6, 1),
            (13, 6, 1),
            (19, 1, 1),
            (20, 1, 1)
        ]
    );
    // Embedding, layers, head, sample.
    assert_eq!(folds(&program("qwen3-0.6b:q4_0")).len(), 4);
}

#[test]
fn layers_of_other_caches_are_not_folded() {
    // Every second layer has a window, so its keys and values are in another cache.
    let p = program("custom,arch=gpt-oss,layers=4,window=9:mxfp4_moe");
    assert!(fold(&p.passes[0]).iter().all(|f| f.times == 1));
}

#[test]
fn every_view_names_passes_and_layers() {
    let p = small();
    let header = header(&p);
    let shown = text(&p, &header);
    for words in ["decode", "prompt", "layers 0 to 2 (3 times)", "rope_append"] {
        assert!(shown.contains(words), "'{words}' is not in {shown}");
    }
    let dot = dot(&p, &header);
    assert_eq!(dot.matches('{').count(), dot.matches('}').count());
}

#[test]
fn titles_and_facts_are_escaped() {
    let p = small();
    let header = header(&p);
    let html = html(&p, &header);
    assert!(html.contains("a &lt;model&gt; &quot;quoted&quot;"));
    assert!(html.contains("a &amp; b") && html.contains("&lt;c&gt;"));
    assert!(!html.contains("<model>") && !html.contains("<script"));
    let json = json(&p, &header);
    assert!(json.contains("\"title\":\"a <model> \\\"quoted\\\"\""));
}

#[test]
fn sizes_are_rounded_for_people() {
    assert_eq!(human(0), "0 B");
    assert_eq!(human(1023), "1023 B");
    assert_eq!(human(1536), "1.5 KiB");
    assert_eq!(human(3 << 30), "3.00 GiB");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_damage_never_panics(at in 0usize..100_000, with in "[ -~\n]{0,3}") {
        let text = to_lines(&small());
        let at = at % text.len();
        let end = (at + with.len()).min(text.len());
        let damaged = format!("{}{with}{}", &text[..at], &text[end..]);
        if let Ok(p) = from_lines(&damaged) {
            every_view(&p);
        }
    }

    #[test]
    fn random_words_never_panic(
        index in 0usize..200, word in 0usize..23, value in prop::sample::select(vec![0, 1, 3, 1 << 31, u32::MAX]),
    ) {
        let mut p = small();
        let n = p.passes[1].commands.len();
        let c = &mut p.passes[1].commands[index % n];
        match word {
            0..16 => c.params[word] = value,
            16..19 => c.weights[word - 16] = value,
            _ => c.buffers[word - 19] = BufferRef { buffer: value & 7, offset: value },
        }
        every_view(&p);
    }
}

fn every_view(p: &Program) {
    let header = Header::default();
    text(p, &header);
    html(p, &header);
    json(p, &header);
    dot(p, &header);
}
