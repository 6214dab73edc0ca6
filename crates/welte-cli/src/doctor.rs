//! `welte doctor`: the devices of this machine, and what is missing.

use crate::args::{DoctorArgs, Plain};
use crate::bench::measure;
use crate::{floor, source};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::process::ExitCode;
use welte::{DeviceChoice, DeviceOptions, DeviceReport, Error, VideoTools};
use welte_report::human;

/// A device with its measured memory speed, in bytes per second.
struct Examined {
    report: DeviceReport,
    /// `None` if the device cannot be used.
    speed: Option<Result<f64, Error>>,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let devices: Vec<Examined> = welte::devices().into_iter().map(examine).collect();
    let bundled = source::bundled();
    let mut out = crate::terminal::stdout();
    match args.output {
        Plain::Text => write!(out, "{}", text(&devices, bundled.as_deref()))?,
        Plain::Json => writeln!(out, "{:#}", report(&devices, bundled.as_deref()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn examine(report: DeviceReport) -> Examined {
    let options = DeviceOptions::default();
    let usable = report.missing.is_none();
    let speed = usable.then(|| welte::read_bandwidth(report.id, &options, measure::SECONDS));
    if let Some(Ok(speed)) = speed {
        floor::store(report.id, &report.name, speed);
    }
    Examined { report, speed }
}

/// Width of the first column.
const NAMES: usize = 18;

fn text(devices: &[Examined], bundled: Option<&str>) -> String {
    let mut lines = vec![line("welte", env!("CARGO_PKG_VERSION"))];
    for device in devices {
        let report = &device.report;
        match &report.missing {
            Some(why) => lines.push(line(&report.id.to_string(), &format!("not usable: {why}"))),
            None => lines.push(line(&report.id.to_string(), &report.name)),
        }
        let mut fact = |name: &str, value: &str| lines.push(line(&format!("  {name}"), value));
        match (report.memory_available, report.memory_total) {
            (Some(free), Some(all)) => {
                fact(
                    "memory",
                    &format!("{} available of {}", human(free), human(all)),
                );
            }
            (None, Some(all)) => fact("memory", &human(all)),
            (_, None) => {}
        }
        match &device.speed {
            Some(Ok(speed)) => fact("reads", &format!("{:.1} GB/s", speed / 1e9)),
            Some(Err(why)) => fact("reads", &format!("not measured: {why}")),
            None => {}
        }
        if !report.replays.is_empty() {
            let names: Vec<&str> = report.replays.iter().map(|replay| replay.name()).collect();
            fact("replay", &names.join(", "));
        }
        for (name, value) in &report.facts {
            fact(name, value);
        }
    }
    if "gpu".parse::<DeviceChoice>().is_err() {
        lines.push(line(
            "other GPUs",
            "not in this build; --features gpu adds them",
        ));
    }
    let bundled = bundled.unwrap_or("not found (models/demo.gguf)");
    lines.push(line("bundled model", bundled));
    lines.push(line("videos", &videos()));
    lines.concat()
}

/// Whether frames of videos can be read.
fn videos() -> String {
    match VideoTools::find() {
        Ok(_) => "by ffmpeg".into(),
        Err(missing) => format!("none: {missing} is not found"),
    }
}

fn line(name: &str, value: &str) -> String {
    format!("{name:<NAMES$} {value}\n")
}

fn report(devices: &[Examined], bundled: Option<&str>) -> Value {
    let device = |device: &Examined| {
        let report = &device.report;
        let facts: Map<String, Value> = report
            .facts
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        let speed = device.speed.as_ref().and_then(|speed| speed.as_ref().ok());
        let replays = report.replays.iter().map(|replay| replay.name());
        json!({
            "device": report.id.to_string(), "name": report.name, "missing": report.missing,
            "memory_total": report.memory_total, "memory_available": report.memory_available,
            "read_gb_s": speed.map(|speed| speed / 1e9), "replays": replays.collect::<Vec<_>>(), "facts": facts,
        })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"), "devices": devices.iter().map(device).collect::<Value>(),
        "bundled_model": bundled, "videos": VideoTools::find().is_ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte::{DeviceId, Replay};

    fn devices() -> [Examined; 2] {
        let cpu = DeviceReport {
            id: DeviceId::only("cpu"),
            name: "Processor X".into(),
            memory_total: Some(16 << 30),
            memory_available: Some(8 << 30),
            facts: vec![("instructions".into(), "avx2".into())],
            replays: vec![Replay::Graph, Replay::Persistent],
            missing: None,
        };
        let gpu = DeviceReport {
            id: DeviceId::numbered("cuda", 0),
            name: String::new(),
            memory_total: None,
            memory_available: None,
            facts: vec![("NVRTC".into(), "none".into())],
            replays: Vec::new(),
            missing: Some("no driver".into()),
        };
        [
            Examined {
                report: cpu,
                speed: Some(Ok(40e9)),
            },
            Examined {
                report: gpu,
                speed: None,
            },
        ]
    }

    #[test]
    fn text_shows_what_is_there_and_what_is_missing() {
        let text = text(&devices(), None);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "cpu                Processor X",
                "  memory           8.00 GiB available of 16.00 GiB",
                "  reads            40.0 GB/s",
                "  replay           graph, persistent",
                "  instructions     avx2",
                "cuda:0             not usable: no driver",
                "  NVRTC            none",
                "bundled model      not found (models/demo.gguf)",
                format!("videos             {}", videos()).as_str(),
            ]
        );
    }

    #[test]
    fn json_has_every_field() {
        let value = report(&devices(), Some("m.gguf"));
        assert_eq!(value["devices"][0]["read_gb_s"], 40.0);
        assert_eq!(value["devices"][0]["replays"][1], "persistent");
        assert_eq!(value["devices"][0]["facts"]["instructions"], "avx2");
        assert_eq!(value["devices"][1]["missing"], "no driver");
        assert_eq!(value["devices"][1]["read_gb_s"], Value::Null);
        assert_eq!(value["bundled_model"], "m.gguf");
    }
}
