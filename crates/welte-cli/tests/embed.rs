//! `welte embed` on a model of texts and images.

use std::process::{Command, Output, Stdio};

/// Measured speeds are stored beside the build, not in the user's cache.
fn welte(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_welte"));
    if std::env::var_os("XDG_CACHE_HOME").is_none() {
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    }
    command
        .args(args)
        .env_remove("WELTE_MODEL")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start: {error}"))
}

/// What it printed and what it said.
fn words_of(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// jina-clip: a line for each text and each image.
#[test]
fn embed_reads_texts_and_images() {
    let list = std::fs::read_to_string(welte_goldens::folder().join("clip.json")).unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let golden = welte_goldens::Golden::new(list["path"].as_str().unwrap());
    let model = golden.path().to_str().unwrap();
    let (text, image) = (&list["texts"][1], &list["pictures"][0]);
    let folder = welte_goldens::folder().join("../../../welte-vision/tests/data/pictures");
    let file = folder.join(image["picture"].as_str().unwrap());
    let asked = text["text"].as_str().unwrap();
    let (device, file) = (["--device", "cpu"], file.to_str().unwrap());
    let given = ["embed", "-m", model, asked, "--image", file];
    let output = welte(&[&given[..], &device].concat());
    let (found, said) = words_of(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let found: Vec<serde_json::Value> = found
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), 2);
    for (found, want) in found.iter().zip([text, image]) {
        let floats = |list: &serde_json::Value| {
            let list = list.as_array().unwrap().iter();
            list.map(|v| v.as_f64().unwrap()).collect::<Vec<_>>()
        };
        let (found, want) = (floats(&found["embedding"]), floats(&want["vector"]));
        let length = want.iter().map(|v| v * v).sum::<f64>().sqrt();
        let cosine: f64 = found.iter().zip(&want).map(|(a, b)| a * b / length).sum();
        assert!((1.0 - cosine).abs() < 1e-4, "{cosine}");
    }
    let blind = welte_goldens::Golden::new("encoders/bert");
    let blind = ["embed", "-m", blind.path().to_str().unwrap()];
    let asked = [&blind[..], &["--image", file], &device].concat();
    let output = welte(&asked);
    let (_, said) = words_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("takes no images"), "{said}");
}

/// What tokens weigh beside the vector; texts as tokens have none, so the model gets words.
#[test]
fn embed_weighs_tokens() {
    let golden = welte_goldens::Golden::new("encoders/bge-m3");
    let words = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "unknown", "vocab": {"unknown": 5, "red": 6, "fox": 7, "snow": 8}}}"#;
    std::fs::write(golden.path().join("tokenizer.json"), words).unwrap();
    let model = golden.path().to_str().unwrap();
    let given = ["embed", "-m", model, "--device", "cpu", "red fox", "snow"];
    let lines = |more: &[&str]| {
        let output = welte(&[&given[..], more].concat());
        let (found, said) = words_of(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let lines = found
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<serde_json::Value>>()
    };
    let (plain, sparse) = (lines(&[]), lines(&["--sparse"]));
    assert_eq!((plain.len(), sparse.len()), (2, 2));
    for (plain, both) in plain.iter().zip(&sparse) {
        assert_eq!(plain["embedding"], both["embedding"]);
        assert!(
            plain["sparse"].is_null() && both["sparse"].is_array(),
            "{both}"
        );
    }
    let short = lines(&["--sparse", "--dimensions", "3"]);
    assert_eq!(short[0]["embedding"].as_array().map(Vec::len), Some(3));
    let other = welte_goldens::Golden::new("encoders/xlm-roberta");
    std::fs::write(other.path().join("tokenizer.json"), words).unwrap();
    let other = [
        "embed",
        "-m",
        other.path().to_str().unwrap(),
        "--sparse",
        "fox",
    ];
    let output = welte(&[&other[..], &["--device", "cpu"]].concat());
    let (_, said) = words_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("gives no sparse vectors"), "{said}");
    // SPLADE has sparse vectors alone.
    let splade = welte_goldens::Golden::new("encoders/splade");
    std::fs::write(splade.path().join("tokenizer.json"), words).unwrap();
    let run = |more: &[&str]| {
        let given = ["embed", "-m", splade.path().to_str().unwrap(), "red fox"];
        let output = welte(&[&given[..], &["--device", "cpu"], more].concat());
        let (found, said) = words_of(&output);
        (output.status.code(), found, said)
    };
    let (code, found, said) = run(&["--sparse"]);
    assert_eq!(code, Some(0), "{said}");
    let line: serde_json::Value = serde_json::from_str(&found).unwrap();
    let sparse = line["sparse"].as_array().unwrap();
    assert!(line["embedding"].is_null() && sparse.len() > 10, "{line}");
    for (more, part) in [
        (&[][..], "its vectors are sparse"),
        (&["--sparse", "--dimensions", "3"], "--dimensions"),
    ] {
        let (code, _, said) = run(more);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(part), "{said}");
    }
}
