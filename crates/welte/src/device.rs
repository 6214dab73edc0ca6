//! Where a model runs: the choice, and one face for the devices behind it.

use crate::{Error, LoadOptions, memory};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use welte_cpu::Profile;
use welte_cuda::Replay;
use welte_formats::Checkpoint;
use welte_models::CompileOptions;
use welte_table::timeline::Timeline;
use welte_table::{Class, Command, MemoryPlan, Program, Row, Sampling};

/// Rows of a prompt that a GPU computes together: enough to keep its tensor cores busy.
const CUDA_PREFILL_ROWS: u32 = 2048;

/// Where to run a model, as asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU if there is one and the model fits, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// This GPU, or an error.
    Cuda(u32),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let wrong = || format!("{name:?} is no device; use cpu, cuda, cuda:N or auto");
        match name {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            _ => {
                let ordinal = name.strip_prefix("cuda:").ok_or_else(wrong)?;
                let digits = !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit());
                match ordinal.parse() {
                    Ok(n) if digits => Ok(DeviceChoice::Cuda(n)),
                    _ => Err(wrong()),
                }
            }
        }
    }
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// A device with its options: what a model is compiled and planned for.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Cpu(welte_cpu::Options),
    Cuda(welte_cuda::Options),
}

impl Target {
    pub(crate) fn cpu(options: &LoadOptions) -> Target {
        Target::Cpu(welte_cpu::Options {
            threads: options.threads,
            isa: options.isa,
            reference: options.reference,
        })
    }

    /// The GPU of this number, if there is one that can be used.
    pub(crate) fn cuda(ordinal: u32, options: &LoadOptions) -> Result<Target, String> {
        if options.reference || options.isa.is_some() {
            return Err("--reference and --isa are for the CPU".to_string());
        }
        welte_cuda::info(ordinal).map_err(|error| error.to_string())?;
        Ok(Target::Cuda(welte_cuda::Options {
            device: ordinal,
            replay: options.replay,
        }))
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Target::Cpu(_) => Device::Cpu,
            Target::Cuda(options) => Device::Cuda(options.device),
        }
    }

    /// Rows of a prompt computed together where nobody asks for another number.
    pub(crate) fn prefill_rows(&self) -> u32 {
        match self {
            Target::Cpu(_) => CompileOptions::default().prefill_rows,
            Target::Cuda(_) => CUDA_PREFILL_ROWS,
        }
    }

    pub(crate) fn supports(&self, command: &Command) -> bool {
        match self {
            Target::Cpu(_) => welte_cpu::supports(command),
            Target::Cuda(_) => welte_cuda::supports(command),
        }
    }

    /// What a program needs that the device does not have, as a person reads it.
    pub(crate) fn missing(&self, program: &Program) -> Option<String> {
        match self {
            Target::Cpu(_) => None,
            Target::Cuda(_) => welte_cuda::missing(program),
        }
    }

    /// Everything that the device will allocate for a program.
    pub(crate) fn plan(&self, program: Arc<Program>) -> Result<Planned, Error> {
        let (mut memory, own, cuda) = match self {
            Target::Cpu(options) => (
                MemoryPlan::of(&program, &|weight| welte_cpu::weight_bytes(weight, options)),
                welte_cpu::device_bytes(&program, options),
                None,
            ),
            Target::Cuda(options) => {
                let plan = welte_cuda::Plan::of(program.clone(), options)?;
                (
                    MemoryPlan::of(&program, &|weight| {
                        welte_cuda::weight_bytes(weight, options)
                    }),
                    plan.device_bytes(),
                    Some(plan),
                )
            }
        };
        for (name, class, bytes) in own {
            memory.add(name, class, bytes);
        }
        Ok(Planned {
            program,
            memory,
            cuda,
        })
    }

    /// Memory that may be allocated now, if the system tells.
    pub(crate) fn available(&self) -> Option<u64> {
        match self {
            Target::Cpu(_) => memory::available(),
            Target::Cuda(options) => welte_cuda::free_memory(options.device).ok(),
        }
    }

    pub(crate) fn load(
        &self,
        planned: Planned,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<DeviceModel, Error> {
        let program = planned.program;
        Ok(match (self, planned.cuda) {
            (Target::Cpu(options), _) => DeviceModel::Cpu(welte_cpu::Model::load(
                program, checkpoint, options, progress,
            )?),
            (Target::Cuda(_), Some(plan)) => {
                DeviceModel::Cuda(welte_cuda::Model::load_planned(plan, checkpoint, progress)?)
            }
            (Target::Cuda(options), None) => DeviceModel::Cuda(welte_cuda::Model::load(
                program, checkpoint, options, progress,
            )?),
        })
    }
}

