//! What the engine page shows: the model, its table and memory plan, and the engine at work (page/src/api/types.ts).

use crate::app::App;
use crate::error::{Api, Failure, ok};
use crate::models::Served;
use crate::rates::{Rates, floor_share, speed};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use welte::{NodeSnapshot, SlotSnapshot, Snapshot, WaitingSnapshot};
use welte_table::{
    BufferRef, CacheKind, Command, NO_WEIGHT, Pass, PassKind, Program, Source, Usage,
};

#[cfg(test)]
mod tests;

/// The query of a request.
pub(crate) type Asked = Query<HashMap<String, String>>;

/// `GET /welte/table`
pub(crate) async fn table(State(app): State<Arc<App>>, Query(asked): Asked) -> Response {
    match app.peek(asked.get("model").map(String::as_str)) {
        Ok(served) => ok(&table_of(served.model.program())),
        Err(failure) => failure.response(Api::OpenAi),
    }
}

fn table_of(program: &Program) -> Value {
    let passes: Vec<Value> = program
        .passes
        .iter()
        .map(|pass| pass_json(program, pass))
        .collect();
    json!({ "passes": passes })
}

fn pass_json(program: &Program, pass: &Pass) -> Value {
    let bytes = pass.row_bytes();
    let commands = pass.commands.iter().enumerate();
    let commands: Vec<Value> = commands
        .map(|(index, command)| {
            let format = format_of(program, command);
            let share = command.bytes as f64 / bytes.max(1) as f64;
            let (reads, writes) = buffers(program, command);
            json!({
                "index": index, "layer": pass.layer_of(index), "part": pass.label(index),
                "op": command.op.name(), "format": format, "bytes": command.bytes, "flops": command.flops,
                "share": share, "reads": reads, "writes": writes,
            })
        })
        .collect();
    json!({
        "pass": pass.kind.name(), "rows": pass.rows, "bytes": bytes, "flops": pass.row_flops(), "commands": commands,
    })
}

/// `GET /welte/state`
pub(crate) async fn state(State(app): State<Arc<App>>, Query(asked): Asked) -> Response {
    match state_of(&app, asked.get("model").map(String::as_str)).await {
        Ok(state) => ok(&state),
        Err(failure) => failure.response(Api::OpenAi),
    }
}

/// The most branches of the prefix tree in a response.
const MOST_BRANCHES: usize = 256;
/// Waits for the scheduler's next turn.
async fn snapshot(served: &Served) -> Result<Box<Snapshot>, Failure> {
    let engine = &served.engine;
    let begun = Instant::now();
    engine.ask_snapshot();
    loop {
        if let Some(snapshot) = engine.take_snapshot() {
            return Ok(snapshot);
        }
        if begun.elapsed() > Duration::from_secs(20) {
            let message = "the scheduler does not advance";
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn state_of(app: &App, model: Option<&str>) -> Result<Value, Failure> {
    let served = app.peek(model)?;
    // One at a time: the engine makes one snapshot at a time.
    let mut history = served.history.lock().await;
    let snapshot = snapshot(&served).await?;
    let now = Instant::now();
    let moment = history.add(&snapshot, now);
    let rates = Rates::since(moment, &snapshot, now);
    let before = moment.map_or(&[][..], |moment| moment.positions.as_slice());
    let model = &served.model;
    let program = model.program();
    let rows = |kind: PassKind| program.pass(kind).map(|pass| program.passes[pass].rows);
    let spec = model.spec();
    let info = model.device();
    let bandwidth = served.bandwidth;
    let in_cache = model.bytes_per_token(1) <= info.cache_bytes;
    let step_bytes = model.bytes_per_token(1) as f64;
    let floor_share = floor_share(rates.steps, step_bytes, bandwidth, in_cache);
    let replay = served
        .engine
        .replaying()
        .map_or("one pass for each token".to_string(), ToString::to_string);
    let metrics = &served.metrics;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let entries = model.plan().entries.iter();
    let entries: Vec<Value> = entries
        .map(|entry| json!({ "name": entry.name, "class": entry.class.name(), "bytes": entry.bytes }))
        .collect();
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_ms": app.started.elapsed().as_millis() as u64,
        "model": {
            "id": served.id, "architecture": spec.architecture, "parameters": parameters(program),
            "formats": formats(program), "layers": spec.layers, "vocab": program.vocab, "context": program.context,
        },
        "device": {
            "kind": info.id.kind, "name": info.name, "replay": replay, "memory": null, "bandwidth": bandwidth,
        },
        "plan": { "total": model.plan().total(), "available": null, "entries": entries },
        "engine": {
            "slots": program.slots, "queue": served.engine.queue(), "page": program.page,
            "decode_rows": rows(PassKind::Decode), "prompt_rows": rows(PassKind::Prompt),
        },
        "rates": {
            "decode": rates.decode, "prompt": rates.prompt, "rows": rates.rows, "floor_share": floor_share,
        },
        "slots": slots(&served, &snapshot, before, rates.seconds),
        "queue": queue(&served, &snapshot),
        "pools": pools(program, &snapshot),
        "tree": {
            "nodes": snapshot.nodes.len(), "capacity": snapshot.node_capacity,
            "tokens": snapshot.nodes.iter().map(|node| node.tokens).sum::<usize>(),
            "lookups": count(&metrics.lookups), "hits": count(&metrics.hits),
            "prompt_tokens": count(&metrics.prompt_tokens), "reused_tokens": count(&metrics.cached_tokens),
            "evictions": null, "branches": branches(&snapshot),
        },
        "totals": {
            "requests": count(&metrics.requests), "prompt_tokens": count(&metrics.prompt_tokens),
            "generated_tokens": snapshot.generated_tokens, "preemptions": count(&metrics.preemptions),
            "guesses": metrics.guesses(),
        },
    }))
}

