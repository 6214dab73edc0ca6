//! Measures how many mutants a package's tests notice, with one build for all of them.
//!
//! `cargo mutants --list --json` names the mutants. This program rewrites the sources of a scratch checkout so that every
//! mutant is compiled in and switched on by the variable `MUTANT`. It then runs, for each mutant, the tests that reach it.
//! Mutants that do not compile this way are left out and counted.

mod rewrite;
mod run;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Deserialize)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Deserialize)]
pub struct Range {
    pub start: Place,
}

/// A mutant as `cargo mutants --list --json` describes it.
#[derive(Deserialize)]
pub struct Mutant {
    #[serde(skip)]
    pub number: u32,
    pub file: String,
    pub package: String,
    pub genre: String,
    pub name: String,
    pub replacement: String,
    pub span: Range,
}

/// What was built: enough to run it.
#[derive(Deserialize, Serialize)]
struct Plan {
    mutants: Vec<Planned>,
    tests: Vec<Test>,
}

/// A mutant of a build.
#[derive(Deserialize, Serialize)]
struct Planned {
    number: u32,
    file: String,
    name: String,
    /// It compiles, so it is in the binaries.
    made: bool,
}

/// Goes into every crate with mutants. Besides switching it notes which mutants a run reaches.
const SWITCH: &str = r#"
#[doc(hidden)]
pub fn __mutant(number: u32) -> bool {
    use std::io::Write;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static ON: LazyLock<u32> = LazyLock::new(|| {
        std::env::var("MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
    });
    static REACHED: LazyLock<Option<std::fs::File>> = LazyLock::new(|| {
        let path = std::env::var_os("MUTANTS_REACHED")?;
        std::fs::File::options().append(true).create(true).open(path).ok()
    });
    static SEEN: [AtomicBool; 1 << 14] = [const { AtomicBool::new(false) }; 1 << 14];
    if let Some(mut file) = REACHED.as_ref()
        && !SEEN[number as usize].swap(true, Ordering::Relaxed)
    {
        let _ = file.write_all(&number.to_le_bytes());
    }
    *ON == number
}
"#;

const USAGE: &str = "usage: mutants LIST.json CHECKOUT PACKAGE-WITH-TESTS... [-f FILE]... [-j JOBS] [--every N] [--most SECONDS] [--plan PLAN.json] [--build COMMAND]
       mutants run PLAN.json [-j JOBS] [--every N] [--most SECONDS] [--skip TEST]...";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut names, mut files) = (Vec::new(), Vec::new());
    let (mut plan_file, mut build_args) = (None, None);
    let mut sample = run::Sample::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-f" => files.push(args.next().context("-f needs a file")?),
            "-j" => sample.jobs = args.next().context("-j needs a number")?.parse()?,
            "--every" => sample.every = args.next().context("--every needs a number")?.parse()?,
            "--most" => {
                let seconds = args.next().context("--most needs seconds")?.parse()?;
                sample.limit = Some(Duration::from_secs(seconds));
            }
            "--skip" => sample
                .skip
                .push(args.next().context("--skip needs a name")?),
            "--build" => build_args = args.next(),
            "--plan" => plan_file = Some(args.next().context("--plan needs a file")?),
            _ => names.push(arg),
        }
    }
    match names.as_slice() {
        [run, plan] if run == "run" => {
            run::run_all(&serde_json::from_slice(&std::fs::read(plan)?)?, &sample)
        }
        [list, root, packages @ ..] if !packages.is_empty() => {
            let plan = plan(
                list,
                Path::new(root),
                packages,
                &files,
                build_args.as_deref(),
            )?;
            match plan_file {
                Some(file) => Ok(std::fs::write(file, serde_json::to_vec(&plan)?)?),
                None => run::run_all(&plan, &sample),
            }
        }
        _ => bail!(USAGE),
    }
}

/// Builds the tests of `packages` with the mutants of a list that lie in `files`.
fn plan(
    list: &str,
    root: &Path,
    packages: &[String],
    files: &[String],
    args: Option<&str>,
) -> Result<Plan> {
    let mut mutants: Vec<Mutant> = serde_json::from_slice(&std::fs::read(list)?)?;
    mutants.retain(|m| files.is_empty() || files.iter().any(|f| m.file.contains(f.as_str())));
    for (i, mutant) in mutants.iter_mut().enumerate() {
        mutant.number = i as u32 + 1;
    }
    let sources = Sources::read(root, &mutants)?;
    let (made, tests) = build(root, &sources, &mutants, packages, args)?;
    eprintln!("{} of {} mutants in the build", made.len(), mutants.len());
    let planned = |m: Mutant| Planned {
        made: made.contains(&m.number),
        number: m.number,
        file: m.file,
        name: m.name,
    };
    Ok(Plan {
        mutants: mutants.into_iter().map(planned).collect(),
        tests,
    })
}

/// The files to rewrite with their original texts. Dropping this restores them.
struct Sources(BTreeMap<PathBuf, String>);

