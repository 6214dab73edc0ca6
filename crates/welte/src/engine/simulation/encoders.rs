//! Encoders beside the streams of a simulation: their passes come at any time, take time, fail, and are cancelled.

use super::world::{Random, World};
use crate::engine::encoder::{Ended, Job, Pass, RunsPasses};
use crate::engine::pieces::Task;
use crate::engine::shared::Shared;
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Weak};
use web_time::{Duration, Instant};
use welte_device::{DeviceId, Error, Place};

/// What one encoder has to do, pass after pass.
pub(super) struct Encoder {
    /// Passes that have not begun, the last one first: when they come, after how long they are cancelled, and their commands.
    plans: Vec<(Duration, Option<Duration>, Vec<Task>)>,
    at_hand: Option<AtHand>,
    /// Pieces of others since the last one of its own.
    passed_over: usize,
}

struct AtHand {
    back: Receiver<Ended>,
    cancelled: Arc<AtomicBool>,
    cancels: Option<Instant>,
    /// It has run its last piece.
    over: Arc<AtomicBool>,
}

/// All encoders of a simulation.
pub(super) struct Encoders {
    engine: Option<Arc<Shared>>,
    world: Weak<World>,
    start: Instant,
    all: Vec<Encoder>,
    /// Passes that have come back.
    pub(super) ended: usize,
}

/// A piece of a pass that has run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) took: Duration,
    /// What the first part of its first command takes: no piece is shorter.
    pub(super) least: Duration,
    /// The time of a command of its kind was not known.
    pub(super) first: bool,
}

impl Encoders {
    pub(super) fn new(random: &mut Random, start: Instant) -> Encoders {
        let count = match random.below(3) {
            0 => random.from(1, 2),
            _ => 0,
        };
        let millis = |random: &mut Random, most| Duration::from_millis(random.from(0, most) as u64);
        let pass = |random: &mut Random| {
            let task = |random: &mut Random| Task {
                kind: random.below(5) as u64,
                units: random.from(1_000, 100_000) as u64,
                parts: [1, 3, 40][random.below(3)],
            };
            let count = random.from(1, 20);
            (0..count).map(|_| task(random)).collect()
        };
        let encoder = |random: &mut Random| {
            let passes = random.from(1, 3);
            let mut plans: Vec<_> = (0..passes)
                .map(|_| {
                    let cancels = random.once_in(4).then(|| millis(random, 200));
                    (millis(random, 300), cancels, pass(random))
                })
                .collect();
            plans.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
            Encoder {
                plans,
                at_hand: None,
                passed_over: 0,
            }
        };
        Encoders {
            engine: None,
            world: Weak::new(),
            start,
            all: (0..count).map(|_| encoder(random)).collect(),
            ended: 0,
        }
    }

    pub(super) fn meet(&mut self, engine: &Arc<Shared>, world: &Arc<World>) {
        self.engine = Some(engine.clone());
        self.world = Arc::downgrade(world);
    }

    /// Lets go of the engine.
    pub(super) fn leave(&mut self) {
        self.engine = None;
    }

    pub(super) fn is_over(&self) -> bool {
        let mut all = self.all.iter();
        all.all(|encoder| encoder.plans.is_empty() && encoder.at_hand.is_none())
    }

