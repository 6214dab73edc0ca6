//! The binary as people use it: on the bundled model, and on bad input.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// What it keeps goes beside the build: speeds measured beside other tests are not for whoever runs these.
fn command(args: &[&str]) -> Command {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_welte"));
    if std::env::var_os("XDG_CACHE_HOME").is_none() {
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    }
    command
        .args(args)
        .current_dir(root)
        .env_remove("WELTE_MODEL");
    command
}

fn welte(args: &[&str]) -> Output {
    command(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start: {error}"))
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// It must fail with this code and say all of this.
fn refused(args: &[&str], code: i32, says: &[&str]) {
    let output = welte(args);
    let text = err(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    for word in says {
        assert!(
            text.contains(word),
            "{args:?}: {text:?} does not say {word:?}"
        );
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn a_prompt_alone_tells_a_story_from_the_bundled_model() {
    let args = [
        "run",
        "Tell me a story about a fox.",
        "--temp",
        "0",
        "-s",
        "1",
    ];
    let (first, second) = (welte(&args), welte(&args));
    assert_eq!(first.status.code(), Some(0), "{}", err(&first));
    assert!(out(&first).contains("fox"), "{}", out(&first));
    assert_eq!(out(&first), out(&second));
    let figures = err(&first);
    for word in [
        "prompt",
        "generation",
        "t/s",
        "first token",
        "peak memory",
        "GB/s",
    ] {
        assert!(figures.contains(word), "{figures}");
    }
}

#[test]
fn a_prompt_comes_from_a_pipe_a_flag_or_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "Tell me a story about a fox.").unwrap();
    let common = ["--temp", "0", "-n", "12"];
    let flag = welte(&[&["run", "-p", "Tell me a story about a fox."][..], &common].concat());
    let from_file = welte(&[&["run", "-f", file.to_str().unwrap()][..], &common].concat());
    let mut child = command(&[&["run"][..], &common].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"Tell me a story about a fox.")
        .unwrap();
    let piped = child.wait_with_output().unwrap();
    assert_eq!(flag.status.code(), Some(0), "{}", err(&flag));
    assert_eq!(out(&flag), out(&from_file));
    assert_eq!(out(&flag), out(&piped));
}

#[test]
fn tokens_come_as_one_array() {
    let output = welte(&[
        "tokenize",
        "-m",
        "models/demo.gguf",
        "--ids",
        "--no-bos",
        "-p",
        "Once upon a time",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let ids: Vec<u32> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!ids.is_empty());
}

#[test]
fn inspect_shows_every_form() {
    for form in ["text", "json", "dot", "html"] {
        let output = welte(&[
            "inspect",
            "synthetic:qwen3-8b:q4_k",
            "-c",
            "8192",
            "-o",
            form,
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        assert!(out(&output).contains("attention"), "{form}");
        if form == "json" {
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
        }
    }
}

#[test]
fn inspect_says_how_a_gpu_would_replay() {
    let facts = |args: &[&str]| {
        let mut all = vec!["inspect", "synthetic:qwen3-8b:q4_k", "--device", "cpu"];
        all.extend(args);
        let text = out(&welte(&all));
        let line = text.lines().find(|line| line.contains("replay on a GPU"));
        let line = line.unwrap_or_else(|| panic!("{text}")).to_string();
        all.extend(["-o", "json"]);
        let json: serde_json::Value = serde_json::from_slice(&welte(&all).stdout).unwrap();
        let said = json["facts"]["replay on a GPU"].as_str().unwrap();
        assert!(line.ends_with(said), "{line} {said}");
        said.to_string()
    };
    let (taken, graph) = (facts(&[]), facts(&["--replay", "graph"]));
    let refused = facts(&["-ctk", "q8_0", "-ctv", "q8_0"]);
    match welte::gpu_info(0) {
        Ok(_) => assert!(!taken.contains("assuming"), "{taken}"),
        Err(_) => {
            let assumed = "; assuming an H200, for there is no GPU here";
            let takes = "graph; the persistent kernel takes this model (--replay persistent)";
            assert_eq!(graph, format!("{takes}{assumed}"));
            let rows = "steps of up to 6 rows too";
            assert_eq!(taken, format!("persistent kernel; {rows}{assumed}"));
            let why = "graph (not the persistent kernel: a KV cache in Q8_0)";
            assert_eq!(refused, format!("{why}{assumed}"));
        }
    }
}

#[test]
fn profile_writes_a_trace_of_a_prompt_and_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let path = file.to_str().unwrap();
    let args = [
        "profile",
        "models/demo.gguf",
        "--device",
        "cpu",
        "-p",
        "20",
        "-n",
        "2",
        "--trace",
    ];
    let output = welte(&[&args[..], &[path]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for process in [1, 2] {
        let named = |name: &str| {
            let of = |e: &&serde_json::Value| e["pid"] == process && e["name"] == name;
            events.iter().filter(of).count()
        };
        assert_eq!(named("thread_name"), 1);
        assert!(
            named("layer 0 attention") == 1 && named("layer 0 norm_matmul_act_mul gate, up") <= 1
        );
    }
    // Slices follow one another.
    let mut ends = [0.0; 3];
    for event in events.iter().filter(|e| e["ph"] == "X") {
        let end = &mut ends[event["pid"].as_u64().unwrap() as usize];
        let (ts, dur) = (
            event["ts"].as_f64().unwrap(),
            event["dur"].as_f64().unwrap(),
        );
        assert!(ts >= *end && dur >= 0.0);
        *end = ts + dur;
    }
    assert!(ends[1] > 0.0 && ends[2] > 0.0);
    let nowhere = folder.path().join("no/such/folder");
    let mut wrong = args.to_vec();
    wrong.push(nowhere.to_str().unwrap());
    refused(&wrong, 1, &["--trace", "cannot be written"]);
    let mut plain = args.to_vec();
    plain.extend([path, "--reference"]);
    refused(&plain, 1, &["--trace", "leave it out"]);
}

#[test]
fn bench_and_profile_and_perplexity_speak_json() {
    let bench = welte(&[
        "bench",
        "models/demo.gguf",
        "-p",
        "16",
        "-n",
        "8",
        "-r",
        "2",
        "-o",
        "json",
    ]);
    assert_eq!(bench.status.code(), Some(0), "{}", err(&bench));
    let rows: serde_json::Value = serde_json::from_slice(&bench.stdout).unwrap();
    assert_eq!(rows[0]["test"], "pp16");
    assert_eq!(rows[1]["test"], "tg8");
    let deep = [
        "bench",
        "models/demo.gguf",
        "--device",
        "cpu",
        "-p",
        "0",
        "-n",
        "4",
        "-r",
        "1",
        "-d",
        "300",
        "--random-depth",
        "-ctk",
        "q8_0",
        "-o",
        "jsonl",
    ];
    let deep = welte(&deep);
    assert_eq!(deep.status.code(), Some(0), "{}", err(&deep));
    let row: serde_json::Value = serde_json::from_slice(&deep.stdout).unwrap();
    assert_eq!(row["test"], "tg4 @ random d300");
    assert_eq!(row["random_depth"], true);
    let profile = welte(&[
        "profile",
        "models/demo.gguf",
        "-p",
        "8",
        "-n",
        "8",
        "-o",
        "json",
    ]);
    assert_eq!(profile.status.code(), Some(0), "{}", err(&profile));
    let profile = serde_json::from_slice::<serde_json::Value>(&profile.stdout).unwrap();
    assert!(profile["floor_gb_s"].as_f64().unwrap() > 0.0);
    let page = welte(&[
        "profile",
        "models/demo.gguf",
        "-p",
        "8",
        "-n",
        "2",
        "-o",
        "html",
    ]);
    let page = out(&page);
    assert!(page.contains("<svg") && page.contains("norm_matmul") && page.ends_with("</html>\n"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, "The fox went home. It was late. ".repeat(40)).unwrap();
    let same = [
        "perplexity",
        "models/demo.gguf",
        "--kl-to",
        "models/demo.gguf",
        "-f",
        file.to_str().unwrap(),
        "-c",
        "64",
        "--chunks",
        "1",
        "-o",
        "json",
    ];
    let same = serde_json::from_slice::<serde_json::Value>(&welte(&same).stdout).unwrap();
    assert_eq!(same["kl"].as_f64(), Some(0.0));
    assert_eq!(same["same_top"].as_f64(), Some(1.0));
    assert_eq!(same["positions"].as_u64(), Some(31));
    let score = welte(&[
        "perplexity",
        "-m",
        "models/demo.gguf",
        "-f",
        file.to_str().unwrap(),
        "-c",
        "64",
        "-o",
        "json",
    ]);
    assert_eq!(score.status.code(), Some(0), "{}", err(&score));
    let score: serde_json::Value = serde_json::from_slice(&score.stdout).unwrap();
    assert!(score["ppl"].as_f64().unwrap() > 1.0);
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

#[test]
fn bad_input_is_refused_with_the_place_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        file.to_str().unwrap().to_string()
    };
    let empty = path("empty.gguf", b"");
    let noise = path("noise.gguf", &[0x5a; 300]);
    let huge = path(
        "huge.gguf",
        &[b"GGUF\x03\0\0\0".as_slice(), &[0xff; 16]].concat(),
    );
    refused(&["inspect", &empty], 1, &["empty.gguf"]);
    refused(&["inspect", &noise], 1, &["noise.gguf"]);
    refused(&["inspect", &huge], 1, &["huge.gguf"]);
    refused(
        &["run", "-m", "no/such.gguf", "-p", "hi"],
        1,
        &["no/such.gguf"],
    );
    refused(&["run", "no/such.gguf", "hi"], 1, &["no/such.gguf"]);
    refused(&["inspect", "synthetic:no-such:q4_0"], 1, &["no-such"]);
    refused(
        &["inspect", folder.path().to_str().unwrap()],
        1,
        &["config.json"],
    );
    refused(&["run", "-f", "no/such.txt"], 1, &["no/such.txt"]);
    refused(&["run", "-p", "a", "-f", "b"], 2, &["--file"]);
    refused(&["run", "--tmep", "0"], 2, &["--temp"]);
    refused(&["frobnicate"], 2, &["frobnicate"]);
    refused(&["run", "hi", "-ctk", "q4_0"], 2, &["q8_0"]);
    refused(
        &["run", "hi", "-ctk", "f16", "-ctv", "q8_0"],
        1,
        &["-ctk", "-ctv"],
    );
    refused(&["run", "hi", "--top-p", "7"], 1, &["--top-p"]);
    refused(&["run", "hi", "-c", "64000000"], 1, &["needs", "-c"]);
}

#[test]
fn a_device_that_is_not_there_is_refused_with_the_reason() {
    for device in ["gpu", "cuda:", "cuda:x", "cuda:-1", ""] {
        refused(
            &["run", "hi", "--device", device],
            2,
            &["--device", "cuda:N"],
        );
    }
    // No machine has as many GPUs.
    let device = "cuda:4000000000";
    for command in [
        &["run", "-m", "models/demo.gguf", "-p", "hi"][..],
        &["inspect", "models/demo.gguf"],
        &["bench", "models/demo.gguf"],
        &["bench", "models/demo.gguf", "--ladder"],
        &["profile", "models/demo.gguf"],
        &["perplexity", "models/demo.gguf", "-f", "README.md"],
    ] {
        refused(
            &[command, &["--device", device]].concat(),
            1,
            &[device, "CUDA", "--device cpu"],
        );
    }
    refused(
        &["run", "hi", "--device", "cuda", "--reference"],
        1,
        &["--reference", "CPU"],
    );
    refused(
        &["bench", "models/demo.gguf", "--ladder", "--device", "cpu"],
        1,
        &["--ladder", "GPU"],
    );
}

#[test]
fn the_closing_line_says_where_it_ran_and_where_the_start_went() {
    let args = ["run", "hello", "-n", "4", "--verbose", "--device"];
    let cpu = welte(&[&args[..], &["cpu"]].concat());
    assert_eq!(cpu.status.code(), Some(0), "{}", err(&cpu));
    let said = err(&cpu);
    assert!(said.trim_end().ends_with("· cpu"), "{said}");
    for word in ["first token", "after the process began", "load", "GB/s"] {
        assert!(said.contains(word), "{said}");
    }
    let auto = welte(&[&args[..], &["auto"]].concat());
    let said = err(&auto);
    match welte::gpu_info(0) {
        Ok(_) => assert!(said.contains("cuda:0"), "{said}"),
        // On the CPU, and why.
        Err(why) => assert!(said.contains(&format!("cpu ({why})")), "{said}"),
    }
}

#[test]
fn what_doctor_measured_is_in_the_closing_line() {
    let cache = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        err(&command(args)
            .env("XDG_CACHE_HOME", cache.path())
            .stdin(Stdio::null())
            .output()
            .unwrap())
    };
    let run = ["run", "hello", "-n", "4", "--device", "cpu"];
    let before = said(&run);
    assert!(before.contains("GB/s · cpu"), "{before}");
    let doctor = said(&["doctor"]);
    let after = said(&run);
    assert!(
        after.contains(" % of ") && after.contains("GB/s ("),
        "{after}\n{doctor}"
    );
}

#[test]
fn doctor_tells_of_the_gpu_or_why_there_is_none() {
    let text = welte(&["doctor"]);
    assert_eq!(text.status.code(), Some(0), "{}", err(&text));
    for word in ["NVRTC", "cuBLASLt", "kernel cache", "devices        cpu"] {
        assert!(out(&text).contains(word), "{}", out(&text));
    }
    let json = welte(&["doctor", "-o", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let cuda = &report["cuda"];
    match welte::gpu_info(0) {
        Ok(gpu) => assert_eq!(cuda["gpus"][0]["name"], gpu.name),
        Err(why) => assert_eq!(cuda["why_none"], why.to_string()),
    }
}

#[test]
fn nobody_listening_is_no_error() {
    let mut child = command(&["inspect", "synthetic:qwen3-8b:q4_k", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(err(&output), "");
}
