//! Devices whose contexts fail on demand in the middle of the ranks' work.

#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Choice, Context, Control, Device, DeviceInfo, Emitted, Error, Loaded, LogprobQuery,
    Logprobs, MaskBoard, Plan, Profile, Progress, Seat, SlotState, Step, StepOptions,
};
use welte_formats::Checkpoint;
use welte_table::{BufferId, Class, Pattern, Program};

/// What a rank, usually rank 1, does in place of its next chain, or of another call.
#[derive(Clone, Copy, PartialEq)]
pub enum Fault {
    Fails,
    /// The first or another one finds out that rank 2 does not come, as GPUs do, and tells nobody else.
    Blames(u32),
    Panics,
    /// It works, but so late that the others give up.
    Sleeps(u64),
    /// Likewise, all ranks but the first.
    AllSleep(u64),
    /// It makes a token less than the others.
    StopsEarly,
}

/// The call in whose place a fault happens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Call {
    #[default]
    Chain,
    Step,
    Draft,
}

/// What happens next, and where: shared with the test.
#[derive(Clone, Default)]
pub struct Plot {
    pub fault: Arc<Mutex<Option<Fault>>>,
    pub call: Arc<Mutex<Call>>,
    pub seats: Arc<Mutex<Vec<Seat>>>,
    /// Contexts that were not dropped.
    pub contexts: Arc<AtomicU32>,
}

impl Plot {
    /// What happens to a rank now.
    fn next(&self, rank: u32, call: Call) -> Option<Fault> {
        let mut fault = self.fault.lock().unwrap();
        let now = *self.call.lock().unwrap() == call;
        if let Some(Fault::AllSleep(_)) = *fault {
            return fault.filter(|_| rank > 0 && now);
        }
        let whose = match *fault {
            Some(Fault::Blames(rank)) => rank,
            _ => 1,
        };
        if rank == whose && now {
            fault.take()
        } else {
            None
        }
    }
}

impl Fault {
    /// Errors and panics of a fault.
    fn happen(self) -> Result<(), Error> {
        match self {
            Fault::Fails => Err(Error::Failed {
                device: welte_device::DeviceId::only("reference"),
                source: "no power".into(),
            }),
            Fault::Blames(_) => Err(Error::Rank {
                rank: 2,
                ranks: 3,
                why: "the others waited for it in vain".into(),
            }),
            Fault::Panics => panic!("on purpose"),
            Fault::Sleeps(milliseconds) | Fault::AllSleep(milliseconds) => {
                std::thread::sleep(Duration::from_millis(milliseconds));
                Ok(())
            }
            Fault::StopsEarly => Ok(()),
        }
    }
}

pub struct Faulty {
    pub inner: Arc<dyn Device>,
    pub plot: Plot,
}

impl Device for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn patterns(&self) -> &'static [Pattern] {
        self.inner.patterns()
    }
    fn missing(&self, program: &Program) -> Option<String> {
        self.inner.missing(program)
    }
    fn plan(&self, program: Arc<Program>) -> Result<Plan, Error> {
        self.inner.plan(program)
    }
    fn drafts(&self) -> bool {
        self.inner.drafts()
    }
    fn available_memory(&self) -> Option<u64> {
        None
    }
    fn load(
        &self,
        plan: Plan,
        checkpoint: &dyn Checkpoint,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<dyn Loaded>, Error> {
        Ok(Arc::new(FaultyLoaded {
            inner: self.inner.load(plan, checkpoint, progress)?,
            plot: self.plot.clone(),
        }))
    }
    fn read_bandwidth(&self, seconds: f64) -> Result<f64, Error> {
        self.inner.read_bandwidth(seconds)
    }
}

struct FaultyLoaded {
    inner: Arc<dyn Loaded>,
    plot: Plot,
}

