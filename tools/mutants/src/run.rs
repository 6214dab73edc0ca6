//! Runs the tests that reach a mutant, until one of them fails.

use crate::{Plan, Planned, Test};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long tests may run with a mutant: many times as long as without one, and at least this long. Then a mutant that
/// makes them hang is told from a machine that is busy.
const LIMIT_FACTOR: u32 = 10;
const LEAST_LIMIT: Duration = Duration::from_secs(30);
/// How long mutants may still run when no further one is begun.
const GRACE: Duration = Duration::from_secs(10);

/// Mutants of every file that come before the others, if there is not time for all.
const FIRST_OF_FILE: usize = 24;

/// A test function, and what a run without a mutant tells of it.
struct Function<'a> {
    test: &'a Test,
    name: String,
    took: Duration,
    /// Numbers of the mutants that it reaches.
    reaches: HashSet<u32>,
}

/// Which mutants to run, and how many at once.
pub(crate) struct Sample {
    pub(crate) jobs: usize,
    /// 3 takes every third mutant.
    pub(crate) every: usize,
    /// After this time no further mutant is begun, and soon after it those that still run are given up.
    pub(crate) limit: Option<Duration>,
    /// Tests whose names contain one of these are not run.
    pub(crate) skip: Vec<String>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample {
            jobs: 1,
            every: 1,
            limit: None,
            skip: Vec::new(),
        }
    }
}

/// Runs the tests for each mutant of a sample, and prints what was missed and a table.
pub(crate) fn run_all(plan: &Plan, sample: &Sample) -> Result<()> {
    let Sample {
        jobs, every, limit, ..
    } = *sample;
    let begun = Instant::now();
    let end = limit.map(|limit| begun + limit + GRACE);
    let functions = functions(plan, jobs, &sample.skip)?;
    let mut reaching: HashMap<u32, Vec<&Function>> = HashMap::new();
    for function in &functions {
        for number in &function.reaches {
            reaching.entry(*number).or_default().push(function);
        }
    }
    let mut sample: Vec<&Planned> = plan.mutants.iter().step_by(every).collect();
    if limit.is_some() {
        // In random order, but first some of every file.
        sample.sort_by_key(|mutant| mutant.number.wrapping_mul(0x9E37_79B9));
        let mut taken = HashMap::<&str, usize>::new();
        sample.sort_by_cached_key(|mutant| {
            let of_file = taken.entry(&mutant.file).or_default();
            *of_file += usize::from(mutant.made);
            *of_file > FIRST_OF_FILE
        });
    }
    let rows = Mutex::new(BTreeMap::<&str, [usize; 4]>::new());
    in_parallel(&sample, jobs, |mutant, job| {
        if limit.is_some_and(|limit| begun.elapsed() > limit) {
            return Ok(());
        }
        let tests = reaching.get(&mutant.number).filter(|_| mutant.made);
        let noticed = match tests {
            Some(tests) => notice(mutant.number, tests, share(job, jobs)?.as_deref(), end)?,
            None => Some(false),
        };
        let Some(noticed) = noticed else {
            return Ok(());
        };
        match (mutant.made, noticed, tests) {
            (false, ..) => println!("left out: {}", mutant.name),
            (_, false, None) => println!("missed (not reached): {}", mutant.name),
            (_, false, _) => println!("missed: {}", mutant.name),
            _ => {}
        }
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(&mutant.file).or_default();
        row[0] += 1;
        row[1] += usize::from(mutant.made);
        row[2] += usize::from(noticed);
        row[3] += usize::from(mutant.made && tests.is_none());
        Ok(())
    })?;
    let rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "| file | mutants | left out | not reached | noticed | share |\n|---|--:|--:|--:|--:|--:|"
    );
    let line = |file: &str, [mutants, built, noticed, unreached]: [usize; 4], share: f64| {
        let left_out = mutants - built;
        println!("| `{file}` | {mutants} | {left_out} | {unreached} | {noticed} | {share:.0} % |");
    };
    // The share of all counts each file by its mutants, and not by those that were run.
    let (mut all, mut weighted, mut weights) = ([0; 4], 0.0, 0.0);
    for (file, row) in rows {
        let [_, built, noticed, _] = row;
        let share = 100.0 * noticed as f64 / built.max(1) as f64;
        line(file, row, share);
        all.iter_mut().zip(row).for_each(|(all, one)| *all += one);
        if built > 0 {
            let of_file = |mutant: &&Planned| mutant.made && mutant.file == *file;
            let weight = plan.mutants.iter().filter(of_file).count() as f64;
            weighted += weight * share;
            weights += weight;
        }
    }
    line("all", all, weighted / f64::max(weights, 1.0));
    Ok(())
}

