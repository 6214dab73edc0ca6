//! Chains: many tokens in one submission, each visible to the host as soon as it exists.
#![allow(unsafe_code)]

use super::ranks::Seated;
use super::ready::{Ready, ready_one};
use super::states::MOST_TURNS;
use super::{CudaContext, DECODE};
use crate::Error;
use crate::gpu::{Event, Gpu};
use crate::graph::{Graph, Nodes};
use crate::launch::{ByRows, Launch, args};
use crate::lower::MAILBOX_SLOTS;
use crate::units::turn_unit;
use std::time::{Duration, Instant};
use welte_device::{ChainStart, Control, Emitted, Logprobs, Replay, is_token};
use welte_table::{CacheKind, CacheSpec, Op, Row};

/// Tokens that may be enqueued beyond the last one seen. Enough to keep the GPU busy while the host is delayed; each costs
/// a few microseconds per kernel after the chain has ended.
const AHEAD: usize = 8;
/// How long the host spins for a token before it sleeps, and how long it sleeps.
const SPIN: Duration = Duration::from_micros(100);
const NAP: Duration = Duration::from_micros(20);
/// How often the host checks that the GPU still works.
const PULSE: Duration = Duration::from_millis(20);

impl CudaContext {
    /// Decodes a checked chain. Returns the number of emitted tokens.
    pub(super) fn decode(
        &mut self,
        start: &ChainStart,
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<usize, Error> {
        self.gpu.current()?;
        let steps = start.steps as usize;
        let mut row = start.row();
        let mut emitted = 0;
        while emitted < steps && !control.is_stopped() {
            // A loop on the device may not overtake the mailbox.
            let most = match (self.chain_mode(row.slot), &self.persistent) {
                (Replay::Loop, _) => MAILBOX_SLOTS as usize / 2,
                (Replay::Persistent, Some(persistent)) => persistent.turns(),
                _ => usize::MAX,
            };
            self.upload_sampler(row.slot)?;
            let mut last = row.token();
            let n = most.min(steps - emitted);
            let (count, more) = self.run_chain(row, n, control, &mut |emitted| {
                last = emitted.token;
                emit(emitted)
            })?;
            emitted += count;
            if !more {
                break;
            }
            row = row.later(last, count as u32);
        }
        Ok(emitted)
    }

    /// One chain on the device. Returns the number of emitted tokens, and whether decoding may go on.
    fn run_chain(
        &mut self,
        row: Row,
        n: usize,
        control: &Control,
        emit: &mut dyn FnMut(Emitted) -> bool,
    ) -> Result<(usize, bool), Error> {
        let slot = row.slot as usize;
        let states = self.has_states();
        let mode = self.chain_mode(row.slot);
        self.cancel_word.set_flag(0);
        self.upload_step(DECODE, &[row], &[], n as u32)?;
        let first = self.serial.wrapping_add(1);
        self.serial = self.serial.wrapping_add(n as u32);
        // Ranks end a chain at the same step.
        let ahead = if self.profile.is_some() || states || self.seated.is_some() {
            1
        } else {
            AHEAD
        };
        let (mut launched, mut seen) = (0, 0);
        if mode == Replay::Loop {
            if let Some(graph) = &self.loop_graph {
                graph.launch()?;
            }
            launched = n;
        }
        let persistent = self.persistent.as_mut();
        let persistent = persistent.filter(|_| mode == Replay::Persistent);
        let by_kernel = persistent.is_some();
        if let Some(persistent) = persistent {
            persistent.launch(&self.gpu)?;
            launched = n;
        }
        let rewinds = by_kernel && states;
        let mut made = [0; MOST_TURNS];
        let begun = Instant::now();
        let mut wait = Wait::new();
        let mut cut = false;
        let result = loop {
            // If a chain is stopped, the token of the step in flight is its last one.
            let stops = control.is_stopped();
            if stops && seen == launched {
                break Ok((seen, false));
            }
            if stops && (!states || rewinds) {
                self.cancel_word.set_flag(1);
            }
            if !stops && launched < n && launched - seen < ahead {
                match (&self.decode_graph, mode) {
                    (Some(graph), Replay::Graph) => graph.launch()?,
                    _ => {
                        let row = row.later(row.token(), launched as u32);
                        self.replay(DECODE, 0..usize::MAX, true, &[row], 1)?;
                    }
                }
                self.launch_chain_logprobs(&[row])?;
                launched += 1;
            }
            let serial = first.wrapping_add(seen as u32);
            if let Some((token, logprobs)) = self.reported(row.slot, serial) {
                if rewinds {
                    made[seen] = token;
                }
                seen += 1;
                wait = Wait::new();
                let ends = !is_token(token) || self.slots[slot].ends_with(token);
                if is_token(token) {
                    self.slots[slot].remember(token);
                }
                let go_on = emit(Emitted {
                    slot: row.slot,
                    position: row.position + seen as u32,
                    token,
                    logprobs,
                });
                if ends || seen == n {
                    break Ok((seen, go_on && !ends));
                }
                if !go_on || stops {
                    cut = true;
                    break Ok((seen, false));
                }
                continue;
            }
            if !stops && launched < n && launched - seen < ahead {
                continue;
            }
            if let Err(error) = wait.turn(&self.gpu) {
                if by_kernel && let Some(why) = self.fault()? {
                    self.slots[slot].mark_changed();
                    self.fall_back(why.clone())?;
                    // Ranks may have seen different numbers of tokens.
                    if self.seated.is_some() {
                        return Err(Error::Kernel(why));
                    }
                    if rewinds {
                        self.rewind(row, &made[..seen])?;
                    }
                    return Ok((seen, true));
                }
                break Err(error);
            }
        };
        if let Some(persistent) = self.persistent.as_mut().filter(|_| by_kernel) {
            persistent.took(seen, begun.elapsed());
        }
        if cut {
            // The device may have gone on. Stop it, and let its history be the emitted tokens.
            self.cancel_word.set_flag(1);
            self.gpu.synchronise()?;
            self.slots[slot].mark_changed();
            if rewinds {
                self.rewind(row, &made[..seen])?;
            }
        }
        result
    }

    /// The token of a number with its probability, if the slot reports it, once the device has made both.
    pub(super) fn reported(&self, slot: u32, serial: u32) -> Option<(u32, Option<Logprobs>)> {
        let token = self.token(serial)?;
        match &self.logprobs {
            Some(logprobs) if is_token(token) && self.slots[slot as usize].reports_logprobs() => {
                Some((token, Some(logprobs.of_token(serial)?)))
            }
            _ => Some((token, None)),
        }
    }

    /// Replays chains in another way from now on. Graphs that this needs are built now, if they were not before.
    pub(super) fn use_replay(&mut self, replay: Replay) -> Result<(), Error> {
        if !self.decodes() {
            // There are no chains.
            return Ok(());
        }
        self.gpu.current()?;
        match replay {
            Replay::Allocate | Replay::Launches => {}
            Replay::Graph => self.prepare_decode_graphs()?,
            Replay::Persistent => {
                if let Err(why) = &self.loaded.recording {
                    return self.fall_back(why.clone());
                }
                let refused = self.seated.as_ref().and_then(Seated::refused);
                if let Some(why) = refused.or_else(|| self.rows_refused()) {
                    return self.fall_back(why);
                }
                let prepared = self.prepare_persistent();
                match prepared.and_then(|()| self.prepare_rows()) {
                    Err(Error::Compile { log, .. }) => {
                        let why = log.lines().find(|line| line.contains("error"));
                        let why = why.unwrap_or("the compiler does not say why");
                        return self.fall_back(format!(
                            "not the persistent kernel: it did not compile, which is a bug in Welte: {why}"
                        ));
                    }
                    Err(Error::NoCompiler(why)) => {
                        return self.fall_back(format!("not the persistent kernel: {why}"));
                    }
                    other => other?,
                }
                if self.stores_for_blocks() {
                    self.prepare_decode_graphs()?;
                }
            }
            Replay::Loop if self.loop_graph.is_some() => {}
            Replay::Loop => {
                let turn = |nodes: &mut Nodes<'_>, condition| {
                    self.add_decode(nodes, true)?;
                    add(nodes, &self.turn(condition)?, 1)
                };
                self.loop_graph = Some(Graph::repeated(&self.gpu, turn)?);
            }
        }
        // Ranks guess step by step.
        if matches!(replay, Replay::Graph | Replay::Persistent) && self.seated.is_none() {
            self.prepare_draft_graphs()?;
        }
        self.replay = replay;
        self.note = None;
        Ok(())
    }