/// A program with what its device will allocate.
pub(crate) struct Planned {
    pub(crate) program: Arc<Program>,
    pub(crate) memory: MemoryPlan,
    /// For a GPU: what it worked out on the way.
    pub(crate) cuda: Option<welte_cuda::Plan>,
}

/// How a GPU replays this program, and why: the one that it is planned for; for another device the first GPU, or one
/// that is assumed. Both devices take the same commands, so the decode table is the same.
pub(crate) fn replay_on_gpu(planned: &Planned, replay: Replay) -> (&'static str, String) {
    if let Some(plan) = &planned.cuda {
        return ("replay", explain(plan));
    }
    let options = welte_cuda::Options { device: 0, replay };
    let (gpu, whose) = match welte_cuda::info(0) {
        Ok(gpu) => (gpu, String::new()),
        Err(_) => {
            let gpu = welte_cuda::h200();
            let whose = format!("; assuming an {}, for there is no GPU here", gpu.name);
            (gpu, whose)
        }
    };
    let text = match welte_cuda::Plan::on(planned.program.clone(), &options, &gpu) {
        Ok(plan) => explain(&plan),
        Err(error) => error.to_string(),
    };
    ("replay on a GPU", text + &whose)
}

/// How a planned program will be replayed, and what the persistent kernel thinks of it.
fn explain(plan: &welte_cuda::Plan) -> String {
    let replaying = plan.replaying();
    match (plan.persistent(), replaying.replay, &replaying.note) {
        (_, Replay::Persistent, None) if plan.rows_together() > 1 => {
            let most = plan.rows_together();
            format!("{replaying}; steps of up to {most} rows too")
        }
        (_, Replay::Persistent, _) | (_, _, Some(_)) => replaying.to_string(),
        (Ok(()), ..) => {
            format!("{replaying}; the persistent kernel takes this model (--replay persistent)")
        }
        (Err(why), ..) => format!("{replaying}; {why}"),
    }
}

/// A model's weights on a device.
pub(crate) enum DeviceModel {
    Cpu(welte_cpu::Model),
    Cuda(welte_cuda::Model),
}

impl DeviceModel {
    pub(crate) fn session(&self) -> Result<DeviceSession, Error> {
        Ok(match self {
            DeviceModel::Cpu(model) => {
                DeviceSession::Cpu(Box::new(welte_cpu::Session::new(model)?))
            }
            DeviceModel::Cuda(model) => {
                DeviceSession::Cuda(Box::new(welte_cuda::Session::new(model)?))
            }
        })
    }
}

/// The device's side of a session: buffers, keys and values, step state.
pub enum DeviceSession {
    /// On the CPU.
    Cpu(Box<welte_cpu::Session>),
    /// On a GPU.
    Cuda(Box<welte_cuda::Session>),
}

impl DeviceSession {
    /// Bytes by class that the model and this session take.
    pub fn allocated(&self) -> BTreeMap<Class, u64> {
        match self {
            DeviceSession::Cpu(session) => session.allocated(),
            DeviceSession::Cuda(session) => session.allocated(),
        }
    }

