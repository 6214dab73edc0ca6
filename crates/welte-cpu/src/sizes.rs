//! What the device needs besides the program's own buffers, known before anything is allocated.

use crate::kernels::Kernel;
use crate::lower::Lowered;
use crate::memory::{Block, round_up};
use crate::ops::matmul::{FUSED_COLUMNS, ROW_BLOCK};
use crate::ops::sample::{self, Sampler};
use crate::ops::{MANY_ROWS, attention, attention_prompt, matmul_prompt};
use crate::{Error, Options};
use welte_table::{Class, Command, Format, Op, Program, Row, WeightId, params};

pub(crate) fn refuse(problem: impl Into<String>) -> Error {
    Error::Program(problem.into())
}

/// What must hold of a program before anything is allocated for it.
pub(crate) fn check(program: &Program, options: &Options) -> Result<(), Error> {
    let _ = options;
    welte_table::verify(program).map_err(Error::Program)?;
    let kv = &program.kv;
    if !matches!(kv.format, Format::F16 | Format::Q8_0) {
        return Err(refuse(format!(
            "a KV cache in {} is not supported; use F16 or Q8_0",
            kv.format.name()
        )));
    }
    if kv.format.bytes(kv.head_dim as usize).is_none() {
        return Err(refuse(format!(
            "heads of {} elements are no whole number of {} blocks; use an F16 KV cache",
            kv.head_dim,
            kv.format.name()
        )));
    }
    if kv.head_dim as usize > attention::MAX_HEAD_DIM {
        return Err(refuse(format!(
            "heads of {} elements; at most {}",
            kv.head_dim,
            attention::MAX_HEAD_DIM
        )));
    }
    if kv.page == 0 || kv.context == 0 || kv.sequences == 0 {
        return Err(refuse("the KV cache has no pages, sequences or context"));
    }
    let needed = (kv.context as u64).div_ceil(kv.page as u64) * kv.sequences as u64;
    if needed > kv.pages as u64 {
        return Err(refuse(format!(
            "{} KV pages; {needed} are needed for every sequence",
            kv.pages
        )));
    }
    Ok(())
}

/// The most phases that a table of the program may have.
pub(crate) fn most_phases(program: &Program) -> usize {
    program
        .tables
        .iter()
        .map(|t| t.commands.len() * 4)
        .max()
        .unwrap_or(0)
}

/// Sizes of what the device needs besides the program's weights and buffers.
pub(crate) struct Sizes {
    pub(crate) acts: usize,
    pub(crate) wide: usize,
    pub(crate) angles: usize,
    pub(crate) partials: usize,
    pub(crate) best: usize,
    pub(crate) per_thread: usize,
    pub(crate) threads: usize,
    pub(crate) tables: usize,
    pub(crate) rows: usize,
}

/// The matrix of a command: (outputs, elements).
pub(crate) fn matrix_of(command: &Command) -> Option<(usize, usize)> {
    let (n, k) = match command.op {
        Op::Matmul => {
            let p = params::Matmul::of(&command.params);
            (p.n as usize, p.k)
        }
        Op::MatmulAdd => {
            let p = params::MatmulAdd::of(&command.params);
            (p.n as usize, p.k)
        }
        Op::NormMatmul => {
            let p = params::NormMatmul::of(&command.params);
            (p.n as usize, p.k)
        }
        Op::NormMatmulActMul => {
            let p = params::NormMatmulActMul::of(&command.params);
            (2 * p.n as usize, p.k)
        }
        _ => return None,
    };
    Some((n, k as usize))
}

/// Which angles a command needs: weight, elements rotated, magnitude.
pub(crate) fn angles_of(command: &Command) -> Option<(WeightId, u32, u32)> {
    match command.op {
        Op::Rope => {
            let p = params::Rope::of(&command.params);
            Some((command.weights[0], p.rot, p.magnitude.to_bits()))
        }
        Op::RopeAppend => {
            let p = params::RopeAppend::of(&command.params);
            Some((command.weights[0], p.rot, p.magnitude.to_bits()))
        }
        _ => None,
    }
}