    /// The graphs of a decode step of one row, with and without the choice of a token.
    fn prepare_decode_graphs(&mut self) -> Result<(), Error> {
        if self.decode_graph.is_none() {
            let all = |nodes: &mut Nodes<'_>| self.add_decode(nodes, true);
            let decode = Graph::once(&self.gpu, all)?;
            let unsampled = |nodes: &mut Nodes<'_>| self.add_decode(nodes, false);
            self.forward_graph = Some(Graph::once(&self.gpu, unsampled)?);
            self.decode_graph = Some(decode);
        }
        Ok(())
    }

    /// Whether every decode step must leave keys and values for a drafter of blocks. A chain of the persistent kernel leaves none.
    pub(super) fn stores_for_blocks(&self) -> bool {
        self.loaded.program.block.is_some()
    }

    /// How a chain of this slot is replayed.
    fn chain_mode(&self, slot: u32) -> Replay {
        let reports = self.slots[slot as usize].reports_logprobs();
        let seated = self.seated.is_some();
        match self.mode() {
            Replay::Loop if self.has_states() || seated || reports => Replay::Graph,
            // A rank has the likeliest tokens of its own part only.
            Replay::Persistent if seated && reports || self.stores_for_blocks() => Replay::Graph,
            mode => mode,
        }
    }

