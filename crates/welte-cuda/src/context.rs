//! A context: buffers, lowered passes, page tables, slots and step state, all made once. Replay allocates nothing.
#![allow(unsafe_code)]

mod chain;
mod contract;
mod cublas;
mod draft_graphs;
mod drafts;
mod host_choice;
mod logprob_kernels;
mod logprobs;
mod persistent;
mod persistent_kernel;
mod picks;
mod profile;
mod ranks;
mod ready;
mod recall;
mod rows;
mod rows_kernel;
mod shelf;
mod shelving;
mod slots;
mod states;
mod tune;

use crate::Error;
use crate::gpu::{DeviceBlock, Event, Gpu, HostBlock, Kernel};
use crate::graph::Graph;
use crate::launch::{bytes_of, bytes_of_all};
use crate::loaded::LoadedProgram;
use crate::lower::{Lowering, MAILBOX_SLOTS, Places};
use crate::ops::adapters::TeamLists;
use crate::ops::encode::TileLists;
use crate::ops::sample::{Guess, SampleLaunch, Sampler, region_bytes};
use crate::persistent::FAULT_BYTES;
use crate::sizes::{ROW_BYTES, STATE_BYTES, STEP_HEAD, state_of};
use draft_graphs::DraftGraphs;
use logprob_kernels::LogprobKernels;
use persistent_kernel::Persistent;
use ranks::{Seated, Together};
use ready::{DECODE, Ready, ReadyPass, ready_passes};
use recall::Recall;
use rows_kernel::Rows;
use shelf::PinnedShelf;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use welte_device::timeline::Timeline;
use welte_device::{ChainStart, Checks, Choice, HostScratch, MaskBoard, Profile, Replay, Seat};
use welte_table::{BufferId, BufferRef, Class, Command, Op, PassKind, Row};

/// In place of a feature's number: `NO_FEATURE` of `common.cuh`.
const NO_FEATURE: u32 = u32::MAX;

/// One user of a loaded program: its buffers, caches, page tables and slots.
pub struct CudaContext {
    /// The decode pass with and without its `sample`, and as a loop. Dropped before the kernels and memory that they use.
    decode_graph: Option<Graph>,
    forward_graph: Option<Graph>,
    loop_graph: Option<Graph>,
    draft_graphs: DraftGraphs,
    loaded: Arc<LoadedProgram>,
    passes: Vec<ReadyPass>,
    /// The algorithms of cuBLASLt that an earlier process chose.
    recall: Recall,
    persistent: Option<Persistent>,
    /// The same for steps.
    rows: Option<Rows>,
    /// Why chains are not replayed as requested.
    note: Option<String>,
    buffers: Vec<DeviceBlock>,
    step_state: DeviceBlock,
    /// Tiles of an encoder's texts.
    text_tiles: DeviceBlock,
    /// Teams of rows with adapters.
    teams: DeviceBlock,
    samplers: DeviceBlock,
    /// Its place among the ranks.
    seated: Option<Seated>,
    // Held for as long as kernels may use them.
    _others: [DeviceBlock; 4],
    /// Address of each cache's page table.
    page_tables: Vec<u64>,
    slots: Vec<Sampler>,
    checks: Checks,
    /// Samples for output rows. Encoders do without.
    sample: Option<SampleKernel>,
    logprobs: Option<LogprobKernels>,
    /// For slots whose tokens the host chooses.
    scratch: HostScratch,
    chosen: Vec<u32>,
    mailbox: HostBlock,
    cancel_word: HostBlock,
    masks: Arc<MaskBoard>,
    /// Output rows of the last step; then the fault of a persistent kernel.
    outputs: HostBlock,
    /// The step state to upload.
    step_image: Vec<u8>,
    /// The tokens, the tiles of texts, and the teams of rows with adapters, to upload.
    tokens: Vec<u32>,
    tiles: Vec<u32>,
    tile_lists: TileLists,
    team_words: Vec<u32>,
    team_lists: TeamLists,
    /// The rows of a chain of several slots, and what they are to sample for.
    running: Vec<ChainStart>,
    chained: Vec<Row>,
    picked: Vec<Row>,
    /// Output rows and wanted tokens of the step at hand.
    chosen_rows: Vec<u32>,
    /// The pass of the chain at hand.
    chain_pass: usize,
    choices: Vec<Choice>,
    /// Numbers that the device may have given to tokens so far.
    serial: u32,
    /// Pass and number of output rows of the last step.
    last: (usize, usize),
    /// They are in device memory only.
    stays: bool,
    /// Nobody needs the results of what is enqueued.
    warming_up: bool,
    replay: Replay,
    profile: Option<Vec<Profile>>,
    last_step: Timeline,
    events: Vec<Event>,
    allocated: BTreeMap<Class, u64>,
    /// Pages in pinned memory, if the engine wants them.
    shelf: Option<PinnedShelf>,
    gpu: Arc<Gpu>,
}