    /// When the next pass comes or is cancelled; `None`: nothing comes by itself.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let next = |encoder: &Encoder| match &encoder.at_hand {
            Some(pass) if pass.cancelled.load(Ordering::Relaxed) => None,
            Some(pass) => pass.cancels,
            None => encoder.plans.last().map(|(at, ..)| self.start + *at),
        };
        self.all.iter().filter_map(next).min()
    }

    /// Does what is due.
    pub(super) fn act(&mut self) {
        let (Some(engine), Some(world)) = (self.engine.clone(), self.world.upgrade()) else {
            return;
        };
        let (now, start) = (world.clock.now(), self.start);
        for (number, encoder) in self.all.iter_mut().enumerate() {
            if let Some(pass) = &encoder.at_hand {
                if pass.cancels.is_some_and(|at| at <= now) {
                    pass.cancelled.store(true, Ordering::Relaxed);
                }
                match pass.back.try_recv() {
                    Ok((back, result)) => {
                        judge(back, result.is_ok(), &pass.cancelled, &world);
                        encoder.at_hand = None;
                        self.ended += 1;
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => continue,
                    Err(_) => world.wrong(format!("encoder {number} has lost a pass")),
                }
            }
            let due = encoder.plans.pop_if(|(at, ..)| start + *at <= now);
            let Some((_, cancels, tasks)) = due else {
                continue;
            };
            let (done, back) = sync_channel(1);
            let [cancelled, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let job = Job {
                pass: Box::new(SimulatedPass {
                    encoder: number,
                    tasks,
                    at: Place::START,
                    failed: false,
                    cancelled: cancelled.clone(),
                    over: over.clone(),
                    world: world.clone(),
                }),
                at: Place::START,
                cancelled: cancelled.clone(),
                done,
            };
            if engine.push_pass(job).is_err() {
                world.wrong("the engine takes no pass".into());
            }
            world.has_arrived();
            encoder.passed_over = 0;
            encoder.at_hand = Some(AtHand {
                back,
                cancelled,
                cancels: cancels.map(|after| now + after),
                over,
            });
        }
    }

    /// A piece of an encoder runs: those of others that wait have the next ones.
    fn takes_turn(&mut self, own: usize, world: &World) {
        for (number, encoder) in self.all.iter_mut().enumerate() {
            if number == own {
                encoder.passed_over = 0;
            } else if let Some(pass) = &encoder.at_hand
                && !pass.over.load(Ordering::Relaxed)
                && !pass.cancelled.load(Ordering::Relaxed)
            {
                encoder.passed_over += 1;
                // One that came during a turn is taken in by the next one.
                if encoder.passed_over > 2 {
                    world.wrong(format!("encoder {number} is passed over"));
                }
            }
        }
    }
}

/// A pass has come back.
fn judge(pass: Box<dyn Pass>, is_ok: bool, cancelled: &AtomicBool, world: &World) {
    let pass: Box<dyn Any> = pass;
    let pass = pass.downcast::<SimulatedPass>().expect("a pass of ours");
    let complete = pass.at == Place::before(pass.tasks.len());
    let may_end = pass.failed || cancelled.load(Ordering::Relaxed);
    if is_ok == pass.failed || !complete && !may_end {
        let SimulatedPass { encoder, at, .. } = *pass;
        world.wrong(format!("encoder {encoder}: a pass ends at {at:?}"));
    }
}

/// A pass whose commands cost time.
struct SimulatedPass {
    encoder: usize,
    tasks: Vec<Task>,
    at: Place,
    failed: bool,
    cancelled: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    world: Arc<World>,
}

impl SimulatedPass {
    /// The time of some parts of a command.
    fn cost(&self, command: usize, parts: u32) -> Duration {
        let task = &self.tasks[command];
        let unit = self.world.encoding[task.kind as usize];
        unit.mul_f64(task.units as f64 * f64::from(parts) / f64::from(task.parts))
    }
}

impl Pass for SimulatedPass {
    fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    fn run(&mut self, places: Range<Place>) -> Result<(), Error> {
        let world = self.world.clone();
        if places.start != self.at || places.end <= places.start {
            world.wrong(format!("{places:?} runs after {:?}", self.at));
        }
        if self.cancelled.load(Ordering::Relaxed) {
            world.wrong(format!("encoder {} goes on in vain", self.encoder));
        }
        let mut took = Duration::ZERO;
        let mut first = false;
        let mut at = places.start;
        while at < places.end {
            let task = &self.tasks[at.command];
            let end = if places.end.command > at.command {
                task.parts
            } else {
                places.end.part
            };
            took += self.cost(at.command, end - at.part);
            first |= world.inner().kinds.insert(task.kind);
            at = if end == task.parts {
                Place::before(at.command + 1)
            } else {
                Place { part: end, ..at }
            };
        }
        let piece = Piece {
            took,
            least: self.cost(places.start.command, 1),
            first,
        };
        world.encoded(piece);
        if let Ok(mut encoders) = world.encoders.try_lock() {
            encoders.takes_turn(self.encoder, &world);
        }
        world.clock.advance(took);
        world.others_act();
        if world.fails(&mut false, std::iter::empty()) {
            self.failed = true;
            self.over.store(true, Ordering::Relaxed);
            return Err(Error::Failed {
                device: DeviceId::only("simulated"),
                source: "a planted fault".into(),
            });
        }
        self.at = places.end;
        let ended = self.at.command == self.tasks.len();
        self.over.store(ended, Ordering::Relaxed);
        Ok(())
    }
}
