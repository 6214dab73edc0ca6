//! A mixture of experts as two programs.

use welte_formats::synthetic::Synthetic;
use welte_models::{CompileOptions, compile, spec};
use welte_table::{Op, Pass, PassKind, Program, Side, Split, verify};

fn program(shape: &str) -> Program {
    let checkpoint = Synthetic::parse(shape).unwrap();
    let spec = spec(&checkpoint).unwrap();
    welte_table::fuse(
        compile(&spec, &checkpoint, &CompileOptions::default()).unwrap(),
        welte_table::PATTERNS,
    )
}

fn experts_of_layers(layers: u32) -> impl Fn(&Pass, usize) -> bool {
    move |pass, index| {
        let experts = matches!(pass.commands[index].op, Op::ExpertsActMul | Op::ExpertsAdd);
        experts && pass.layer_of(index).is_some_and(|layer| layer < layers)
    }
}

#[test]
fn both_halves_are_sound_and_share_nothing_but_rows() {
    for shape in [
        "qwen3-30b-a3b:q4_k",
        "gpt-oss-20b:mxfp4_moe",
        "qwen3.5-35b-a3b:q4_k",
        "deepseek-v2-lite:q4_k",
        "gemma4-26b-a4b:q4_k",
        "nemotron-3-nano:q8_0",
    ] {
        let whole = program(shape);
        let split = Split::of(&whole, &experts_of_layers(u32::MAX));
        let (near, far) = (&split.near.program, &split.far.program);
        assert_eq!(verify(near), Ok(()), "{shape}");
        assert_eq!(verify(far), Ok(()), "{shape}");
        assert!(far.caches.is_empty() && far.passes.iter().all(Pass::is_middle));
        let names = |program: &Program| -> Vec<String> {
            program.weights.iter().map(|w| w.name.clone()).collect()
        };
        let mut both = [names(near), names(far)].concat();
        // A weight that no command names is on neither side.
        let commands = || whole.passes.iter().flat_map(|pass| &pass.commands);
        let is_used = |id| commands().any(|c| c.weights.contains(&id));
        let used = (0u32..).zip(names(&whole)).filter(|(id, _)| is_used(*id));
        let mut all: Vec<String> = used.map(|(_, name)| name).collect();
        both.sort_unstable();
        all.sort_unstable();
        assert!(both == all, "{shape}: every weight is on one side");
        for (pass, stretches) in whole.passes.iter().zip(&split.passes) {
            let mut next = 0;
            for stretch in stretches {
                assert_eq!(stretch.commands.start, next, "{shape}");
                next = stretch.commands.end;
                let half = &split.half(stretch.side).program;
                let number = half.passes.iter().position(|p| p.kind == pass.kind);
                let here = &half.passes[number.unwrap()];
                assert_eq!(
                    here.labels[stretch.here.clone()],
                    pass.labels[stretch.commands.clone()]
                );
            }
            assert_eq!(next, pass.commands.len(), "{shape}");
        }
    }
}

/// Of each row: the experts' input, their choice and the stream go there, the stream comes back.
#[test]
fn few_rows_are_copied() {
    let whole = program("qwen3-30b-a3b:q4_k");
    let (dim, used, hidden) = (2048, 8, 768);
    for layers in [3, 48] {
        let split = Split::of(&whole, &experts_of_layers(layers));
        for kind in [PassKind::Decode, PassKind::Prompt] {
            let pass = whole.pass(kind).unwrap();
            let stretches = split.passes[pass].iter();
            let far: Vec<_> = stretches.filter(|s| s.side == Side::Far).collect();
            assert_eq!(far.len(), layers as usize);
            for stretch in far {
                assert_eq!(stretch.commands.len(), 2);
                let widths = |regions: &[welte_table::Region], needed: bool| -> Vec<u64> {
                    let regions = regions.iter().filter(|r| r.needed || !needed);
                    regions.map(|region| region.width).collect()
                };
                assert_eq!(widths(&stretch.inputs, true), [dim, 2 * used, dim]);
                assert_eq!(widths(&stretch.outputs, true), [dim]);
                // The near side has a place for the experts' hidden values only if it has experts.
                let all = match layers {
                    48 => vec![dim],
                    _ => vec![used * hidden, dim],
                };
                assert_eq!(widths(&stretch.outputs, false), all);
            }
        }
        let rows = u64::from(whole.most_rows());
        let largest = if layers == 48 { dim } else { used * hidden };
        assert_eq!(split.most_bytes(), rows * 4 * largest);
    }
}

#[test]
fn tokens_caches_and_output_rows_stay_near() {
    let whole = program("qwen3-moe-small:q4_k");
    let split = Split::of(&whole, &|_, _| true);
    assert_eq!(verify(&split.near.program), Ok(()));
    assert_eq!(verify(&split.far.program), Ok(()));
    let ops = |pass: &Pass| -> Vec<Op> { pass.commands.iter().map(|c| c.op).collect() };
    for pass in &split.far.program.passes {
        let moved = ops(pass);
        for op in [
            Op::Embed,
            Op::Attention,
            Op::RopeAppend,
            Op::SelectRows,
            Op::Sample,
        ] {
            assert!(!moved.contains(&op), "{op:?}");
        }
        assert!(moved.contains(&Op::Route) && moved.contains(&Op::ExpertsAdd));
    }
    let prompt = whole.pass(PassKind::Prompt).unwrap();
    let near = &split.near.program.passes[prompt];
    let late = whole.passes[prompt].outputs_from().unwrap();
    let late = whole.passes[prompt].commands.len() - late;
    assert!(late > 0);
    assert_eq!(
        ops(near)[near.commands.len() - late..],
        ops(&whole.passes[prompt])[whole.passes[prompt].commands.len() - late..]
    );
}

#[test]
fn regions_are_runs_of_rows() {
    let region = |width, stride| welte_table::Region {
        at: welte_table::BufferRef {
            buffer: 0,
            offset: 16,
        },
        width,
        stride,
        needed: true,
    };
    let runs = |width, stride, rows| region(width, stride).runs(rows).collect::<Vec<_>>();
    assert_eq!(runs(4, 4, 3).first(), Some(&(16..64)));
    assert_eq!(runs(4, 4, 3).len(), 1);
    assert_eq!(runs(2, 4, 3), [16..24, 32..40, 48..56]);
    assert!(runs(4, 4, 0).is_empty());
    assert_eq!(region(2, 4).bytes(3), 24);
}