/// The sampling kernel for each shape of launch.
struct SampleKernel {
    kernels: Vec<Kernel>,
    launch: SampleLaunch,
}

impl SampleKernel {
    /// For the logits of the decode pass.
    fn new(
        loaded: &LoadedProgram,
        cx: &Lowering<'_>,
        decode: &ReadyPass,
    ) -> Result<SampleKernel, Error> {
        let launch = SampleLaunch::new(cx, decode.result, cx.program.vocab, decode.width)?;
        let launches = launch.each();
        let kernels = launches.iter().map(|launch| loaded.kernel(launch));
        Ok(SampleKernel {
            kernels: kernels.collect::<Result<_, Error>>()?,
            launch,
        })
    }
}

impl CudaContext {
    /// Allocates everything that replay needs.
    pub(crate) fn new(
        loaded: &Arc<LoadedProgram>,
        seat: Option<Seat>,
    ) -> Result<CudaContext, Error> {
        CudaContext::with_replay(loaded, loaded.replay, seat)
    }

    /// A context that needs no persistent kernel, so it can be made while these are being compiled. Making it times the algorithms of
    /// cuBLASLt, if nobody did.
    pub(crate) fn without_persistent(loaded: &Arc<LoadedProgram>) -> Result<CudaContext, Error> {
        CudaContext::with_replay(loaded, Replay::Launches, None)
    }

