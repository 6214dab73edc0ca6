//! Constraints in files that are made to harm: each is compiled or refused.

use std::process::{Command, Output, Stdio};

fn welte(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_welte"));
    command
        .args(args)
        .args(["--device", "cpu", "-t", "2"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("WELTE_MODEL")
        .stdin(Stdio::null());
    command.output().unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn refused(args: &[&str], problem: &str) {
    let output = welte(args);
    let text = err(&output);
    assert_eq!(output.status.code(), Some(1), "{:?}: {text}", output.status);
    assert!(
        text.contains(problem) && !text.contains("panicked"),
        "{text}"
    );
}

/// Such files once ended the process by an overflow of its stack.
#[test]
fn hostile_constraints_in_files_are_compiled_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: String| {
        let path = folder.path().join("constraint");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    // Definitions `d0` to `d<count>`, made from a reference to the next one.
    let chain = |count: usize, one: &dyn Fn(String) -> String| {
        let one = |i: usize| {
            let next = format!("{{\"$ref\":\"#/$defs/d{}\"}}", i + 1);
            format!("\"d{i}\":{},", one(next))
        };
        let all: String = (0..count).map(one).collect();
        format!(
            "{{\"$defs\":{{{all}\"d{count}\":{{\"type\":\"boolean\"}}}},\"$ref\":\"#/$defs/d0\"}}"
        )
    };
    let joined = |count: usize, one: &dyn Fn(usize) -> String| {
        let all: Vec<String> = (0..count).map(one).collect();
        all.join(",")
    };
    let named = |count: usize| joined(count, &|i| format!("\"p{i}\":{{}}"));
    let names = joined(6000, &|i| format!("\"p{i}\""));
    let schemas = [
        (chain(1000, &|next| next), "more than 100 references"),
        (
            format!(
                "{{\"properties\":{{{}}},\"required\":[{names}]}}",
                named(6000)
            ),
            "it has 6000 properties",
        ),
        (
            format!("{{\"properties\":{{{}}}}}", named(5000)),
            "it has 5000 properties",
        ),
        (
            format!("{{\"allOf\":[{}]}}", joined(5000, &|_| "{}".to_string())),
            "5000 schemas in one allOf",
        ),
    ];
    for (schema, problem) in schemas {
        let path = file(schema);
        refused(&["run", "hi", "--json-schema-file", &path], problem);
    }
    for (start, is) in [("root", "::="), ("start", ":")] {
        let rules: String = (0..6000)
            .map(|i| format!("r{i} {is} r{}\n", i + 1))
            .collect();
        let path = file(format!("{start} {is} r0\n{rules}r6000 {is} \"b\"\n"));
        refused(
            &["run", "hi", "--grammar-file", &path],
            "more than 5000 rules",
        );
    }
    let lists = chain(500, &|next| {
        format!("{{\"type\":\"array\",\"items\":{next}}}")
    });
    let path = file(lists);
    let output = welte(&["run", "hi", "--json-schema-file", &path, "-n", "4"]);
    // It may be too deep to be followed to its end.
    let ended = err(&output).contains("cannot go on within its constraint");
    let code = output.status.code();
    assert!(
        code == Some(0) || code == Some(1) && ended,
        "{}",
        err(&output)
    );
}
