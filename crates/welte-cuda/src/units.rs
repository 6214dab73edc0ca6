//! Which units a program needs, before it is loaded.

use crate::arithmetic::Arithmetic;
use crate::gpu::Gpu;
use crate::launch::Unit;
use crate::lower::{LoweredPass, Lowering, Placed, Places};
use crate::ops::hidden::hidden_unit;
use crate::ops::logprobs::logprobs_unit;
use crate::ops::sample::sample_unit;
use crate::plan::Planned;
use crate::{Error, GpuInfo, compile, floor, layout};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use welte_device::Replay;
use welte_table::{PassKind, Program, Usage};

/// What decides the kernels of a program.
pub(crate) struct Needs<'a> {
    pub(crate) program: &'a Program,
    pub(crate) gpu: &'a GpuInfo,
    /// The open GPU, whose libraries take over some products.
    pub(crate) device: Option<&'a Arc<Gpu>>,
    pub(crate) decode: Arithmetic,
    pub(crate) float8: bool,
}

impl Needs<'_> {
    /// Every unit that the passes need, found by lowering them without addresses.
    pub(crate) fn units(&self) -> Result<Vec<Unit>, Error> {
        let program = self.program;
        let places = Places {
            buffers: vec![0; program.buffers.len()],
            ..Places::default()
        };
        let weights = vec![Placed { start: 0 }; program.weights.len()];
        // Which FP8 weights have several scales is not known yet, so both kernels are compiled.
        let scales = [true, false].map(|one| vec![one; weights.len()]);
        let scales: Vec<Option<&[bool]>> = if self.float8 {
            scales.iter().map(|one| Some(&one[..])).collect()
        } else {
            vec![None]
        };
        let mut units = BTreeSet::new();
        if program.pass(PassKind::Decode).is_some() {
            units.extend([turn_unit(), sample_unit(), logprobs_unit()]);
        }
        if program.pass(PassKind::Draft).is_some() {
            units.insert(hidden_unit());
        }
        for float8 in scales {
            let cx = Lowering::new(
                program,
                self.gpu,
                self.device,
                &weights,
                &places,
                self.decode,
                float8,
            );
            for pass in &program.passes {
                units.extend(units_of(&cx.pass(pass)?));
            }
        }
        Ok(units.into_iter().collect())
    }
}

impl Planned {
    /// Every unit that a load compiles and cannot do without.
    fn needed(&self) -> Result<Vec<Unit>, Error> {
        let needs = Needs {
            program: &self.program,
            gpu: &self.gpu,
            device: None,
            decode: self.decode,
            float8: self.float8,
        };
        let mut units = needs.units()?;
        units.extend(upload_units(&self.program));
        Ok(units)
    }

    /// Compiles every unit that a load can use into a folder of ready kernels. Returns how many were compiled.
    pub(crate) fn make_ready(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, Error> {
        let mut units = Vec::new();
        if self.replay == Replay::Persistent {
            // They take longest.
            let recordings = [&self.recording, &self.rows].into_iter().flatten();
            units.extend(recordings.map(|recording| recording.unit()));
        }
        units.extend(self.needed()?);
        units.push(floor::unit());
        compile::make_ready(&units, &compile::arch_name(self.gpu.arch), folder, progress)
    }

    /// Refuses a program whose kernels would have to be compiled where there is no compiler.
    pub(crate) fn check_kernels(&self) -> Result<(), Error> {
        let Err(Error::NoCompiler(why)) = compile::version() else {
            return Ok(());
        };
        let arch = compile::arch_name(self.gpu.arch);
        match compile::first_missing(&self.needed()?, &arch) {
            Some(unit) => {
                let missing = format!("{why}; {} is not ready", unit.file);
                Err(Error::NoCompiler(missing))
            }
            None => Ok(()),
        }
    }
}

/// The units that regroup weights as they are uploaded.
pub(crate) fn upload_units(program: &Program) -> Vec<Unit> {
    let matrices = program.weights.iter();
    let matrices = matrices.filter(|weight| weight.usage != Usage::Vector);
    let units: BTreeSet<Unit> = matrices
        .filter_map(|w| layout::repack_launch(w.format, w.n, w.k, 0, 1, 0, 0))
        .map(|launch| launch.unit)
        .collect();
    units.into_iter().collect()
}

/// The units of a lowered pass.
pub(crate) fn units_of(pass: &LoweredPass) -> Vec<Unit> {
    let mut units = Vec::new();
    let few = pass.few.iter().flat_map(|(_, commands)| commands);
    for node in pass.commands.iter().chain(few).flatten() {
        node.add_units(&mut units);
    }
    units
}

/// The unit of the kernel that ends an iteration of the decode loop.
pub(crate) fn turn_unit() -> Unit {
    Unit {
        file: "turn.cu",
        generated: String::new(),
        defines: Vec::new(),
    }
}