fn slots(
    served: &Served,
    snapshot: &Snapshot,
    before: &[(u64, usize)],
    seconds: f64,
) -> Vec<Value> {
    let active = served.active();
    let slot = |(index, slot): (usize, &SlotSnapshot)| {
        let Some(number) = slot.request else {
            return json!({ "slot": index, "state": "idle" });
        };
        let pages = slot.pages.iter().enumerate();
        let pages: Vec<Value> = pages
            .map(|(pool, pages)| json!({ "pool": pool, "runs": runs(pages) }))
            .collect();
        json!({
            "slot": index, "state": if slot.in_prompt { "prompt" } else { "decode" },
            "request": active.get(&number).map(|active| &active.id),
            "prompt_tokens": slot.prompt_tokens, "cached_tokens": slot.cached_tokens, "position": slot.position,
            "limit": slot.limit, "tokens_per_second": speed(slot, before, seconds),
            "running_ms": slot.admitted.map(|at| at.elapsed().as_millis() as u64), "pages": pages,
        })
    };
    snapshot.slots.iter().enumerate().map(slot).collect()
}

/// Pages as runs of adjacent ones: first page and count.
fn runs(pages: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == page => *count += 1,
            _ => runs.push((page, 1)),
        }
    }
    runs
}

fn queue(served: &Served, snapshot: &Snapshot) -> Vec<Value> {
    let active = served.active();
    let mut waiting = snapshot.waiting.clone();
    waiting.sort_by_key(|one| (std::cmp::Reverse(one.priority), one.request));
    let one = |one: &WaitingSnapshot| {
        let active = active.get(&one.request);
        json!({
            "request": active.map(|active| &active.id), "prompt_tokens": one.prompt_tokens, "priority": one.priority,
            "waiting_ms": active.map(|active| active.since.elapsed().as_millis() as u64), "preempted": one.preempted,
        })
    };
    waiting.iter().map(one).collect()
}

fn pools(program: &Program, snapshot: &Snapshot) -> Vec<Value> {
    let pool = |(index, cache): (usize, &welte_table::CacheSpec)| {
        let (kind, format, window) = match cache.kind {
            CacheKind::Attention { format, window, .. } => {
                ("attention", Some(format.name()), window)
            }
            CacheKind::Recurrent { .. } => ("recurrent", None, 0),
        };
        json!({
            "name": cache.name, "kind": kind, "format": format, "layers": cache.layers(), "window": window,
            "page_bytes": cache.page_bytes(program.page), "pages": letters(snapshot, index),
        })
    };
    program.caches.iter().enumerate().map(pool).collect()
}

