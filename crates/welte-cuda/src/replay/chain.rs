//! Chains: many tokens in one submission, each seen by the host as soon as it exists.
#![allow(unsafe_code)]

use super::ready::{Ready, ready_one};
use super::{Session, no_table, turn_unit};
use crate::gpu::{Event, Gpu};
use crate::graph::{Graph, Nodes};
use crate::launch::{ByRows, Launch, args};
use crate::lower::MAILBOX_SLOTS;
use crate::{Error, Replay};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use welte_table::{Op, Row, Sampling};

/// Tokens that may be enqueued beyond the last one seen. Enough to keep the GPU busy while the host looks away; each
/// costs a few microseconds per kernel when the chain has ended.
const AHEAD: usize = 8;
/// How long the host spins for a token before it sleeps, and how long it sleeps.
const SPIN: Duration = Duration::from_micros(100);
const NAP: Duration = Duration::from_micros(20);
/// How often it asks whether the GPU still lives.
const PULSE: Duration = Duration::from_millis(20);

impl Session {
    /// Sets how tokens are chosen from now on. `history` is the sequence so far; what [`Session::sample`] and
    /// [`Session::chain`] choose is appended to it.
    pub fn set_sampling(&mut self, settings: &Sampling, bias: &[(u32, f32)], history: &[u32]) {
        self.sampler.set(settings, bias, history);
        self.sampler_changed = true;
    }

    /// Chooses the token for `position` from the first row of the last step's logits, and appends it to the history.
    pub fn sample(&mut self, position: u32) -> Result<u32, Error> {
        self.gpu.current()?;
        let table = self.last_table;
        if self.tables.get(table).is_none() {
            return Err(no_table(table, self.tables.len()));
        }
        self.upload_sampler()?;
        let row = Row {
            token: 0,
            position: position.wrapping_sub(1),
            sequence: 0,
        };
        self.upload_step(&[row], 1)?;
        let first = self.serial.wrapping_add(1);
        self.serial = first;
        for node in &self.tables[table].sample {
            self.enqueue(node, 1)?;
        }
        let mut wait = Wait::new();
        let token = loop {
            match self.token(first) {
                Some(token) => break token,
                None => wait.turn(&self.gpu)?,
            }
        };
        self.sampler.remember(token);
        Ok(token)
    }