    /// Switches the profile of ops on, from zero, or off. A GPU runs commands one by one while it is on.
    pub fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        match self {
            DeviceSession::Cpu(session) => session.set_profiling(on),
            DeviceSession::Cuda(session) => session.set_profiling(on)?,
        }
        Ok(())
    }

    /// What each op did since profiling was switched on; empty if it is off.
    pub fn profile(&self) -> Vec<Profile> {
        match self {
            DeviceSession::Cpu(session) => session.profile().to_vec(),
            DeviceSession::Cuda(session) => session
                .profile()
                .iter()
                .map(|p| Profile {
                    op: p.op,
                    calls: p.calls,
                    ns: p.ns,
                    bytes: p.bytes,
                    flops: p.flops,
                })
                .collect(),
        }
    }

    /// When the commands of the last step ran, if it was profiled.
    pub fn last_step(&self) -> Timeline {
        match self {
            DeviceSession::Cpu(session) => session.last_step(),
            DeviceSession::Cuda(session) => session.last_step().clone(),
        }
    }

    /// The session on a GPU; an error on the CPU, which has one way of replaying only.
    pub fn cuda(&mut self) -> Result<&mut welte_cuda::Session, Error> {
        match self {
            DeviceSession::Cpu(_) => Err(Error::option(
                "--device",
                "this needs a GPU; use --device cuda",
            )),
            DeviceSession::Cuda(session) => Ok(session),
        }
    }

    /// Fills all keys and values with a pattern, over and over.
    pub(crate) fn fill_cache(&mut self, pattern: &[u8]) -> Result<(), Error> {
        let DeviceSession::Cpu(session) = self else {
            return Err(Error::option(
                "--random-depth",
                "only the CPU's cache can be filled at random; use --device cpu or leave it out",
            ));
        };
        let buffers = &session.model().program().buffers;
        let kv = buffers.iter().position(|b| b.class == Class::Kv);
        let kv = kv.and_then(|id| session.buffer_mut(id as u32));
        for piece in kv.into_iter().flat_map(|kv| kv.chunks_mut(pattern.len())) {
            piece.copy_from_slice(&pattern[..piece.len()]);
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, table: usize, rows: &[Row]) -> Result<&[f32], Error> {
        Ok(match self {
            DeviceSession::Cpu(session) => session.step(table, rows)?,
            DeviceSession::Cuda(session) => session.step(table, rows)?,
        })
    }

    pub(crate) fn set_sampling(&mut self, how: &Sampling, bias: &[(u32, f32)], history: &[u32]) {
        match self {
            DeviceSession::Cpu(session) => session.set_sampling(how, bias, history),
            DeviceSession::Cuda(session) => session.set_sampling(how, bias, history),
        }
    }

    pub(crate) fn sample(&mut self, position: u32) -> Result<u32, Error> {
        Ok(match self {
            DeviceSession::Cpu(session) => session.sample(position),
            DeviceSession::Cuda(session) => session.sample(position)?,
        })
    }

    pub(crate) fn chain(
        &mut self,
        start: Row,
        n: usize,
        ends: &[u32],
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, Error> {
        Ok(match self {
            DeviceSession::Cpu(session) => session.chain(start, n, ends, cancel, emit)?,
            DeviceSession::Cuda(session) => session.chain(start, n, ends, cancel, emit)?,
        })
    }
}

/// Bytes per second that a device reads, measured for about `seconds`: the floor under a token's time. `threads` are
/// the CPU's (0: all cores).
pub fn read_bandwidth(device: Device, threads: usize, seconds: f64) -> Result<f64, Error> {
    Ok(match device {
        Device::Cpu => welte_cpu::read_bandwidth(threads, seconds)?,
        Device::Cuda(ordinal) => welte_cuda::read_bandwidth(ordinal, seconds)?,
    })
}

/// Looks at a GPU. The error says why there is none.
pub fn gpu_info(ordinal: u32) -> Result<welte_cuda::GpuInfo, Error> {
    Ok(welte_cuda::info(ordinal)?)
}

/// Bytes of a GPU's memory that are free now.
pub fn gpu_free_memory(ordinal: u32) -> Result<u64, Error> {
    Ok(welte_cuda::free_memory(ordinal)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (name, device) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
        ] {
            assert_eq!(name.parse(), Ok(device));
        }
        for name in [
            "",
            "gpu",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:x",
            "cuda:99999999999",
            "CPU",
        ] {
            let error = name.parse::<DeviceChoice>().unwrap_err();
            assert!(error.contains("cuda:N"), "{error}");
        }
        assert_eq!(Device::Cuda(2).to_string(), "cuda:2");
    }
}
