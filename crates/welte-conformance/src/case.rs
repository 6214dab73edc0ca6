//! A program on a device: making it, poisoning its memory, comparing it with the oracle.

use super::made::{Made, Numbers};
use super::model::{Layer, Model};
use super::program::{look_up, make_fine};
use std::sync::Arc;
use welte_device::{
    ChainStart, Choice, Context, Control, Device, Emitted, Loaded, Pick, Role, SlotState, Step,
    Want,
};
use welte_formats::quant;
use welte_table::{
    CacheKind, CacheSpec, Class, Extent, Format, Op, PassKind, Program, Row, accesses, fuse, verify,
};

/// A program that the device can run, with its checkpoint.
pub(super) struct Case {
    pub(super) program: Arc<Program>,
    pub(super) checkpoint: Made,
    /// For messages.
    pub(super) what: String,
}

/// Which commands a case has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Commands {
    /// Fused as the device declares.
    Fused,
    /// Fine ops only.
    Fine,
}

impl Case {
    /// The model's program for this device. `None`, with a note, if the device says that it lacks an optional feature.
    pub(super) fn new(device: &dyn Device, model: &Model, commands: Commands) -> Option<Case> {
        let (program, checkpoint) = make_fine(model);
        let what = format!("{model:?}");
        verify(&program).unwrap_or_else(|e| panic!("the suite's program is wrong: {e}: {what}"));
        if let Some(missing) = device.missing(&program) {
            assert!(
                model.is_optional(),
                "every device must run this program, this one lacks {missing}: {what}"
            );
            eprintln!("left out, the device lacks {missing}");
            return None;
        }
        let patterns = match commands {
            Commands::Fused => device.patterns(),
            Commands::Fine => &[],
        };
        let program = fuse(program, patterns);
        verify(&program).unwrap_or_else(|e| panic!("after fuse: {e}: {what}"));
        Some(Case {
            program: Arc::new(program),
            checkpoint,
            what,
        })
    }

    /// A program that every device must run.
    pub(super) fn required(device: &dyn Device, model: &Model) -> Case {
        assert!(!model.is_optional(), "{model:?} has an optional feature");
        Case::new(device, model, Commands::Fused).expect("required")
    }

    /// A program that looks its logits up by token.
    pub(super) fn look_up(
        device: &dyn Device,
        table: &[Vec<f32>],
        slots: u32,
        context: u32,
    ) -> Case {
        let (program, checkpoint) = look_up(table, slots, context);
        verify(&program).unwrap_or_else(|e| panic!("the suite's program is wrong: {e}"));
        assert_eq!(device.missing(&program), None, "a program of look-ups");
        Case {
            program: Arc::new(program),
            checkpoint,
            what: format!("a table of {} tokens", table.len()),
        }
    }

    pub(super) fn load(&self, device: &dyn Device) -> Arc<dyn Loaded> {
        let plan = device.plan(self.program.clone());
        let plan = plan.unwrap_or_else(|e| panic!("plan: {e}: {}", self.what));
        let loaded = device.load(plan, &self.checkpoint, &mut |_| {});
        loaded.unwrap_or_else(|e| panic!("load: {e}: {}", self.what))
    }

    /// A context whose buffers and caches hold NaN.
    pub(super) fn open(&self, device: &dyn Device) -> Box<dyn Context> {
        self.open_loaded(&*self.load(device))
    }

    /// The same, of a program that is loaded already.
    pub(super) fn open_loaded(&self, loaded: &dyn Loaded) -> Box<dyn Context> {
        let context = loaded.context();
        let mut context = context.unwrap_or_else(|e| panic!("context: {e}: {}", self.what));
        poison(context.as_mut());
        context
    }

    /// The device's context and the oracle's.
    pub(super) fn pair(&self, device: &dyn Device, oracle: &dyn Device) -> Pair<'_> {
        Pair {
            case: self,
            device: self.open(device),
            oracle: self.open(oracle),
        }
    }

    pub(super) fn pass(&self, kind: PassKind) -> usize {
        self.program.pass(kind).expect("the program has the pass")
    }

    /// Bytes of a page of a cache.
    pub(super) fn page_bytes(&self, cache: usize) -> usize {
        let bytes = self.program.caches[cache].page_bytes(self.program.page);
        bytes.expect("a small page") as usize
    }

    /// Index of the recurrent cache.
    pub(super) fn recurrent(&self) -> usize {
        let recurrent = |c: &CacheSpec| matches!(c.kind, CacheKind::Recurrent { .. });
        let found = self.program.caches.iter().position(recurrent);
        found.expect("the program has recurrent state")
    }
}

