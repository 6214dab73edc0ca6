//! Planning and loading.

use crate::context::ReferenceContext;
use std::sync::Arc;
use welte_device::{Context, Device, DeviceId, DeviceInfo, Error, Loaded, Plan, Progress, Seat};
use welte_formats::{Checkpoint, WeightRows};
use welte_table::{Class, MemoryPlan, PATTERNS, Pattern, Program, WeightSpec, verify};

const ID: DeviceId = DeviceId::only("reference");

/// Raised with every change that gives other bits.
const ARITHMETIC: u32 = 1;

/// The reference device.
pub fn device() -> Arc<dyn Device> {
    Arc::new(Reference {
        info: DeviceInfo {
            id: ID,
            name: "plain interpreter".to_string(),
            prompt_rows: 64,
            cache_bytes: 0,
        },
    })
}

struct Reference {
    info: DeviceInfo,
}

impl Device for Reference {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn patterns(&self) -> &'static [Pattern] {
        PATTERNS
    }

    fn missing(&self, _: &Program) -> Option<String> {
        None
    }

    fn takes_features(&self) -> bool {
        true
    }

    fn drafts(&self) -> bool {
        true
    }

    fn adapts(&self) -> bool {
        true
    }

    fn plan(&self, program: Arc<Program>) -> Result<Plan, Error> {
        verify(&program).map_err(|why| Error::Program { device: ID, why })?;
        let mut memory = MemoryPlan::of(&program, &float_bytes);
        memory.add("page lists", Class::Tables, page_list_bytes(&program));
        memory.add("exchange", Class::Tables, Seat::bytes(&program));
        Ok(Plan {
            program,
            memory,
            facts: Vec::new(),
            private: Box::new(()),
        })
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
        let program = plan.program;
        let total = program.weights.iter().map(float_bytes).sum();
        let mut done = 0;
        progress(Progress::Weights { done, total });
        let mut weights = Vec::with_capacity(program.weights.len());
        for spec in &program.weights {
            weights.push(WeightRows { spec, checkpoint }.values()?);
            done += float_bytes(spec);
            progress(Progress::Weights { done, total });
        }
        Ok(Arc::new(LoadedReference {
            program,
            weights: Arc::new(weights),
        }))
    }

    fn read_bandwidth(&self, _: f64) -> Result<f64, Error> {
        Err(Error::Unavailable {
            device: ID,
            why: "its bandwidth is not measured".to_string(),
        })
    }
}

/// Bytes of a weight's values as floats.
fn float_bytes(spec: &WeightSpec) -> u64 {
    4 * u64::from(spec.n) * u64::from(spec.k)
}

/// Bytes of the page lists of all slots.
fn page_list_bytes(program: &Program) -> u64 {
    let entries = program.caches.iter().map(|c| u64::from(c.entries(program)));
    4 * u64::from(program.slots) * entries.sum::<u64>()
}

/// A program with the values of its weights.
struct LoadedReference {
    program: Arc<Program>,
    weights: Arc<Vec<Vec<f32>>>,
}

impl Loaded for LoadedReference {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn arithmetic(&self) -> String {
        format!("reference, version {ARITHMETIC}")
    }

    fn context(&self) -> Result<Box<dyn Context>, Error> {
        self.make(None)
    }

    fn rank_context(&self, seat: Seat) -> Result<Box<dyn Context>, Error> {
        self.make(Some(seat))
    }
}

impl LoadedReference {
    fn make(&self, seat: Option<Seat>) -> Result<Box<dyn Context>, Error> {
        let (program, weights) = (self.program.clone(), self.weights.clone());
        Ok(Box::new(ReferenceContext::new(program, weights, seat)))
    }
}