    fn with_replay(
        loaded: &Arc<LoadedProgram>,
        replay: Replay,
        seat: Option<Seat>,
    ) -> Result<CudaContext, Error> {
        let program = &*loaded.program;
        let phases = &loaded.phases;
        let gpu = Arc::new(loaded.gpu.with_own_stream()?);
        let sizes = loaded.sizes;
        let mut allocated = BTreeMap::new();
        let mut count = |class: Class, bytes: u64| *allocated.entry(class).or_insert(0) += bytes;
        count(Class::Weights, loaded.arena.bytes());
        let mut buffers = Vec::with_capacity(program.buffers.len());
        let mut extra = Vec::new();
        phases.time("memory of a context", || {
            for spec in &program.buffers {
                buffers.push(DeviceBlock::zeroed(&gpu, spec.bytes, &spec.name)?);
                count(spec.class, spec.bytes);
            }
            for (name, class, bytes) in sizes.entries() {
                extra.push(DeviceBlock::zeroed(&gpu, bytes, name)?);
                count(class, bytes);
            }
            Ok::<_, Error>(())
        })?;
        let [
            scratch,
            counters,
            step_state,
            text_tiles,
            teams,
            page_tables,
            samplers,
            exchange,
            recording,
            rows,
        ] = <[DeviceBlock; 10]>::try_from(extra)
            .map_err(|_| Error::Program("its blocks were not counted".to_string()))?;
        let (slots, vocab) = (program.slots as usize, program.vocab as usize);
        let pinned = |bytes: usize, what: &str| HostBlock::new(&gpu, bytes, what);
        let [mailbox, cancel_word, masks, outputs] = phases.time("pinned memory", || {
            Ok::<_, Error>([
                pinned(MAILBOX_SLOTS as usize * 8, "the mailbox")?,
                pinned(8, "the cancel word")?,
                pinned(MaskBoard::words(slots, vocab) * 4, "masks")?,
                pinned(sizes.outputs as usize + FAULT_BYTES, "outputs on the host")?,
            ])
        })?;
        let board = |masks| MaskBoard::in_memory(slots, vocab, masks);
        let (seated, masks_at, board) = match seat {
            None => (None, masks.device(), Arc::new(board(Box::new(masks)))),
            Some(seat) => {
                let together = match &loaded.recording {
                    Ok(kernel) if replay == Replay::Persistent => {
                        let at = kernel.logits;
                        let logits = buffers[at.buffer as usize].start() + u64::from(at.offset);
                        Together::of(kernel, recording.start(), logits)
                    }
                    _ => Together::NONE,
                };
                let inbox = sizes.inbox;
                let seated = Seated::new(&gpu, seat, program, inbox, &exchange, masks, together)?;
                let (at, board) = (seated.masks, seated.board.clone());
                (Some(seated), at, board)
            }
        };
        let mut table = page_tables.start();
        let tables = program.caches.iter().map(|cache| {
            let bytes = 4 * u64::from(cache.entries(program)) * u64::from(program.slots);
            let next = table + bytes;
            std::mem::replace(&mut table, next)
        });
        let places = Places {
            buffers: buffers.iter().map(DeviceBlock::start).collect(),
            step: step_state.start() + sizes.step_rows,
            states: step_state.start() + sizes.states,
            order: step_state.start() + sizes.order,
            outputs: step_state.start(),
            text_tiles: TileLists::of(program).at(text_tiles.start()),
            teams: TeamLists::of(program).at(teams.start()),
            page_tables: tables.collect(),
            scratch: scratch.start(),
            counters: counters.start(),
            samplers: samplers.start(),
            mailbox: mailbox.device(),
            cancel: cancel_word.device(),
            masks: masks_at,
            seats: exchange.start() + sizes.inbox.layout()[1],
            exchange_blocks: seated.as_ref().map_or(0, |seated| seated.blocks),
        };
        let one_scale = loaded.one_scale();
        let cx = Lowering::new(
            program,
            &gpu.info,
            Some(&gpu),
            &loaded.weights,
            &places,
            loaded.decode,
            one_scale.as_deref(),
        );
        let passes = phases.time("kernels of a context", || ready_passes(loaded, &cx))?;
        let decode = passes.iter().find(|pass| pass.kind == PassKind::Decode);
        let sample = decode.map(|decode| SampleKernel::new(loaded, &cx, decode));
        let logprobs = decode.map(|decode| LogprobKernels::new(loaded, &cx, decode));
        let logprobs = logprobs.transpose()?;
        let ring = logprobs.as_ref().map_or(0, LogprobKernels::ring);
        let most_rows = program.most_rows() as usize;
        let decode_rows = decode.map_or(0, |decode| decode.rows as usize);
        let mut context = CudaContext {
            decode_graph: None,
            forward_graph: None,
            loop_graph: None,
            draft_graphs: DraftGraphs::default(),
            loaded: loaded.clone(),
            passes,
            recall: Recall::default(),
            persistent: Persistent::new(loaded, &cx, recording, ring, seated.as_ref())?,
            rows: Rows::new(loaded, &cx, rows)?,
            note: None,
            buffers,
            step_state,
            text_tiles,
            teams,
            samplers,
            _others: [scratch, counters, page_tables, exchange],
            seated,
            slots: (0..program.slots).map(|_| Sampler::new(program)).collect(),
            checks: Checks::new(program).taking_features(),
            sample: sample.transpose()?,
            logprobs,
            scratch: HostScratch::new(vocab, program.context as usize),
            chosen: Vec::with_capacity(decode_rows),
            mailbox,
            cancel_word,
            masks: board,
            outputs,
            step_image: vec![0; sizes.step as usize],
            tokens: Vec::with_capacity(most_rows),
            tiles: Vec::with_capacity(TileLists::of(program).words()),
            tile_lists: TileLists::of(program),
            team_words: Vec::with_capacity(TeamLists::of(program).words()),
            team_lists: TeamLists::of(program),
            running: Vec::with_capacity(decode_rows),
            chained: Vec::with_capacity(decode_rows),
            picked: Vec::with_capacity(decode_rows),
            chosen_rows: Vec::with_capacity(most_rows),
            chain_pass: DECODE,
            choices: Vec::with_capacity(most_rows),
            serial: 0,
            last: (DECODE, 0),
            stays: false,
            warming_up: false,
            replay: Replay::Launches,
            profile: None,
            last_step: Timeline::default(),
            events: Vec::new(),
            shelf: None,
            allocated,
            page_tables: places.page_tables.clone(),
            gpu: gpu.clone(),
        };
        for cache in 0..program.caches.len() {
            let pages = Checks::first_pages(program, cache);
            context.upload_pages(cache, 0, &pages)?;
        }
        phases.time("replay of chains", || context.use_replay(replay))?;
        let kept = phases.time("algorithms of cuBLASLt", || context.choose_algorithms())?;
        phases.time("warm-up", || context.warm_up())?;
        // Only now, because the warm-up has steps of many rows.
        context.recall = Recall::of(kept);
        context.set_tuning(&loaded.tuning());
        Ok(context)
    }

