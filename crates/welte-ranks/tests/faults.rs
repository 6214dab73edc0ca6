//! Ranks that fail in the middle of a chain: the error names them, nobody waits for ever, and the next chain runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use welte_conformance::model::Model;
use welte_conformance::program;
use welte_device::timeline::Timeline;
use welte_device::{
    ChainStart, Choice, Context, Control, Device, DeviceInfo, Emitted, Error, Loaded, LogprobQuery,
    Logprobs, MaskBoard, Plan, Profile, Progress, Seat, SlotState, Step, StepOptions,
};
use welte_formats::Checkpoint;
use welte_table::{BufferId, Class, Pattern, Program};

/// What a rank, usually rank 1, does in place of its next chain.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Fails,
    /// The first or another one finds out that rank 2 does not come, as GPUs do, and tells nobody else.
    Blames(u32),
    Panics,
    /// It works, but so late that the others give up.
    Sleeps,
    /// It makes a token less than the others.
    StopsEarly,
}

/// What happens next, and where: shared with the test.
#[derive(Clone, Default)]
struct Plot {
    fault: Arc<Mutex<Option<Fault>>>,
    seats: Arc<Mutex<Vec<Seat>>>,
}

struct Faulty {
    inner: Arc<dyn Device>,
    plot: Plot,
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
        self.inner.step(step, options)
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
        let fault = {
            let mut fault = self.plot.fault.lock().unwrap();
            let whose = match *fault {
                Some(Fault::Blames(rank)) => rank,
                _ => 1,
            };
            if self.rank == whose {
                fault.take()
            } else {
                None
            }
        };
        match fault {
            None => self.inner.chain(starts, control, emit),
            Some(Fault::Fails) => Err(Error::Failed {
                device: welte_device::DeviceId::only("reference"),
                source: "no power".into(),
            }),
            Some(Fault::Blames(_)) => Err(Error::Rank {
                rank: 2,
                ranks: 3,
                why: "the others waited for it in vain".into(),
            }),
            Some(Fault::Panics) => panic!("on purpose"),
            Some(Fault::Sleeps) => {
                std::thread::sleep(Duration::from_millis(900));
                self.inner.chain(starts, control, emit)
            }
            Some(Fault::StopsEarly) => {
                let left = AtomicU32::new(3);
                self.inner.chain(starts, control, &mut |emitted| {
                    emit(emitted) && left.fetch_sub(1, Ordering::Relaxed) > 1
                })
            }
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

/// A small model on three ranks, whose patience is short.
fn context(plot: &Plot) -> Box<dyn Context> {
    let device = |_| -> Arc<dyn Device> {
        Arc::new(Faulty {
            inner: welte_reference::device(),
            plot: plot.clone(),
        })
    };
    let ranks = welte_ranks::device_by((0..3).map(device).collect(), 0, Duration::from_millis(300));
    let (program, checkpoint) = program::make_fine(&Model::small(3));
    let plan = ranks.plan(Arc::new(program)).unwrap();
    ranks
        .load(plan, &checkpoint, &mut |_| {})
        .unwrap()
        .context()
        .unwrap()
}

/// A chain of eight tokens; `seen` may act at each of them.
fn chain(context: &mut dyn Context, mut seen: impl FnMut(usize)) -> Result<Vec<u32>, Error> {
    let start = ChainStart {
        slot: 0,
        token: 1,
        position: 0,
        steps: 8,
        shift: 0,
    };
    let mut tokens = Vec::new();
    context.chain(&[start], &Control::default(), &mut |emitted| {
        tokens.push(emitted.token);
        seen(tokens.len());
        true
    })?;
    Ok(tokens)
}

#[test]
fn a_rank_that_fails_ends_the_chain_with_its_name() {
    let plot = Plot::default();
    let mut context = context(&plot);
    let want = chain(&mut *context, |_| {}).unwrap();
    assert_eq!(want.len(), 8);
    for (fault, words) in [
        (Fault::Fails, "rank 1 of 3: reference: no power"),
        (Fault::Panics, "rank 1 of 3: it panicked"),
        (Fault::StopsEarly, "rank 1 of 3: the others waited"),
        (Fault::Blames(0), "rank 2 of 3: the others waited"),
        (Fault::Blames(1), "rank 2 of 3: the others waited"),
    ] {
        *plot.fault.lock().unwrap() = Some(fault);
        let begun = Instant::now();
        let error = chain(&mut *context, |_| {}).unwrap_err();
        assert!(matches!(error, Error::Rank { ranks: 3, .. }), "{error}");
        assert!(error.to_string().starts_with(words), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        // The next one runs as if nothing had been.
        assert_eq!(chain(&mut *context, |_| {}).unwrap(), want);
    }
}

#[test]
fn a_rank_stopped_in_mid_chain_ends_it() {
    let plot = Plot::default();
    let mut context = context(&plot);
    let want = chain(&mut *context, |_| {}).unwrap();
    let mut seats = plot.seats.lock().unwrap().clone();
    seats.sort_by_key(Seat::rank);
    for (rank, seat) in seats.iter().enumerate() {
        let error = chain(&mut *context, |token| {
            if token == 3 {
                seat.fail("the exchange failed");
            }
        });
        let error = error.unwrap_err().to_string();
        assert_eq!(error, format!("rank {rank} of 3: the exchange failed"));
        assert_eq!(chain(&mut *context, |_| {}).unwrap(), want);
    }
}

/// A rank that is late is lost if it does not come back; then every call says so at once.
#[test]
fn a_lost_rank_is_waited_for_once() {
    let plot = Plot::default();
    let mut context = context(&plot);
    *plot.fault.lock().unwrap() = Some(Fault::Sleeps);
    let error = chain(&mut *context, |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 of 3: "), "{error}");
    let begun = Instant::now();
    let error = chain(&mut *context, |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 of 3: it is lost"), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(200));
}