/// Fills all float buffers and caches with NaN. Then unwritten memory shows, and so does a read beyond the context.
pub(super) fn poison(context: &mut dyn Context) {
    let program = context.program().clone();
    for (id, spec) in program.buffers.iter().enumerate() {
        if spec.class != Class::Tables {
            let bytes = vec![0xff; spec.bytes as usize];
            let written = context.write_buffer(id as u32, &bytes);
            written.unwrap_or_else(|e| panic!("writing {}: {e}", spec.name));
        }
    }
}

/// One program on the device and on the oracle.
pub(super) struct Pair<'a> {
    pub(super) case: &'a Case,
    pub(super) device: Box<dyn Context>,
    pub(super) oracle: Box<dyn Context>,
}

impl Pair<'_> {
    /// The same on both.
    pub(super) fn both(&mut self, mut act: impl FnMut(&mut dyn Context)) {
        act(self.device.as_mut());
        act(self.oracle.as_mut());
    }

    pub(super) fn set_pages(&mut self, cache: usize, slot: u32, pages: &[u32]) {
        self.both(|c| c.set_pages(cache, slot, 0, pages).expect("a valid list"));
    }

    /// One step on both. Panics if their outputs differ by more than `tolerance`. Returns the device's.
    #[track_caller]
    pub(super) fn step(
        &mut self,
        kind: PassKind,
        rows: &[Row],
        outputs: &[u32],
        tolerance: f32,
    ) -> Vec<f32> {
        let pass = self.case.pass(kind);
        let want = self
            .oracle
            .step_rows(pass, rows, outputs)
            .expect("a valid step");
        let got = self
            .device
            .step_rows(pass, rows, outputs)
            .expect("a valid step");
        let off = difference(got, want);
        assert!(
            off <= tolerance,
            "{} step of {} rows from {:?}: off by {off}, at most {tolerance}: {}",
            kind.name(),
            rows.len(),
            rows[0],
            self.case.what
        );
        got.to_vec()
    }

    /// The first buffer or cache that differs, if any does.
    pub(super) fn differing(&mut self, tolerance: f32) -> Option<String> {
        let compared = |_, class| match class {
            Class::Tables => Compared::Nothing,
            _ => Compared::Everything,
        };
        self.differing_among(&compared, tolerance)
    }

    fn differing_among(
        &mut self,
        compared: &dyn Fn(u32, Class) -> Compared,
        tolerance: f32,
    ) -> Option<String> {
        let program = self.case.program.clone();
        for (id, spec) in program.buffers.iter().enumerate() {
            let compared = compared(id as u32, spec.class);
            if matches!(compared, Compared::Nothing) {
                continue;
            }
            let cache = program.caches.iter().find(|c| c.buffer == id as u32);
            let format = match cache.map(|c| c.kind) {
                Some(CacheKind::Attention { format, .. }) => format,
                _ => Format::F32,
            };
            let values = |bytes: Vec<u8>| {
                assert_eq!(bytes.len() as u64, spec.bytes, "{}", spec.name);
                let mut values = decoded(format, &bytes);
                if let Compared::Elements(these) = &compared {
                    let mut these = these.iter();
                    values.retain(|_| *these.next().expect("one for each element"));
                }
                values
            };
            let want = self.oracle.read_buffer(id as u32).expect("a known buffer");
            let got = match self.device.read_buffer(id as u32) {
                // Ranks have parts of intermediates.
                Err(welte_device::Error::Request(_)) if is_scratch(spec.class) => continue,
                got => got.expect("a known buffer"),
            };
            let (got, want) = (values(got), values(want));
            if let Some(problem) = unlike(&got, &want, tolerance, spec.name == "choice") {
                return Some(format!("{}{problem}", spec.name));
            }
        }
        None
    }

    /// For whole steps: a device may keep intermediates of a decode step elsewhere.
    #[track_caller]
    pub(super) fn assert_same_caches(&mut self, what: &str, tolerance: f32) {
        let compared = |_, class| match class {
            Class::Cache => Compared::Everything,
            _ => Compared::Nothing,
        };
        if let Some(problem) = self.differing_among(&compared, tolerance) {
            panic!("{what}: {problem}: {}", self.case.what);
        }
    }

    /// After the first `until` commands of a pass: what none of the others reads may differ, since a device that joins commands need not
    /// write it.
    #[track_caller]
    pub(super) fn assert_same_so_far(
        &mut self,
        what: &str,
        pass: usize,
        until: usize,
        tolerance: f32,
    ) {
        let program = self.case.program.clone();
        let compared = |id: u32, class: Class| match class {
            Class::Tables => Compared::Nothing,
            class if is_scratch(class) => Compared::Elements(read_later(&program, pass, until, id)),
            _ => Compared::Everything,
        };
        if let Some(problem) = self.differing_among(&compared, tolerance) {
            panic!("{what}: {problem}: {}", self.case.what);
        }
    }

    #[track_caller]
    pub(super) fn assert_same_memory(&mut self, what: &str, tolerance: f32) {
        if let Some(problem) = self.differing(tolerance) {
            panic!("{what}: {problem}: {}", self.case.what);
        }
    }
}

