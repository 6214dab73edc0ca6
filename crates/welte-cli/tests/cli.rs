//! The binary as a user runs it: on the bundled model, and on bad input.

mod common;

use common::{command, err, out, refused, welte};
use std::io::Write;
use std::process::Stdio;

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
fn probabilities_come_as_a_line_per_token() {
    let common = [
        "run",
        "-p",
        "Tell me a story about a fox.",
        "--temp",
        "0",
        "-n",
        "6",
    ];
    let text = out(&welte(&common));
    let output = welte(&[&common[..], &["--logprobs", "2"]].concat());
    let lines = out(&output);
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6, "{}", err(&output));
    let joined: String = lines.iter().filter_map(|l| l["text"].as_str()).collect();
    assert_eq!(joined.trim(), text.trim());
    for line in &lines {
        let top = line["top"].as_array().unwrap();
        // Greedy: each token is the likeliest.
        assert_eq!(top.len(), 2);
        assert_eq!(
            [&top[0]["token"], &top[0]["logprob"]],
            [&line["token"], &line["logprob"]]
        );
        assert!(line["logprob"].as_f64().unwrap() <= 0.0);
    }
    refused(&["run", "--logprobs", "21", "x"], 2, &["--logprobs"]);
}

#[test]
fn a_second_process_finds_the_prompt_in_the_prefix_cache() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("cache");
    let folder = folder.to_str().unwrap();
    let prompt = "Once there was a fox who lived near a river. ".repeat(12);
    let mut args = vec!["run", "--no-chat", "-p", &prompt, "-n", "8", "--temp", "0"];
    let without = welte(&args);
    args.extend(["--prefix-cache", folder, "--prefix-cache-size", "100M"]);
    let (first, second) = (welte(&args), welte(&args));
    for output in [&first, &second] {
        assert_eq!(output.status.code(), Some(0), "{}", err(output));
        assert_eq!(out(output), out(&without));
    }
    assert!(!err(&first).contains(" cached)"), "{}", err(&first));
    assert!(err(&second).contains(" cached)"), "{}", err(&second));
    // A folder that cannot be used is named, and the answer comes all the same.
    args[9] = "models/demo.gguf";
    let refused = welte(&args);
    assert_eq!(out(&refused), out(&without));
    assert!(
        err(&refused).contains("note: prefix cache: models/demo.gguf"),
        "{}",
        err(&refused)
    );
    args[11] = "100X";
    assert_eq!(welte(&args).status.code(), Some(2));
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
fn inspect_shows_rows_and_caches() {
    let output = welte(&[
        "inspect",
        "models/demo.gguf",
        "-c",
        "512",
        "--device",
        "cpu",
    ]);
    let text = out(&output);
    for line in [
        "\ndecode: up to 16 rows, ",
        "\nprompt: up to 512 rows, 16 outputs, ",
        "\ncontext of 512 positions, pages of ",
        " keys and values, 8 layers, ",
    ] {
        assert!(text.contains(line), "{line:?} is missing in {text}");
    }
}

