//! Model files: their cards, other formats, and directories made of them.

mod common;

use common::{err, out, refused, welte};

#[test]
fn a_file_becomes_a_directory_with_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let directory = format!("{}/hf/", folder.path().display());
    let made = welte(&["quantize", "models/demo.gguf", &directory, "F32"]);
    assert!(made.status.success(), "{}", err(&made));
    let answer = |model: &str| {
        let args = [
            "run",
            "-m",
            model,
            "A fox",
            "-n",
            "12",
            "--temp",
            "0",
            "--device",
            "reference",
        ];
        out(&welte(&args))
    };
    let (file, copy) = (answer("models/demo.gguf"), answer(&directory));
    assert!(!file.is_empty());
    assert_eq!(file, copy);
    let tokens = |model: &str| {
        let text = "Once upon a time, \u{e9}\u{1f98a}  <s> x1 2345\n\n end.";
        out(&welte(&["tokenize", model, "-p", text, "--ids"]))
    };
    assert_eq!(tokens("models/demo.gguf"), tokens(&directory));
    let card = |model: &str| {
        let shown = out(&welte(&["show", model, "-o", "json"]));
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        ["parameters", "capabilities", "license"].map(|key| shown[key].clone())
    };
    assert_eq!(card("models/demo.gguf"), card(&directory));
    refused(
        &["quantize", "models/demo.gguf", &directory, "BF16"],
        1,
        &["config.json", "another folder"],
    );
    let other = format!("{}/other/", folder.path().display());
    refused(
        &["quantize", "models/demo.gguf", &other, "Q8_0"],
        1,
        &["F32, F16 or BF16"],
    );
    refused(
        &["quantize", &directory, &other, "F16"],
        1,
        &["is a directory already"],
    );
}

#[test]
fn show_prints_the_card_of_the_bundled_model() {
    let shown = welte(&["show"]);
    let text = out(&shown);
    for line in [
        "architecture  ",
        "licence       ",
        "context       ",
        "capabilities  completion, chat, embedding",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let json = out(&welte(&["show", "models/demo.gguf", "-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["format"], "Q8_0");
    assert!(json["model_info"]["general.architecture"].is_string());
    refused(&["show", "models/README.md"], 1, &["README.md"]);
}

#[test]
fn quantize_writes_a_model_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("q8.gguf");
    let path = file.to_str().unwrap();
    let made = welte(&["quantize", "models/demo.gguf", path, "Q8_0"]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let output = welte(&[
        "run",
        path,
        "Tell me a story about a fox.",
        "-n",
        "8",
        "--temp",
        "0",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
}
