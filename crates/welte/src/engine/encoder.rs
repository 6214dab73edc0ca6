//! Encoders beside a language model: their passes run piece by piece between the steps of the streams.
//!
//! The caller's thread writes what rows read, and hands the pass to the engine's thread, which runs its commands and gives it
//! back ([`Turns`]). How long a piece is: [`pieces`](super::pieces).

use super::pieces::Task;
use crate::Error;
use crate::fair_lock::FairLock;
use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use web_time::Duration;
use welte_device::{Context, Error as DeviceError, Loaded, Place, Stage, Step, StepOptions};
use welte_table::{Command, Program, cost};

/// How often a caller that waits looks whether its request is still wanted.
const LOOKS: Duration = Duration::from_millis(20);
/// Commands between two looks of a caller that runs its pass itself.
const COMMANDS: usize = 8;

/// A pass that is run piece by piece.
pub(crate) trait Pass: Any + Send {
    /// Its commands, in order.
    fn tasks(&self) -> &[Task];

    /// Runs what lies between two places. The work is over when the call returns.
    fn run(&mut self, places: Range<Place>) -> Result<(), DeviceError>;
}

/// A pass in the hands of the engine.
pub(crate) struct Job {
    pub(crate) pass: Box<dyn Pass>,
    /// How far it has come.
    pub(crate) at: Place,
    /// Nobody wants it any more.
    pub(crate) cancelled: Arc<AtomicBool>,
    /// Where it goes when it has ended. If the engine ends, nothing comes.
    pub(crate) done: SyncSender<Ended>,
}

/// A pass that comes back: all its commands have run, or one has failed, or nobody wanted it.
pub(crate) type Ended = (Box<dyn Pass>, Result<(), DeviceError>);

impl Job {
    /// Gives the pass back.
    pub(crate) fn end(self, result: Result<(), DeviceError>) {
        // The channel has room for it. A caller that has gone does not miss it.
        let _ = self.done.try_send((self.pass, result));
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// An engine with a thread, which runs passes.
pub(crate) trait RunsPasses: Send + Sync {
    /// Hands a pass to the thread, or back if that has ended.
    fn push_pass(&self, job: Job) -> Result<(), Job>;

    /// Lets the thread look at what was cancelled.
    fn wake(&self);
}

/// The engine whose streams an encoder shares a device with, once there is one.
#[derive(Clone, Default)]
pub(crate) struct Neighbour(Arc<Mutex<Option<Weak<dyn RunsPasses>>>>);

impl Neighbour {
    /// An engine with a thread has started. The last one counts.
    pub(crate) fn set(&self, engine: &Arc<impl RunsPasses + 'static>) {
        let engine: Arc<dyn RunsPasses> = engine.clone();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(&engine));
    }

    fn get(&self) -> Option<Arc<dyn RunsPasses>> {
        let engine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref()?.upgrade()
    }
}

/// When the passes of an encoder run: between the steps of an engine's streams, or at once; and as long as somebody wants what
/// they yield.
pub struct Turns<'a> {
    engine: Option<Arc<dyn RunsPasses>>,
    wanted: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Turns<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shares = self.engine.is_some();
        f.debug_struct("Turns").field("shares", &shares).finish()
    }
}

