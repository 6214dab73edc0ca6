//! Passes, caches and their pages, with expected values worked out by hand.

mod common;

use common::{MATRICES, every_op};
use welte_table::{
    Block, BufferRef, CacheKind, CacheSpec, Class, Format, MemoryPlan, Op, PageRuns, Part,
    PassKind, Program, Sampling, Source, from_lines, to_lines,
};

/// 2 layers, 3 heads of 32 elements, 5 pages.
fn attention(format: Format) -> CacheSpec {
    CacheSpec {
        name: "kv".into(),
        buffer: 0,
        pages: 5,
        kind: CacheKind::Attention {
            format,
            layers: 2,
            kv_heads: 3,
            head_dim: 32,
            window: 0,
        },
    }
}

fn recurrent() -> CacheSpec {
    CacheSpec {
        name: "state".into(),
        buffer: 0,
        pages: 5,
        kind: CacheKind::Recurrent {
            layers: 3,
            floats: 7,
        },
    }
}

#[test]
fn caches_count_their_bytes() {
    let halves = attention(Format::F16);
    assert_eq!(halves.head_bytes(), Some(64));
    // Keys and values of 3 heads.
    assert_eq!(halves.position_bytes(), Some(2 * 3 * 64));
    assert_eq!(halves.layers(), 2);
    // 16 positions in 2 layers.
    assert_eq!(halves.page_bytes(16), Some(2 * 16 * 384));
    assert_eq!(halves.bytes(16), Some(5 * 2 * 16 * 384));
    let quantised = attention(Format::Q8_0);
    assert_eq!(quantised.head_bytes(), Some(34));
    assert_eq!(quantised.position_bytes(), Some(204));
    let mut ragged = quantised.clone();
    ragged.kind = CacheKind::Attention {
        format: Format::Q8_0,
        layers: 2,
        kv_heads: 3,
        head_dim: 33,
        window: 0,
    };
    assert_eq!((ragged.head_bytes(), ragged.bytes(16)), (None, None));
    let state = recurrent();
    assert_eq!(
        (state.head_bytes(), state.position_bytes()),
        (None, Some(0))
    );
    assert_eq!(state.layers(), 3);
    assert_eq!(state.page_bytes(16), Some(3 * 28));
    assert_eq!(state.bytes(16), Some(5 * 3 * 28));
}

#[test]
fn pages_lie_in_runs() {
    // Per layer first the keys of all pages, then the values: 4 runs of 16 positions of 3 heads of 64 bytes.
    let runs = PageRuns {
        first: 2 * 3072,
        stride: 5 * 3072,
        bytes: 3072,
        count: 4,
    };
    assert_eq!(attention(Format::F16).page_runs(16, 2), Some(runs));
    let runs = PageRuns {
        first: 3 * 28,
        stride: 5 * 28,
        bytes: 28,
        count: 3,
    };
    assert_eq!(recurrent().page_runs(16, 3), Some(runs));
    let copies: Vec<_> = recurrent().page_copies(16, 1, 4).collect();
    assert_eq!(copies, [(28..56, 112), (168..196, 252), (308..336, 392)]);
    let copies: Vec<_> = attention(Format::F16).page_copies(16, 0, 1).collect();
    assert_eq!(
        copies,
        [
            (0..3072, 3072),
            (15_360..18_432, 18_432),
            (30_720..33_792, 33_792),
            (46_080..49_152, 49_152)
        ]
    );
}

#[test]
fn a_slot_lists_the_pages_of_its_context() {
    let program = |context, page| Program {
        context,
        page,
        ..every_op()
    };
    let cache = attention(Format::F16);
    assert_eq!(cache.entries(&program(32, 16)), 2);
    assert_eq!(cache.entries(&program(33, 16)), 3);
    assert_eq!(cache.entries(&program(7, 0)), 7);
    assert_eq!(recurrent().entries(&program(33, 16)), 1);
}

