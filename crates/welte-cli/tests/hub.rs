//! The commands of the hub, against one on this machine.
#![cfg(feature = "hub")]

#[path = "../../welte-hub/tests/mock/mod.rs"]
mod mock;

use mock::{File, Mock};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn demo() -> Vec<u8> {
    std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/demo.gguf"
    ))
    .unwrap()
}

fn hub() -> Mock {
    let bytes = demo();
    let file = File {
        name: "demo-Q8_0.gguf".to_string(),
        tag: welte_hub::sha256(&bytes),
        bytes,
        large: true,
    };
    Mock::new("org/demo", vec![file])
}

fn command(mock: &Mock, home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_welte"));
    for name in [
        "HF_HUB_CACHE",
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "SSL_CERT_FILE",
        "WELTE_MODEL",
    ] {
        command.env_remove(name);
    }
    command
        .args(args)
        .env("HF_ENDPOINT", &mock.url)
        .env("HF_HOME", home)
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn welte(mock: &Mock, home: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    told(command(mock, home, args).output().unwrap())
}

fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_model_is_pulled_used_listed_shown_and_removed() {
    let (mock, home) = (hub(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| welte(&mock, home.path(), args);
    // Pulled when it is first named, found afterwards.
    let ask = ["tokenize", "-hf", "org/demo:Q8_0", "-p", "a fox", "--ids"];
    let (code, first, said) = run(&ask);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        first.starts_with('[') && said.contains("checksums match"),
        "{said}"
    );
    assert!(!mock.asked().is_empty());
    assert_eq!(run(&ask), (Some(0), first, String::new()));
    assert!(mock.asked().is_empty(), "what is there is not asked for");
    let (code, out, said) = run(&[
        "run",
        "-hf",
        "org/demo",
        "-n",
        "4",
        "--temp",
        "0",
        "Tell me a story.",
    ]);
    assert!(code == Some(0) && !out.is_empty(), "{said}");

    let (_, path, said) = run(&["pull", "org/demo:demo-Q8_0.gguf"]);
    assert!(said.contains("already in the cache"), "{said}");
    assert_eq!(std::fs::read(path.trim()).unwrap(), demo());
    let (_, list, _) = run(&["list"]);
    assert!(
        list.trim_end().ends_with("org/demo:demo-Q8_0.gguf") && list.contains("MiB"),
        "{list}"
    );
    let (_, json, _) = run(&["list", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["bytes"], demo().len());
    let (_, shown, _) = run(&["show", "org/demo"]);
    assert!(
        shown.contains(mock::COMMIT) && shown.contains("main") && shown.contains("demo-Q8_0.gguf"),
        "{shown}"
    );
    // Its card comes first.
    assert!(
        shown.contains("capabilities  completion, chat, embedding") && shown.contains("licence"),
        "{shown}"
    );
    let (_, json, _) = run(&["show", "org/demo:Q8_0", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["models"][0]["format"], "Q8_0");
    assert_eq!(json["snapshots"][0]["commit"], mock::COMMIT);

    let (code, _, said) = run(&["rm", "org/demo"]);
    assert!(code == Some(1) && said.contains("-y"), "{said}");
    let (code, out, _) = run(&["rm", "org/demo", "-y"]);
    assert!(
        code == Some(0) && out.contains(&format!("{} bytes", demo().len())),
        "{out}"
    );
    assert_eq!(run(&["list"]).1, "");
}

#[test]
fn a_model_is_created_run_served_shown_and_removed() {
    let (mock, home) = (hub(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| welte(&mock, home.path(), args);
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_string();
    std::fs::write(at("demo.gguf"), demo()).unwrap();
    let file = "FROM demo.gguf\nSYSTEM You are a fox.\nPARAMETER temperature 0\nPARAMETER num_predict 5\nMESSAGE user Hi\nMESSAGE assistant Yip.\n";
    std::fs::write(at("Modelfile"), file).unwrap();
    let (code, _, said) = run(&["create", "fox", "-f", &at("Modelfile")]);
    assert_eq!(code, Some(0), "{said}");
    let (code, short, said) = run(&["run", "fox", "Tell me a story.", "--device", "cpu", "-v"]);
    assert!(code == Some(0) && said.contains("5 tokens"), "{said}");
    // Flags come before parameters, and the parameters hold where there are none.
    let (_, long, said) = run(&[
        "run",
        "fox",
        "Tell me a story.",
        "-n",
        "9",
        "--device",
        "cpu",
    ]);
    assert!(
        long.starts_with(short.trim_end()) && said.contains("9 tokens"),
        "{said}"
    );
    // The messages and the system prompt are part of the prompt.
    let prompt = |said: &str| {
        let (_, after) = said
            .split_once("prompt ")
            .unwrap_or_else(|| panic!("{said}"));
        let digits = after.split(' ').next().unwrap_or_default();
        digits.parse::<u32>().unwrap_or_else(|_| panic!("{said}"))
    };
    let plain = [
        "run",
        "-m",
        &at("demo.gguf"),
        "Tell me a story.",
        "-n",
        "5",
        "--device",
        "cpu",
    ];
    assert!(prompt(&run(&plain).2) + 8 < prompt(&said), "{said}");
    // One over the other.
    std::fs::write(at("Second"), "FROM fox\nPARAMETER num_predict 3").unwrap();
    assert_eq!(
        run(&["create", "fox:small", "-f", &at("Second")]).0,
        Some(0)
    );
    let (_, shown, _) = run(&["show", "fox:small"]);
    assert!(
        shown.contains("SYSTEM You are a fox.")
            && shown.contains("PARAMETER num_predict 3")
            && shown.contains("# capabilities  completion")
            && shown.contains(&at("demo.gguf")),
        "{shown}"
    );
    let (_, list, _) = run(&["list"]);
    assert!(
        list.contains("fox (created from demo)") && list.contains("fox:small"),
        "{list}"
    );
    for (text, word) in [
        ("FROM nowhere.gguf", "nowhere.gguf: neither a file"),
        ("FROM demo.gguf\nADAPTER x", "line 2: ADAPTER"),
        ("FROM demo.gguf\nPARAMETER top_k many", "parameter top_k"),
    ] {
        std::fs::write(at("Bad"), text).unwrap();
        let (code, _, said) = run(&["create", "bad", "-f", &at("Bad")]);
        assert!(code == Some(1) && said.contains(word), "{said}");
    }
    let (_, _, said) = run(&["create", "qwen3:4b", "-f", &at("Modelfile")]);
    assert!(said.contains("short name"), "{said}");
    assert_eq!(run(&["rm", "fox"]).0, Some(0));
    assert!(!run(&["list"]).1.contains("fox ("));
    let (code, _, said) = run(&["run", "fox", "Tell me a story."]);
    assert!(
        code == Some(1) && said.contains("fox: no such file"),
        "{said}"
    );
}

/// What lies beside the model as its encoder is fetched with it, and a broken one does not stop the model.
#[test]
fn an_encoder_of_images_is_pulled_with_its_model() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: Vec<u8>| File {
        name: name.to_string(),
        tag: welte_hub::sha256(&bytes),
        bytes,
        large: true,
    };
    let files = vec![
        file("demo-Q8_0.gguf", demo()),
        file("mmproj-F16.gguf", b"an encoder".to_vec()),
    ];
    let mock = Mock::new("org/demo", files);
    let run = |args: &[&str]| welte(&mock, home.path(), args);
    let (code, path, said) = run(&["pull", "org/demo", "--no-mmproj"]);
    assert_eq!(code, Some(0), "{said}");
    let encoder = Path::new(path.trim()).with_file_name("mmproj-F16.gguf");
    assert!(!encoder.exists());
    let (code, _, said) = run(&["pull", "org/demo"]);
    assert!(
        code == Some(0) && said.contains("mmproj-F16.gguf: done"),
        "{said}"
    );
    assert_eq!(std::fs::read(&encoder).unwrap(), b"an encoder");
    let ask = ["-n", "2", "--device", "cpu", "A fox"];
    let all = |first: &[&'static str]| [first, &ask].concat();
    let (code, _, said) = run(&all(&["run", "-hf", "org/demo"]));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(run(&["rm", "org/demo", "-y"]).0, Some(0));
    // Named on a command that takes no images, only the model comes.
    let (code, _, said) = run(&["tokenize", "-hf", "org/demo", "-p", "a"]);
    assert!(code == Some(0) && !encoder.exists(), "{said}");
    run(&["rm", "org/demo", "-y"]);
    let (code, _, said) = run(&all(&["run", "-hf", "org/demo"]));
    assert!(code == Some(0) && encoder.exists(), "{said}");
}

#[test]
fn two_processes_that_want_one_model_download_it_once() {
    let (mock, home) = (hub(), tempfile::tempdir().unwrap());
    mock.set(|b| b.slow = std::time::Duration::from_millis(300));
    let start = || {
        command(&mock, home.path(), &["pull", "org/demo"])
            .spawn()
            .unwrap()
    };
    let both = [start(), start()].map(|child| told(child.wait_with_output().unwrap()));
    for (code, path, said) in &both {
        assert_eq!(*code, Some(0), "{said}");
        assert_eq!(std::fs::read(path.trim()).unwrap(), demo());
    }
    let sent: usize = mock
        .asked()
        .iter()
        .filter(|a| a.there)
        .map(|a| a.sent)
        .sum();
    assert_eq!(sent, demo().len());
}

#[test]
fn what_cannot_be_had_is_said_with_the_remedy() {
    let (mock, home) = (hub(), tempfile::tempdir().unwrap());
    let refused = |args: &[&str], code, word: &str| {
        let (got, _, said) = welte(&mock, home.path(), args);
        assert!(
            got == Some(code) && said.contains(word),
            "{args:?}: {got:?} {said}"
        );
    };
    refused(&["pull", "org/demo:Q2_K"], 1, "demo-Q8_0.gguf");
    refused(&["pull", "org/none"], 1, "check the name");
    refused(&["pull", "not a name"], 2, "ORG/NAME");
    refused(&["run", "-hf", "../x", "hello"], 1, "ORG/NAME");
    refused(
        &["run", "-m", "x", "-hf", "org/demo", "hello"],
        2,
        "cannot be used with",
    );
    refused(
        &["bench", "models/demo.gguf", "-hf", "org/demo"],
        1,
        "two models",
    );
    refused(&["show", "org/none"], 1, "welte list");
    let output = command(&mock, home.path(), &["run", "-hf", "org/none", "hello"])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(told(output).2.contains("HF_HUB_OFFLINE"));
}