impl Sources {
    fn read(root: &Path, mutants: &[Mutant]) -> Result<Sources> {
        let mut files: BTreeSet<PathBuf> = mutants.iter().map(|m| root.join(&m.file)).collect();
        // The switch is in the root of the crate.
        files.extend(
            mutants
                .iter()
                .map(|m| root.join("crates").join(&m.package).join("src/lib.rs")),
        );
        let read = |file: PathBuf| Ok((file.clone(), std::fs::read_to_string(file)?));
        Ok(Sources(files.into_iter().map(read).collect::<Result<_>>()?))
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        for (file, text) in &self.0 {
            if let Err(error) = std::fs::write(file, text) {
                eprintln!("{}: {error}", file.display());
            }
        }
    }
}

/// A test binary and the directory to run it in.
type Test = (PathBuf, PathBuf);

/// Builds the tests with all mutants that compile. Returns their numbers and the test binaries.
fn build(
    root: &Path,
    sources: &Sources,
    mutants: &[Mutant],
    packages: &[String],
    args: Option<&str>,
) -> Result<(HashSet<u32>, Vec<Test>)> {
    let mut bad: HashSet<u32> = HashSet::new();
    for round in 1.. {
        let mut made = HashSet::new();
        for (file, source) in &sources.0 {
            let good = mutants
                .iter()
                .filter(|m| root.join(&m.file) == *file && !bad.contains(&m.number));
            let (text, switches) = rewrite::rewrite(source, &good.collect::<Vec<_>>())?;
            made.extend(switches);
            let switch = if file.ends_with("src/lib.rs") {
                SWITCH
            } else {
                ""
            };
            std::fs::write(file, text + switch)?;
        }
        let (wrong, tests) = compile(root, packages, sources, args)?;
        if wrong.is_empty() {
            return Ok((made, tests));
        }
        let before = bad.len();
        bad.extend(wrong);
        eprintln!("build {round}: {} mutants do not compile", bad.len());
        if bad.len() == before {
            bail!("the build fails, and no mutant is the cause");
        }
    }
    unreachable!()
}

/// Compiles the tests. Returns the mutants with errors, and the test binaries.
fn compile(
    root: &Path,
    packages: &[String],
    sources: &Sources,
    args: Option<&str>,
) -> Result<(HashSet<u32>, Vec<Test>)> {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root);
    match args {
        Some(args) => {
            command.args(args.split_whitespace());
        }
        None => {
            command.args(["build", "--keep-going", "--lib", "--tests"]);
            for package in packages {
                command.args(["-p", package]);
            }
        }
    }
    command.arg("--message-format=json");
    // With arguments of its own the build takes what other builds have left, and so their flags.
    if args.is_none() {
        command.env("RUSTFLAGS", "--cap-lints=allow");
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let (mut wrong, mut tests, mut shown) = (HashSet::new(), Vec::new(), false);
    for line in output.stdout.split(|b| *b == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        if message["reason"] == "compiler-artifact"
            && let Some(path) = message["executable"].as_str()
        {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            let folder = manifest.parent().unwrap_or(root);
            // A build of more than these packages has more tests.
            let name = folder.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| packages.iter().any(|package| package == name)) {
                tests.push((PathBuf::from(path), folder.to_path_buf()));
            }
        }
        if message["message"]["level"] != "error" {
            continue;
        }
        let mut found = false;
        for span in message["message"]["spans"].as_array().into_iter().flatten() {
            let file = root.join(span["file_name"].as_str().unwrap_or_default());
            if span["is_primary"] != true || !sources.0.contains_key(&file) {
                continue;
            }
            let text = std::fs::read_to_string(&file)?;
            let (before, after) = text.split_at(span["byte_start"].as_u64().unwrap_or(0) as usize);
            // A match that misses a case is reported at its head, before the arm with the switch.
            let number = match message["message"]["code"]["code"].as_str() {
                Some("E0004") => after.find(SWITCH_CALL).and_then(|at| number_at(after, at)),
                _ => before
                    .rfind(SWITCH_CALL)
                    .and_then(|at| number_at(before, at)),
            };
            if let Some(number) = number {
                wrong.insert(number);
                found = true;
            }
        }
        if !found
            && !shown
            && !message["message"]["spans"]
                .as_array()
                .is_none_or(Vec::is_empty)
        {
            shown = true;
            eprintln!(
                "{}",
                message["message"]["rendered"].as_str().unwrap_or_default()
            );
        }
    }
    if wrong.is_empty() && !output.status.success() {
        bail!("the build fails, and no mutant is the cause");
    }
    Ok((wrong, tests))
}

const SWITCH_CALL: &str = "__mutant(";

/// The number of the switch at a place of a text.
fn number_at(text: &str, at: usize) -> Option<u32> {
    let call = &text[at + SWITCH_CALL.len()..];
    let digits = call.find(|c: char| !c.is_ascii_digit())?;
    call[..digits].parse().ok()
}
