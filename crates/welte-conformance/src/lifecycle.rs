//! From plan to release: weights, memory, several contexts, profiles.

use super::case::{Case, Commands, chain, start, tokens_of};
use super::model::{CONV, DELTA, EXPERTS, Layer, Model};
use std::sync::Arc;
use welte_device::{Device, Progress};
use welte_table::{Class, Format, Op, Part, Program, Row, Source, cost};

/// What a context has allocated is what the plan says, class by class; progress never goes back.
pub fn allocated(device: &dyn Device, _oracle: &dyn Device) {
    let small = Model::small(1);
    let blocks = Model {
        format: Format::Q6_K,
        kv_format: Format::Q8_0,
        dim: 256,
        ..Model::small(1)
    };
    let rich = Model {
        layers: [
            small.layers.clone(),
            vec![
                Layer::Conv(CONV),
                Layer::Delta(DELTA),
                Layer::Experts(EXPERTS),
            ],
        ]
        .concat(),
        embed_rows: 9,
        slots: 5,
        ..Model::small(1)
    };
    for model in [small, blocks, rich] {
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            continue;
        };
        let plan = device.plan(case.program.clone()).expect("a plan");
        let planned = plan.memory.by_class();
        let (mut last, mut all) = (0, 0);
        let mut progress = |progress: Progress| {
            if let Progress::Weights { done, total } = progress {
                assert!(last <= done && done <= total, "{done} after {last}");
                (last, all) = (done, total);
            }
        };
        let loaded = device.load(plan, &case.checkpoint, &mut progress);
        let loaded = loaded.expect("a loaded program");
        assert_eq!(
            (last, all),
            (planned[&Class::Weights], planned[&Class::Weights])
        );
        let mut context = loaded.context().expect("a context");
        assert_eq!(context.allocated(), planned, "{}", case.what);
        // Replay allocates nothing.
        chain(context.as_mut(), &[start(0, 0, 0, 5)]);
        assert_eq!(context.allocated(), planned, "after a chain");
    }
}

/// A weight that is missing or misshapen is an error of the plan or of the load.
pub fn weights(device: &dyn Device, _oracle: &dyn Device) {
    let case = Case::required(device, &Model::small(1));
    let is_broken = |change: &dyn Fn(&mut Program)| {
        let mut program = Program::clone(&case.program);
        change(&mut program);
        cost::fill(&mut program);
        let plan = device.plan(Arc::new(program));
        plan.and_then(|plan| device.load(plan, &case.checkpoint, &mut |_| {}))
            .is_err()
    };
    let part = |change: &dyn Fn(&mut Part)| {
        is_broken(&|program| {
            let Source::Parts(parts) = &mut program.weights[0].source else {
                panic!("the embedding is in the checkpoint");
            };
            change(&mut parts[0]);
        })
    };
    assert!(!is_broken(&|_| {}));
    assert!(part(&|p| p.tensor = "nowhere".into()), "no such tensor");
    assert!(part(&|p| p.first_row = 90), "rows beyond the tensor");
    assert!(part(&|p| p.rows -= 1), "a row too few");
    assert!(is_broken(&|p| p.weights[0].k = 65), "another width");
    let swapped = is_broken(&|p| p.passes.swap(0, 1));
    assert!(swapped, "a program that `verify` refuses");
}

/// Contexts share weights and nothing else, on as many threads as there are.
pub fn shared(device: &dyn Device, _oracle: &dyn Device) {
    let case = Case::required(device, &Model::small(19));
    let loaded = case.load(device);
    let tokens = |token: u32| {
        let mut context = loaded.context().expect("a context");
        let mut tokens = Vec::new();
        let mut next = token;
        for position in (0..60).step_by(10) {
            let emitted = chain(context.as_mut(), &[start(1, next, position, 10)]);
            tokens.extend(tokens_of(&emitted, 1, position + 1));
            next = tokens[tokens.len() - 1];
        }
        tokens
    };
    let alone: Vec<_> = (0..4).map(tokens).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|t| scope.spawn(move || tokens(t))).collect();
        let joined = threads.into_iter().map(|t| t.join().expect("no panic"));
        joined.collect()
    });
    assert_eq!(together, alone);
    assert!(
        alone.iter().any(|t| *t != alone[0]),
        "the same for every start"
    );
}

/// Profiling counts every op while it is on.
pub fn profiles(device: &dyn Device, _oracle: &dyn Device) {
    let case = Case::required(device, &Model::small(1));
    let mut context = case.open(device);
    let context = context.as_mut();
    assert!(context.profile().is_empty(), "profiling is off at first");
    let commands = &case.program.passes[0].commands;
    let in_pass = |op| commands.iter().filter(|c| c.op == op).count() as u64;
    assert_eq!(in_pass(Op::Attention), 2);
    context.set_profiling(true).expect("profiling");
    context
        .step_rows(0, &[Row::default()], &[])
        .expect("a step");
    for one in context.profile() {
        let wanted = if one.op == Op::Sample {
            0
        } else {
            in_pass(one.op)
        };
        assert_eq!(one.calls, wanted, "calls of {}", one.op.name());
        assert_eq!(one.bytes > 0, wanted > 0, "bytes of {}", one.op.name());
    }
    assert!(!context.last_step().is_empty());
    chain(context, &[start(0, 0, 0, 3)]);
    for one in context.profile() {
        let steps = if one.op == Op::Sample { 3 } else { 4 };
        let wanted = steps * in_pass(one.op);
        assert_eq!(one.calls, wanted, "calls of {}", one.op.name());
    }
    context.set_profiling(true).expect("profiling");
    let calls: u64 = context.profile().iter().map(|p| p.calls).sum();
    assert_eq!(calls, 0, "profiling begins from zero");
    context.set_profiling(false).expect("no profiling");
    assert!(context.profile().is_empty());
}