impl<'a> Turns<'a> {
    /// At once: nobody else uses the device.
    pub fn at_once() -> Turns<'static> {
        Turns {
            engine: None,
            wanted: &|| true,
        }
    }

    /// Between the steps of the engine, as long as `wanted` is true. Without an engine at once.
    pub(crate) fn beside(neighbour: Option<&Neighbour>, wanted: &'a dyn Fn() -> bool) -> Turns<'a> {
        Turns {
            engine: neighbour.and_then(Neighbour::get),
            wanted,
        }
    }

    fn check(&self) -> Result<(), Error> {
        if (self.wanted)() {
            Ok(())
        } else {
            Err(Error::Deadline)
        }
    }

    /// Runs all commands of a pass, and gives it back, unless it was lost with its engine.
    pub(crate) fn run<P: Pass>(&self, pass: P) -> (Option<P>, Result<(), Error>) {
        let pass: Box<dyn Pass> = Box::new(pass);
        let (pass, result) = match (&self.engine, self.check()) {
            (_, Err(unwanted)) => (Some(pass), Err(unwanted)),
            (Some(engine), Ok(())) => self.hand_over(engine, pass),
            (None, Ok(())) => self.run_here(pass),
        };
        let pass = pass.and_then(|pass| {
            let pass: Box<dyn Any> = pass;
            pass.downcast().ok().map(|pass| *pass)
        });
        (pass, result)
    }

    fn run_here(&self, mut pass: Box<dyn Pass>) -> (Option<Box<dyn Pass>>, Result<(), Error>) {
        let all = pass.tasks().len();
        let mut run = |first: usize| {
            self.check()?;
            let end = (first + COMMANDS).min(all);
            Ok(pass.run(Place::before(first)..Place::before(end))?)
        };
        let result = (0..all).step_by(COMMANDS).try_for_each(&mut run);
        (Some(pass), result)
    }

    fn hand_over(
        &self,
        engine: &Arc<dyn RunsPasses>,
        pass: Box<dyn Pass>,
    ) -> (Option<Box<dyn Pass>>, Result<(), Error>) {
        let (done, back) = sync_channel(1);
        let cancelled = Arc::new(AtomicBool::new(false));
        let job = Job {
            pass,
            at: Place::START,
            cancelled: cancelled.clone(),
            done,
        };
        if let Err(job) = engine.push_pass(job) {
            return self.run_here(job.pass);
        }
        loop {
            match back.recv_timeout(LOOKS) {
                Ok((pass, Ok(()))) if cancelled.load(Ordering::Relaxed) => {
                    return (Some(pass), Err(Error::Deadline));
                }
                Ok((pass, result)) => return (Some(pass), result.map_err(Error::Device)),
                Err(RecvTimeoutError::Disconnected) => {
                    return (None, Err(Error::EngineStopped { why: None }));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if !cancelled.load(Ordering::Relaxed) && self.check().is_err() {
                        cancelled.store(true, Ordering::Relaxed);
                        engine.wake();
                    }
                }
            }
        }
    }
}

/// An encoder on a device. One pass runs at a time; others wait in the order in which they came.
pub(crate) struct Encoder {
    loaded: Arc<dyn Loaded>,
    /// `None`: it was lost.
    context: FairLock<Option<Box<dyn Context>>>,
}

impl Encoder {
    pub(crate) fn new(loaded: Arc<dyn Loaded>) -> Result<Encoder, DeviceError> {
        let context = loaded.context()?;
        Ok(Encoder {
            loaded,
            context: FairLock::new(Some(context)),
        })
    }

    /// Runs a step of the embed pass whose rows read `features`, and returns its output rows.
    pub(crate) fn run(
        &self,
        features: &[u8],
        step: Step,
        turns: &Turns<'_>,
    ) -> Result<Vec<f32>, Error> {
        let mut place = self
            .context
            .take(&mut || turns.check().is_ok())
            .ok_or(Error::Deadline)?;
        let context = match place.take() {
            Some(context) => context,
            None => self.loaded.context()?,
        };
        let pass = EncoderPass::begin(context, features, step)?;
        let (pass, result) = turns.run(pass);
        let Some(mut pass) = pass else {
            return result.map(|()| Vec::new());
        };
        let values = result.and_then(|()| Ok(pass.end()?));
        // After a fault of the device the next pass has a new context.
        if !matches!(values, Err(Error::Device(_))) {
            *place = Some(pass.context);
        }
        values
    }
}

/// A step of an encoder that was begun.
struct EncoderPass {
    context: Box<dyn Context>,
    step: Step,
    tasks: Vec<Task>,
}

impl EncoderPass {
    fn begin(
        mut context: Box<dyn Context>,
        features: &[u8],
        step: Step,
    ) -> Result<EncoderPass, DeviceError> {
        let program = context.program().clone();
        context.write_bytes(program.features, 0, features)?;
        context.step(&step, StepOptions::stage(Stage::Begin))?;
        let tasks = tasks(&program, &step, context.as_ref());
        Ok(EncoderPass {
            context,
            step,
            tasks,
        })
    }

    fn end(&mut self) -> Result<Vec<f32>, DeviceError> {
        let end = StepOptions::stage(Stage::End);
        Ok(self.context.step(&self.step, end)?.to_vec())
    }
}

impl Pass for EncoderPass {
    fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    fn run(&mut self, places: Range<Place>) -> Result<(), DeviceError> {
        let part = StepOptions::stage(Stage::Run(places));
        self.context.step(&self.step, part)?;
        // A device may still be at work. Reading waits for it.
        let tokens = self.context.program().tokens;
        self.context.read_bytes(tokens, 0, &mut [0; 4])
    }
}