/// One letter per page: free, owned by one sequence, shared by several, or cached.
fn letters(snapshot: &Snapshot, cache: usize) -> String {
    let references = &snapshot.references[cache];
    let mut letters: Vec<char> = references
        .iter()
        .map(|count| if *count > 0 { 'c' } else { '.' })
        .collect();
    let running = snapshot.slots.iter().filter(|slot| slot.request.is_some());
    for &page in running.flat_map(|slot| &slot.pages[cache]) {
        if let Some(letter) = letters.get_mut(page as usize) {
            *letter = if *letter == 'c' { 'o' } else { 's' };
        }
    }
    letters.into_iter().collect()
}

/// The shape of the prefix tree: runs of nodes without a fork.
fn branches(snapshot: &Snapshot) -> Vec<Value> {
    let nodes: HashMap<u32, &NodeSnapshot> =
        snapshot.nodes.iter().map(|node| (node.id, node)).collect();
    let mut children: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
    for node in &snapshot.nodes {
        children.entry(node.parent).or_default().push(node.id);
    }
    let users = |node: &NodeSnapshot| {
        let (cache, page) = node.page?;
        let uses =
            |slot: &&SlotSnapshot| slot.request.is_some() && slot.pages[cache].contains(&page);
        Some(snapshot.slots.iter().filter(uses).count())
    };
    let mut branches = Vec::new();
    // First node, parent branch, first position. Parents come first.
    let mut open: VecDeque<(u32, Option<usize>, usize)> = VecDeque::new();
    open.extend(
        children
            .get(&None)
            .into_iter()
            .flatten()
            .map(|id| (*id, None, 0)),
    );
    while let Some((first, parent, start)) = open.pop_front() {
        if branches.len() == MOST_BRANCHES {
            break;
        }
        let (mut last, mut tokens) = (first, 0);
        let after = loop {
            tokens += nodes.get(&last).map_or(0, |node| node.tokens);
            match children.get(&Some(last)).map(Vec::as_slice) {
                Some([one]) => last = *one,
                more => break more.unwrap_or_default(),
            }
        };
        let id = branches.len();
        let sequences = nodes.get(&first).copied().and_then(users).unwrap_or(0);
        branches.push(json!({
            "id": id, "parent": parent, "start": start, "tokens": tokens, "sequences": sequences, "idle_ms": null,
        }));
        open.extend(after.iter().map(|child| (*child, Some(id), start + tokens)));
    }
    branches
}

/// Weights of matrices and vectors, counted once.
pub(crate) fn parameters(program: &Program) -> u64 {
    let count = |weight: &welte_table::WeightSpec| match weight.source {
        Source::Constant(_) => 0,
        _ => u64::from(weight.n) * u64::from(weight.k),
    };
    program.weights.iter().map(count).sum()
}

/// The formats of the weights by bytes, largest first.
pub(crate) fn formats(program: &Program) -> Vec<&'static str> {
    let mut bytes: BTreeMap<&'static str, u64> = BTreeMap::new();
    let matrices = program
        .weights
        .iter()
        .filter(|weight| weight.usage != Usage::Vector);
    for weight in matrices {
        let row = weight.format.bytes(weight.k as usize).unwrap_or(0) as u64;
        *bytes.entry(weight.format.name()).or_default() += row * u64::from(weight.n);
    }
    let mut all: Vec<_> = bytes.into_iter().collect();
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    all.into_iter().map(|(name, _)| name).collect()
}

/// The format of a command's weights.
fn format_of(program: &Program, command: &Command) -> Option<&'static str> {
    let weight = command
        .weights
        .first()
        .filter(|weight| **weight != NO_WEIGHT)?;
    program
        .weights
        .get(*weight as usize)
        .map(|weight| weight.format.name())
}

/// Names of buffers, those read and those written.
fn buffers(program: &Program, command: &Command) -> (Vec<String>, Vec<String>) {
    let name = |operand: &BufferRef| {
        program
            .buffers
            .get(operand.buffer as usize)
            .map(|buffer| buffer.name.clone())
    };
    let (reads, writes) = (command.op.reads().len(), command.op.writes().len());
    let named = |operands: &[BufferRef]| operands.iter().filter_map(name).collect();
    (
        named(&command.buffers[..reads]),
        named(&command.buffers[reads..reads + writes]),
    )
}