    /// Enqueues everything once, with kernels that return at once because the chain has ended. The driver then loads code
    /// now, and not when the first token is requested. A product of cuBLASLt does not return at once, so each runs only if it never
    /// did.
    fn warm_up(&mut self) -> Result<(), Error> {
        self.warming_up = true;
        let done = self.enqueue_everything();
        self.warming_up = false;
        done
    }

    fn enqueue_everything(&mut self) -> Result<(), Error> {
        for pass in 0..self.passes.len() {
            let most = self.passes[pass].rows as usize;
            let outputs = self.loaded.program.passes[pass].outputs;
            let outputs: Vec<u32> = (0..outputs).collect();
            for count in [most, most.min(2), 1] {
                let rows = vec![Row::default(); count];
                let outputs = &outputs[..outputs.len().min(count)];
                self.upload_ended(pass, &rows, outputs)?;
                self.replay(pass, 0..usize::MAX, pass == DECODE, &rows, outputs.len())?;
                self.launch_rows(pass, &rows)?;
            }
        }
        self.upload_ended(DECODE, &[Row::default()], &[])?;
        let graphs = [&self.decode_graph, &self.forward_graph, &self.loop_graph];
        for graph in graphs.into_iter().flatten().chain(self.draft_graphs.all()) {
            graph.launch()?;
        }
        if self.decodes() {
            self.launch_sample(0, 1, self.passes[DECODE].result, 0, Guess::No)?;
        }
        self.gpu.is_idle()?;
        let source = self.step_state.start();
        // The driver's functions for copies are found at their first use, which allocates.
        // SAFETY: the step state has two steps, of which nothing is needed any more; we wait for the copies.
        unsafe {
            self.gpu
                .copy(source + self.loaded.sizes.step_rows, source, 4)?;
            let out = &mut self.outputs.as_mut_slice()[..4];
            self.gpu.download(source, out)?;
        }
        self.gpu.synchronise()
    }

    /// Uploads the step state of a chain that has ended.
    fn upload_ended(&mut self, pass: usize, rows: &[Row], outputs: &[u32]) -> Result<(), Error> {
        self.upload_step(pass, rows, outputs, 0)?;
        let ended = 1u32.to_ne_bytes();
        for step in [0, self.loaded.sizes.step_rows] {
            // SAFETY: the second word of a `Step` says that the chain has ended.
            unsafe {
                self.gpu
                    .upload(self.step_state.start() + step + 4, &ended)?
            };
        }
        Ok(())
    }

    /// Whether the program generates text. Encoders do not.
    fn decodes(&self) -> bool {
        self.sample.is_some()
    }

    fn block(&self, id: BufferId) -> Result<&DeviceBlock, welte_device::Error> {
        let known = self.buffers.len();
        self.buffers.get(id as usize).ok_or_else(|| {
            welte_device::Error::request(format!("buffer {id}; the program has {known}"))
        })
    }

    /// Uploads page numbers to a cache's table, from entry `at` on.
    fn upload_pages(&mut self, cache: usize, at: usize, pages: &[u32]) -> Result<(), Error> {
        if let (Some(persistent), 0, Some(first)) = (&mut self.persistent, at, pages.first()) {
            persistent.set_state_page(cache, *first);
        }
        let table = self.page_tables[cache];
        // SAFETY: the caller checked that the table has these entries.
        unsafe { self.gpu.upload(table + 4 * at as u64, bytes_of_all(pages)) }
    }

    /// Enqueues a pass over the rows of the step state, without sampling. True if the persistent kernel computes it: it may give
    /// up.
    fn launch_step(&mut self, pass: usize, rows: &[Row], outputs: usize) -> Result<bool, Error> {
        if pass != DECODE {
            self.recall.note_rows(rows.len());
        }
        if self.launch_rows(pass, rows)? {
            self.launch_tap(rows.len())?;
            return Ok(true);
        }
        match &self.forward_graph {
            Some(graph) if pass == DECODE && rows.len() == 1 && self.by_graph() => {
                graph.launch()?;
            }
            _ => self.replay(pass, 0..usize::MAX, false, rows, outputs)?,
        }
        Ok(false)
    }

    /// Runs a pass over rows, without sampling. Returns the number of floats in the output rows, which are on the host then.
    fn run_step(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
        count: usize,
    ) -> Result<usize, Error> {
        self.gpu.current()?;
        self.upload_step(pass, rows, outputs, 0)?;
        if pass == DECODE {
            self.clear_rows_fault()?;
        }
        self.last = (pass, count);
        self.stays = false;
        let values = count * self.passes[pass].width as usize;
        loop {
            let together = self.launch_step(pass, rows, count)?;
            if together {
                self.fetch_rows_fault(values * 4)?;
            }
            self.fetch_outputs()?;
            // If the persistent kernel gave up, other kernels compute the step again. They write the same places.
            if !together || !self.rows_gave_up(values * 4)? {
                return Ok(values);
            }
        }
    }