    /// How chains are replayed: as requested, unless a profile is taken.
    pub(super) fn mode(&self) -> Replay {
        if self.profile.is_some() {
            return Replay::Launches;
        }
        self.replay
    }

    /// Whether sequences have recurrent state.
    pub(super) fn has_states(&self) -> bool {
        let recurrent = |cache: &CacheSpec| matches!(cache.kind, CacheKind::Recurrent { .. });
        self.loaded.program.caches.iter().any(recurrent)
    }

    /// Whether decode steps of one row are replayed by the graph.
    pub(super) fn by_graph(&self) -> bool {
        matches!(self.mode(), Replay::Graph | Replay::Persistent)
    }

    /// Nanoseconds that the launches of one step take when every kernel returns at once, over `times` steps.
    pub(super) fn idle_launch_ns(&mut self, pass: usize, times: u32) -> Result<u64, Error> {
        self.gpu.current()?;
        let row = Row::default();
        self.upload_ended(pass, &[row], &[])?;
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        begin.record()?;
        for _ in 0..times {
            match (&self.decode_graph, self.mode()) {
                (Some(graph), Replay::Graph) => graph.launch()?,
                _ => self.replay(pass, 0..usize::MAX, true, &[row], 1)?,
            }
        }
        end.record()?;
        end.wait()?;
        Ok(end.since(&begin)? / u64::from(times))
    }

    /// The token of that number, if the device has made it.
    pub(super) fn token(&self, serial: u32) -> Option<u32> {
        if self.seated.as_ref().is_some_and(Seated::has_failed) {
            return None;
        }
        let word = self.mailbox.word((serial & (MAILBOX_SLOTS - 1)) as usize);
        ((word >> 32) as u32 == serial).then_some(word as u32)
    }