fn is_scratch(class: Class) -> bool {
    matches!(class, Class::ScratchDecode | Class::ScratchPrompt)
}

/// What is compared of a buffer.
enum Compared {
    Nothing,
    Everything,
    Elements(Vec<bool>),
}

/// Which floats of a buffer a command of the pass after the first `until`, or its caller, reads before a product is stored there.
fn read_later(program: &Program, pass: usize, until: usize, buffer: u32) -> Vec<bool> {
    let pass = &program.passes[pass];
    let mut is_read = vec![None; program.buffers[buffer as usize].bytes as usize / 4];
    for command in &pass.commands[until..] {
        for access in accesses(command) {
            if access.at.buffer != buffer {
                continue;
            }
            let stores = access.writes && matches!(command.op, Op::Matmul | Op::NormMatmul);
            let (Extent::Rows { width, stride } | Extent::Outputs { width, stride }) =
                access.extent
            else {
                panic!("a buffer of intermediates has rows");
            };
            let from = access.at.offset as usize / 4;
            let rows = is_read[from..].chunks_mut(stride as usize);
            let touched = rows.flat_map(|row| row.iter_mut().take(width as usize));
            for element in touched {
                element.get_or_insert(!stores);
            }
        }
    }
    let is_result = pass.result.buffer == buffer;
    let all = is_read.into_iter();
    all.map(|read| read.unwrap_or(is_result)).collect()
}

fn decoded(format: Format, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / format.block_bytes() * format.block()];
    quant::decode(format, bytes, &mut values);
    values
}

/// Where and how two buffers differ: in which values were written, in experts' numbers, or by too much.
fn unlike(got: &[f32], want: &[f32], tolerance: f32, numbers: bool) -> Option<String> {
    let is_number = |v: f32| numbers && v.to_bits() < 1 << 16;
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        let numbered = is_number(*g) || is_number(*w);
        let lowest = (*g == f32::MIN) != (*w == f32::MIN);
        if g.is_nan() != w.is_nan() || lowest || numbered && g.to_bits() != w.to_bits() {
            return Some(format!("[{at}] is {g:?}, not {w:?}"));
        }
    }
    let live = |values: &[f32]| -> Vec<f32> {
        // `spread` gives tokens without a source the lowest float, beside which all others are equal.
        let live = values.iter().filter(|v| !v.is_nan() && **v != f32::MIN);
        live.copied().collect()
    };
    let off = difference(&live(got), &live(want));
    (off > tolerance).then(|| format!(" is off by {off}, at most {tolerance}"))
}

/// The largest difference, relative to the largest wanted value.
pub(super) fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "another number of values");
    let largest = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    let each = got.iter().zip(want).map(|(g, w)| (g - w).abs() / largest);
    each.fold(
        0.0,
        |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) },
    )
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The largest difference that is allowed between a device and the oracle, relative to the largest value:
///
/// | | |
/// |---|---|
/// | weights in F32, F16 | 0.006: activations may be rounded to F16 |
/// | weights in BF16, F8_E4M3 | 0.012: activations may be rounded to BF16 |
/// | weights in other blocks | 0.04: activations may be rounded to 8 bits |
/// | a Q8_0 cache | at least 0.02: a value on the edge may be rounded to either side |
/// | more than 16 rows | at least 0.02: activations may be rounded to 16 bits |
/// | one hidden value | 0.1: the norm of a single value is its sign |
/// | gated delta | at least 0.02: the norm of each head enlarges small sums |
/// | a recurrent layer of one channel | 0.1: its input is one sum, whose terms may cancel |
pub(super) fn tolerance(model: &Model, rows: usize) -> f32 {
    let weights = match model.format {
        Format::F32 | Format::F16 => 0.006,
        Format::BF16 | Format::F8_E4M3 => 0.012,
        _ => 0.04,
    };
    let attends = model
        .layers
        .iter()
        .any(|l| matches!(l, Layer::Attention(_)));
    let cache = match model.kv_format {
        Format::Q8_0 if attends => 0.02,
        _ => 0.0,
    };
    let normed = model.layers.iter().any(|l| matches!(l, Layer::Delta(_)));
    let normed = if normed { 0.02 } else { 0.0 };
    let many = if rows > 16 { 0.02 } else { 0.0 };
    let narrow = |layer: &Layer| match layer {
        Layer::Conv(conv) => conv.channels == 1,
        Layer::Delta(delta) => delta.value_dim == 1,
        _ => false,
    };
    let single = if model.dim == 1 || model.layers.iter().any(narrow) {
        0.1
    } else {
        0.0
    };
    [weights, cache, normed, many, single]
        .into_iter()
        .fold(0.0, f32::max)
}

