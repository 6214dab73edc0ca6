//! Fusion: a run of fine ops becomes one op that does the same. Devices declare as data which runs they fuse.

use crate::access::apart;
use crate::verify::check_overlap;
use crate::{
    Access, BufferId, BufferRef, BufferSpec, Class, Command, Extent, ModelPart, NO_BUFFER,
    NO_WEIGHT, Op, Params, Pass, Program, WeightId, accesses, cost,
};

/// A run of commands, one after the other, and how their operands and parameters belong together.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The commands.
    pub steps: &'static [Step],
    /// What names alone do not say. It may bind further names; `None` refuses the run.
    pub relate: fn(&mut Bound) -> Option<()>,
}

/// A command of a [`Run`]. Operands and parameters with the same name, in this step or another one, must be equal. `_` is
/// any operand.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What the command does.
    pub op: Op,
    /// Whether the run goes on without it if it is not there.
    pub optional: bool,
    /// A name for each weight.
    pub weights: &'static [&'static str],
    /// A name for each buffer.
    pub buffers: &'static [&'static str],
    /// Parameters and their names or values; others may be anything.
    pub params: &'static [(&'static str, Want)],
}

/// What a [`Step`] wants of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// The value of all parameters of this name.
    Name(&'static str),
    /// This word.
    Word(u32),
}

/// A step of a run: `step!(Norm [weight] [x, t] { dim: k, groups = 1, eps })` wants a norm, whose parameter `dim` is named `k`,
/// whose `groups` are 1, and whose `eps` is named `eps`. `optional` before the op makes it one.
#[macro_export]
macro_rules! step {
    (@want $field:ident) => { $crate::Want::Name(stringify!($field)) };
    (@want $field:ident : $name:ident) => { $crate::Want::Name(stringify!($name)) };
    (@want $field:ident = $value:expr) => { $crate::Want::Word($value) };
    (@step $optional:literal $op:ident [$($weight:tt),*] [$($buffer:tt),*]
        { $($field:ident $(: $name:ident)? $(= $value:expr)?),* }) => {
        $crate::Step {
            op: $crate::Op::$op,
            optional: $optional,
            weights: &[$(stringify!($weight)),*],
            buffers: &[$(stringify!($buffer)),*],
            params: &[$((stringify!($field), $crate::step!(@want $field $(: $name)? $(= $value)?))),*],
        }
    };
    (optional $($rest:tt)*) => { $crate::step!(@step true $($rest)*) };
    ($($rest:tt)*) => { $crate::step!(@step false $($rest)*) };
}

/// A run that one op replaces. The op's weights, buffers and parameters have the names that the run gave them. A weight that
/// an optional step would have named is missing then, a parameter is 0.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// What replaces the run.
    pub op: Op,
    /// What is replaced.
    pub run: Run,
    /// Buffers between the steps. The op does not fill them, so nothing else may read what the run wrote there.
    pub private: &'static [&'static str],
    /// The step whose format and label the op gets.
    pub main: usize,
    /// A label in place of that one.
    pub label: Option<&'static str>,
    /// Parts of a model in which the run stays as it is.
    pub except: &'static [ModelPart],
}

/// Every pattern of the fused ops, longest first.
pub const PATTERNS: &[Pattern] = &[ROPE_APPEND, NORM_MATMUL_ACT_MUL, NORM_MATMUL, MATMUL_ADD];

fn any(_: &mut Bound) -> Option<()> {
    Some(())
}

/// The norm of what a product reads.
const INPUT_NORM: Step =
    step!(Norm [weight] [x, t] { dim: k, groups = 1, eps, x_stride, y_stride: between });

/// A product whose input is normed first.
pub const NORM_MATMUL: Pattern = Pattern {
    op: Op::NormMatmul,
    run: Run {
        steps: &[
            INPUT_NORM,
            step!(Matmul [matrix] [t, y] { n, k, x_stride: between, y_stride }),
        ],
        relate: not_in_place,
    },
    private: &["t"],
    main: 1,
    label: None,
    except: &[ModelPart::Router],
};

/// A product that is added to what is there.
pub const MATMUL_ADD: Pattern = Pattern {
    op: Op::MatmulAdd,
    run: Run {
        steps: &[
            step!(Matmul [matrix] [x, t] { n, k, x_stride, y_stride: between }),
            step!(Add [] [t, y] { n, x_stride: between, y_stride }),
        ],
        relate: any,
    },
    private: &["t"],
    main: 0,
    label: None,
    except: &[],
};

