//! Measures how many mutants a package's tests notice, with one build for all of them.
//!
//! `cargo mutants --list --json` names the mutants. This program rewrites the sources of a scratch checkout so that every
//! mutant is compiled in and switched on by the variable `MUTANT`. It then runs the tests once per mutant. Mutants that
//! do not compile this way are left out and counted.

mod rewrite;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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

/// How long a test binary may run with a mutant: many times as long as without one, and at least this long. Then a mutant
/// that makes it hang is told from a machine that is busy.
const LIMIT_FACTOR: u32 = 10;
const LEAST_LIMIT: Duration = Duration::from_secs(30);

const SWITCH: &str = "
#[doc(hidden)]
pub fn __mutant(number: u32) -> bool {
    static ON: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var(\"MUTANT\").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
    });
    *ON == number
}
";

const USAGE: &str = "usage: mutants LIST.json CHECKOUT PACKAGE-WITH-TESTS... [-f FILE]... [-j JOBS] [--every N] [--plan PLAN.json]
       mutants run PLAN.json [-j JOBS] [--every N]";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut names, mut files, mut plan_file) = (Vec::new(), Vec::new(), None);
    let (mut jobs, mut every) = (1, 1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-f" => files.push(args.next().context("-f needs a file")?),
            "-j" => jobs = args.next().context("-j needs a number")?.parse()?,
            "--every" => every = args.next().context("--every needs a number")?.parse()?,
            "--plan" => plan_file = Some(args.next().context("--plan needs a file")?),
            _ => names.push(arg),
        }
    }
    match names.as_slice() {
        [run, plan] if run == "run" => {
            run_all(&serde_json::from_slice(&std::fs::read(plan)?)?, jobs, every)
        }
        [list, root, packages @ ..] if !packages.is_empty() => {
            let plan = plan(list, Path::new(root), packages, &files)?;
            match plan_file {
                Some(file) => Ok(std::fs::write(file, serde_json::to_vec(&plan)?)?),
                None => run_all(&plan, jobs, every),
            }
        }
        _ => bail!(USAGE),
    }
}

/// Builds the tests of `packages` with the mutants of a list that lie in `files`.
fn plan(list: &str, root: &Path, packages: &[String], files: &[String]) -> Result<Plan> {
    let mut mutants: Vec<Mutant> = serde_json::from_slice(&std::fs::read(list)?)?;
    mutants.retain(|m| files.is_empty() || files.iter().any(|f| m.file.contains(f.as_str())));
    for (i, mutant) in mutants.iter_mut().enumerate() {
        mutant.number = i as u32 + 1;
    }
    let sources = Sources::read(root, &mutants)?;
    let (made, tests) = build(root, &sources, &mutants, packages)?;
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

/// Runs the tests once per mutant, `jobs` mutants at once, and prints what was missed and a table. `every` is a sample: 3
/// takes every third mutant.
fn run_all(plan: &Plan, jobs: usize, every: usize) -> Result<()> {
    // The fastest test first: most mutants are noticed by it.
    let mut tests = Vec::new();
    for test in &plan.tests {
        let start = Instant::now();
        if !passes(test, 0, None, Duration::MAX)? {
            bail!("{} fails without a mutant", test.0.display());
        }
        let limit = (LIMIT_FACTOR * start.elapsed()).max(LEAST_LIMIT);
        tests.push((limit, test));
    }
    tests.sort_by_key(|(limit, _)| *limit);
    let cores = std::thread::available_parallelism()?.get();
    let (next, rows) = (
        AtomicUsize::new(0),
        Mutex::new(BTreeMap::<&str, [usize; 3]>::new()),
    );
    let work = |job: usize| -> Result<()> {
        let share = (jobs > 1).then(|| {
            let (first, last) = (job * cores / jobs, (job + 1) * cores / jobs);
            format!("{first}-{}", last.max(first + 1) - 1)
        });
        while let Some(mutant) = plan.mutants.get(next.fetch_add(every, Ordering::Relaxed)) {
            let mut noticed = false;
            for (limit, test) in tests.iter().filter(|_| mutant.made) {
                noticed = !passes(test, mutant.number, share.as_deref(), *limit)?;
                if noticed {
                    break;
                }
            }
            match (mutant.made, noticed) {
                (false, _) => println!("left out: {}", mutant.name),
                (_, false) => println!("missed: {}", mutant.name),
                _ => {}
            }
            let mut rows = rows.lock().unwrap_or_else(|e| e.into_inner());
            let row = rows.entry(&mutant.file).or_default();
            row[0] += 1;
            row[1] += usize::from(mutant.made);
            row[2] += usize::from(noticed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..jobs)
            .map(|job| scope.spawn(move || work(job)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a job panicked"))
    })?;
    for (file, [all, built, noticed]) in rows.into_inner().unwrap_or_else(|e| e.into_inner()) {
        let share = 100.0 * noticed as f64 / built.max(1) as f64;
        println!(
            "| `{file}` | {all} | {} | {noticed} | {share:.0} % |",
            all - built
        );
    }
    Ok(())
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
        let (wrong, tests) = compile(root, packages, sources)?;
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
) -> Result<(HashSet<u32>, Vec<Test>)> {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args([
        "build",
        "--message-format=json",
        "--keep-going",
        "--lib",
        "--tests",
    ]);
    for package in packages {
        command.args(["-p", package]);
    }
    let output = command
        .env("RUSTFLAGS", "--cap-lints=allow")
        .stderr(Stdio::inherit())
        .output()?;
    let (mut wrong, mut tests, mut shown) = (HashSet::new(), Vec::new(), false);
    for line in output.stdout.split(|b| *b == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        if message["reason"] == "compiler-artifact"
            && let Some(path) = message["executable"].as_str()
        {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            tests.push((
                PathBuf::from(path),
                manifest.parent().unwrap_or(root).to_path_buf(),
            ));
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

/// Runs a test binary with one mutant switched on, on a share of the cores. One that runs longer than `limit` fails.
fn passes(
    (binary, folder): &Test,
    number: u32,
    cores: Option<&str>,
    limit: Duration,
) -> Result<bool> {
    let mut command = match cores {
        None => Command::new(binary),
        Some(cores) => {
            let mut command = Command::new("taskset");
            command.args(["-c", cores]).arg(binary);
            command
        }
    };
    let mut child = command
        .arg("-q")
        .current_dir(folder)
        .env("MUTANT", number.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
