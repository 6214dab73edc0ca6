//! Timelines as trace events for Perfetto and chrome://tracing: one process per step, one track per lane.

use serde_json::{Value, json};
use std::io::{self, Write};
use welte_device::timeline::{Span, Timed, Timeline};

/// A step with the names of its process and tracks.
pub struct Step<'a> {
    /// Name of the process.
    pub name: String,
    /// Name of a track, numbered if there are several.
    pub lane: &'a str,
    /// The step.
    pub timeline: &'a Timeline,
}

/// Writes the events, one per line.
pub fn write(out: &mut impl Write, steps: &[Step<'_>]) -> io::Result<()> {
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut separator = "";
    let mut put = |event: Value| {
        write!(out, "{separator}{event}")?;
        separator = ",\n";
        io::Result::Ok(())
    };
    // Viewers take track numbers for thread ids of the system, so they are unique over all processes.
    let mut track = 0;
    for (process, step) in (1..).zip(steps) {
        put(name_of(process, 0, "process_name", &step.name))?;
        for (number, lane) in step.timeline.lanes.iter().enumerate() {
            track += 1;
            let name = match step.timeline.lanes.len() {
                1 => step.lane.to_string(),
                _ => format!("{} {number}", step.lane),
            };
            put(name_of(process, track, "thread_name", &name))?;
            put(json!({
                "ph": "M", "pid": process, "tid": track, "name": "thread_sort_index", "args": {"sort_index": number},
            }))?;
            for span in apart(lane) {
                if let Some(timed) = step.timeline.commands.get(span.index as usize) {
                    slices(process, track, timed, &span).try_for_each(&mut put)?;
                }
            }
        }
    }
    writeln!(out, "\n]}}")
}

/// A metadata event that names a process or a track.
fn name_of(process: u32, track: u32, what: &str, name: &str) -> Value {
    json!({"ph": "M", "pid": process, "tid": track, "name": what, "args": {"name": name}})
}

/// A command's slice, with inner slices for waiting and for passing the results on, if those were recorded.
fn slices(process: u32, track: u32, timed: &Timed, span: &Span) -> impl Iterator<Item = Value> {
    let slice = move |name: &str, category: &str, from: u64, to: u64, args: Value| {
        json!({
            "ph": "X", "pid": process, "tid": track, "ts": us(from), "dur": us(to - from), "name": name, "cat": category,
            "args": args,
        })
    };
    let about = json!({"command": timed.command, "layer": timed.layer, "bytes": timed.bytes});
    let whole = slice(&timed.name(), timed.op.name(), span.begin, span.end, about);
    let inner = |name, from, to| (to > from).then(|| slice(name, name, from, to, json!({})));
    let inner = [
        inner("waiting", span.begin, span.ready),
        inner("passing on", span.done, span.end),
    ];
    std::iter::once(whole).chain(inner.into_iter().flatten())
}

/// Microseconds, the unit of trace events.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// The spans in order of time, moved so that none begins before the previous one ends: slices of a track must not overlap.
fn apart(lane: &[Span]) -> Vec<Span> {
    let mut spans = lane.to_vec();
    spans.sort_by_key(|span| (span.begin, span.end));
    let mut free = 0;
    for span in &mut spans {
        let at = |time: u64| time.max(free);
        *span = Span {
            index: span.index,
            begin: at(span.begin),
            ready: at(span.ready.max(span.begin)),
            done: at(span.done.max(span.ready)),
            end: at(span.end.max(span.done)),
        };
        free = span.end;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::tests::{made, span};

    fn events(steps: &[Step<'_>]) -> Vec<Value> {
        let mut out = Vec::new();
        write(&mut out, steps).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        trace["traceEvents"].as_array().unwrap().clone()
    }

    fn step<'a>(name: &str, timeline: &'a Timeline) -> Step<'a> {
        Step {
            name: name.to_string(),
            lane: "block",
            timeline,
        }
    }

    #[test]
    fn every_span_is_a_slice_on_the_track_of_its_lane() {
        let timeline = made(3, 4);
        let events = events(&[step("a \"token\" \\ \u{1}", &timeline)]);
        let named =
            |what: &str| -> Vec<&Value> { events.iter().filter(|e| e["name"] == what).collect() };
        assert_eq!(
            named("process_name")[0]["args"]["name"],
            "a \"token\" \\ \u{1}"
        );
        let tracks: Vec<(&Value, &Value)> = named("thread_name")
            .into_iter()
            .map(|e| (&e["tid"], &e["args"]["name"]))
            .collect();
        assert_eq!(tracks.len(), 3);
        assert_eq!(
            (tracks[2].0.as_u64(), tracks[2].1.as_str()),
            (Some(3), Some("block 2"))
        );
        let slices: Vec<&Value> = events
            .iter()
            .filter(|e| e["ph"] == "X" && e["cat"] != "waiting")
            .collect();
        assert_eq!(slices.len(), 3 * 4 * 2);
        assert_eq!(slices[0]["name"], "layer 0 norm_matmul qkv");
        assert_eq!(slices[1]["name"], "layer 0 attention");
        assert_eq!(slices[0]["args"]["layer"], 0);
        assert_eq!(slices[0]["pid"], 1);
        // Microseconds: the first command takes 1,000 ns, of which 250 are waiting.
        assert_eq!(
            (slices[0]["ts"].as_f64(), slices[0]["dur"].as_f64()),
            (Some(0.0), Some(1.0))
        );
        let waiting = named("waiting");
        assert_eq!(waiting.len(), 3 * 4 * 2);
        assert_eq!(waiting[0]["dur"].as_f64(), Some(0.25));
        assert!(
            events
                .iter()
                .all(|e| ["M", "X"].contains(&e["ph"].as_str().unwrap()))
        );
    }

    #[test]
    fn slices_of_a_track_never_overlap() {
        let mut timeline = made(1, 2);
        timeline.lanes[0] = vec![
            span(1, 500, 600, 2_000),
            span(0, 0, 0, 1_000),
            span(0, 1_200, 1_300, 1_500),
            span(2, 1_900, 3_000, 2_500),
            span(77, 0, 0, 9),
        ];
        let events = events(&[step("x", &timeline)]);
        let mut end = 0.0;
        let mut seen = 0;
        for event in events
            .iter()
            .filter(|e| e["ph"] == "X" && e["cat"] != "waiting")
        {
            let (ts, dur) = (
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64().unwrap(),
            );
            assert!(ts >= end && dur >= 0.0, "{event}");
            end = ts + dur;
            seen += 1;
        }
        assert_eq!(seen, 4);
        for event in events.iter().filter(|e| e["cat"] == "waiting") {
            assert!(event["dur"].as_f64().unwrap() > 0.0);
        }
    }

    #[test]
    fn empty_and_large_traces_are_valid() {
        assert!(events(&[]).is_empty());
        assert_eq!(events(&[step("empty", &Timeline::default())]).len(), 1);
        let timeline = made(132, 36);
        let both = [step("one", &timeline), step("two", &timeline)];
        let events = events(&both);
        let slices = events.iter().filter(|e| e["ph"] == "X");
        assert_eq!(slices.count(), 2 * 132 * 36 * 2 * 2);
        let tracks = events.iter().filter(|e| e["name"] == "thread_name");
        let numbers: std::collections::BTreeSet<u64> =
            tracks.map(|e| e["tid"].as_u64().unwrap()).collect();
        assert_eq!(numbers.len(), 2 * 132);
    }
}