    /// Waits for the last step, and copies its output rows to the host. Returns the number of their floats.
    fn fetch_outputs(&mut self) -> Result<usize, Error> {
        let (pass, count) = self.last;
        let ready = &self.passes[pass];
        let (source, values) = (ready.result, count * ready.width as usize);
        // SAFETY: checking the program has found the output rows inside their buffer; we wait for the copy.
        unsafe {
            let out = &mut self.outputs.as_mut_slice()[..values * 4];
            self.gpu.download(source, out)?;
        }
        self.gpu.synchronise()?;
        Ok(values)
    }

    /// Output rows that a step has copied to the host.
    fn outputs(&self, values: usize) -> &[f32] {
        floats_of(&self.outputs, values)
    }

    /// Enqueues the upload of the step state (`Step` of `common.cuh`) and of the rows' tokens. Each row of a decode pass may make
    /// `left` tokens, which are numbered in turn from the next serial on.
    fn upload_step(
        &mut self,
        pass: usize,
        rows: &[Row],
        outputs: &[u32],
        left: u32,
    ) -> Result<(), Error> {
        let sizes = self.loaded.sizes;
        let step_rows = sizes.step_rows as usize;
        let head = |live: usize| [live as u32, 0, 0, left, 0, 0, 0, 0];
        let image = &mut self.step_image;
        image[..STEP_HEAD].copy_from_slice(bytes_of(&head(outputs.len())));
        image[STEP_HEAD..][..size_of_val(outputs)].copy_from_slice(bytes_of_all(outputs));
        image[step_rows..][..STEP_HEAD].copy_from_slice(bytes_of(&head(rows.len())));
        let to = step_rows + STEP_HEAD + ROW_BYTES * rows.len();
        let words = image[step_rows + STEP_HEAD..to].chunks_exact_mut(ROW_BYTES);
        for (words, row) in words.zip(rows) {
            let [time, height, width] = row.axes;
            let feature = row.input.feature().unwrap_or(NO_FEATURE);
            words.copy_from_slice(bytes_of(&[
                row.token(),
                row.position,
                row.slot,
                row.reach,
                time,
                height,
                width,
                feature,
            ]));
        }
        let mut from = 0;
        if self.passes[pass].kind == PassKind::Decode {
            // It has no output rows of its own, but states.
            from = sizes.order as usize;
            let states = image[sizes.states as usize..].chunks_exact_mut(STATE_BYTES);
            for (i, state) in (0..rows.len() as u32).zip(states) {
                state.copy_from_slice(bytes_of(&state_of(self.serial, i, left)));
            }
            // Rows of a sequence that go by several launches are computed in the order of their positions.
            self.tokens.clear();
            self.tokens.extend(0..rows.len() as u32);
            let position = |i: &u32| (rows[*i as usize].position, *i);
            self.tokens.sort_unstable_by_key(position);
            image[from..][..4 * rows.len()].copy_from_slice(bytes_of_all(&self.tokens));
        }
        self.tokens.clear();
        self.tokens.extend(rows.iter().map(Row::token));
        let tokens = self.loaded.program.tokens as usize;
        // SAFETY: both blocks have room for the most rows, and requests are checked.
        unsafe {
            let at = self.step_state.start() + from as u64;
            self.gpu.upload(at, &self.step_image[from..to])?;
            let at = self.buffers[tokens].start();
            self.gpu.upload(at, bytes_of_all(&self.tokens))?;
        }
        if self.text_tiles.bytes() > 0 {
            self.tile_lists.cut(rows, &mut self.tiles);
            // SAFETY: the block has room for the tiles of the most rows, one each.
            unsafe {
                let tiles = bytes_of_all(&self.tiles);
                self.gpu.upload(self.text_tiles.start(), tiles)?;
            }
        }
        if self.loaded.program.passes[pass].adapted {
            let adapters = self.checks.adapters();
            let words = &mut self.team_words;
            self.team_lists.cut((rows, outputs), adapters, words);
            // SAFETY: the block has room for a team for each of the most rows and output rows.
            unsafe { self.gpu.upload(self.teams.start(), bytes_of_all(words))? };
        }
        Ok(())
    }

