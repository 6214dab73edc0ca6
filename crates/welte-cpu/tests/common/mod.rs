//! Small synthetic models on the CPU and on the reference device.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;
use welte_device::{Context, Device, DeviceOptions};
use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, compile, spec};
use welte_table::{Format, PATTERNS, PassKind, Program, Row, fuse};

/// A program with its checkpoint.
pub struct Model {
    pub program: Arc<Program>,
    checkpoint: Synthetic,
}

impl Model {
    pub fn new(name: &str, options: &CompileOptions) -> Model {
        let checkpoint = Synthetic::parse(name).unwrap();
        let spec = spec(&checkpoint).unwrap();
        let program = compile(&spec, &checkpoint, options).unwrap();
        let program = fuse(program, PATTERNS);
        Model {
            program: Arc::new(program),
            checkpoint,
        }
    }

    pub fn context(&self, device: &dyn Device) -> Box<dyn Context> {
        let plan = device.plan(self.program.clone()).unwrap();
        let loaded = device.load(plan, &self.checkpoint, &mut |_| {}).unwrap();
        loaded.context().unwrap()
    }

    pub fn pass(&self, kind: PassKind) -> usize {
        self.program.pass(kind).unwrap()
    }
}

/// Options of a program with three slots.
pub fn options() -> CompileOptions {
    CompileOptions {
        context: 640,
        slots: 3,
        page: 16,
        decode_rows: 16,
        prompt_rows: 200,
        prompt_outputs: 40,
        embed_rows: 40,
        kv_format: Format::F16,
        ..CompileOptions::default()
    }
}

/// The CPU with this many threads and the best instruction set, or the one of this name.
pub fn cpu(threads: usize, instructions: Option<&str>) -> Arc<dyn Device> {
    let mut options = DeviceOptions::default();
    options.threads = Some(threads);
    options.instructions = instructions.map(str::to_string);
    welte_cpu::device(&options).unwrap()
}

/// `count` rows of a slot from `position` on, with tokens that look random.
pub fn rows(model: &Model, slot: u32, position: u32, count: u32) -> Vec<Row> {
    let row = |position: u32| {
        Row::new(
            (position * 7919 + slot * 104_729 + 13) % model.program.vocab,
            position,
            slot,
        )
    };
    (position..position + count).map(row).collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every page list backwards, so that pages lie in disorder.
pub fn reverse_pages(context: &mut dyn Context) {
    let program = context.program().clone();
    for (number, cache) in program.caches.iter().enumerate() {
        let entries = cache.entries(&program);
        for slot in 0..program.slots {
            let page = |entry| cache.pages - 1 - (slot * entries + entry) % cache.pages;
            let pages: Vec<u32> = (0..entries).map(page).collect();
            context.set_pages(number, slot, 0, &pages).unwrap();
        }
    }
}
