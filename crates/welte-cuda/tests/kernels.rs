//! Every kernel compiles for sm_90a without a GPU, once per common format and once per combination of its other macros, and the hot ones
//! spill no register. Of the other formats, and for the other architectures that are meant, the compiler reads every file once per format.
//! With `WELTE_NVRTC_ALL` (tools/compile-kernels) it makes the code of all variants for sm_90a, and that of the others, too. Needs NVRTC:
//! `.ci/run` brings it and sets `WELTE_NVRTC_REQUIRED`; elsewhere its absence skips the test.

use std::path::Path;
use std::sync::Arc;
use welte_cuda::{Compiled, CudaDevice, Depth, Error, GpuInfo, compile_all, compile_alone, h200};
use welte_device::DeviceOptions;
use welte_formats::synthetic::Synthetic;

/// Whether a missing compiler is a failure.
fn is_required() -> bool {
    std::env::var_os("WELTE_NVRTC_REQUIRED").is_some()
}

/// Where it is noted what compiles, so that only changed sources are compiled again.
fn notes() -> &'static Path {
    Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))
}

/// Whether everything is compiled, however long that takes.
fn compiles_all() -> bool {
    std::env::var_os("WELTE_NVRTC_ALL").is_some()
}

/// How much is compiled for an architecture.
fn depth(arch: &str) -> Depth {
    match arch {
        "sm_90a" if compiles_all() => Depth::Variants,
        "sm_90a" => Depth::Cover,
        _ if compiles_all() => Depth::Cover,
        _ => Depth::Syntax,
    }
}

