//! The rules of the house: who may import whom, where `unsafe` may live, how long a file may be, what may not stay.

use crate::circles::circles;
use std::fs;
use std::path::{Path, PathBuf};

/// A crate of ours and those of ours that it may import. Imports go downward only.
const IMPORTS: [(&str, &[&str]); 25] = [
    ("welte-table", &[]),
    ("welte-formats", &["welte-table"]),
    ("welte-models", &["welte-table", "welte-formats"]),
    ("welte-device", &["welte-table", "welte-formats"]),
    ("welte-reference", DEVICE),
    ("welte-cpu", DEVICE),
    ("welte-cuda", DEVICE),
    ("welte-wgpu", DEVICE),
    ("welte-split", DEVICE),
    ("welte-ranks", DEVICE),
    ("welte-report", &["welte-table", "welte-device"]),
    ("welte-text", &[]),
    ("welte-hub", &[]),
    ("welte-vision", &[]),
    ("welte-audio", &[]),
    ("welte-goldens", &[]),
    ("welte-conformance", DEVICE),
    (
        "welte",
        &[
            "welte-table",
            "welte-formats",
            "welte-models",
            "welte-device",
            "welte-reference",
            "welte-cpu",
            "welte-cuda",
            "welte-wgpu",
            "welte-split",
            "welte-ranks",
            "welte-text",
            "welte-hub",
            "welte-vision",
            "welte-audio",
        ],
    ),
    (
        "welte-server",
        &[
            "welte",
            "welte-table",
            "welte-text",
            "welte-hub",
            "welte-audio",
        ],
    ),
    (
        "welte-cli",
        &[
            "welte",
            "welte-server",
            "welte-table",
            "welte-formats",
            "welte-models",
            "welte-device",
            "welte-reference",
            "welte-cpu",
            "welte-cuda",
            "welte-wgpu",
            "welte-report",
            "welte-text",
            "welte-hub",
        ],
    ),
    (
        "welte-browser",
        &["welte", "welte-formats", "welte-report", "welte-wgpu"],
    ),
    ("welte-bindings", &["welte", "welte-server", "welte-table"]),
    ("welte-c", &["welte-bindings"]),
    ("welte-python", &["welte-bindings", "welte-cli"]),
    ("xtask", &[]),
];

/// What an implementation of the device contract may import.
const DEVICE: &[&str] = &["welte-table", "welte-formats", "welte-device"];

/// What the tests of a device may import besides. Only tests import the conformance suite.
const DEVICE_TESTS: &[&str] = &[
    "welte-conformance",
    "welte-models",
    "welte-reference",
    "welte-split",
];

/// Where `unsafe` may be allowed: device and kernel code, and the one call that maps a file.
const UNSAFE: [&str; 11] = [
    "crates/welte-cpu/src/",
    "crates/welte-cuda/src/",
    "crates/welte-wgpu/src/gpu.rs",
    // Suspends WebAssembly in a browser.
    "crates/welte-wgpu/src/wait.rs",
    "crates/welte-formats/src/mapped.rs",
    // The C interface reads what C programs point to.
    "crates/welte-c/src/",
    // Counting allocators of tests, and a benchmark of the kernels themselves.
    "crates/welte/tests/common/allocations.rs",
    "crates/welte-cpu/tests/no_allocation.rs",
    "crates/welte-cuda/tests/no_allocation.rs",
    "crates/welte-vision/tests/memory.rs",
    "crates/welte-cpu/examples/kernel_bench.rs",
];

const LONGEST_FILE: usize = 1000;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_path_buf()
}

/// Every broken rule, as `file: problem`.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = imports(root);
    for (name, _) in IMPORTS {
        let source = root.join("crates").join(name).join("src");
        let found = circles(&source);
        let each = found.iter().map(|files| files.join(", "));
        problems.extend(each.map(|files| format!("{name}: files import each other: {files}")));
    }
    for file in sources(root) {
        let name = file
            .strip_prefix(root)
            .unwrap_or(&file)
            .to_string_lossy()
            .replace('\\', "/");
        match fs::read_to_string(&file) {
            Ok(text) => problems.extend(source(&name, &text)),
            Err(e) => problems.push(format!("{name}: {e}")),
        }
    }
    problems
}

