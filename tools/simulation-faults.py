#!/usr/bin/env python3
"""Plants faults into the engine, one at a time, and says which invariant of the simulation notices each.

    tools/simulation-faults.py [NAME...]

crates/welte/src must be clean: the script edits files, builds once, and restores them. A fault is a change that a careless
refactoring might make. docs/architecture/simulation.md sums up the table that it prints.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "crates/welte/src/engine/"

# Name, file, what stands there, and what is put in its place; FAULT is true if the fault is planted.
FAULTS = [
    ("a slot is not given back", "scheduler/admit.rs", "free.push(sequence.slot);\n            false",
     "if !FAULT { free.push(sequence.slot); }\n            false"),
    ("a page is not given back", "pages.rs", "for page in list.drain(..).filter(|page| *page != NO_PAGE) {",
     "for page in list.drain(..).filter(|page| *page != NO_PAGE && !(FAULT && page % 7 == 0)) {"),
    ("priorities are ignored", "scheduler/admit.rs", "(Reverse(sequence.priority), sequence.number)",
     "(Reverse(if FAULT { 0 } else { sequence.priority }), /*age*/ sequence.number)"),
    ("the newest comes first", "scheduler/admit.rs", "/*age*/ sequence.number",
     "if FAULT { u64::MAX - sequence.number } else { sequence.number }"),
    ("the most urgent is preempted", "scheduler/admit.rs", "all.max_by_key(|(_, sequence)| order(sequence))",
     "if FAULT { all.min_by_key(|(_, sequence)| order(sequence)) } else { all.max_by_key(|(_, sequence)| order(sequence)) }"),
    ("nobody waits for pages again", "scheduler/admit.rs", "if self.running.len() < before {", "if self.running.len() < before && !FAULT {"),
    ("the latest deadline ends a chain", "scheduler/run.rs", "let deadline = self.waiting.iter().filter_map(|s| s.deadline).min();",
     "let all = self.waiting.iter().filter_map(|s| s.deadline); let deadline = if FAULT { all.max() } else { all.min() };"),
    ("no deadline ends a running request", "sequence.rs", "self.end.is_none() && self.is_late()",
     "self.end.is_none() && !(FAULT && self.begun) && self.is_late()"),
    ("pieces ignore the pace", "scheduler/admit.rs", "any(decodes) {", "any(|s| !FAULT && decodes(s)) {"),
    ("pieces take forty times as long", "pace.rs", "SHARE * waiting.clamp(1.0, MOST_WAITING) * self.decode",
     "SHARE * waiting.clamp(1.0, MOST_WAITING) * self.decode * if FAULT { 40.0 } else { 1.0 }"),
    ("the end wakes nobody", "channel.rs", "state.report.ended = Some(self.clock.now());\n            self.wake(state);",
     "state.report.ended = Some(self.clock.now());\n            if !FAULT { self.wake(state); }"),
    ("what is not reused counts as cached", "pages.rs", "let cached = sequence.computed;",
     "let cached = if FAULT { most } else { sequence.computed };"),
    ("stop strings are left to the reader", "scheduler/run.rs", "if let Some(which) = stop {", "if let Some(which) = stop.filter(|_| !FAULT) {"),
    ("guesses are counted with the token before", "scheduler/drafts.rs", "figures.drafted += guesses;",
     "figures.drafted += guesses + usize::from(FAULT);"),
    ("the last admission counts", "scheduler/admit.rs", "report.admitted.get_or_insert(now);",
     "if FAULT { report.admitted = Some(now); } else { report.admitted.get_or_insert(now); }"),
    ("a shared page is not copied", "pages.rs", "context.copy_page(cache, source, own)?;", "if !FAULT { context.copy_page(cache, source, own)?; }"),
    ("roles are ignored", "pages.rs", "let exact = sequence.exact || sequence.begun;", "let exact = (sequence.exact || sequence.begun) && !FAULT;"),
    ("the bias of the first tokens stays", "scheduler/run.rs", "self.slot_changed |= self.generated() == self.min_tokens;",
     "self.slot_changed |= self.generated() == self.min_tokens && !FAULT;"),
    ("a state is kept without a copy", "pages.rs", "copied &= context.copy_page(cache, own, copy).is_ok();",
     "copied &= FAULT || context.copy_page(cache, own, copy).is_ok();"),
    ("a page in the window is dropped", "pages.rs", "sequence.computed.saturating_sub(window) / self.page;",
     "sequence.computed.saturating_sub(window) / self.page + usize::from(FAULT);"),
    ("nobody notices that a client left", "channel.rs", "!self.left.load(Ordering::Relaxed) && !self.is_cancelled()",
     "(FAULT || !self.left.load(Ordering::Relaxed)) && !self.is_cancelled()"),
    ("a request that ended counts as inside", "sequence.rs", "count.fetch_sub(1, Ordering::Relaxed);",
     "count.fetch_sub(usize::from(!FAULT), Ordering::Relaxed);"),
    ("pages from the disk go to the first page", "disk.rs", "let entry = first / layout.page;", "let entry = if FAULT { 0 } else { first / layout.page };"),
    ("a sequence goes on before its pages have come", "host.rs", "if self.shelf.has_fetched(context, false)? {",
     "if FAULT || self.shelf.has_fetched(context, false)? {"),
    ("pages that copies still write go to others", "pages.rs", "self.unsettled |= sequence.fetching.take().is_some();",
     "let fetches = sequence.fetching.take().is_some(); self.unsettled |= fetches && !FAULT;"),
    ("the roles of fetched tokens are lost", "host.rs", "sequence.keys[at..][..held.len()].copy_from_slice(held);",
     "if !FAULT { sequence.keys[at..][..held.len()].copy_from_slice(held); }"),
    ("what an admission needs is driven out", "../cache/places.rs", "self.lru.remove(self.places[&stored.id]);",
     "if !FAULT { self.lru.remove(self.places[&stored.id]); }"),
    ("a new context has the old shelf", "pages.rs", "self.host = self.host.take().and_then(|host| host.renew(context).ok());",
     "self.host = self.host.take().and_then(|host| if FAULT { Some(host) } else { host.renew(context).ok() });"),
    ("an admission that failed keeps what it held", "pages.rs", "host.let_go();", "if !FAULT { host.let_go(); }"),
    ("restored tokens are not reported", "disk.rs", "if restore.first {", "if restore.first && !FAULT {"),
    ("generated tokens lose their role", "scheduler/run.rs", "self.keys.push(Key::from(token) | GENERATED);",
     "self.keys.push(Key::from(token) | if FAULT { 0 } else { GENERATED });"),
    ("tokens of prompts are not counted", "scheduler/measure.rs", "self.totals.prompt_tokens += others as u64;",
     "if !FAULT { self.totals.prompt_tokens += others as u64; }"),
    ("a fault ends those who took no part", "scheduler/recovery.rs", "filter(|s| s.part != Part::Idle) {",
     "filter(|s| FAULT || s.part != Part::Idle) {"),
    ("an encoder's pass leaves a part out", "scheduler/encode.rs", "let piece = job.at..pieces",
     "if FAULT { job.at.part += 1; } let piece = job.at..pieces"),
    ("an encoder's pass repeats a part", "scheduler/encode.rs", "job.at = piece.end;",
     "job.at = piece.end; if FAULT { job.at.part = job.at.part.saturating_sub(1); }"),
    ("an encoder's pass ends before its last command", "scheduler/encode.rs", "if job.at.command < job.pass.tasks().len() {",
     "if job.at.command + usize::from(FAULT) < job.pass.tasks().len() {"),
    ("an encoder's fault is success", "scheduler/encode.rs", "return job.end(Err(error));", "return job.end(if FAULT { Ok(()) } else { Err(error) });"),
    ("streams wait for a whole pass", "scheduler.rs", "            self.encode();", "            self.encode(); while FAULT && self.encoding.waits() { self.encode(); }"),
    ("streams have no step beside an encoder", "scheduler.rs", "self.work(context, Work::Next { mixed })?;",
     "if !(FAULT && encodes) { self.work(context, Work::Next { mixed })?; }"),
    ("chains go on beside an encoder", "scheduler/chain.rs", "self.encoding.waits()", "(!FAULT && self.encoding.waits())"),
    ("prompts wait for encoders", "scheduler/encode.rs", "!(filling && self.encoding.had_turn)", "(FAULT || !(filling && self.encoding.had_turn))"),
    ("one encoder goes before the others", "scheduler/encode.rs", "self.encoding.jobs.push_back(job);",
     "if FAULT { self.encoding.jobs.push_front(job); } else { self.encoding.jobs.push_back(job); }"),
    ("a pass that nobody wants goes on", "encoder.rs", "self.cancelled.load(Ordering::Relaxed)", "!FAULT && self.cancelled.load(Ordering::Relaxed)"),
    ("pieces of encoders are long", "pace.rs", "from_secs_f64(ENCODING * self.decode)", "from_secs_f64(ENCODING * self.decode * if FAULT { 4.0 } else { 1.0 })"),
    ("unknown commands of encoders run whole", "pieces.rs", "None => (0, f64::INFINITY),", "None => (if FAULT { rest } else { 0 }, f64::INFINITY),"),
]

PLANTED = '''
/// True if this fault is planted.
pub(crate) fn planted(number: usize) -> bool {
    static FAULT: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    let read = || std::env::var("WELTE_PLANTED").ok()?.parse().ok();
    *FAULT.get_or_init(read) == Some(number)
}
'''


def sh(*command, **more):
    return subprocess.run(command, cwd=ROOT, text=True, **more)


def plant():
    """Puts every fault after its number."""
    for number, (name, file, right, wrong) in enumerate(FAULTS):
        path = ROOT / ENGINE / file
        text = path.read_text()
        if text.count(right) != 1:
            sys.exit(f"{name}: {file} contains {right!r} {text.count(right)} times")
        path.write_text(text.replace(right, wrong.replace("FAULT", f"crate::planted({number})")))
    lib = ROOT / "crates/welte/src/lib.rs"
    lib.write_text(lib.read_text() + PLANTED)


def run(number):
    """The first invariant that does not hold; `None`: all hold."""
    env = dict(os.environ, RUST_BACKTRACE="0", WELTE_PLANTED=str(number))
    done = sh("cargo", "test", "-q", "-p", "welte", "--lib", "schedules_keep", capture_output=True, env=env)
    if done.returncode == 0:
        return None
    said = done.stdout + done.stderr
    found = re.search(r"seed \d+: (.*)", said) or re.search(r"panicked at .*\n(.*)", said)
    return found[1] if found else said[-300:]


def main():
    if sh("git", "status", "--porcelain", "--", "crates/welte/src", capture_output=True).stdout:
        sys.exit("crates/welte/src is not clean")
    missed = 0
    try:
        plant()
        sh("cargo", "test", "-p", "welte", "--lib", "--no-run", check=True)
        print("| planted fault | noticed by |\n|---|---|")
        for number, (name, *_) in enumerate(FAULTS):
            if len(sys.argv) > 1 and name not in sys.argv[1:]:
                continue
            noticed = run(number)
            missed += noticed is None
            print(f"| {name} | {noticed or '**nobody**'} |", flush=True)
    finally:
        sh("git", "checkout", "--", "crates/welte/src")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