#[test]
fn experts_may_be_on_the_cpu() {
    let source = "synthetic:custom,arch=qwen3moe,layers=3:q8_0";
    let on = |device| ["--device", device, "--cpu-experts"];
    // What memory is free may change between two calls.
    let inspect = |layers| {
        let text = out(&welte(
            &[&["inspect", source][..], &on("reference"), &[layers]].concat(),
        ));
        let lines = text.lines().map(|line| match line.split_once(" of ") {
            Some((size, free)) if free.ends_with(" available") => size,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let two = inspect("2");
    assert!(
        two.contains("2 of 3 layers on cpu, the rest on reference"),
        "{two}"
    );
    assert!(two.contains("memory on cpu"), "{two}");
    let all = inspect("all");
    assert!(
        all.contains("all 3 layers on cpu, the rest on reference"),
        "{all}"
    );
    assert_eq!(inspect("99"), all);
    // The reference device has no speed to compare with.
    if std::env::var_os("WELTE_GPU_REQUIRED").is_some() {
        let bench = [
            "bench", source, "-p", "0", "-n", "2", "-r", "1", "-o", "csv",
        ];
        let rows = out(&welte(&[&bench[..], &on("gpu"), &["2"]].concat()));
        assert!(rows.contains(",GPU+CPU,"), "{rows}");
    }
    let refused = |source: &str, device, layers, code, says: &[&str]| {
        self::refused(
            &[&["inspect", source][..], &on(device), &[layers]].concat(),
            code,
            says,
        );
    };
    let leave = "leave --cpu-experts out";
    refused(
        "synthetic:tiny:q8_0",
        "reference",
        "1",
        1,
        &["has no experts", leave],
    );
    refused(source, "cpu", "1", 1, &["the device is the CPU", leave]);
    refused(
        source,
        "reference",
        "some",
        2,
        &["a number of layers, or all"],
    );
    refused(source, "reference", "-1", 2, &[]);
}

#[test]
fn inspect_says_how_a_gpu_would_replay() {
    let source = "synthetic:qwen3-8b:q4_k";
    let output = welte(&[
        "inspect", source, "--device", "cpu", "--replay", "graph", "-o", "json",
    ]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let replay = json["facts"]["replay on cuda"].as_str().unwrap();
    assert!(replay.starts_with("graph; "), "{replay}");
    assert!(replay.contains("persistent kernel"), "{replay}");
    assert!(json["facts"].get("replay").is_none(), "{json}");
}

#[test]
#[ignore = "needs a GPU"]
fn inspect_says_how_the_gpu_replays() {
    let facts = |args: &[&str]| {
        let inspect = [
            "inspect",
            "synthetic:qwen3-8b:q4_k",
            "--device",
            "cuda",
            "-o",
            "json",
        ];
        let output = welte(&[&inspect[..], args].concat());
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["facts"]["replay"].as_str().unwrap().to_string()
    };
    assert!(facts(&["--replay", "graph"]).starts_with("graph"));
    assert!(facts(&["-ctk", "q8_0", "-ctv", "q8_0"]).contains("Q8_0"));
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
    // Slices do not overlap.
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
}

#[test]
fn profile_shows_a_batched_step() {
    let args = ["profile", "models/demo.gguf", "--device", "cpu", "-p", "4"];
    let output = welte(&[&args[..], &["-n", "2", "--batched", "3", "-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let batch = &report["parts"][2];
    assert_eq!(
        (&batch["part"], &batch["tokens"]),
        (&"batch".into(), &6.into())
    );
    let commands = batch["commands"].as_array().unwrap();
    let sampled = commands.iter().find(|c| c["command"] == "sample").unwrap();
    assert!(sampled["calls"].as_u64().unwrap() >= 2 && sampled["ns"].as_u64().unwrap() > 0);
    let page = welte(&[&args[..], &["-n", "2", "--batched", "3", "-o", "html"]].concat());
    assert!(out(&page).contains("</i> batch &nbsp;"), "{}", out(&page));
}

#[test]
fn bench_profile_and_perplexity_write_json() {
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
    // The share of the memory floor means nothing for a model that fits the cache.
    let in_cache = rows[1]["in_cache"].as_bool().unwrap();
    assert_eq!(rows[1]["floor_share"].is_null(), in_cache);
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
fn an_answer_has_the_form_that_was_asked_for() {
    let schema = r#"{"type": "object", "properties": {"animal": {"enum": ["fox", "owl"]}},
        "required": ["animal"], "additionalProperties": false}"#;
    let output = welte(&["run", "-j", schema, "--seed", "1", "Who is there?"]);
    let text = out(&output);
    let value: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    assert!(
        value["animal"] == "fox" || value["animal"] == "owl",
        "{text}"
    );
    let output = welte(&[
        "run",
        "--regex",
        "(fox|owl){2}",
        "--seed",
        "1",
        "Who is there?",
    ]);
    assert_eq!(out(&output).trim().len(), 6, "{}", out(&output));
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
    refused(
        &["run", "hi", "--top-p", "7"],
        2,
        &["--top-p <P>", "at least 0 and at most 1"],
    );
    refused(&["run", "hi", "-c", "64000000"], 1, &["needs", "try -c "]);
    refused(
        &["run", "hi", "--activations", "fp4"],
        2,
        &["--activations", "wide or fp8"],
    );
    refused(
        &["run", "hi", "--steps", "slow"],
        2,
        &["--steps", "alike or fast"],
    );
    refused(
        &["run", "hi", "--device", "cpu", "--activations", "fp8"],
        1,
        &["activations in FP8", "NVIDIA", "9.0"],
    );
    refused(
        &["run", "hi", "--reference", "--activations", "fp8"],
        1,
        &["reference", "activations in FP8"],
    );
    refused(
        &["run", "hi", "--isa", "mmx"],
        1,
        &["--isa mmx", "use one of"],
    );
    refused(&["run", "hi", "--cpus", "0-x"], 2, &["'x'", "0-3,8"]);
    refused(
        &["run", "hi", "--device", "cpu", "--cpus", "65000"],
        1,
        &["there is no CPU 65000", "this machine has"],
    );
    refused(
        &["run", "hi", "--replay", "tape"],
        2,
        &["persistent", "launches"],
    );
    refused(
        &["run", "hi", "--reference", "--device", "cpu"],
        2,
        &["--reference", "--device"],
    );
    refused(
        &["run", "hi", "--json-schema", "{"],
        1,
        &["--json-schema", "not JSON"],
    );
    refused(
        &["run", "hi", "-j", r#"{"properties": {"a": {"not": {}}}}"#],
        1,
        &["/properties/a/not", "not supported"],
    );
    refused(&["run", "hi", "--json", "--regex", "a"], 2, &["--regex"]);
    refused(
        &["run", "hi", "--grammar-file", "no/such.gbnf"],
        1,
        &["--grammar-file", "no/such.gbnf"],
    );
    refused(
        &["run", "hi", "--grammar", "root ::= nobody"],
        1,
        &["nobody"],
    );
    let long = "fox ".repeat(500);
    refused(&["run", &long, "-c", "256"], 1, &["256", "try -c "]);
}

#[test]
fn a_missing_device_is_refused_with_the_reason() {
    for device in ["abacus", "cuda:", "cuda:x", "cuda:-1", "gpu:", ""] {
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
        &["tune", "models/demo.gguf"],
        &["perplexity", "models/demo.gguf", "-f", "README.md"],
    ] {
        refused(
            &[command, &["--device", device]].concat(),
            1,
            &[device, "try --device cpu"],
        );
    }
    refused(
        &["bench", "models/demo.gguf", "--ladder", "--device", "cpu"],
        1,
        &["--ladder", "GPU"],
    );
}

#[test]
fn the_reference_gives_the_same_text() {
    let run = |device: &[&str]| {
        let args = [
            "run",
            "Tell me a story about a fox.",
            "--temp",
            "0",
            "-n",
            "3",
        ];
        let output = welte(&[&args[..], device].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output)
    };
    let text = run(&["--device", "cpu"]);
    assert_eq!(run(&["--reference"]), text);
    assert_eq!(run(&["--device", "reference"]), text);
}

/// The rows of a benchmark that prints JSON.
fn rows(args: &[&str]) -> Vec<serde_json::Value> {
    let output = welte(&[args, &["--device", "cpu", "-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn bench_decodes_batches() {
    let bench = ["bench", "--synthetic", "tiny:q8_0", "--batched", "1,3"];
    let rows = rows(&[&bench[..], &["-p", "100", "-n", "7", "-r", "2"]].concat());
    assert_eq!(rows.len(), 2);
    let number = |name: &str| rows[1][name].as_f64().unwrap();
    assert_eq!((number("pl"), number("n_kv")), (3.0, 321.0));
    for (speed, tokens, time) in [
        ("speed_pp", 300.0, "t_pp"),
        ("speed_tg", 21.0, "t_tg"),
        ("speed", 321.0, "t"),
    ] {
        assert!((number(speed) * number(time) / tokens - 1.0).abs() < 1e-6);
    }
    for wrong in [
        &["--batched", "0"][..],
        &["--batched", "2", "--ladder"],
        &["--batched", "2", "--serve", "1"],
    ] {
        refused(&[&["bench"], wrong].concat(), 2, &[wrong[0]]);
    }
    refused(&["bench", "--batched", "2", "-n", "0"], 1, &["-n"]);
    refused(&["bench", "--batched", "2", "-d", "64"], 1, &["-d"]);
}

#[test]
fn bench_embeds_texts() {
    let golden = welte_goldens::Golden::new("encoders/bert");
    let encoder = golden.path().to_str().unwrap();
    for model in [["-m", encoder], ["--synthetic", "tiny:q8_0"]] {
        let sizes = ["--embed", "9,70", "--texts", "3", "-r", "2"];
        let rows = rows(&[&["bench"][..], &model, &sizes].concat());
        assert_eq!(rows.len(), 2);
        let number = |name: &str| rows[1][name].as_f64().unwrap();
        assert_eq!((number("tokens"), number("texts")), (70.0, 3.0));
        assert!((number("texts_s") * number("t") / 3.0 - 1.0).abs() < 1e-6);
        assert!((number("speed") * number("t") / 210.0 - 1.0).abs() < 1e-6);
    }
    for (name, says) in [
        ("none", "every token"),
        ("rank", "--reranking"),
        ("sum", "cls"),
    ] {
        refused(&["embed", "--pooling", name, "A"], 2, &["--pooling", says]);
        refused(&["serve", "--pooling", name], 2, &["--pooling", says]);
    }
    refused(&["bench", "--embed", "0"], 2, &["--embed"]);
    refused(&["bench", "--embed", "8", "--ladder"], 2, &["--embed"]);
    refused(&["bench", "--embed", "8", "-d", "64"], 1, &["-d"]);
    // BERT has learned positions.
    refused(&["bench", "-m", encoder, "--embed", "73"], 1, &["72"]);
}

#[test]
fn bench_serves_requests_at_rates() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("load.svg");
    let bench = ["bench", "--synthetic", "tiny:q8_0", "--serve", "200,inf"];
    let sizes = [
        "-p",
        "40",
        "-n",
        "8",
        "--requests",
        "12",
        "-np",
        "3",
        "--svg",
    ];
    let rows = rows(&[&bench[..], &sizes, &[chart.to_str().unwrap()]].concat());
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0]["rate"], &rows[1]["rate"]),
        (&200.0.into(), &"inf".into())
    );
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        assert_eq!((number("requests"), number("slots")), (12.0, 3.0));
        // Both rates have the same requests, around the lengths asked for.
        assert_eq!(row["mean_answer"], rows[0]["mean_answer"]);
        assert!((20.0..=60.0).contains(&number("mean_prompt")));
        assert!((4.0..=12.0).contains(&number("mean_answer")));
        assert!(number("ttft_p50") <= number("ttft_p99") && number("itl_p50") <= number("itl_p99"));
        assert!(number("speed") > 0.0 && number("speed") < number("speed_all"));
    }
    let chart = std::fs::read_to_string(chart).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("inf/s"));
    for wrong in [
        &["--serve", "0"][..],
        &["--serve", "x"],
        &["--requests", "5"],
    ] {
        refused(&[&["bench"], wrong].concat(), 2, &["--serve"]);
    }
    refused(&["bench", "--serve", "1", "-p", "1,2"], 1, &["-p"]);
}

#[test]
fn bench_needs_no_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let demo = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/demo.gguf"
    ));
    let replaced = |name: &str, from: &[u8], to: &[u8]| {
        let mut bytes = demo.as_ref().unwrap().clone();
        let places: Vec<usize> = (0..bytes.len() - from.len())
            .filter(|at| bytes[*at..].starts_with(from))
            .collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        file.to_str().unwrap().to_string()
    };
    // Without any key of a tokenizer, and with the model name that llama.cpp writes for a file without a vocabulary.
    let no_keys = replaced("no-keys.gguf", b"tokenizer.ggml.", b"tokenizer.none.");
    let none = replaced(
        "none.gguf",
        b"\x04\0\0\0\0\0\0\0gpt2",
        b"\x04\0\0\0\0\0\0\0none",
    );
    for file in [&no_keys, &none] {
        let bench = [
            "bench", file, "-p", "4", "-n", "4", "-r", "1", "-o", "jsonl",
        ];
        let output = welte(&[&bench[..], &["--device", "cpu"]].concat());
        assert_eq!(output.status.code(), Some(0), "{file}: {}", err(&output));
        assert!(out(&output).contains("\"tg4\""), "{}", out(&output));
        refused(
            &["run", file, "hi", "--device", "cpu"],
            1,
            &["no tokenizer", "use a file with a vocabulary"],
        );
    }
}

#[test]
fn tune_says_what_there_is_to_tune() {
    let output = welte(&["tune", "models/demo.gguf", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("on cpu (") && out(&output).ends_with("nothing to tune\n"));
}

#[test]
#[ignore = "needs a GPU"]
fn tune_reports_the_parameters_of_a_gpu() {
    let output = welte(&["tune", "synthetic:llama-1b:q4_0", "--device", "cuda"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("persistent: "), "{}", out(&output));
}

#[test]
fn the_closing_line_names_the_device() {
    let args = ["run", "hello", "-n", "4", "--verbose", "--device"];
    let cpu = welte(&[&args[..], &["cpu"]].concat());
    assert_eq!(cpu.status.code(), Some(0), "{}", err(&cpu));
    let said = err(&cpu);
    assert!(said.trim_end().ends_with("· cpu"), "{said}");
    for word in ["first token", "after the process began", "load", "GB/s"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(!said.contains("note: running on"), "{said}");
    // An automatic choice that falls back to the CPU says why, once and before the answer.
    let said = err(&welte(&[&args[..], &["auto"]].concat()));
    let usable =
        |report: &welte::DeviceReport| report.id.kind == "cuda" && report.missing.is_none();
    if !welte::devices().iter().any(usable) {
        assert!(said.starts_with("note: running on cpu: "), "{said}");
        assert!(said.trim_end().ends_with("· cpu"), "{said}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn an_automatic_choice_takes_the_gpu() {
    let said = err(&welte(&["run", "hello", "-n", "4"]));
    assert!(said.contains("· cuda:0"), "{said}");
}

#[test]
fn the_closing_line_compares_with_the_speed_that_doctor_measured() {
    let cache = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        let output = command(args)
            .env("XDG_CACHE_HOME", cache.path())
            .stdin(Stdio::null())
            .output();
        let output = output.unwrap();
        (out(&output), err(&output))
    };
    let run = ["run", "hello", "-n", "4", "--device", "cpu"];
    // A model that fits the cache has no share of the floor.
    let before = said(&run).1;
    let in_cache = before.contains("GB/s (in cache) · cpu");
    assert!(in_cache || before.contains("GB/s · cpu"), "{before}");
    let doctor = said(&["doctor"]).0;
    let after = said(&run).1;
    assert_eq!(after.contains("(in cache)"), in_cache, "{after}");
    assert_eq!(after.contains(" % of "), !in_cache, "{after}\n{doctor}");
}

#[test]
fn doctor_shows_every_device_or_what_is_missing() {
    let text = out(&welte(&["doctor"]));
    let json = welte(&["doctor", "-o", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let devices = report["devices"].as_array().unwrap();
    let cpu = devices.iter().find(|device| device["device"] == "cpu");
    assert!(cpu.unwrap()["read_gb_s"].as_f64().unwrap() > 0.0);
    for device in devices {
        let name = device["device"].as_str().unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let missing = device["missing"].is_string();
        assert_eq!(line.contains("not usable: "), missing, "{line}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
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

#[test]
fn bench_measures_a_made_up_draft() {
    let bench = ["bench", "--synthetic", "tiny:q8_0", "--speculative", "0,1"];
    let rows = rows(&[&bench[..], &["-p", "20", "-n", "40", "-r", "1"]].concat());
    let number = |row: usize, name: &str| rows[row][name].as_f64().unwrap();
    assert_eq!((number(0, "agreement"), number(1, "agreement")), (0.0, 1.0));
    for row in 0..2 {
        let shares = ["verifying", "drafting", "rest"].map(|name| number(row, name));
        assert!(
            (shares.iter().sum::<f64>() - 100.0).abs() < 1e-6,
            "{shares:?}"
        );
        assert!(number(row, "speed") > 0.0 && number(row, "plain") > 0.0);
    }
    refused(&["bench", "--speculative", "1.5"], 2, &["--speculative"]);
    refused(
        &["bench", "--speculative", "0.5", "--ladder"],
        2,
        &["--speculative"],
    );
}

#[test]
fn speculation_never_changes_the_text() {
    let answer = |more: &[&str]| {
        let prompt = "The cat sat on the mat. The cat sat on the mat. The cat";
        let run = [
            "run",
            "models/demo.gguf",
            "--no-chat",
            "-p",
            prompt,
            "-n",
            "60",
        ];
        let run = welte(&[&run[..], &["--temp", "0", "-v"], more].concat());
        assert_eq!(run.status.code(), Some(0), "{}", err(&run));
        (String::from_utf8(run.stdout.clone()).unwrap(), err(&run))
    };
    let (plain, said) = answer(&["--spec", "off"]);
    assert!(!said.contains("speculation:"), "{said}");
    assert_eq!(answer(&["--spec", "ngram", "--draft-max", "4"]).0, plain);
    assert_eq!(answer(&["-md", "models/demo.gguf"]).0, plain);
    let run = ["run", "models/demo.gguf", "hello"];
    for (wrong, word) in [
        (&["--spec", "draft"][..], "-md"),
        (
            &["--spec", "off", "-md", "models/demo.gguf"],
            "--spec draft",
        ),
        (&["-md", "synthetic:tiny:q8_0"], "cannot draft"),
    ] {
        refused(&[&run[..], wrong].concat(), 1, &[word]);
    }
}