fn compiled(arch: &str) -> Option<Vec<Compiled>> {
    match compile_all(arch, depth(arch), notes()) {
        Ok(kernels) => Some(kernels),
        Err(Error::NoCompiler(why)) if !is_required() => {
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
    let with_code = || {
        kernels
            .iter()
            .filter(|kernel| kernel.depth != Depth::Syntax)
    };
    assert!(depth(arch) == Depth::Syntax || with_code().count() > 100);
    for kernel in with_code() {
        assert!(kernel.bytes > 0, "{}: no code", kernel.name);
        // The assembler speaks of every kernel; if it did not, spills could not be seen.
        assert!(
            kernel.log.contains("bytes spill stores"),
            "{}: {}",
            kernel.name,
            kernel.log
        );
    }
    let spilling: Vec<String> = with_code()
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

/// The kernels of a load for a GPU that is not here, made once.
#[test]
fn kernels_are_made_ready_for_a_gpu_that_is_not_here() {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ready-{}", std::process::id()));
    let mut options = DeviceOptions::default();
    options.replay = Some(welte_device::Replay::Graph);
    let device = welte_cuda::assumed_device("rtx-4090", &options).expect("it is known");
    assert!(welte_cuda::assumed_device("rtx-4091", &options).is_none());
    let checkpoint = Synthetic::parse("tiny,layers=1:f16").unwrap();
    let spec = welte_models::spec(&checkpoint).unwrap();
    let program = welte_models::compile(&spec, &checkpoint, &Default::default()).unwrap();
    let plan = device
        .plan(Arc::new(welte_table::fuse(program, device.patterns())))
        .unwrap();
    let mut heard = Vec::new();
    let made = device.make_ready(&plan, &folder, &mut |done, total| heard.push((done, total)));
    let made = match made {
        Ok(made) => made,
        Err(why) if !is_required() => return eprintln!("skipped: {why}"),
        Err(why) => panic!("{why}"),
    };
    let files = std::fs::read_dir(&folder).unwrap().count() as u64;
    assert!(made > 10, "{made}");
    assert_eq!(
        (files, heard.len() as u64, heard.last()),
        (made, made, Some(&(made, made)))
    );
    let again = device.make_ready(&plan, &folder, &mut |_, _| ()).unwrap();
    assert_eq!(again, 0);
    // Where it cannot be written, the error names the folder, and nothing is compiled.
    let file = folder.join("file");
    std::fs::write(&file, "").unwrap();
    let why = device.make_ready(&plan, &file, &mut |_, _| ()).unwrap_err();
    assert!(why.to_string().contains("file"), "{why}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The source of the persistent kernels as `examples/persistent_source.rs` prints it.
#[test]
fn the_printed_source_of_the_persistent_kernels_compiles_alone() {
    // What `sm_90a` compiles too is only read.
    let all = [
        ("qwen3-4b:q4_0", false, Depth::Syntax),
        ("qwen3-4b:q4_0", true, Depth::Syntax),
        ("gemma-3-1b:q8_0", false, Depth::Cover),
        ("qwen3-30b-a3b:q4_k", false, Depth::Cover),
        ("gpt-oss-20b:mxfp4_moe", false, Depth::Cover),
    ];
    for (model, several_rows, depth) in all {
        let source = persistent_source(model, several_rows);
        assert!(!source.contains("#include \""), "a header is missing");
        match compile_alone(&source, "sm_90a", depth, notes()) {
            Ok(_) if depth == Depth::Syntax => {}
            Ok(kernel) => {
                // Attention with heads of 256 elements has too few registers.
                let spills = kernel.spills > 0 && !model.starts_with("gemma");
                assert!(kernel.bytes > 0 && !spills, "{model}: {}", kernel.log);
            }
            Err(Error::NoCompiler(why)) if !is_required() => eprintln!("skipped: {why}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The persistent kernels compile for GPUs on which they have not run, with the geometry that these have.
#[test]
fn the_persistent_kernels_compile_for_other_gpus() {
    let gpus = [
        ("sm_80", 80, 108, 163),
        ("sm_86", 86, 84, 99),
        ("sm_89", 89, 128, 99),
        ("sm_100", 100, 148, 227),
        ("sm_120", 120, 170, 99),
    ];
    for (name, arch, sms, kib) in gpus {
        let gpu = GpuInfo {
            arch,
            sms,
            shared_per_block: kib << 10,
            ..h200()
        };
        for (model, several_rows) in [("qwen3-4b:q4_0", false), ("qwen3-0.6b:q8_0", true)] {
            let source = persistent_source_for(&gpu, model, several_rows);
            match compile_alone(&source, name, depth(name), notes()) {
                Ok(_) if depth(name) == Depth::Syntax => {}
                Ok(kernel) => {
                    assert!(kernel.bytes > 0, "{name}, {model}: no code");
                    // On others than 9.0 and 10.0 both kernels have a few registers too few: stores and loads together.
                    let most = if arch == 100 { 0 } else { 1024 };
                    assert!(kernel.spills <= most, "{name}, {model}: {}", kernel.log);
                }
                Err(Error::NoCompiler(why)) if !is_required() => eprintln!("skipped: {why}"),
                Err(error) => panic!("{name}, {model}: {error}"),
            }
        }
    }
}

/// So do those of families with instructions of their own: recurrent layers, shared experts, gated attention, attention without rope, heads of
/// several sizes, experts beside a dense part.
#[test]
fn the_persistent_kernels_of_other_families_compile() {
    let models = [
        ("qwen3.5-moe-small,head_dim=128:q4_0", "sm_90a", 90, 227),
        ("granite-4-small:q4_0", "sm_80", 80, 163),
        ("lfm2-1.2b:q4_0", "sm_120", 120, 99),
        ("gemma4-moe-small,layers=2:q4_0", "sm_90a", 90, 227),
    ];
    for (model, name, arch, kib) in models {
        let gpu = GpuInfo {
            arch,
            shared_per_block: kib << 10,
            ..h200()
        };
        let source = persistent_source_for(&gpu, model, false);
        match compile_alone(&source, name, depth(name), notes()) {
            Ok(_) if depth(name) == Depth::Syntax => {}
            Ok(kernel) => {
                assert!(kernel.bytes > 0, "{name}, {model}: no code");
                assert!(kernel.spills <= 1024, "{name}, {model}: {}", kernel.log);
            }
            Err(Error::NoCompiler(why)) if !is_required() => eprintln!("skipped: {why}"),
            Err(error) => panic!("{name}, {model}: {error}"),
        }
    }
}

/// A struct that differs from its Rust mirror does not compile.
#[test]
fn a_changed_struct_does_not_compile() {
    let source = persistent_source("qwen3-0.6b:q4_0", false);
    for (field, changed) in [
        ("    u32 entries;", "    u64 entries;"),
        ("    u32 variant;", "    u32 variants;"),
        ("    u32 flags;", "    u32 layers, flags;"),
    ] {
        assert_eq!(source.matches(field).count(), 1, "{field}");
        let source = source.replace(field, changed);
        match compile_alone(&source, "sm_90a", Depth::Syntax, notes()) {
            Ok(_) => panic!("{changed} compiles"),
            Err(Error::Compile { log, .. }) => assert!(
                log.contains("Rust mirror")
                    || log.contains("no member")
                    || log.contains("has no field"),
                "{log}"
            ),
            Err(Error::NoCompiler(why)) if !is_required() => eprintln!("skipped: {why}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The source for a made-up model on an H200.
fn persistent_source(model: &str, several_rows: bool) -> String {
    persistent_source_for(&h200(), model, several_rows)
}

/// The source for a made-up model on a GPU.
fn persistent_source_for(gpu: &GpuInfo, model: &str, several_rows: bool) -> String {
    let checkpoint = Synthetic::parse(model).unwrap();
    let spec = welte_models::spec(&checkpoint).unwrap();
    let options = welte_models::CompileOptions::default();
    let program = welte_table::fuse(
        welte_models::compile(&spec, &checkpoint, &options).unwrap(),
        welte_table::PATTERNS,
    );
    let device = CudaDevice::assumed(gpu.clone(), &DeviceOptions::default());
    let source = device.persistent_source(Arc::new(program), several_rows);
    source.unwrap()
}