/// What the commands of a step come to.
fn tasks(program: &Program, step: &Step, context: &dyn Context) -> Vec<Task> {
    let Some(pass) = program.pass(step.pass()) else {
        return Vec::new();
    };
    let pass = &program.passes[pass];
    let outputs_from = pass.outputs_from().unwrap_or(usize::MAX);
    let task = |(index, command): (usize, &Command)| {
        let rows = if index >= outputs_from {
            step.chosen().count()
        } else {
            step.rows.len()
        };
        let of_rows = command.flops.max(1).saturating_mul(rows as u64);
        let of_context = cost::of_context(command, program, &step.rows).flops;
        Task {
            kind: kind(command),
            units: of_rows.saturating_add(of_context),
            parts: context.parts(index).max(1),
        }
    };
    pass.commands.iter().enumerate().map(task).collect()
}

/// The same for commands that differ in weights and buffers only.
fn kind(command: &Command) -> u64 {
    let mut hasher = DefaultHasher::new();
    (command.op, command.format, command.params).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 3 * COMMANDS;

    /// Notes what runs, and is not wanted any more once some commands have run.
    struct Noting {
        tasks: Vec<Task>,
        ran: Vec<Range<Place>>,
        wanted: Arc<AtomicBool>,
    }

    impl Noting {
        fn new() -> Noting {
            let task = Task {
                kind: 0,
                units: 1,
                parts: 1,
            };
            Noting {
                tasks: vec![task; COUNT],
                ran: Vec::new(),
                wanted: Arc::new(AtomicBool::new(true)),
            }
        }
    }

    impl Pass for Noting {
        fn tasks(&self) -> &[Task] {
            &self.tasks
        }

        fn run(&mut self, places: Range<Place>) -> Result<(), DeviceError> {
            self.ran.push(places);
            self.wanted.store(self.ran.len() < 2, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn a_pass_without_an_engine_runs_as_long_as_it_is_wanted() {
        let pass = Noting::new();
        let (all, done) = Turns::at_once().run(pass);
        done.expect("a pass");
        let ran = all.expect("a pass that comes back").ran;
        assert_eq!(ran.first().map(|piece| piece.start), Some(Place::START));
        assert_eq!(
            ran.last().map(|piece| piece.end),
            Some(Place::before(COUNT))
        );
        assert!(ran.windows(2).all(|pair| pair[0].end == pair[1].start));

        let pass = Noting::new();
        let wanted = pass.wanted.clone();
        let still = || wanted.load(Ordering::Relaxed);
        let (pass, done) = Turns::beside(None, &still).run(pass);
        assert!(matches!(done, Err(Error::Deadline)), "{done:?}");
        assert_eq!(pass.map(|pass| pass.ran.len()), Some(2));
    }

    #[derive(Default)]
    struct Inbox(Mutex<Vec<Job>>);

    impl RunsPasses for Inbox {
        fn push_pass(&self, job: Job) -> Result<(), Job> {
            self.0.lock().unwrap().push(job);
            Ok(())
        }

        fn wake(&self) {}
    }

    /// The engine's thread takes a pass.
    fn next(engine: &Inbox) -> Job {
        loop {
            if let Some(job) = engine.0.lock().unwrap().pop() {
                return job;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_engine_learns_that_nobody_wants_a_pass() {
        let engine = Arc::new(Inbox::default());
        let neighbour = Neighbour::default();
        neighbour.set(&engine);
        let wanted = AtomicBool::new(true);
        let is_wanted = || wanted.load(Ordering::Relaxed);
        let run = || Turns::beside(Some(&neighbour), &is_wanted).run(Noting::new());
        std::thread::scope(|scope| {
            let complete = scope.spawn(run);
            next(&engine).end(Ok(()));
            assert!(matches!(complete.join(), Ok((Some(_), Ok(())))));

            let lost = scope.spawn(run);
            drop(next(&engine));
            let lost = lost.join();
            assert!(matches!(lost, Ok((None, Err(Error::EngineStopped { .. })))));

            let unwanted = scope.spawn(run);
            let job = next(&engine);
            assert!(!job.is_cancelled());
            wanted.store(false, Ordering::Relaxed);
            let begun = std::time::Instant::now();
            while !job.is_cancelled() {
                assert!(!unwanted.is_finished(), "it leaves its pass behind");
                assert!(begun.elapsed() < 1_000 * LOOKS, "it goes on in vain");
                std::thread::yield_now();
            }
            job.end(Ok(()));
            let unwanted = unwanted.join();
            assert!(matches!(unwanted, Ok((Some(_), Err(Error::Deadline)))));
            let (_, never) = run();
            assert!(matches!(never, Err(Error::Deadline)));
            assert!(engine.0.lock().unwrap().is_empty(), "nobody asked for it");
        });
    }
}
