//! `include/welte.h` is what the crate declares. `WELTE_WRITE=1 cargo test --workspace --test header` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_current() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_folder.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_src(crate_folder.join("src/lib.rs"))
        .with_config(config);
    let mut text = Vec::new();
    made.generate().unwrap().write(&mut text);
    let made = String::from_utf8(text).unwrap();
    // What is said to Rust's callers is said once for all in the header's first comment.
    let made = without_safety(&made).replace("WELTE_CODE_", "WELTE_");
    let path = crate_folder.join("include/welte.h");
    if std::env::var_os("WELTE_WRITE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(
        kept == made,
        "include/welte.h is old; see the first line of this file"
    );
}

fn without_safety(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim() == "* # Safety" {
            inside = true;
            // The empty line before the heading.
            if kept.last().is_some_and(|last| last.trim() == "*") {
                kept.pop();
            }
        }
        if line.trim() == "*/" {
            inside = false;
        }
        if !inside {
            kept.push(line);
        }
    }
    kept.join("\n") + "\n"
}
