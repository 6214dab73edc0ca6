//! What a program will take of a GPU and how it will be replayed there, known before anything is allocated.

use crate::persistent::{self, Inputs, ONE_ROW, Recording};
use crate::sizes::{self, Sizes};
use crate::{Error, GpuInfo, Options, Replay, info};
use std::fmt;
use std::sync::Arc;
use welte_table::{Class, Program};

/// How chains are replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaying {
    /// In which way.
    pub replay: Replay,
    /// Why not as was asked for, if so.
    pub note: Option<String>,
}

impl fmt::Display for Replaying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.replay.name())?;
        match &self.note {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}

/// The ways in which a GPU can replay chains, and why the persistent kernel is not among them, if so.
pub fn replays(gpu: &GpuInfo) -> (Vec<Replay>, Option<String>) {
    let mut all = vec![Replay::Graph, Replay::While, Replay::Eager];
    match persistent::possible(gpu) {
        Ok(()) => {
            all.insert(0, Replay::Persistent);
            (all, None)
        }
        Err(why) => (all, Some(not_persistent(&why))),
    }
}

/// The decode table for steps of several rows, if there is a table that they stand for.
fn several(inputs: &Inputs<'_>) -> Result<Recording, String> {
    let (decode, others) = inputs.program.tables.split_first().ok_or("no table")?;
    if !others
        .iter()
        .any(|table| persistent::can_stand_for(decode, table))
    {
        return Err("no other table has the decode table's commands".to_string());
    }
    persistent::record_rows(inputs, decode)
}

/// The beginning of every reason.
fn not_persistent(why: &str) -> String {
    format!("not the persistent kernel: {why}")
}

/// A program planned for a GPU: what it will allocate there, and its decode table recorded for the persistent kernel. Made
/// once, and kept from the memory plan to the last session.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) program: Arc<Program>,
    pub(crate) options: Options,
    pub(crate) sizes: Sizes,
    /// The decode table for the persistent kernel, or why there is none.
    pub(crate) recording: Result<Recording, String>,
    /// The same for steps of several rows.
    pub(crate) rows: Result<Recording, String>,
}

impl Plan {
    /// For the GPU that the options name. The error says why there is none, or what is wrong with the program.
    pub fn of(program: Arc<Program>, options: &Options) -> Result<Plan, Error> {
        sizes::check(&program)?;
        Plan::on(program, options, &info(options.device)?)
    }

    /// For a GPU that need not be there.
    pub fn on(program: Arc<Program>, options: &Options, gpu: &GpuInfo) -> Result<Plan, Error> {
        sizes::check(&program)?;
        let inputs = Inputs {
            program: &program,
            gpu,
        };
        let decode = program.tables.first().ok_or("it has no table".to_string());
        let recording = decode.and_then(|table| persistent::record(&inputs, table, ONE_ROW));
        let rows = recording.as_ref().map_err(String::clone);
        let rows = rows.and_then(|_| several(&inputs));
        let bytes =
            [&recording, &rows].map(|recording| recording.as_ref().map_or(0, |r| r.memory().bytes));
        Ok(Plan {
            sizes: Sizes::of(&program, gpu, bytes),
            options: *options,
            recording: recording.map_err(|why| not_persistent(&why)),
            rows: rows.map_err(|why| not_persistent(&why)),
            program,
        })
    }

    /// What the device allocates for a session besides the program's own buffers: name, class and bytes of each.
    pub fn device_bytes(&self) -> Vec<(&'static str, Class, u64)> {
        self.sizes.entries().to_vec()
    }

    /// How chains will be replayed.
    pub fn replaying(&self) -> Replaying {
        match (&self.recording, self.options.replay) {
            (Err(why), Replay::Persistent) => Replaying {
                replay: Replay::Graph,
                note: Some(why.clone()),
            },
            (_, replay) => Replaying { replay, note: None },
        }
    }

    /// Whether the persistent kernel takes the program; the error says why not.
    pub fn persistent(&self) -> Result<(), &str> {
        self.recording.as_ref().map(|_| ()).map_err(String::as_str)
    }

    /// The source of the persistent kernel, for chains or for steps of several rows, as one text that compiles on its own. The error
    /// says why there is no such kernel.
    pub fn persistent_source(&self, several_rows: bool) -> Result<String, &str> {
        let recording = if several_rows {
            &self.rows
        } else {
            &self.recording
        };
        let recording = recording.as_ref().map_err(String::as_str)?;
        Ok(persistent::standalone(&recording.unit()))
    }

    /// The most rows of a step that the persistent kernel computes.
    pub fn rows_together(&self) -> u32 {
        let one = u32::from(self.recording.is_ok());
        self.rows.as_ref().map_or(one, |recording| recording.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::h200;
    use welte_formats::synthetic::Synthetic;
    use welte_table::Format;

    fn example(kv_format: Format) -> Program {
        let checkpoint = Synthetic::parse("qwen3-0.6b:q4_0").unwrap();
        let spec = welte_models::spec(&checkpoint).unwrap();
        let compile = welte_models::CompileOptions {
            context: 256,
            kv_format,
            ..Default::default()
        };
        welte_models::compile(&spec, &checkpoint, &compile).unwrap()
    }

    fn plan(program: &Program, replay: Replay, gpu: &GpuInfo) -> Plan {
        let options = Options { device: 0, replay };
        Plan::on(Arc::new(program.clone()), &options, gpu).unwrap()
    }

    #[test]
    fn the_plan_says_how_it_will_be_replayed_and_why() {
        let program = example(Format::F16);
        let taken = plan(&program, Replay::Persistent, &h200());
        assert_eq!(taken.replaying().to_string(), "persistent kernel");
        assert_eq!(taken.persistent(), Ok(()));
        let asked = plan(&program, Replay::Graph, &h200());
        assert_eq!(asked.replaying().to_string(), "graph");
        assert_eq!(asked.persistent(), Ok(()));
        let bytes = example(Format::Q8_0);
        let refused = plan(&bytes, Replay::Persistent, &h200());
        assert_eq!(
            refused.replaying().to_string(),
            "graph (not the persistent kernel: a KV cache in Q8_0)"
        );
        assert!(refused.persistent().unwrap_err().contains("Q8_0"));
    }

    #[test]
    fn what_is_recorded_once_is_counted_and_kept() {
        let plan = plan(&example(Format::F16), Replay::Graph, &h200());
        let bytes = plan.recording.as_ref().unwrap().memory().bytes;
        let entry = ("persistent replay", Class::Tables, bytes);
        assert!(bytes > 0 && plan.device_bytes().contains(&entry));
        assert_eq!(plan.rows_together(), 8);
        let more = plan.rows.as_ref().unwrap().memory().bytes;
        let entry = ("persistent replay of rows", Class::Tables, more);
        assert!(more > bytes && plan.device_bytes().contains(&entry));
    }

    #[test]
    fn a_gpu_that_is_too_old_has_the_other_ways() {
        let (ways, why) = replays(&h200());
        assert!(ways.contains(&Replay::Persistent) && why.is_none());
        let old = GpuInfo { arch: 89, ..h200() };
        let (ways, why) = replays(&old);
        assert_eq!(ways, [Replay::Graph, Replay::While, Replay::Eager]);
        let why = why.unwrap();
        assert!(why.contains("9.0") && why.contains("8.9"), "{why}");
        // The same words as for a model.
        let plan = plan(&example(Format::F16), Replay::Persistent, &old);
        assert_eq!(plan.persistent(), Err(why.as_str()));
    }
}