#[test]
fn a_program_knows_its_caches_and_rows() {
    let mut program = every_op();
    let find = |op: Op| {
        *program.passes[0]
            .commands
            .iter()
            .find(|c| c.op == op)
            .unwrap()
    };
    let name = |op: Op| program.cache_of(&find(op)).map(|c| c.name.as_str());
    assert_eq!(name(Op::Attention), Some("kv"));
    assert_eq!(name(Op::ShortConv), Some("state"));
    assert_eq!(name(Op::Matmul), None);
    // One layer, one head, 4 halves, keys and values; a state takes no bytes per position.
    assert_eq!(program.position_bytes(), Some(16));
    assert_eq!(program.most_rows(), 3);
    program.passes[1].rows = 9;
    assert_eq!(program.most_rows(), 9);
    program.passes.clear();
    assert_eq!(
        (program.most_rows(), program.pass(PassKind::Decode)),
        (0, None)
    );
    program.caches[0].kind = CacheKind::Attention {
        format: Format::Q8_0,
        layers: 1,
        kv_heads: 1,
        head_dim: 4,
        window: 0,
    };
    assert_eq!(program.position_bytes(), None);
}

#[test]
fn rows_become_outputs_after_the_selection() {
    let program = every_op();
    let [decode, prompt, embed] = &program.passes[..] else {
        panic!("three passes")
    };
    assert_eq!(decode.outputs_from(), None);
    assert_eq!((decode.rows_at(0), decode.rows_at(20)), (3, 3));
    assert_eq!(prompt.outputs_from(), Some(2));
    assert_eq!([0, 1, 2].map(|i| prompt.rows_at(i)), [3, 3, 2]);
    assert_eq!(embed.outputs_from(), Some(2));
}

#[test]
fn a_command_knows_its_layer_and_a_label_is_only_for_people() {
    let mut pass = every_op().passes.remove(1);
    pass.labels = ["layer 12 gate and up", "head"].map(String::from).to_vec();
    pass.commands[1].layer = Some(3);
    let layers: Vec<_> = (0..2).map(|i| pass.layer_of(i)).collect();
    assert_eq!(layers, [None, Some(3)]);
    assert_eq!(pass.layer_of(1 << 20), None);
    let labels: Vec<_> = (0..3).map(|i| pass.label(i)).collect();
    assert_eq!(labels, ["layer 12 gate and up", "head", ""]);
    assert_eq!(pass.full_label(1), "layer 3 head");
}

#[test]
fn costs_of_a_pass_add_up() {
    let mut pass = every_op().passes.remove(1);
    for (i, c) in pass.commands.iter_mut().enumerate() {
        (c.bytes, c.flops) = (10 + i as u64, 100 + i as u64);
    }
    assert_eq!((pass.row_bytes(), pass.row_flops()), (33, 303));
    pass.commands[0].bytes = u64::MAX;
    assert_eq!(pass.row_bytes(), u64::MAX);
}

#[test]
fn kinds_and_classes_have_names() {
    let kinds: Vec<_> = PassKind::ALL
        .iter()
        .map(|k| (k.name(), k.scratch()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("decode", ("decode", Class::ScratchDecode)),
            ("prompt", ("prompt", Class::ScratchPrompt)),
            ("embed", ("prompt", Class::ScratchPrompt)),
            ("draft", ("prompt", Class::ScratchPrompt)),
        ]
    );
    assert_eq!(
        Class::ALL.map(Class::name),
        [
            "weights",
            "adapters",
            "cache",
            "scratch decode",
            "scratch prompt",
            "tables"
        ]
    );
}

#[test]
fn sampling_is_greedy_by_default() {
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        repeat_last_n: 64,
        seed: 0,
        typical_p: 1.0,
        top_n_sigma: 0.0,
        xtc_probability: 0.0,
        xtc_threshold: 0.1,
        dynatemp_range: 0.0,
        dynatemp_exponent: 1.0,
        dry_multiplier: 0.0,
        dry_base: 1.75,
        dry_allowed_length: 2,
        dry_penalty_last_n: u32::MAX,
    };
    assert!(!sampling.is_extended() && !sampling.has_penalties() && !sampling.has_dry());
    assert_eq!(Sampling::default(), sampling);
}

