//! A profile as JSON.

use super::{Part, Report, Timed, per_ns};
use serde_json::{Value, json};
use welte_device::Profile;
use welte_device::timeline::Kind;

/// The report as one object.
pub fn json(report: &Report) -> Value {
    json!({
        "model": report.model, "device": report.device, "floor_gb_s": report.floor.speed / 1e9,
        "in_cache": report.floor.in_cache, "parts": report.parts.iter().map(part).collect::<Value>(),
    })
}

fn part(part: &Part) -> Value {
    let mut value = json!({
        "part": part.name, "tokens": part.tokens, "gb_s": part.gb_s(), "ms_per_token": part.ms_per_token(),
        "how": part.how, "commands": part.ops().iter().map(op).collect::<Value>(),
    });
    if let Timed::Whole { .. } = part.timed {
        value["token"] = json!({
            "position": part.step.position, "ns": part.step.length(), "blocks": part.step.lanes.len(),
            "commands": part.kinds().iter().map(kind).collect::<Value>(),
        });
    }
    value
}

fn op(op: &Profile) -> Value {
    json!({
        "command": op.op.name(), "calls": op.calls, "ns": op.ns, "bytes": op.bytes, "flops": op.flops,
        "gb_s": per_ns(op.bytes, op.ns), "gflop_s": per_ns(op.flops, op.ns),
    })
}

fn kind(kind: &Kind) -> Value {
    json!({
        "command": kind.name, "calls": kind.calls, "blocks": kind.lanes, "ns": kind.ns, "waiting_ns": kind.waiting_ns,
        "spread_ns": kind.spread_ns, "bytes": kind.bytes, "gb_s": kind.gb_s(),
    })
}
