//! Hugging Face directories and what `open` says to other things.

use proptest::prelude::*;
use std::path::Path;
use tempfile::TempDir;
use welte_formats::{Checkpoint, Dialect, TensorInfo, Value, hf, open};
use welte_table::Format;

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 64, "rope_theta": 1e4, "tie": true, "none": null,
    "architectures": ["LlamaForCausalLM"], "eos_token_id": [1, 2], "low": -3,
    "rope_scaling": {"factor": 8.0, "type": "llama3", "deep": {"er": [{"a": 1}, [2]]}}}"#;

/// A safetensors file: a header and data.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend((0..data).map(|i| i as u8));
    out
}

fn weights() -> Vec<u8> {
    let header = r#"{"__metadata__": {"format": "pt"}, "m": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]},
        "v": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]}, "h": {"dtype": "F16", "shape": [1, 2], "data_offsets": [32, 36]}}"#;
    safetensors(header, 36)
}

fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let directory = TempDir::new().unwrap();
    files
        .iter()
        .for_each(|(name, bytes)| std::fs::write(directory.path().join(name), bytes).unwrap());
    directory
}

/// The refusal of a path, which must hold all of `parts`.
#[track_caller]
fn refused(path: &Path, parts: &[&str]) {
    let error = open(path).err().expect("must be refused").to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn a_single_file() {
    let made = directory(&[
        ("config.json", CONFIG.as_bytes()),
        ("model.safetensors", &weights()),
        ("tokenizer.json", b"{}"),
        ("chat_template.jinja", b"x"),
    ]);
    let read = open(made.path()).unwrap();
    assert_eq!(read.dialect(), Dialect::HuggingFace);
    let metadata = read.metadata();
    let text = |s: &str| Value::String(s.to_string());
    assert_eq!(metadata["general.architecture"], text("llama"));
    assert_eq!(metadata["hidden_size"], Value::U64(64));
    assert_eq!(metadata["low"], Value::I64(-3));
    assert_eq!(metadata["rope_theta"], Value::F64(1e4));
    assert_eq!(metadata["tie"], Value::Bool(true));
    assert_eq!(metadata["rope_scaling.factor"], Value::F64(8.0));
    assert_eq!(metadata["rope_scaling.deep.er.0.a"], Value::U64(1));
    assert_eq!(
        metadata["rope_scaling.deep.er.1"],
        Value::Array(vec![Value::U64(2)])
    );
    assert_eq!(
        metadata["eos_token_id"],
        Value::Array(vec![Value::U64(1), Value::U64(2)])
    );
    assert!(!metadata.contains_key("none"));
    let info = |name: &str, format, n, k| TensorInfo {
        name: name.into(),
        format,
        n,
        k,
        stack: 1,
    };
    let expected = [
        info("m", Format::BF16, 3, 4),
        info("v", Format::F32, 1, 2),
        info("h", Format::F16, 1, 2),
    ];
    assert_eq!(read.tensors(), expected);
    assert_eq!(
        *read.rows(&expected[0], 1, 1).unwrap(),
        [8, 9, 10, 11, 12, 13, 14, 15]
    );
    assert_eq!(*read.rows(&expected[2], 0, 1).unwrap(), [32, 33, 34, 35]);
    assert!(read.rows(&expected[0], 2, 2).is_err());
    assert!(read.rows(&info("x", Format::F16, 1, 2), 0, 1).is_err());
    let files = read.text_files();
    assert!(files.tokenizer_json.is_some() && files.chat_template.is_some());
    assert!(files.tokenizer_config_json.is_none() && files.generation_config_json.is_none());
}

#[test]
fn shards() {
    let one = safetensors(
        r#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#,
        4,
    );
    let two = safetensors(
        r#"{"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#,
        4,
    );
    let index = |map: &str| {
        format!(r#"{{"metadata": {{"total_size": 8}}, "weight_map": {map}}}"#).into_bytes()
    };
    let with = |map: &str| {
        directory(&[
            ("config.json", CONFIG.as_bytes()),
            ("x-1.safetensors", &one),
            ("x-2.safetensors", &two),
            ("model.safetensors.index.json", &index(map)),
        ])
    };
    let good = with(r#"{"a": "x-1.safetensors", "b": "x-2.safetensors"}"#);
    let read = open(good.path()).unwrap();
    assert_eq!(read.tensors().len(), 2);
    assert!(read.tensor("b").is_some());
    refused(
        with(r#"{"a": "x-1.safetensors", "b": "x-3.safetensors"}"#).path(),
        &["x-3.safetensors", "is missing"],
    );
    refused(
        with(r#"{"a": "x-1.safetensors", "c": "x-2.safetensors"}"#).path(),
        &["tensor c", "x-2.safetensors"],
    );
    refused(
        with(r#"{"a": "../x-1.safetensors"}"#).path(),
        &["weight_map", "plain file name"],
    );
    refused(with(r#"{"a": 1}"#).path(), &["weight_map.a"]);
    refused(with("{}").path(), &["weight_map", "no tensors"]);
    refused(with("[]").path(), &["index.json", "weight_map"]);
    std::fs::copy(
        good.path().join("x-1.safetensors"),
        good.path().join("x-2.safetensors"),
    )
    .unwrap();
    refused(good.path(), &["tensor a", "two files"]);
}

#[test]
fn wrong_fields_are_named() {
    let header = |tensor: &str, data: usize| {
        let made = directory(&[("config.json", CONFIG.as_bytes())]);
        let bytes = safetensors(&format!(r#"{{"w": {tensor}}}"#), data);
        std::fs::write(made.path().join("model.safetensors"), bytes).unwrap();
        made
    };
    refused(
        header(
            r#"{"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}"#,
            8,
        )
        .path(),
        &["tensor w", "I64", "BF16"],
    );
    refused(
        header(
            r#"{"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}"#,
            8,
        )
        .path(),
        &["tensor w", "F8_E4M3"],
    );
    refused(
        header(
            r#"{"dtype": "F32", "shape": [1,1,1,1,1,2], "data_offsets": [0, 8]}"#,
            8,
        )
        .path(),
        &["tensor w", "6 dim"],
    );
    refused(
        header(
            r#"{"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}"#,
            0,
        )
        .path(),
        &["tensor w", "empty"],
    );
    refused(
        header(
            r#"{"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}"#,
            8,
        )
        .path(),
        &["model.safetensors", "header"],
    );
    refused(
        header(
            r#"{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}"#,
            4,
        )
        .path(),
        &["model.safetensors", "header"],
    );
    let huge = r#"{"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}"#;
    refused(header(huge, 0).path(), &["model.safetensors"]);
    let made = header("{}", 0);
    let mut bytes = u64::MAX.to_le_bytes().to_vec();
    bytes.extend([b'{'; 100]);
    std::fs::write(made.path().join("model.safetensors"), bytes).unwrap();
    refused(made.path(), &["model.safetensors", "header"]);

    let config = |text: &str| {
        directory(&[
            ("config.json", text.as_bytes()),
            ("model.safetensors", &weights()),
        ])
    };
    refused(config("{").path(), &["config.json", "JSON"]);
    // Its contents can be listed, although nothing names its architecture.
    let unnamed = config("{}");
    let opened = welte_formats::open(unnamed.path()).expect("a directory without model_type");
    assert!(!opened.metadata().contains_key("general.architecture"));
    assert!(!opened.tensors().is_empty());
    refused(config("[1]").path(), &["config.json", "object"]);
    refused(
        config(r#"{"model_type": 3}"#).path(),
        &["config.json", "model_type"],
    );
    refused(
        config(r#"{"model_type": "a", "x.y": 1, "x": {"y": 2}}"#).path(),
        &["config.json", "x.y", "twice"],
    );
    refused(
        config(&format!(
            r#"{{"a": {}1{}}}"#,
            "[".repeat(5000),
            "]".repeat(5000)
        ))
        .path(),
        &["config.json"],
    );
}

/// Python writes numbers that JSON does not have, and null in lists.
#[test]
fn numbers_of_python_are_null() {
    let more = r#", "limit": [0.0, Infinity], "least": -Infinity, "none": NaN, "some": [null, 7.0], "text": "\"NaN\\" }"#;
    let text = CONFIG.strip_suffix('}').unwrap().to_string() + more;
    let made = directory(&[
        ("config.json", text.as_bytes()),
        ("model.safetensors", &weights()),
    ]);
    let checkpoint = open(made.path()).unwrap();
    let value = |key: &str| checkpoint.metadata().get(key).cloned();
    assert_eq!(value("limit.0"), Some(Value::F64(0.0)));
    assert_eq!(value("some.1"), Some(Value::F64(7.0)));
    assert_eq!(value("text"), Some(Value::String("\"NaN\\".into())));
    for key in ["limit", "limit.1", "least", "none", "some", "some.0"] {
        assert_eq!(value(key), None, "{key}");
    }
    refused(
        directory(&[("config.json", br#"{"model_type": Infinity"#)]).path(),
        &["config.json", "JSON"],
    );
}

#[test]
fn other_things_are_told_apart() {
    let made = directory(&[
        ("empty.gguf", b""),
        ("model.safetensors", &weights()),
        ("pytorch_model.bin", b"PK\x03\x04zip"),
        ("old.pth", &[0x80, 2, 0x8a, 10]),
        ("model.json", b"{}"),
        (
            "pointer.gguf",
            b"version https://git-lfs.github.com/spec/v1\n",
        ),
        ("text.gguf", b"hello, this is text"),
    ]);
    let at = |name: &str| made.path().join(name);
    refused(&at("empty.gguf"), &["empty.gguf", "empty"]);
    refused(&at("none.gguf"), &["none.gguf", "No such file"]);
    refused(&at("model.safetensors"), &["give the directory"]);
    refused(&at("pytorch_model.bin"), &["PyTorch", "convert"]);
    refused(&at("old.pth"), &["PyTorch"]);
    refused(&at("model.json"), &["directory"]);
    refused(&at("pointer.gguf"), &["Git LFS"]);
    refused(&at("text.gguf"), &["text.gguf", "not a known kind"]);
    refused(made.path(), &["config.json"]);
    let bare = directory(&[
        ("config.json", CONFIG.as_bytes()),
        ("pytorch_model.bin", b"PK"),
    ]);
    refused(bare.path(), &["pytorch_model.bin", "zip archive"]);
    let other = directory(&[("config.json", CONFIG.as_bytes()), ("flax.bin", b"x")]);
    refused(other.path(), &["model.safetensors", "flax.bin", "rename"]);
    #[cfg(target_os = "linux")]
    refused(Path::new("/dev/null"), &["/dev/null", "regular"]);
    let error = welte_formats::gguf::Gguf::open(made.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("directory"), "{error}");
}

#[test]
#[cfg(unix)]
fn no_permission() {
    use std::os::unix::fs::PermissionsExt;
    let made = directory(&[("a.gguf", b"GGUF")]);
    let path = made.path().join("a.gguf");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may read it all the same.
    if std::fs::File::open(&path).is_err() {
        refused(&path, &["a.gguf", "ermission"]);
    }
}

/// Reads whatever can be read.
fn exercise(config: &[u8], weights: &[u8]) {
    let made = directory(&[("config.json", config), ("model.safetensors", weights)]);
    if let Ok(read) = hf::Directory::open(made.path()) {
        for tensor in read.tensors() {
            assert!(
                read.rows(tensor, 0, tensor.n)
                    .is_ok_and(|rows| rows.len() <= weights.len())
            );
        }
    }
}

#[test]
fn cut_anywhere_it_is_refused() {
    let whole = weights();
    for length in 1..whole.len() {
        let made = directory(&[
            ("config.json", CONFIG.as_bytes()),
            ("model.safetensors", &whole[..length]),
        ]);
        refused(made.path(), &["model.safetensors"]);
    }
    for length in 1..CONFIG.len() {
        let made = directory(&[
            ("config.json", &CONFIG.as_bytes()[..length]),
            ("model.safetensors", &whole),
        ]);
        refused(made.path(), &["config.json"]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn flipped_bytes_do_no_harm(flips in prop::collection::vec((0usize..2000, any::<u8>()), 1..5)) {
        let (mut config, mut weights) = (CONFIG.as_bytes().to_vec(), weights());
        for (at, value) in flips {
            let length = config.len();
            config[at % length] = value;
            exercise(&config, &weights);
            let length = weights.len();
            weights[at % length] = value;
            exercise(CONFIG.as_bytes(), &weights);
        }
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 1..200), text in "[\\[\\]{}\":,0-9a-z.-]{1,60}") {
        exercise(&bytes, &bytes);
        exercise(text.as_bytes(), &bytes);
        exercise(CONFIG.as_bytes(), &safetensors(&text, 16));
    }
}