/// Which of penalties, DRY and further filters a setting turns on: this decides which kernels run.
#[test]
fn settings_turn_on_what_they_need() {
    type Change = fn(&mut Sampling);
    let rows: [(Change, [bool; 3]); 20] = [
        (|s| s.repeat_penalty = 1.1, [true, false, false]),
        (|s| s.frequency_penalty = -0.1, [true, false, false]),
        (|s| s.presence_penalty = 0.1, [true, false, false]),
        (
            |s| (s.presence_penalty, s.repeat_last_n) = (0.1, 1),
            [true, false, false],
        ),
        (
            |s| (s.presence_penalty, s.repeat_last_n) = (0.1, 0),
            [false; 3],
        ),
        (|s| s.repeat_last_n = 7, [false; 3]),
        (|s| s.dry_multiplier = 0.8, [false, true, true]),
        (
            |s| (s.dry_multiplier, s.dry_penalty_last_n) = (0.8, 1),
            [false, true, true],
        ),
        (
            |s| (s.dry_multiplier, s.dry_penalty_last_n) = (0.8, 0),
            [false; 3],
        ),
        (|s| s.dry_penalty_last_n = 7, [false; 3]),
        (|s| s.temperature = 1.0, [false; 3]),
        // Further filters choose among several tokens only.
        (|s| s.typical_p = 0.9, [false; 3]),
        (|s| s.xtc_probability = 0.5, [false; 3]),
        (
            |s| (s.temperature, s.typical_p) = (1.0, 0.9),
            [false, false, true],
        ),
        (|s| (s.temperature, s.typical_p) = (1.0, 1.5), [false; 3]),
        (
            |s| (s.temperature, s.top_n_sigma) = (1.0, 1.0),
            [false, false, true],
        ),
        (|s| (s.temperature, s.top_n_sigma) = (1.0, -1.0), [false; 3]),
        (
            |s| (s.temperature, s.xtc_probability) = (1.0, 0.5),
            [false, false, true],
        ),
        (
            |s| (s.temperature, s.dynatemp_range) = (1.0, 0.5),
            [false, false, true],
        ),
        (
            |s| (s.temperature, s.dynatemp_range) = (1.0, -0.5),
            [false; 3],
        ),
    ];
    for (nth, (change, expected)) in rows.into_iter().enumerate() {
        let mut sampling = Sampling::GREEDY;
        change(&mut sampling);
        let on = [
            sampling.has_penalties(),
            sampling.has_dry(),
            sampling.is_extended(),
        ];
        assert_eq!(on, expected, "row {nth}");
    }
}

#[test]
fn a_plan_lists_the_weights_and_the_buffers() {
    let program = every_op();
    let plan = MemoryPlan::of(&program, &|w| u64::from(w.k));
    // The row lengths of all weights.
    assert_eq!(plan.entries[0].bytes, 358);
    assert_eq!(plan.bytes(Class::Weights), 358);
    assert_eq!(plan.entries.len(), 17);
    assert_eq!(plan.bytes(Class::Cache), 1024 + 128 + 128);
    assert_eq!(plan.bytes(Class::ScratchPrompt), 128);
    assert_eq!(BufferRef::NONE.buffer, u32::MAX);
}

#[test]
fn a_program_is_written_as_lines_and_read_back() {
    let mut program = every_op();
    program.buffers[0].name = "a.b_c-1 ü%;".into();
    program.passes[0].labels[0] = String::new();
    program.block = Some(Block { size: 5, mask: 9 });
    program.passes[0].commands[0].layer = Some(7);
    program.passes[0].commands[0].part = welte_table::ModelPart::SharedExpert;
    let part = |first_row| Part {
        tensor: "up".into(),
        first_row,
        rows: 2,
    };
    program.weights[MATRICES as usize].source = Source::Transposed(vec![part(0), part(5)]);
    let text = to_lines(&program);
    assert!(text.contains("\ntransposed up 0 2\ntransposed up 5 2\n"));
    assert!(text.contains("\nbuffer a.b_c-1%20;%fc;%25;%3b; scratch%20;decode 96\n"));
    assert!(text.contains("\ncache recurrent state 13 2 1 16\n"));
    assert_eq!(from_lines(&text), Ok(program));
}