/// The first half of a gated feed-forward part.
pub const NORM_MATMUL_ACT_MUL: Pattern = Pattern {
    op: Op::NormMatmulActMul,
    run: Run {
        steps: &[
            INPUT_NORM,
            step!(Matmul [matrix] [t, pair] { n: both, k, x_stride: between, y_stride: pair_stride }),
            step!(ActMul [] [pair, y] { n, act, x_stride: pair_stride, y_stride }),
        ],
        relate: |b| {
            let both = b.word("n")?.checked_mul(2);
            (both == b.word("both")).then_some(())?;
            not_in_place(b)
        },
    },
    private: &["t", "pair"],
    main: 1,
    label: None,
    except: &[],
};

/// All that happens to queries, keys and values between their projection and attention.
pub const ROPE_APPEND: Pattern = Pattern {
    op: Op::RopeAppend,
    run: Run {
        steps: &[
            step!(optional Norm [q_norm] [qkv, qkv] { dim: head_dim, groups: heads, eps, x_stride: qkv_stride, y_stride: qkv_stride }),
            step!(optional Norm [k_norm] [k, k] { dim: head_dim, groups: kv_heads, eps, x_stride: qkv_stride, y_stride: qkv_stride }),
            step!(Rope [freqs] [qkv] { heads: turned, head_dim, rot, interleaved, magnitude, y_stride: qkv_stride, sections }),
            step!(KvAppend [] [k, v, kv] { layer, kv_heads, head_dim, k_stride: qkv_stride, v_stride: qkv_stride }),
        ],
        relate: |b| {
            let normed = ["q_norm", "k_norm"].map(|norm| b.get(norm).is_some());
            (normed[0] == normed[1]).then_some(())?;
            // The op norms where it has a weight.
            let weights = ["q_norm", "k_norm"].map(|norm| b.weight(norm));
            (!normed[0] || !weights.contains(&NO_WEIGHT)).then_some(())?;
            // Queries and keys lie side by side, so one rope turns both.
            let heads = b.word("turned")?.checked_sub(b.word("kv_heads")?)?;
            b.set("heads", Value::Word(heads))?;
            let dim = b.word("head_dim")?;
            let qkv = b.place("qkv")?;
            let after = |heads: u32| {
                let bytes = heads.checked_mul(dim)?.checked_mul(4)?;
                Some(Value::Place(BufferRef {
                    offset: qkv.offset.checked_add(bytes)?,
                    ..qkv
                }))
            };
            b.set("k", after(heads)?)?;
            b.set("v", after(b.word("turned")?)?)
        },
    },
    private: &[],
    main: 2,
    label: Some("rope and append"),
    except: &[],
};

/// A norm in place has no result of its own that could stay away.
fn not_in_place(b: &mut Bound) -> Option<()> {
    (b.place("x")?.buffer != b.place("t")?.buffer).then_some(())
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A weight, or `NO_WEIGHT`.
    Weight(WeightId),
    /// A place in a buffer.
    Place(BufferRef),
    /// A parameter.
    Word(u32),
}