    /// Decodes `n` tokens: reads `start`, chooses the token after it, emits it, reads it, and so on. Ends early after
    /// one of `end_tokens` (which is emitted), when `emit` returns false, or when `cancel` is set. Returns how many
    /// tokens were emitted. Each is emitted as soon as the device has made it.
    pub fn chain(
        &mut self,
        start: Row,
        n: usize,
        end_tokens: &[u32],
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, Error> {
        let table = self
            .decode
            .ok_or_else(|| Error::Program("it has no decode table".to_string()))?;
        let context = self.model.inner.program.kv.context as usize;
        if (start.position as usize).saturating_add(n) > context {
            return Err(Error::Step(format!(
                "{n} tokens from position {} need more than the context of {context}",
                start.position
            )));
        }
        let mut row = start;
        let mut emitted = 0;
        while emitted < n && !cancel.load(Ordering::Relaxed) {
            // A loop on the device may not overtake the mailbox.
            let most = match (self.mode(), &self.persistent) {
                (Replay::While, _) => MAILBOX_SLOTS as usize / 2,
                (Replay::Persistent, Some(persistent)) => persistent.turns(),
                _ => usize::MAX,
            };
            self.set_rows(table, &[row])?;
            self.sampler_changed |= self.sampler.set_ends(end_tokens);
            self.upload_sampler()?;
            let wanted = most.min(n - emitted);
            let mut last = row.token;
            let (count, more) =
                self.run_chain(table, row, wanted, end_tokens, cancel, &mut |token| {
                    last = token;
                    emit(token)
                })?;
            emitted += count;
            if !more {
                break;
            }
            row = Row {
                token: last,
                position: row.position + count as u32,
                ..row
            };
        }
        Ok(emitted)
    }

    /// One chain on the device. Returns how many tokens were emitted, and whether it came to its end.
    fn run_chain(
        &mut self,
        table: usize,
        row: Row,
        n: usize,
        ends: &[u32],
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<(usize, bool), Error> {
        let rows = [row];
        let mode = self.mode();
        self.cancel_word.set_flag(0);
        self.upload_step(&rows, n as u32)?;
        let first = self.serial.wrapping_add(1);
        self.serial = self.serial.wrapping_add(n as u32);
        let ahead = if self.profile.is_some() { 1 } else { AHEAD };
        let (mut launched, mut seen) = (0, 0);
        if mode == Replay::While {
            if let Some(graph) = &self.loop_graph {
                graph.launch()?;
            }
            launched = n;
        }
        let persistent = self.persistent.as_ref();
        let persistent = persistent.filter(|_| mode == Replay::Persistent);
        if let Some(persistent) = persistent {
            persistent.launch(&self.gpu)?;
            launched = n;
        }
        let by_kernel = persistent.is_some();
        let begun = Instant::now();
        let mut wait = Wait::new();
        let mut cut = false;
        let result = loop {
            if cancel.load(Ordering::Relaxed) {
                cut = true;
                break Ok((seen, false));
            }
            if launched < n && launched - seen < ahead {
                match (&self.decode_graph, mode) {
                    (Some(graph), Replay::Graph) => graph.launch()?,
                    _ => {
                        let row = Row {
                            position: row.position + launched as u32,
                            ..row
                        };
                        self.replay(table, usize::MAX, true, &[row])?;
                    }
                }
                launched += 1;
            }
            if let Some(token) = self.token(first.wrapping_add(seen as u32)) {
                seen += 1;
                wait = Wait::new();
                self.sampler.remember(token);
                let go_on = emit(token);
                if ends.contains(&token) || seen == n {
                    break Ok((seen, go_on && !ends.contains(&token)));
                }
                cut = cut || !go_on;
                if cut {
                    break Ok((seen, false));
                }
                continue;
            }
            if launched < n && launched - seen < ahead {
                continue;
            }
            if let Err(error) = wait.turn(&self.gpu) {
                if by_kernel && let Some(why) = self.fault()? {
                    self.fall_back(why)?;
                    return Ok((seen, true));
                }
                break Err(error);
            }
        };
        if let Some(persistent) = self.persistent.as_mut().filter(|_| by_kernel) {
            persistent.took(seen, begun.elapsed());
        }
        if cut {
            // The device may have gone on: stop it, and let its history be what was emitted.
            self.cancel_word.set_flag(1);
            self.gpu.synchronise()?;
            self.sampler_changed = true;
        }
        result
    }

    /// Replays chains in another way from now on; graphs that this needs are built now, if they were not before.
    pub fn set_replay(&mut self, replay: Replay) -> Result<(), Error> {
        let Some(table) = self.decode else {
            return Ok(());
        };
        self.gpu.current()?;
        match replay {
            Replay::Allocate | Replay::Eager => {}
            Replay::Graph if self.decode_graph.is_some() => {}
            Replay::Graph => {
                let all = |nodes: &mut Nodes<'_>| self.add_table(nodes, table, true);
                let decode = Graph::once(&self.gpu, all)?;
                let unsampled = |nodes: &mut Nodes<'_>| self.add_table(nodes, table, false);
                let forward = Graph::once(&self.gpu, unsampled)?;
                self.decode_graph = Some(decode);
                self.forward_graph = Some(forward);
            }
            Replay::Persistent => {
                // Steps, and what the kernel may have to leave, are replayed as a graph.
                self.set_replay(Replay::Graph)?;
                if let Err(why) = &self.model.inner.recording {
                    self.note = Some(why.clone());
                    return Ok(());
                }
                match self.prepare_persistent() {
                    Err(Error::Compile { log, .. }) => {
                        let why = log.lines().find(|line| line.contains("error"));
                        let why = why.unwrap_or("the compiler does not say why");
                        self.note = Some(format!(
                            "not the persistent kernel: it did not compile, which is a bug in Welte: {why}"
                        ));
                        return Ok(());
                    }
                    other => other?,
                }
                self.prepare_rows()?;
            }
            Replay::While if self.loop_graph.is_some() => {}
            Replay::While => {
                let turn = |nodes: &mut Nodes<'_>, condition| {
                    self.add_table(nodes, table, true)?;
                    add(nodes, &self.turn(condition)?)
                };
                self.loop_graph = Some(Graph::repeated(&self.gpu, turn)?);
            }
        }
        self.replay = replay;
        self.note = None;
        Ok(())
    }

    /// How chains are replayed: as was asked for, unless something is profiled.
    pub(super) fn mode(&self) -> Replay {
        if self.profile.is_some() {
            return Replay::Eager;
        }
        self.replay
    }

    /// Single steps go through the decode graph.
    pub(super) fn by_graph(&self) -> bool {
        matches!(self.mode(), Replay::Graph | Replay::Persistent)
    }

    /// Nanoseconds that the launches of one token take when every kernel returns at once, over `times` of them.
    pub fn idle_ns(&mut self, times: u32) -> Result<u64, Error> {
        let table = self
            .decode
            .ok_or_else(|| Error::Program("it has no decode table".to_string()))?;
        let row = Row {
            token: 0,
            position: 0,
            sequence: 0,
        };
        self.set_rows(table, &[row])?;
        self.upload_ended(&[row])?;
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        let times = times.max(1);
        begin.record()?;
        for _ in 0..times {
            match (&self.decode_graph, self.mode()) {
                (Some(graph), Replay::Graph) => graph.launch()?,
                _ => self.replay(table, usize::MAX, true, &[row])?,
            }
        }
        end.record()?;
        end.wait()?;
        Ok(end.since(&begin)? / u64::from(times))
    }

    /// The token of that number, if the device has made it.
    fn token(&self, serial: u32) -> Option<u32> {
        let word = self.mailbox.word((serial & (MAILBOX_SLOTS - 1)) as usize);
        ((word >> 32) as u32 == serial).then_some(word as u32)
    }

    fn upload_sampler(&mut self) -> Result<(), Error> {
        if self.sampler_changed {
            // SAFETY: the region was made for the sampler's head and more.
            unsafe {
                self.gpu
                    .upload(self.sampling.start(), self.sampler.head())?
            };
            self.sampler_changed = false;
        }
        Ok(())
    }

    /// Adds a decode table to a graph, with or without its `sample`.
    fn add_table(&self, nodes: &mut Nodes<'_>, table: usize, sample: bool) -> Result<(), Error> {
        let commands = &self.model.inner.program.tables[table].commands;
        for (ready, command) in self.tables[table].commands.iter().zip(commands) {
            if sample || command.op != Op::Sample {
                ready.iter().try_for_each(|ready| add(nodes, ready))?;
            }
        }
        Ok(())
    }

    /// The kernel that ends a turn of the loop.
    fn turn(&self, handle: u64) -> Result<Ready, Error> {
        let launch = Launch {
            unit: turn_unit(),
            function: "turn",
            grid: [1; 3],
            by_rows: ByRows::Fixed,
            block: 32,
            shared: 0,
            args: args(&[self.step_state.start(), handle]),
        };
        ready_one(&self.model.inner, launch)
    }
}

/// Adds the kernels of one row's step to a graph.
fn add(nodes: &mut Nodes<'_>, ready: &Ready) -> Result<(), Error> {
    match ready {
        Ready::Kernel {
            kernel,
            grid,
            by_rows,
            args,
        } => {
            // SAFETY: lowering made the parameters for this kernel from blocks that the session holds, and the session
            // drops its graphs before them.
            unsafe { nodes.add(kernel, by_rows.grid(*grid, 1), args) }
        }
        Ready::ForRows {
            least,
            most,
            nodes: ready,
        } if (*least..=*most).contains(&1) => ready.iter().try_for_each(|ready| add(nodes, ready)),
        Ready::ForRows { .. } => Ok(()),
        Ready::Gemm(_) => Err(Error::Program(
            "a product by cuBLASLt in a table of one row; this is a bug in Welte".to_string(),
        )),
    }
}

/// Waiting for a token: spins, then sleeps, and looks whether the GPU still works.
struct Wait {
    began: Instant,
    looked: Instant,
    idle: bool,
}

impl Wait {
    fn new() -> Wait {
        let now = Instant::now();
        Wait {
            began: now,
            looked: now,
            idle: false,
        }
    }

    fn turn(&mut self, gpu: &Gpu) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.began < SPIN {
            std::hint::spin_loop();
            return Ok(());
        }
        if now - self.looked > PULSE {
            self.looked = now;
            // Once more after it was seen idle: the token may have come in between.
            if self.idle {
                return Err(Error::Step(
                    "the GPU ended the chain without a token; this is a bug in Welte".to_string(),
                ));
            }
            self.idle = gpu.is_idle()?;
        }
        std::thread::sleep(NAP);
        Ok(())
    }
}