impl Sizes {
    pub(crate) fn of(program: &Program, options: &Options) -> Sizes {
        let context = program.kv.context as usize;
        let mut sizes = Sizes {
            acts: 0,
            wide: 0,
            angles: 0,
            partials: 0,
            best: (program.vocab as usize).div_ceil(sample::CHUNK) * 8,
            per_thread: 2 * ROW_BLOCK * FUSED_COLUMNS * 4,
            threads: options.threads(),
            tables: 0,
            rows: program
                .tables
                .iter()
                .map(|t| t.shape.rows() as usize)
                .max()
                .unwrap_or(1),
        };
        for table in &program.tables {
            let mut angles: Vec<(WeightId, u32, u32)> = Vec::new();
            for (index, command) in table.commands.iter().enumerate() {
                let rows = table.rows_at(index) as usize;
                if let Some((n, k)) = matrix_of(command) {
                    let kernel = Kernel::for_format(command.format, options.isa());
                    let many = Kernel::for_prompt(command.format, options.isa());
                    let acts = kernel.acts_bytes(k).max(many.acts_bytes(k));
                    sizes.acts = sizes.acts.max(rows * acts);
                    if rows >= MANY_ROWS {
                        let scratch = matmul_prompt::scratch_bytes(&many, k);
                        sizes.per_thread = sizes.per_thread.max(scratch);
                    }
                    sizes.per_thread = sizes.per_thread.max(k * 4);
                    if command.op == Op::NormMatmulActMul && (n / 2) % kernel.tile_rows != 0 {
                        sizes.wide = sizes.wide.max(rows * n * 4);
                    }
                }
                angles.extend(
                    angles_of(command)
                        .filter(|a| !angles.contains(a))
                        .as_slice(),
                );
                if command.op == Op::Attention {
                    let p = params::Attention::of(&command.params);
                    let (heads, dim) = (p.heads as usize, p.head_dim as usize);
                    let group = heads / (p.kv_heads as usize).max(1);
                    let splits = attention::splits_of(context);
                    sizes.partials = sizes
                        .partials
                        .max(heads * splits * attention::partial_floats(dim) * 4);
                    sizes.per_thread = sizes
                        .per_thread
                        .max(attention::scratch_floats(group, dim, splits) * 4);
                    if rows >= MANY_ROWS {
                        let scratch = attention_prompt::scratch_floats(dim) * 4;
                        sizes.per_thread = sizes.per_thread.max(scratch);
                    }
                }
            }
            let rows = table.shape.rows() as usize;
            sizes.angles = sizes
                .angles
                .max(angles.iter().map(|a| rows * a.1 as usize * 4).sum());
        }
        sizes.per_thread = round_up(sizes.per_thread);
        let pages =
            (context.div_ceil(program.kv.page.max(1) as usize)) * program.kv.sequences as usize;
        let phases: usize = program.tables.iter().map(|t| t.commands.len() * 4).sum();
        sizes.tables = phases * size_of::<Lowered>()
            + most_phases(program) * 4
            + pages * 4
            + sizes.rows * (size_of::<Row>() + 8)
            + Sampler::bytes(program.vocab as usize, context);
        sizes
    }

    /// Name, class and bytes of each block.
    pub(crate) fn entries(&self) -> [(&'static str, Class, u64); 7] {
        let prompt = if self.rows > 1 {
            Class::ScratchPrefill
        } else {
            Class::ScratchDecode
        };
        [
            ("prepared activations", prompt, self.acts as u64),
            ("gate and up", prompt, self.wide as u64),
            ("rope angles", prompt, self.angles as u64),
            (
                "attention partials",
                Class::ScratchDecode,
                self.partials as u64,
            ),
            ("argmax partials", Class::ScratchDecode, self.best as u64),
            (
                "scratch of each thread",
                prompt,
                (self.per_thread * self.threads) as u64,
            ),
            (
                "lowered tables, step and sampling state",
                Class::Tables,
                self.tables as u64,
            ),
        ]
        .map(|(name, class, bytes)| (name, class, round_up(bytes as usize) as u64))
    }
}

/// What the device allocates for a session besides the program's own buffers: name, class and bytes of each.
pub fn device_bytes(program: &Program, options: &Options) -> Vec<(&'static str, Class, u64)> {
    Sizes::of(program, options).entries().to_vec()
}

/// The device's own blocks.
pub(crate) struct Extra {
    pub(crate) acts: Block,
    pub(crate) wide: Block,
    pub(crate) angles: Block,
    pub(crate) partials: Block,
    pub(crate) best: Block,
    pub(crate) threads: Block,
    pub(crate) per_thread: usize,
}

impl Extra {
    pub(crate) fn new(sizes: &Sizes) -> Result<Extra, Error> {
        Ok(Extra {
            acts: Block::new(sizes.acts as u64, "prepared activations")?,
            wide: Block::new(sizes.wide as u64, "gate and up")?,
            angles: Block::new(sizes.angles as u64, "rope angles")?,
            partials: Block::new(sizes.partials as u64, "attention partials")?,
            best: Block::new(sizes.best as u64, "argmax partials")?,
            threads: Block::new(
                (sizes.per_thread * sizes.threads) as u64,
                "scratch of each thread",
            )?,
            per_thread: sizes.per_thread,
        })
    }
}