fn imports(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, allowed) in IMPORTS {
        let path = match name {
            "xtask" => root.join("xtask/Cargo.toml"),
            _ => root.join("crates").join(name).join("Cargo.toml"),
        };
        let Ok(manifest) = fs::read_to_string(&path) else {
            problems.push(format!("{}: missing", path.display()));
            continue;
        };
        problems.extend(forbidden_imports(name, allowed, &manifest));
    }
    let listed = |name: &str| IMPORTS.iter().any(|(n, _)| *n == name);
    for entry in fs::read_dir(root.join("crates"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !listed(&name) {
            problems.push(format!(
                "crates/{name}: has no row in the import rules of xtask"
            ));
        }
    }
    problems
}

fn forbidden_imports(name: &str, allowed: &[&str], manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut problems = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let dependency = line.split(['.', '=', ' ']).next().unwrap_or_default();
        let ours = IMPORTS.iter().any(|(n, _)| *n == dependency);
        let known = allowed.contains(&dependency);
        match section {
            "[dependencies]" => {
                if ours && !known {
                    problems.push(format!("{name}: may not import {dependency}"));
                }
                if name == "welte-table" && !dependency.is_empty() {
                    problems.push(format!(
                        "{name}: imports {dependency}, but uses the standard library only"
                    ));
                }
            }
            "[dev-dependencies]"
                if allowed == DEVICE && ours && !known && !DEVICE_TESTS.contains(&dependency) =>
            {
                problems.push(format!("{name}: its tests may not import {dependency}"));
            }
            _ => {}
        }
    }
    problems
}

fn source(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let allow = concat!("allow(", "unsafe_code)");
    if text.contains(allow) && !UNSAFE.iter().any(|place| name.starts_with(place)) {
        problems.push(format!(
            "{name}: allows unsafe code, which lives in device modules only"
        ));
    }
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        problems.push(format!(
            "{name}: {lines} lines; split it by subject (at most {LONGEST_FILE})"
        ));
    }
    for word in [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("FIX", "ME"),
    ] {
        if text.contains(word) {
            problems.push(format!("{name}: holds an unfinished place ({word})"));
        }
    }
    problems
}

fn sources(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("xtask")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        let problems = check(&root());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn an_upward_import_is_found() {
        let manifest = "[dependencies]\nwelte-cpu.workspace = true\nthiserror.workspace = true\n";
        assert_eq!(
            forbidden_imports("welte-models", &["welte-table"], manifest),
            ["welte-models: may not import welte-cpu"]
        );
        let tests =
            "[dev-dependencies]\nwelte-cpu.workspace = true\nwelte-reference.workspace = true";
        assert_eq!(
            forbidden_imports("welte-cuda", DEVICE, tests),
            ["welte-cuda: its tests may not import welte-cpu"]
        );
        assert_eq!(
            forbidden_imports(
                "welte-table",
                &[],
                "[dev-dependencies]\nwelte.workspace = true"
            ),
            Vec::<String>::new()
        );
        assert_eq!(
            forbidden_imports("welte-table", &[], "[dependencies]\nserde = \"1\"").len(),
            1
        );
    }

    #[test]
    fn misplaced_unsafe_and_unfinished_work_are_found() {
        let text = concat!("#![allow(", "unsafe_code)]\nfn f() { todo", "!() }");
        assert_eq!(source("crates/welte-text/src/lib.rs", text).len(), 2);
        assert_eq!(
            source(
                "crates/welte-cpu/src/team.rs",
                "fn f() {}\n".repeat(1001).as_str()
            )
            .len(),
            1
        );
    }
}