/// Whether one of the tests fails with this mutant; `None` if that is not known at the end. Those that take the least time
/// run first.
fn notice(
    number: u32,
    functions: &[&Function],
    cores: Option<&str>,
    end: Option<Instant>,
) -> Result<Option<bool>> {
    let mut binaries: BTreeMap<&Path, (Duration, &Test, Vec<&str>)> = BTreeMap::new();
    for function in functions {
        let (took, _, names) =
            binaries
                .entry(&function.test.0)
                .or_insert((Duration::ZERO, function.test, Vec::new()));
        *took += function.took;
        names.push(&function.name);
    }
    let mut binaries: Vec<_> = binaries.into_values().collect();
    binaries.sort_by_key(|(took, ..)| *took);
    for (took, test, names) in binaries {
        let mut command = command(test, cores, &names);
        command.env("MUTANT", number.to_string());
        let limit = (LIMIT_FACTOR * took).max(LEAST_LIMIT);
        match passes(&mut command, limit, end)? {
            Some(true) => {}
            Some(false) => return Ok(Some(true)),
            None => return Ok(None),
        }
    }
    Ok(Some(false))
}

/// All test functions, with the mutants that each of them reaches.
fn functions<'a>(plan: &'a Plan, jobs: usize, skip: &[String]) -> Result<Vec<Function<'a>>> {
    let mut names = Vec::new();
    for test in &plan.tests {
        let listed = Command::new(&test.0)
            .args(["--list", "--format", "terse"])
            .current_dir(&test.1)
            .output()
            .with_context(|| test.0.display().to_string())?;
        let listed = String::from_utf8(listed.stdout)?;
        let tests = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        let tests = tests.filter(|name| !skip.iter().any(|part| name.contains(part)));
        names.extend(tests.map(|name| (test, name.to_string())));
    }
    let folder = std::env::temp_dir().join(format!("mutants-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let found = Mutex::new(Vec::new());
    in_parallel(&names, jobs, |(test, name), job| {
        let reached = folder.join(job.to_string());
        let mut command = command(test, share(job, jobs)?.as_deref(), &[name]);
        command.env("MUTANTS_REACHED", &reached);
        let start = Instant::now();
        if passes(&mut command, Duration::from_secs(600), None)? != Some(true) {
            println!("not used, because it fails without a mutant: {name}");
            return Ok(());
        }
        let took = start.elapsed();
        let bytes = std::fs::read(&reached).unwrap_or_default();
        let _ = std::fs::remove_file(&reached);
        let numbers = bytes.chunks_exact(4);
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or_default());
        let function = Function {
            test,
            name: name.clone(),
            took,
            reaches: numbers.map(number).collect(),
        };
        found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(function);
        Ok(())
    })?;
    std::fs::remove_dir_all(&folder)?;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    eprintln!("{} tests", found.len());
    Ok(found)
}

/// Does something with each of `all`, `jobs` at once. The second argument is the number of the job.
fn in_parallel<T: Sync>(
    all: &[T],
    jobs: usize,
    work: impl Fn(&T, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let run = |job: usize| -> Result<()> {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(one, job)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..jobs).map(|job| scope.spawn(move || run(job))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a job panicked"))
    })
}

/// The cores of a job, if there are several jobs.
fn share(job: usize, jobs: usize) -> Result<Option<String>> {
    let cores = std::thread::available_parallelism()?.get();
    Ok((jobs > 1).then(|| {
        let (first, last) = (job * cores / jobs, (job + 1) * cores / jobs);
        format!("{first}-{}", last.max(first + 1) - 1)
    }))
}

/// Runs these test functions of a binary, on a share of the cores.
fn command((binary, folder): &Test, cores: Option<&str>, names: &[&str]) -> Command {
    let mut command = match cores {
        None => Command::new(binary),
        Some(cores) => {
            let mut command = Command::new("taskset");
            command.args(["-c", cores]).arg(binary);
            command
        }
    };
    command.arg("--exact").args(names).current_dir(folder);
    command
}

/// Runs tests until one of them fails. If they run longer than `limit` they have failed. `None`: nobody knows at `end`.
fn passes(command: &mut Command, limit: Duration, end: Option<Instant>) -> Result<Option<bool>> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.context("a test cannot be run; it needs `taskset`")?;
    let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
    let child = Mutex::new(child);
    let over = Mutex::new(false);
    let kill = |child: &Mutex<Child>| {
        let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    };
    std::thread::scope(|scope| {
        let (child, over, kill) = (&child, &over, &kill);
        scope.spawn(move || {
            let failed = |line: &String| line.ends_with("FAILED") || line.contains("; FAILED");
            let mut lines = lines.into_iter().flatten().map_while(Result::ok);
            if lines.any(|line| failed(&line)) {
                *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
                kill(child);
            }
        });
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let status = child
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .try_wait()?;
            if let Some(status) = status {
                let failed = *over.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(Some(status.success() && !failed));
            }
            if start.elapsed() > limit {
                kill(child);
                return Ok(Some(false));
            }
            if end.is_some_and(|end| Instant::now() > end) {
                kill(child);
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    })
}