/// Rows of random tokens of one slot, at `count` positions from `from`.
pub(super) fn rows(n: &mut Numbers, vocab: u32, slot: u32, from: u32, count: u32) -> Vec<Row> {
    let row = |position| Row::new(n.below(vocab), position, slot);
    (from..from + count).map(row).collect()
}

/// At most `count` rows of random tokens, of slots in random order. Each slot goes on from its entry in `next`.
pub(super) fn mixed_rows(
    n: &mut Numbers,
    program: &Program,
    next: &mut [u32],
    count: u32,
) -> Vec<Row> {
    let mut all = Vec::new();
    while all.len() < count as usize && next.iter().any(|p| *p < program.context) {
        let slot = n.below(next.len() as u32);
        let position = &mut next[slot as usize];
        if *position < program.context {
            all.extend(rows(n, program.vocab, slot, *position, 1));
            *position += 1;
        }
    }
    all
}

/// A decode step whose rows are picked for the tokens that `choices` describe, one for each row in turn.
pub(super) fn step_choosing(rows: &[Row], choices: &[Choice]) -> Step {
    let mut step = Step::of(Role::Generated, rows, &[]);
    step.picks.extend(choices.iter().map(|choice| Pick {
        row: choice.output,
        want: Want::Token {
            draft: choice.draft,
        },
    }));
    let own: Vec<Choice> = step.choices().collect();
    assert_eq!(own, choices, "the choices of these rows");
    step
}

/// Some of the rows, in ascending order: at least one, at most `limit`.
pub(super) fn some_outputs(n: &mut Numbers, rows: usize, limit: u32) -> Vec<u32> {
    let limit = (rows as u32).min(limit);
    let count = 1 + n.below(limit);
    let mut all: Vec<u32> = (0..rows as u32).collect();
    while all.len() > count as usize {
        let at = n.below(all.len() as u32) as usize;
        all.remove(at);
    }
    all
}

pub(super) fn start(slot: u32, token: u32, position: u32, steps: u32) -> ChainStart {
    ChainStart {
        slot,
        token,
        position,
        steps,
        shift: 0,
    }
}

/// All that a chain emits.
#[track_caller]
pub(super) fn chain(context: &mut dyn Context, starts: &[ChainStart]) -> Vec<Emitted> {
    let mut emitted = Vec::new();
    let mut emit = |one: Emitted| {
        emitted.push(one);
        true
    };
    let done = context.chain(starts, &Control::default(), &mut emit);
    done.expect("a valid chain");
    emitted
}

/// The tokens of one slot, whose positions must follow each other from `position`.
#[track_caller]
pub(super) fn tokens_of(emitted: &[Emitted], slot: u32, position: u32) -> Vec<u32> {
    let own: Vec<_> = emitted.iter().filter(|e| e.slot == slot).collect();
    for (at, one) in own.iter().enumerate() {
        let wanted = position + at as u32;
        assert_eq!(one.position, wanted, "token {at} of slot {slot}");
    }
    own.iter().map(|e| e.token).collect()
}

/// Sets a slot's sampling state.
#[track_caller]
pub(super) fn set_slot(context: &mut dyn Context, slot: u32, state: SlotState<'_>) {
    context.set_slot(slot, &state).expect("a valid slot");
}

/// The error text of a request that must be refused.
#[track_caller]
pub(super) fn refused<T>(result: Result<T, welte_device::Error>, what: &str) {
    match result {
        Ok(_) => panic!("{what} was accepted"),
        Err(welte_device::Error::Request(_)) => {}
        Err(other) => panic!("{what} is not an invalid request, but: {other}"),
    }
}
