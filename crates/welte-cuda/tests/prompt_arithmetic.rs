//! A prompt's keys, values and logits have the same bits however it is cut into steps, in matrices of real sizes.

use std::sync::Arc;
use welte_conformance::made::Numbers;
use welte_cuda::{CudaContext, CudaDevice};
use welte_device::{Checks, Context, DeviceOptions, Replay};
use welte_formats::synthetic::Synthetic;
use welte_models::CompileOptions;
use welte_table::{Format, PassKind, Row};

/// Rows of the prompt, and the most per step.
const PROMPT: u32 = 1800;
const STEP: u32 = 1600;

fn open(shape: &str, kv_format: Format) -> CudaContext {
    let checkpoint = Synthetic::parse(shape).unwrap();
    let spec = welte_models::spec(&checkpoint).unwrap();
    let options = CompileOptions {
        context: 2048,
        slots: 3,
        kv_format,
        prompt_rows: STEP,
        prompt_outputs: 40,
        ..CompileOptions::default()
    };
    let program = welte_table::fuse(
        welte_models::compile(&spec, &checkpoint, &options).unwrap(),
        welte_table::PATTERNS,
    );
    let mut options = DeviceOptions::default();
    options.replay = Some(Replay::Graph);
    let device = CudaDevice::open(0, &options).unwrap();
    let loaded = device.load_program(Arc::new(program), &checkpoint);
    loaded.unwrap().cuda_context().unwrap()
}

/// Steps of these sizes, over and over.
struct Cut {
    sizes: &'static [u32],
    /// Rows of other slots between the rows of the prompt.
    neighbours: u32,
    /// Rows before the last whose logits are wanted too.
    more_outputs: u32,
}

const CUTS: &[Cut] = &[
    cut(&[512], 0, 0),
    cut(&[1600], 0, 39),
    cut(&[1540, 260], 20, 0),
    cut(&[1, 2, 3, 5, 8, 15, 16], 0, 0),
    cut(&[1, 17, 31, 32, 33, 63, 64, 65, 66], 0, 3),
    cut(&[100, 127, 128, 129, 1], 0, 16),
    cut(&[255, 7, 256, 182], 0, 17),
    cut(&[40, 200, 9], 11, 0),
    cut(&[1, 300], 190, 20),
];

const fn cut(sizes: &'static [u32], neighbours: u32, more_outputs: u32) -> Cut {
    Cut {
        sizes,
        neighbours,
        more_outputs,
    }
}

/// The last row's logits and the pages of slot 0.
fn run(context: &mut CudaContext, cut: &Cut, tokens: &[u32]) -> (Vec<u32>, Vec<Vec<u8>>) {
    let program = context.program().clone();
    let pass = program.pass(PassKind::Prompt).unwrap();
    let mut n = Numbers(7);
    let mut sizes = cut.sizes.iter().cycle();
    let (mut at, mut others) = (0, [0; 2]);
    let mut logits = Vec::new();
    while at < PROMPT {
        let size = (*sizes.next().unwrap()).min(PROMPT - at);
        let own = (at..at + size).map(|position| Row::new(tokens[position as usize], position, 0));
        let mut rows: Vec<Row> = own.collect();
        for _ in 0..cut.neighbours {
            let slot = 1 + n.below(2);
            let position = &mut others[slot as usize - 1];
            let row = Row::new(n.below(program.vocab), *position, slot);
            *position = (*position + 1) % program.context;
            // The last row stays last.
            rows.insert(n.below(rows.len() as u32) as usize, row);
        }
        at += size;
        let last = rows.len() as u32 - 1;
        let outputs: Vec<u32> = (last.saturating_sub(cut.more_outputs)..=last).collect();
        let all = context.step_rows(pass, &rows, &outputs).unwrap();
        let row = &all[all.len() - program.vocab as usize..];
        logits = row.iter().map(|v| v.to_bits()).collect();
    }
    let mut pages = Vec::new();
    for (cache, spec) in program.caches.iter().enumerate() {
        let list = Checks::first_pages(&program, cache);
        for page in &list[..(PROMPT / program.page) as usize] {
            let mut bytes = vec![0; spec.page_bytes(program.page).unwrap() as usize];
            context.read_page(cache, *page, &mut bytes).unwrap();
            pages.push(bytes);
        }
    }
    (logits, pages)
}

/// Describes every cut whose bits differ from those of the first.
fn check(shape: &str, kv_format: Format) -> Vec<String> {
    let mut context = open(shape, kv_format);
    let vocab = context.program().vocab;
    let mut n = Numbers(3);
    let tokens: Vec<u32> = (0..PROMPT).map(|_| n.below(vocab)).collect();
    let mut wanted = None;
    let mut wrong = Vec::new();
    for cut in CUTS {
        let got = run(&mut context, cut, &tokens);
        assert!(got.0.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        let wanted = wanted.get_or_insert_with(|| got.clone());
        let logits = got.0.iter().zip(&wanted.0).filter(|(a, b)| a != b).count();
        let pages = got.1.iter().zip(&wanted.1).map(|(a, b)| {
            let differ = a.chunks(2).zip(b.chunks(2)).filter(|(a, b)| a != b);
            differ.count()
        });
        let pages: Vec<usize> = pages.collect();
        if logits > 0 || pages.iter().any(|count| *count > 0) {
            wrong.push(format!(
                "{shape} {}: steps of {:?} with {} neighbours: {logits} of {} logits, values of pages {pages:?}",
                kv_format.name(),
                cut.sizes,
                cut.neighbours,
                got.0.len()
            ));
        }
    }
    wrong
}

/// The shapes of `WELTE_SHAPES`, or these in the usual formats.
fn shapes() -> Vec<String> {
    let named = std::env::var("WELTE_SHAPES").ok();
    if let Some(named) = named {
        return named.split_whitespace().map(str::to_string).collect();
    }
    let sizes = [
        "qwen3-4b,layers=2",
        "llama-8b,layers=1",
        "llama-1b,layers=2",
    ];
    let formats = ["bf16", "f16", "q4_0", "q4_k", "q6_k", "q8_0"];
    let both = sizes
        .iter()
        .flat_map(|size| formats.map(|format| (size, format)));
    both.map(|(size, format)| format!("{size},vocab=4096:{format}"))
        .collect()
}

#[test]
#[ignore = "needs a GPU"]
fn a_prompt_may_be_cut_anywhere() {
    let mut wrong = Vec::new();
    for (i, shape) in shapes().iter().enumerate() {
        let kv_format = [Format::F16, Format::Q8_0][i % 2];
        wrong.extend(check(shape, kv_format));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs a GPU"]
fn experts_and_windows_too() {
    let mut wrong = Vec::new();
    for shape in [
        "qwen3-moe-small,layers=2:q4_k",
        "qwen3-30b-a3b,layers=1,vocab=4096:bf16",
        "custom,arch=gemma3,layers=6,dim=1152,heads=4,kv_heads=1,head_dim=256,ffn=6912,window=100,vocab=4096:q4_0",
        "custom,arch=qwen2,layers=2,dim=896,heads=14,kv_heads=2,head_dim=64,ffn=4864,vocab=4096:bf16",
    ] {
        wrong.extend(check(shape, Format::F16));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
