//! What people type who come from other programs.

mod common;

use common::{command, err, out, welte};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};

/// Runs with a text on standard input.
fn piped(args: &[&str], text: &str) -> Output {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

const SHORT: [&str; 8] = ["-n", "8", "--temp", "0", "-s", "1", "--device", "cpu"];

#[test]
fn a_question_and_a_pipe_are_one_prompt() {
    let ask = |args: &[&str], input: &str| {
        let output = piped(&[args, &SHORT].concat(), input);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output)
    };
    let both = ask(&["run", "What happens next?"], "The fox ran.\n");
    assert_eq!(both, ask(&["run"], "The fox ran.\n\nWhat happens next?"));
    assert_eq!(
        both,
        ask(&["run", "-p", "What happens next?"], "The fox ran.\n")
    );
    // An empty input is none.
    let question = ask(&["run", "What happens next?"], "");
    assert_eq!(
        question,
        out(&welte(
            &[&["run", "What happens next?"], &SHORT[..]].concat()
        ))
    );
    assert_ne!(question, both);
}

#[test]
fn llama_cpps_flags_are_honoured_or_noted() {
    let base = ["run", "Hello", "-n", "4", "--temp", "0"];
    let flags = [
        "-ngl",
        "0",
        "-cnv",
        "--jinja",
        "-fa",
        "on",
        "-b",
        "64",
        "-ub",
        "16",
        "--no-mmap",
    ];
    let output = welte(&[&base[..], &flags].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let notes: Vec<String> = err(&output)
        .lines()
        .filter(|line| line.starts_with("note: -"))
        .map(str::to_string)
        .collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("--no-mmap has no effect"), "{notes:?}");
    assert_eq!(
        out(&output),
        out(&welte(&[&base[..], &["--device", "cpu"]].concat()))
    );
    let refused = welte(&[&base[..], &["--rope-scaling", "linear"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    let said = err(&refused);
    assert!(said.contains("--rope-scaling: "), "{said}");
    let missing = welte(&[&base[..], &["--lora-scaled", "x.gguf:0.5"]].concat());
    assert_eq!(missing.status.code(), Some(1));
    let said = err(&missing);
    assert!(said.contains("x.gguf: "), "{said}");
}

#[test]
fn a_cpu_run_does_not_lament_a_missing_gpu() {
    let notes = |args: &[&str]| {
        let text = err(&welte(&[&["run", "Hello", "-n", "2"], args].concat()));
        text.lines()
            .any(|line| line.contains("NVIDIA driver's library"))
    };
    assert!(!notes(&[]));
    // With -v it says so, unless there is a GPU.
    let doctor = out(&welte(&["doctor"]));
    if doctor.contains("NVIDIA driver's library") {
        assert!(notes(&["-v"]));
    }
}

#[test]
fn help_is_short_and_help_all_is_not() {
    for name in ["run", "chat", "serve"] {
        let short = out(&welte(&[name, "--help"]));
        let long = out(&welte(&[name, "--help-all"]));
        assert!(
            short.lines().count() <= 60,
            "{name}: {}",
            short.lines().count()
        );
        assert!(short.contains("--help-all"));
        assert!(long.contains("--xtc-threshold") && !short.contains("--xtc-threshold"));
    }
}

#[test]
fn shells_and_man_get_their_files() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = out(&welte(&["completions", shell]));
        assert!(
            script.contains("perplexity") && script.contains("top-nsigma"),
            "{shell}"
        );
    }
    assert_eq!(welte(&["completions", "tcl"]).status.code(), Some(2));
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("a/man1");
    let output = welte(&["man", man.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = std::fs::read_to_string(man.join("welte-serve.1")).unwrap();
    assert!(page.contains("checkpoints"), "{page}");
    assert!(man.join("welte.1").is_file());
}

#[cfg(feature = "hub")]
#[test]
fn common_models_have_short_names() {
    let list = out(&welte(&["list", "--available"]));
    assert!(list.lines().count() >= 40);
    let line = list
        .lines()
        .find(|line| line.starts_with("qwen3:4b "))
        .unwrap();
    assert!(line.ends_with("Qwen/Qwen3-4B-GGUF:Q4_K_M"), "{line}");
    let json = out(&welte(&["list", "--available", "-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["name"], "qwen3:0.6b");
    // A short name is looked up on the hub, here on one that is not there.
    let home = tempfile::tempdir().unwrap();
    for args in [
        &["run", "gemma3:270m", "hi"][..],
        &["run", "-hf", "gemma3:270m", "hi"],
    ] {
        let output = command(args)
            .env("HF_HOME", home.path())
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            err(&output).contains("ggml-org/gemma-3-270m-it-GGUF"),
            "{}",
            err(&output)
        );
    }
}

#[test]
fn a_chat_model_that_reranks_is_noted() {
    let output = welte(&["rerank", "-m", "models/demo.gguf", "fox", "a fox", "a bear"]);
    let note = "does not say that it is a reranker; the scores of a chat model mean little";
    assert!(err(&output).contains(note), "{}", err(&output));
}

/// Starts a server for one request at a time, and reads what it says until it listens: the port is one that was free.
fn serving(args: &[&str]) -> (Child, String) {
    let common = ["serve", "--port", "0", "-np", "1", "--device", "cpu"];
    let mut server = command(&[&common[..], args].concat())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let stderr = server.stderr.as_mut().unwrap();
    let mut byte = [0];
    while !(said.contains("listening at http://") && said.ends_with('\n')) {
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{said}");
        said.push(byte[0].into());
    }
    (server, said)
}

/// Agents need more than the 4,096 positions that were once the default.
#[test]
fn a_server_takes_the_models_own_context() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
    let mut model = std::fs::read(demo).unwrap();
    // The key of its metadata, the type of the value, the value.
    let key = b"qwen3.context_length";
    let at = model.windows(key.len()).position(|part| part == key);
    let at = at.unwrap() + key.len() + 4;
    assert_eq!(model[at..at + 4], 2048u32.to_le_bytes());
    model[at..at + 4].copy_from_slice(&12_000u32.to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.gguf");
    std::fs::write(&path, model).unwrap();
    let path = path.to_str().unwrap();
    for (more, tokens) in [(&[][..], 12_000), (&["-c", "512"][..], 512)] {
        let (mut server, said) = serving(&[&["-m", path][..], more].concat());
        server.kill().unwrap();
        server.wait().unwrap();
        let expected = format!("a context of {tokens} tokens for each request");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn ps_and_stop_ask_a_running_server() {
    let (mut server, said) = serving(&["-c", "256", "--api-key", "k"]);
    let port = said.trim_end().rsplit(':').next().unwrap().to_string();
    let ask = |args: &[&str]| welte(&[args, &["--port", &port, "--api-key", "k"]].concat());
    let loaded = ask(&["ps"]);
    assert!(out(&loaded).contains("demo"), "{}", err(&loaded));
    let wrong = welte(&["ps", "--port", &port, "--api-key", "x"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(err(&wrong).contains("key"), "{}", err(&wrong));
    let stopped = ask(&["stop", "demo"]);
    assert_eq!(stopped.status.code(), Some(0), "{}", err(&stopped));
    let gone = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        out(&ask(&["ps"])).is_empty()
    });
    assert!(gone, "{}", out(&ask(&["ps"])));
    let again = ask(&["stop", "demo"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err(&again).contains("not loaded"), "{}", err(&again));
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn no_server_and_other_servers_are_told_apart() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let none = welte(&["ps", "--port", &port]);
    assert_eq!(none.status.code(), Some(1));
    assert!(err(&none).contains("no server answers"), "{}", err(&none));
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _): (TcpStream, _) = other.accept().unwrap();
        stream.write_all(b"220 mail.example.org\r\n").unwrap();
    });
    let mail = welte(&["ps", "--port", &port]);
    thread.join().unwrap();
    assert_eq!(mail.status.code(), Some(1), "{}", out(&mail));
}

/// What Mistral's vocabularies have.
const PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A tiny model that hears, with a vocabulary of bytes, and a second of sound.
fn hearing(name: &str) -> (welte_goldens::Golden, String, String) {
    let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
    let marks = [
        ("<unk>", 0),
        ("<s>", 1),
        ("</s>", 2),
        ("[INST]", 3),
        ("[/INST]", 4),
        ("[SYSTEM_PROMPT]", 5),
        ("[AUDIO]", 24),
        ("[BEGIN_AUDIO]", 25),
        ("[TRANSCRIBE]", 29),
        ("<|AUDIO|>", 7),
    ];
    let special: Vec<String> = marks
        .iter()
        .map(|(text, rank)| format!(r#"{{"rank": {rank}, "token_str": "{text}"}}"#))
        .collect();
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let token = |byte: usize| {
        let [first, second] = [letters[byte >> 2], letters[(byte & 3) << 4]].map(char::from);
        format!(r#"{{"token_bytes": "{first}{second}"}}"#)
    };
    let vocab: Vec<String> = (0..221).map(token).collect();
    let pattern = PATTERN.replace('\\', "\\\\");
    let tekken = format!(
        r#"{{"config": {{"pattern": "{pattern}", "default_vocab_size": 251, "default_num_special_tokens": 30}},
            "vocab": [{}], "special_tokens": [{}]}}"#,
        vocab.join(","),
        special.join(",")
    );
    std::fs::write(golden.path().join("tekken.json"), tekken).unwrap();
    let samples: Vec<u8> = (0..16_000u32)
        .flat_map(|n| (((f64::from(n) * 0.2).sin() * 9000.0) as i16).to_le_bytes())
        .collect();
    let mut wav = b"RIFF\x24\x7d\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\x7d\0\0".to_vec();
    wav.extend(samples);
    let file = golden.path().join("said.wav");
    std::fs::write(&file, wav).unwrap();
    let [model, file] = [golden.path(), &file].map(|path| path.display().to_string());
    (golden, model, file)
}

#[test]
fn a_sound_is_asked_about_and_written_down() {
    let (_golden, model, file) = hearing("voxtral");
    let cpu = ["--device", "cpu", "-c", "128"];
    let ask = |files: &[&str]| {
        let output =
            welte(&[&["run", "-m", &model, "-p", "what", "-n", "4"], files, &cpu].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        err(&output)
    };
    // The sound takes 13 rows, those of a window of about a second, and a mark.
    let tokens = |said: &str| {
        let said = said.lines().find(|line| line.contains("prompt")).unwrap();
        let digits = said
            .split(|c: char| !c.is_ascii_digit())
            .find(|d| !d.is_empty());
        digits.unwrap().parse::<u32>().unwrap()
    };
    let (plain, heard) = (ask(&[]), ask(&["--audio", &file]));
    assert_eq!(tokens(&heard), tokens(&plain) + 14, "{plain}\n{heard}");
    let picture = file.replace(".wav", ".png");
    std::fs::write(&picture, "no picture").unwrap();
    let asked = ["run", "-m", &model, "-p", "what", "--image", &picture];
    let refused = welte(&[&asked[..], &cpu].concat());
    let said = err(&refused);
    assert!(said.contains("takes no images"), "{said}");
    let output = welte(&[
        "transcribe",
        "-m",
        &model,
        "--json",
        "--device",
        "cpu",
        "-l",
        "en",
        &file,
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let said = out(&output);
    let begins = r#"{"task":"transcribe","language":"english","duration":1.0,"text":""#;
    assert!(said.starts_with(begins), "{said}");
    assert!(
        said.contains(r#""segments":[{"id":0,"seek":0,"start":0.0,"end":1.0,"#),
        "{said}"
    );
    let written = |flag: &str| {
        let output = welte(&["transcribe", "-m", &model, flag, "--device", "cpu", &file]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output)
    };
    let srt = written("--srt");
    assert!(
        srt.starts_with("1\n00:00:00,000 --> 00:00:01,000\n"),
        "{srt}"
    );
    let lines = written("--seed=0");
    assert!(lines.starts_with("[00:00.00 -> 00:01.00]  "), "{lines}");
    assert!(!written("--text").contains("-->"));
    for (flag, said) in [
        ("--word-timestamps", "without times"),
        ("--translate", "--translate"),
        ("--no-context", "--no-context"),
        ("--no-speech-threshold=0.5", "--no-speech-threshold"),
    ] {
        let output = welte(&["transcribe", "-m", &model, flag, "--device", "cpu", &file]);
        assert_eq!(output.status.code(), Some(1), "{flag}");
        assert!(err(&output).contains(said), "{}", err(&output));
    }
    let broken = file.replace(".wav", ".txt");
    std::fs::write(&broken, "no sound").unwrap();
    let output = welte(&["transcribe", "-m", &model, "--device", "cpu", &broken]);
    assert!(err(&output).contains("said.txt"), "{}", err(&output));
    let (_golden, other, file) = hearing("qwen2_audio");
    let output = welte(&["transcribe", "-m", &other, "--device", "cpu", &file]);
    assert!(
        err(&output).contains("ask it in a chat"),
        "{}",
        err(&output)
    );
    let shown = welte(&["inspect", &other, "--device", "cpu"]);
    assert!(
        out(&shown).contains("encoder in the directory"),
        "{}{}",
        out(&shown),
        err(&shown)
    );
}