    /// Waits for the token of that number.
    pub(super) fn wait_for(&self, serial: u32) -> Result<u32, Error> {
        let mut wait = Wait::new();
        loop {
            match self.token(serial) {
                Some(token) => return Ok(token),
                None => wait.turn(&self.gpu)?,
            }
        }
    }

    /// Adds a decode step of one row to a graph, with or without its `sample`.
    fn add_decode(&self, nodes: &mut Nodes<'_>, sample: bool) -> Result<(), Error> {
        let wanted = |op| sample || op != Op::Sample;
        self.add_pass(nodes, DECODE, [1, 1], wanted)
    }

    /// Adds the wanted commands of a pass to a graph, for so many rows and output rows.
    pub(super) fn add_pass(
        &self,
        nodes: &mut Nodes<'_>,
        pass: usize,
        [rows, outputs]: [u32; 2],
        wanted: impl Fn(Op) -> bool,
    ) -> Result<(), Error> {
        let commands = &self.loaded.program.passes[pass].commands;
        let ready = &self.passes[pass];
        let all = ready.commands(rows as usize).iter().enumerate();
        for ((index, nodes_of), command) in all.zip(commands) {
            let live = if index < ready.outputs_from {
                rows
            } else {
                outputs
            };
            if live > 0 && wanted(command.op) {
                nodes_of
                    .iter()
                    .try_for_each(|ready| add(nodes, ready, live))?;
            }
        }
        Ok(())
    }

    /// The kernel that ends an iteration of the loop.
    fn turn(&self, handle: u64) -> Result<Ready, Error> {
        let step = self.step_state.start() + self.loaded.sizes.step_rows;
        let launch = Launch {
            unit: turn_unit(),
            function: "turn",
            grid: [1; 3],
            by_rows: ByRows::Fixed,
            block: 32,
            shared: 0,
            args: args(&[step, handle]),
        };
        ready_one(&self.loaded, launch)
    }
}

/// Adds the kernels of a step of so many rows to a graph.
fn add(nodes: &mut Nodes<'_>, ready: &Ready, live: u32) -> Result<(), Error> {
    match ready {
        Ready::Kernel {
            kernel,
            grid,
            by_rows,
            args,
        } => {
            // SAFETY: lowering made the parameters for this kernel from blocks that the context holds, and the context
            // drops its graphs before them.
            unsafe { nodes.add(kernel, by_rows.grid(*grid, live), args) }
        }
        Ready::ForRows {
            least,
            most,
            nodes: ready,
        } if (*least..=*most).contains(&live) => {
            ready.iter().try_for_each(|ready| add(nodes, ready, live))
        }
        Ready::ForRows { .. } => Ok(()),
        Ready::Gemm(_) | Ready::Either(_) => Err(Error::Program(
            "a product by cuBLASLt in a graph; this is a bug in Welte".to_string(),
        )),
    }
}

/// Waits for a token: spins, then sleeps, and checks that the GPU still works.
pub(super) struct Wait {
    began: Instant,
    looked: Instant,
    idle: bool,
}

impl Wait {
    pub(super) fn new() -> Wait {
        let now = Instant::now();
        Wait {
            began: now,
            looked: now,
            idle: false,
        }
    }

    pub(super) fn turn(&mut self, gpu: &Gpu) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.began < SPIN {
            std::hint::spin_loop();
            return Ok(());
        }
        if now - self.looked > PULSE {
            self.looked = now;
            // The token may have arrived just before the GPU was seen idle, so only the second time counts.
            if self.idle {
                return Err(Error::Kernel(
                    "the GPU ended the chain without a token; this is a bug in Welte".to_string(),
                ));
            }
            self.idle = gpu.is_idle()?;
        }
        std::thread::sleep(NAP);
        Ok(())
    }
}