    fn enqueue(&self, node: &Ready, live: u32) -> Result<(), Error> {
        match node {
            Ready::Gemm(gemm) if self.warming_up && gemm.plan.has_run() => Ok(()),
            Ready::Gemm(gemm) => gemm.run(&self.gpu, live),
            Ready::Either(either) => {
                let mut nodes = either.chosen().iter();
                nodes.try_for_each(|node| self.enqueue(node, live))
            }
            Ready::ForRows { least, most, nodes } => {
                if (*least..=*most).contains(&live) {
                    nodes.iter().try_for_each(|node| self.enqueue(node, live))?;
                }
                Ok(())
            }
            Ready::Kernel {
                kernel,
                grid,
                by_rows,
                args,
            } => {
                let grid = by_rows.grid(*grid, live);
                // SAFETY: lowering made the parameters for this kernel from blocks that the context holds.
                unsafe { self.gpu.launch(kernel, grid, args) }
            }
        }
    }

    /// Enqueues commands of a pass.
    fn replay(
        &mut self,
        pass: usize,
        commands: Range<usize>,
        sample: bool,
        rows: &[Row],
        outputs: usize,
    ) -> Result<(), Error> {
        let ready = &self.passes[pass];
        let ops = &self.loaded.program.passes[pass].commands;
        let all = ready.commands(rows.len());
        for (index, nodes) in all.iter().enumerate() {
            let live = if index < ready.outputs_from {
                rows.len()
            } else {
                outputs
            };
            let runs = commands.contains(&index) && (sample || ops[index].op != Op::Sample);
            if !runs || live == 0 {
                continue;
            }
            if self.profile.is_some() {
                self.events[index].record()?;
            }
            let made = self.allocate(&ops[index])?;
            for node in nodes {
                self.enqueue(node, live as u32)?;
            }
            self.release(made)?;
            if self.profile.is_some() {
                self.events[index + 1].record()?;
            }
        }
        self.read_events(pass, &commands, sample, rows, outputs)
    }

    /// Memory for the output of a command, where every command allocates. Only the time counts: kernels write to the
    /// program's buffers all the same.
    fn allocate(&self, command: &Command) -> Result<Option<u64>, Error> {
        if self.mode() != Replay::Allocate {
            return Ok(None);
        }
        let program = &self.loaded.program;
        let written = command
            .buffers
            .iter()
            .rev()
            .find(|b| **b != BufferRef::NONE);
        let spec = written.and_then(|b| program.buffers.get(b.buffer as usize));
        match spec.filter(|spec| spec.class != Class::Cache) {
            Some(spec) => self.gpu.allocate_in_order(spec.bytes).map(Some),
            None => Ok(None),
        }
    }

    fn release(&self, made: Option<u64>) -> Result<(), Error> {
        made.map_or(Ok(()), |start| self.gpu.release_in_order(start))
    }

    /// Uploads a slot's sampling state, if the device has another one.
    fn upload_sampler(&mut self, slot: u32) -> Result<(), Error> {
        let at = self.samplers.start() + u64::from(slot) * region_bytes(&self.loaded.program);
        // SAFETY: the region is the slot's.
        unsafe { self.slots[slot as usize].upload(&self.gpu, at) }
    }

    /// Enqueues sampling for `count` rows of the step from row `first` on, whose logits are at an address. At `fault`, unless it
    /// is 0, a kernel says whether these are invalid.
    fn launch_sample(
        &self,
        first: u32,
        count: u32,
        logits: u64,
        fault: u64,
        guess: Guess,
    ) -> Result<(), Error> {
        let Some(SampleKernel { kernels, launch }) = &self.sample else {
            return Err(Error::Program("it generates no text".to_string()));
        };
        let (nth, blocks, args) = launch.for_count(first, count, logits, fault, guess);
        // SAFETY: lowering made the parameters for this kernel from blocks that the context holds.
        unsafe {
            self.gpu
                .launch(&kernels[nth], [blocks, count, 1], bytes_of(&args))
        }
    }
}

/// The first values of a block.
fn floats_of(block: &HostBlock, values: usize) -> &[f32] {
    let bytes = &block.as_slice()[..values * 4];
    // SAFETY: pinned memory is page-aligned, and any bytes are floats.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), values) }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        // Nothing may be freed while the GPU still uses it.
        self.cancel_word.set_flag(1);
        if self.gpu.current().is_ok() {
            let _ = self.gpu.synchronise();
        }
    }
}
