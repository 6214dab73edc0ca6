//! Every kernel compiles for every architecture that is meant, without a GPU, and the hot ones spill no register: in
//! every variant for sm_90a, once per format for the others. Needs NVRTC: `.ci/run` brings it and sets `WELTE_NVRTC_REQUIRED`; elsewhere its absence skips the test.

use welte_cuda::{Compiled, Error, compile_all};

fn compiled(arch: &str) -> Option<Vec<Compiled>> {
    match compile_all(arch, arch == "sm_90a") {
        Ok(kernels) => Some(kernels),
        Err(Error::NoCompiler(why)) if std::env::var_os("WELTE_NVRTC_REQUIRED").is_none() => {
            eprintln!("skipped for {arch}: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn check(arch: &str) {
    let Some(kernels) = compiled(arch) else {
        return;
    };
    assert!(!kernels.is_empty());
    for kernel in &kernels {
        assert!(kernel.bytes > 0, "{}: no code", kernel.name);
        // The assembler speaks of every kernel; if it did not, spills could not be seen.
        assert!(
            kernel.log.contains("bytes spill stores"),
            "{}: {}",
            kernel.name,
            kernel.log
        );
    }
    let spilling: Vec<String> = kernels
        .iter()
        .filter(|kernel| kernel.hot && kernel.spills > 0)
        .map(|kernel| format!("{}: {}", kernel.name, kernel.log))
        .collect();
    assert!(spilling.is_empty(), "{arch}: {}", spilling.join("\n"));
}

#[test]
fn sm_80() {
    check("sm_80");
}

#[test]
fn sm_89() {
    check("sm_89");
}

#[test]
fn sm_90a() {
    check("sm_90a");
}

#[test]
fn sm_100() {
    check("sm_100");
}
