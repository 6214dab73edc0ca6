//! A model is not twice in memory while it is loaded.

#![cfg(target_os = "linux")]

use std::process::Command;
use welte::{LoadOptions, Model};
use welte_formats::synthetic::{Synthetic, write};

/// Set in the child process, which loads this file.
const FILE: &str = "WELTE_TEST_PEAK_FILE";
const MIB: u64 = 1 << 20;

#[test]
fn loading_needs_little_more_memory_than_the_plan() {
    if let Ok(file) = std::env::var(FILE) {
        return load(&file);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let shape =
        "custom,arch=llama,layers=6,dim=1024,heads=8,kv_heads=8,head_dim=128,ffn=4096,vocab=8000";
    let model = Synthetic::parse(&format!("{shape}:q8_0")).unwrap();
    write(&model, &file, &mut |_, _| ()).unwrap();
    let bytes = std::fs::metadata(&file).unwrap().len();
    assert!(bytes > 100 * MIB, "{bytes}");
    // The peak is that of a process, so a new one loads the file.
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "loading_needs_little_more_memory_than_the_plan"]);
    let output = child.arg("--nocapture").env(FILE, &file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let number = |name: &str| -> u64 {
        let (_, rest) = text.split_once(name).expect("what the child printed");
        let digits = rest.split_whitespace().next().unwrap();
        digits.parse().unwrap()
    };
    let (peak, plan) = (number("peak="), number("plan="));
    // Up to 32 MiB of the file are packed at a time. The rest is the program itself.
    let most = plan + 56 * MIB;
    let [peak, plan, most] = [peak, plan, most].map(|bytes| bytes / MIB);
    assert!(peak <= most, "{peak} MiB, planned {plan}, at most {most}");
}

fn load(file: &str) {
    let mut options = LoadOptions::default();
    (options.device, options.context) = ("cpu".parse().unwrap(), 64);
    options.threads = Some(2);
    let model = Model::load(file, &options, &mut |_| ()).unwrap();
    let plan = model.plan().total();
    println!("peak={} plan={plan} ", welte::peak_memory().unwrap());
}