/// What names stand for in a run that was found.
#[derive(Clone, Debug, Default)]
pub struct Bound(Vec<(&'static str, Value)>);

impl Bound {
    fn get(&self, name: &str) -> Option<Value> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    /// Binds a name. `None` if it stands for something else.
    pub fn set(&mut self, name: &'static str, value: Value) -> Option<()> {
        if name == "_" {
            return Some(());
        }
        match self.get(name) {
            Some(known) => (known == value).then_some(()),
            None => {
                self.0.push((name, value));
                Some(())
            }
        }
    }

    /// The parameter of a name.
    pub fn word(&self, name: &str) -> Option<u32> {
        match self.get(name)? {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    /// The parameter of a name as a float.
    pub fn float(&self, name: &str) -> Option<f32> {
        self.word(name).map(f32::from_bits)
    }

    /// The place of a name.
    pub fn place(&self, name: &str) -> Option<BufferRef> {
        match self.get(name)? {
            Value::Place(place) => Some(place),
            _ => None,
        }
    }

    /// The weight of a name; `NO_WEIGHT` if there is none.
    pub fn weight(&self, name: &str) -> WeightId {
        match self.get(name) {
            Some(Value::Weight(weight)) => weight,
            _ => NO_WEIGHT,
        }
    }

    fn take(&mut self, step: &Step, c: &Command) -> Option<()> {
        if c.op != step.op {
            return None;
        }
        for (name, weight) in step.weights.iter().zip(c.weights) {
            self.set(name, Value::Weight(weight))?;
        }
        for (name, place) in step.buffers.iter().zip(c.buffers) {
            self.set(name, Value::Place(place))?;
        }
        for (field, want) in step.params {
            let word = c.word(field)?;
            match want {
                Want::Name(name) => self.set(name, Value::Word(word))?,
                Want::Word(wanted) => (*wanted == word).then_some(())?,
            }
        }
        Some(())
    }
}

/// A run that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What its names stand for.
    pub bound: Bound,
    /// The number of each step's command; `None` for an optional step that is not there.
    pub commands: Vec<Option<usize>>,
    /// The command after it.
    pub end: usize,
}

impl Run {
    /// The run that begins with a command.
    pub fn at(&self, commands: &[Command], first: usize) -> Option<Found> {
        let start = Found {
            bound: Bound::default(),
            commands: Vec::new(),
            end: first,
        };
        self.follow(commands, start).filter(|f| f.end > first)
    }

    fn follow(&self, commands: &[Command], found: Found) -> Option<Found> {
        let Some(step) = self.steps.get(found.commands.len()) else {
            let mut found = found;
            (self.relate)(&mut found.bound)?;
            return Some(found);
        };
        let with = || {
            let mut next = found.clone();
            next.bound.take(step, commands.get(found.end)?)?;
            next.commands.push(Some(found.end));
            next.end += 1;
            self.follow(commands, next)
        };
        let without = || {
            let mut next = found.clone();
            next.commands.push(None);
            self.follow(commands, next)
        };
        with().or_else(|| step.optional.then(without).flatten())
    }
}

impl Pattern {
    /// The command that replaces the run at `first`, and the run.
    fn fused(&self, pass: &Pass, first: usize) -> Option<(Command, Found)> {
        let found = self.run.at(&pass.commands, first)?;
        let main = &pass.commands[found.commands[self.main]?];
        let together = pass.commands[first..found.end]
            .iter()
            .all(|c| c.layer == main.layer);
        let private = || {
            let mut places = self.private.iter().map(|name| found.bound.place(name));
            places.all(|place| place.is_some_and(|place| is_private(pass, &found, first, place)))
        };
        if !together || self.except.contains(&main.part) || !private() {
            return None;
        }
        let bound = &found.bound;
        let weights: Vec<WeightId> = self.op.weights().iter().map(|w| bound.weight(w)).collect();
        let roles = self.op.reads().iter().chain(self.op.writes());
        let buffers: Option<Vec<BufferRef>> = roles.map(|role| bound.place(role)).collect();
        let mut params: Params = [0; 16];
        for (word, name) in params.iter_mut().zip(self.op.params()) {
            *word = bound.word(name).unwrap_or(0);
        }
        let command = Command {
            part: main.part,
            layer: main.layer,
            ..Command::new(self.op, main.format, &weights, &buffers?, params)
        };
        let fits = check_overlap(&command, &accesses(&command)).is_ok();
        fits.then_some((command, found))
    }
}

/// A fused program, and what has become of the one before.
#[derive(Clone, Debug)]
pub struct Fused {
    /// The program.
    pub program: Program,
    /// By pass and command: the number of the last command that it replaces.
    pub ends: Vec<Vec<usize>>,
    /// By buffer of the program before: its number now, or [`NO_BUFFER`].
    pub buffers: Vec<BufferId>,
}

/// Replaces runs of commands by the ops of the patterns, the first that fits, and drops intermediate buffers that no command
/// uses any more. Without patterns every op stays as it is.
pub fn fuse(program: Program, patterns: &[Pattern]) -> Program {
    fuse_tracked(program, patterns).program
}

/// As [`fuse`], with the old numbers of commands and buffers.
pub fn fuse_tracked(mut program: Program, patterns: &[Pattern]) -> Fused {
    let mut all_ends = Vec::new();
    for pass in &mut program.passes {
        let mut commands = Vec::new();
        let mut labels = Vec::new();
        let mut ends = Vec::new();
        let mut at = 0;
        while at < pass.commands.len() {
            let mut tried = patterns.iter().map(|p| (p, p.fused(pass, at)));
            let fused = tried.find_map(|(p, fused)| fused.map(|fused| (p, fused)));
            let Some((pattern, (command, found))) = fused else {
                commands.push(pass.commands[at]);
                labels.push(pass.labels[at].clone());
                ends.push(at);
                at += 1;
                continue;
            };
            let main = found.commands[pattern.main].unwrap_or(at);
            let label = pattern.label.unwrap_or(&pass.labels[main]);
            labels.push(label.to_string());
            commands.push(command);
            ends.push(found.end - 1);
            at = found.end;
        }
        (pass.commands, pass.labels) = (commands, labels);
        all_ends.push(ends);
    }
    let buffers = trim(&mut program);
    cost::fill(&mut program);
    Fused {
        program,
        ends: all_ends,
        buffers,
    }
}

/// Whether nothing after a run reads what the run wrote to a place. Later writes to the place are other values.
fn is_private(pass: &Pass, found: &Found, first: usize, place: BufferRef) -> bool {
    let mut own = pass.commands[first..found.end].iter().flat_map(accesses);
    let Some(own) = own.find(|a| a.writes && a.at == place) else {
        return false;
    };
    if place.buffer == pass.result.buffer {
        return false;
    }
    let mut written: Vec<Access> = Vec::new();
    for command in &pass.commands[found.end..] {
        let replaces = command.op.replaces();
        let touched = accesses(command);
        let touched = touched.iter().filter(|a| a.at.buffer == place.buffer);
        let (writes, reads): (Vec<_>, Vec<_>) = touched.partition(|a| a.writes && replaces);
        let old = |a: &&Access| !apart(a, &own) && !is_covered(a, &written);
        if reads.iter().any(old) {
            return false;
        }
        written.extend(writes);
        if is_covered(&own, &written) {
            return true;
        }
    }
    true
}

/// Whether writes cover all columns of an access.
fn is_covered(access: &Access, writes: &[Access]) -> bool {
    let columns = |access: &Access| match access.extent {
        Extent::Rows { width, stride } if stride > 0 => {
            let first = u64::from(access.at.offset) / 4;
            Some((stride, first, first.saturating_add(width)))
        }
        _ => None,
    };
    let Some((stride, mut from, end)) = columns(access) else {
        return false;
    };
    let pieces = writes.iter().filter_map(columns).filter(|w| w.0 == stride);
    let mut pieces: Vec<_> = pieces.collect();
    pieces.sort_unstable();
    for (_, begin, until) in pieces {
        if begin <= from {
            from = from.max(until);
        }
    }
    from >= end
}

/// Floats of the rows before the one in which an access begins.
fn skipped(access: &Access) -> u64 {
    match access.extent {
        Extent::Rows { stride, .. } | Extent::Outputs { stride, .. } if stride > 0 => {
            let first = u64::from(access.at.offset) / 4;
            first - first % stride
        }
        _ => 0,
    }
}

/// Drops intermediate buffers that no command uses, and makes the others as small as their rows allow. Returns the buffers' new
/// numbers.
fn trim(program: &mut Program) -> Vec<BufferId> {
    let mut needed: Vec<Option<u64>> = vec![None; program.buffers.len()];
    for pass in &program.passes {
        for (i, command) in pass.commands.iter().enumerate() {
            let rows = u64::from(pass.rows_at(i));
            for access in accesses(command) {
                let floats = match access.extent {
                    Extent::Rows { stride, .. } => rows.saturating_mul(stride),
                    Extent::Outputs { stride, .. } => {
                        u64::from(pass.outputs).saturating_mul(stride)
                    }
                    Extent::Tokens | Extent::Cache | Extent::Bank => u64::MAX,
                };
                // An operand may begin in a later row.
                let floats = floats.saturating_add(skipped(&access));
                if let Some(needed) = needed.get_mut(access.at.buffer as usize) {
                    let bytes = floats.saturating_mul(4);
                    *needed = Some(needed.unwrap_or(0).max(bytes));
                }
            }
        }
    }
    // Rows read features without a command that names them.
    if let Some(needed) = needed.get_mut(program.features as usize) {
        *needed = Some(u64::MAX);
    }
    let mut numbers: Vec<BufferId> = Vec::new();
    let mut kept: Vec<BufferSpec> = Vec::new();
    for (buffer, needed) in std::mem::take(&mut program.buffers).into_iter().zip(needed) {
        let is_scratch = matches!(buffer.class, Class::ScratchDecode | Class::ScratchPrompt);
        let id = kept.len() as BufferId;
        let bytes = match needed {
            None if is_scratch => {
                numbers.push(NO_BUFFER);
                continue;
            }
            Some(needed) if is_scratch => buffer.bytes.min(needed),
            _ => buffer.bytes,
        };
        numbers.push(id);
        kept.push(BufferSpec { bytes, ..buffer });
    }
    program.buffers = kept;
    let renumber = |id: &mut BufferId| {
        if let Some(number) = numbers.get(*id as usize) {
            *id = *number;
        }
    };
    renumber(&mut program.tokens);
    renumber(&mut program.features);
    if let Some(adapters) = &mut program.adapters {
        renumber(&mut adapters.slots);
    }
    let banks = program.adapters.iter_mut().flat_map(|a| &mut a.banks);
    banks.for_each(|bank| renumber(&mut bank.buffer));
    for cache in &mut program.caches {
        renumber(&mut cache.buffer);
    }
    for pass in &mut program.passes {
        renumber(&mut pass.result.buffer);
        let commands = pass.commands.iter_mut();
        for place in commands.flat_map(|command| &mut command.buffers) {
            renumber(&mut place.buffer);
        }
    }
    numbers
}
