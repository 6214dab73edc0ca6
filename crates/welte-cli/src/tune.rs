//! `welte tune`: measures a model's tuning parameters on this device. They change speed and never the text.

use crate::args::TuneArgs;
use crate::source;
use std::io::Write;
use std::process::ExitCode;

pub(crate) fn run(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    let source = source::pick(args.load.model.as_deref(), args.source.as_deref())?;
    let mut options = args.load.options()?;
    options.retune = true;
    let model = source::load_with(&source, &options)?;
    let device = model.device();
    let mut stepper = model.stepper()?;
    let tools = stepper.context().replays();
    let mut out = crate::terminal::stdout();
    match tools.and_then(|tools| Some((tools.tuning()?, tools.replaying()))) {
        Some((tuning, replaying)) => writeln!(
            out,
            "{source} on {} ({}), {replaying}: {tuning}",
            device.id, device.name
        )?,
        None => writeln!(
            out,
            "{source} on {} ({}): nothing to tune",
            device.id, device.name
        )?,
    }
    Ok(ExitCode::SUCCESS)
}