impl Loaded for FaultyLoaded {
    fn program(&self) -> &Arc<Program> {
        self.inner.program()
    }
    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }
    fn context(&self) -> Result<Box<dyn Context>, Error> {
        self.inner.context()
    }
    fn rank_context(&self, seat: Seat) -> Result<Box<dyn Context>, Error> {
        self.plot.seats.lock().unwrap().push(seat.clone());
        self.plot.contexts.fetch_add(1, Ordering::AcqRel);
        Ok(Box::new(FaultyContext {
            rank: seat.rank(),
            inner: self.inner.rank_context(seat)?,
            plot: self.plot.clone(),
        }))
    }
}

struct FaultyContext {
    rank: u32,
    inner: Box<dyn Context>,
    plot: Plot,
}

impl Drop for FaultyContext {
    fn drop(&mut self) {
        self.plot.contexts.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Context for FaultyContext {
    fn program(&self) -> &Arc<Program> {
        self.inner.program()
    }
    fn chain_slots(&self) -> usize {
        self.inner.chain_slots()
    }
    fn allocated(&self) -> BTreeMap<Class, u64> {
        self.inner.allocated()
    }
    fn set_pages(
        &mut self,
        cache: usize,
        slot: u32,
        first: u32,
        pages: &[u32],
    ) -> Result<(), Error> {
        self.inner.set_pages(cache, slot, first, pages)
    }
    fn copy_page(&mut self, cache: usize, from: u32, to: u32) -> Result<(), Error> {
        self.inner.copy_page(cache, from, to)
    }
    fn read_page(&mut self, cache: usize, page: u32, bytes: &mut [u8]) -> Result<(), Error> {
        self.inner.read_page(cache, page, bytes)
    }
    fn write_page(&mut self, cache: usize, page: u32, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write_page(cache, page, bytes)
    }
    fn step(&mut self, step: &Step, options: StepOptions<'_>) -> Result<&[f32], Error> {
        let fault = self.plot.next(self.rank, Call::Step);
        fault.map_or(Ok(()), Fault::happen)?;
        self.inner.step(step, options)
    }
    fn draft(&mut self, step: &mut Step, wanted: &[u32], tokens: &mut [u32]) -> Result<(), Error> {
        let fault = self.plot.next(self.rank, Call::Draft);
        fault.map_or(Ok(()), Fault::happen)?;
        self.inner.draft(step, wanted, tokens)
    }
    fn set_slot(&mut self, slot: u32, state: &SlotState<'_>) -> Result<(), Error> {
        self.inner.set_slot(slot, state)
    }
    fn masks(&self) -> Arc<MaskBoard> {
        self.inner.masks()
    }
    fn sample(&mut self, choices: &[Choice], tokens: &mut [u32]) -> Result<(), Error> {
        self.inner.sample(choices, tokens)
    }
    fn logprobs(
        &mut self,
        queries: &[LogprobQuery],
        answers: &mut [Logprobs],
    ) -> Result<(), Error> {
        self.inner.logprobs(queries, answers)
    }
    fn chain(
        &mut self,
        starts: &[ChainStart],
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(), Error> {
        let fault = self.plot.next(self.rank, Call::Chain);
        fault.map_or(Ok(()), Fault::happen)?;
        match fault {
            Some(Fault::StopsEarly) => {
                let left = AtomicU32::new(3);
                self.inner.chain(starts, control, &mut |emitted| {
                    emit(emitted) && left.fetch_sub(1, Ordering::Relaxed) > 1
                })
            }
            _ => self.inner.chain(starts, control, emit),
        }
    }
    fn read_bytes(&mut self, id: BufferId, first: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.inner.read_bytes(id, first, bytes)
    }
    fn write_bytes(&mut self, id: BufferId, first: u64, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write_bytes(id, first, bytes)
    }
    fn set_profiling(&mut self, on: bool) -> Result<(), Error> {
        self.inner.set_profiling(on)
    }
    fn profile(&self) -> Vec<Profile> {
        self.inner.profile()
    }
    fn last_step(&self) -> Timeline {
        self.inner.last_step()
    }
}
