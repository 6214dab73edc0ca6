//! Runs of fine commands, what replaces them, and what keeps them as they are.

use welte_table::{
    BufferRef, BufferSpec, Class, Command, Format, ModelPart, NO_WEIGHT, Op, PATTERNS, Params,
    Pass, PassKind, Pattern, Program, Run, Value, fuse, params as p, step,
};

const X: u32 = 0;
const Y: u32 = 1;
const T: u32 = 2;
const PAIR: u32 = 3;
const KV: u32 = 4;

fn at(buffer: u32, offset: u32) -> BufferRef {
    BufferRef { buffer, offset }
}

fn command(op: Op, weights: &[u32], buffers: &[BufferRef], params: Params) -> Command {
    let format = match op {
        Op::Matmul => Format::Q8_0,
        _ => Format::F32,
    };
    Command {
        layer: Some(7),
        part: ModelPart::Attention,
        ..Command::new(op, format, weights, buffers, params)
    }
}

/// A program of one pass with these commands, and buffers of 1024 floats.
fn program(commands: Vec<Command>) -> Program {
    let names = ["x", "y", "t", "pair", "kv"];
    let buffers = names.map(|name| BufferSpec {
        name: name.into(),
        class: match name {
            "kv" => Class::Cache,
            _ => Class::ScratchDecode,
        },
        bytes: 4096,
    });
    Program {
        weights: Vec::new(),
        buffers: buffers.into(),
        caches: Vec::new(),
        vocab: 10,
        context: 16,
        page: 16,
        slots: 1,
        tokens: 5,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: vec![Pass {
            kind: PassKind::Decode,
            adapted: false,
            rows: 2,
            outputs: 2,
            width: 10,
            result: at(Y, 0),
            labels: commands.iter().map(|c| c.op.name().to_string()).collect(),
            commands,
        }],
    }
}

/// What becomes of the commands, and the names of the buffers that are left.
fn fused(commands: Vec<Command>) -> (Vec<Command>, Vec<String>) {
    let mut fused = fuse(program(commands), PATTERNS);
    let names = fused.buffers.into_iter().map(|b| b.name);
    (fused.passes.remove(0).commands, names.collect())
}

fn ops(commands: &[Command]) -> Vec<Op> {
    commands.iter().map(|c| c.op).collect()
}

/// `t = norm(x)`
fn norm(dim: u32) -> Command {
    let norm = p::Norm {
        dim,
        groups: 1,
        eps: 1e-6,
        x_stride: 100,
        y_stride: dim,
    };
    command(Op::Norm, &[4], &[at(X, 8), at(T, 0)], norm.words())
}

/// `to = W t`
fn matmul(weight: u32, n: u32, k: u32, to: BufferRef, y_stride: u32) -> Command {
    let matmul = p::Matmul {
        n,
        k,
        x_stride: k,
        y_stride,
    };
    command(Op::Matmul, &[weight], &[at(T, 0), to], matmul.words())
}

#[test]
fn a_norm_becomes_a_part_of_the_product_that_alone_reads_it() {
    let product = matmul(3, 32, 64, at(Y, 12), 200);
    let (commands, buffers) = fused(vec![norm(64), product]);
    let [whole] = commands[..] else {
        panic!("one command")
    };
    assert_eq!((whole.op, whole.format), (Op::NormMatmul, Format::Q8_0));
    assert_eq!((whole.layer, whole.part), (Some(7), ModelPart::Attention));
    assert_eq!(whole.weights, [3, 4, NO_WEIGHT]);
    assert_eq!(whole.buffers[..2], [at(0, 8), at(1, 12)]);
    let expected = p::NormMatmul {
        n: 32,
        k: 64,
        eps: 1e-6,
        x_stride: 100,
        y_stride: 200,
    };
    assert_eq!(p::NormMatmul::of(&whole.params), expected);
    assert!(whole.flops >= 2 * 32 * 64, "costs are filled in");
    // Its result has no buffer any more.
    assert_eq!(buffers, ["x", "y", "kv"]);
}

/// No command names it: rows read it.
#[test]
fn the_buffer_of_features_stays() {
    let mut program = program(vec![norm(64), matmul(3, 32, 64, at(Y, 12), 200)]);
    program.features = PAIR;
    let fused = fuse(program, PATTERNS);
    let features = &fused.buffers[fused.features as usize];
    assert_eq!((&*features.name, features.bytes), ("pair", 4096));
    assert_eq!(fused.features, PAIR - 1);
}

#[test]
fn a_norm_that_others_read_stays() {
    let product = |to| matmul(3, 32, 64, at(Y, to), 64);
    let stays = |commands: Vec<Command>| {
        let before = ops(&commands);
        let (after, _) = fused(commands);
        assert_eq!(ops(&after), before);
    };
    // Two products of one norm.
    stays(vec![norm(64), product(0), product(128)]);
    // Another width, another layer, a router.
    stays(vec![norm(32), product(0)]);
    let other = Command {
        layer: Some(8),
        ..product(0)
    };
    stays(vec![norm(64), other]);
    let router = Command {
        part: ModelPart::Router,
        ..product(0)
    };
    stays(vec![norm(64), router]);
    // In place, it has no result of its own.
    let mut in_place = norm(64);
    in_place.buffers[0] = at(T, 0);
    stays(vec![in_place, product(0)]);
    // The product would overwrite what it reads.
    let mut over = product(0);
    over.buffers[1] = at(X, 8);
    stays(vec![norm(64), over]);
    // A later norm makes another value of it.
    let (commands, _) = fused(vec![norm(64), product(0), norm(64), product(128)]);
    assert_eq!(ops(&commands), [Op::NormMatmul; 2]);
    // One in two pieces as well, but not one that covers a part.
    let piece = |from: u32, n| {
        let p = p::Matmul {
            n,
            k: 16,
            x_stride: 16,
            y_stride: 64,
        };
        command(Op::Matmul, &[5], &[at(PAIR, 0), at(T, 4 * from)], p.words())
    };
    let add = p::Add {
        n: 64,
        x_stride: 64,
        y_stride: 64,
    };
    let add = command(Op::Add, &[], &[at(T, 0), at(Y, 0)], add.words());
    let (commands, _) = fused(vec![norm(64), product(0), piece(0, 32), piece(32, 32), add]);
    assert_eq!(commands[0].op, Op::NormMatmul);
    stays(vec![norm(64), product(0), piece(0, 32), add]);
}

#[test]
fn a_product_is_added() {
    let product = matmul(3, 32, 64, at(PAIR, 0), 32);
    let add = p::Add {
        n: 32,
        x_stride: 32,
        y_stride: 200,
    };
    let add = command(Op::Add, &[], &[at(PAIR, 0), at(Y, 12)], add.words());
    let (commands, buffers) = fused(vec![product, add]);
    let [whole] = commands[..] else {
        panic!("one command")
    };
    assert_eq!((whole.op, whole.weights[0]), (Op::MatmulAdd, 3));
    let expected = p::MatmulAdd {
        n: 32,
        k: 64,
        x_stride: 64,
        y_stride: 200,
    };
    assert_eq!(p::MatmulAdd::of(&whole.params), expected);
    // What is left is as small as its rows allow: two rows of 64 floats, and of 200.
    assert_eq!(buffers, ["y", "t", "kv"]);
    let program = fuse(program(vec![product, add]), PATTERNS);
    let bytes: Vec<u64> = program.buffers.iter().map(|b| b.bytes).collect();
    assert_eq!(bytes, [2 * 200 * 4, 2 * 64 * 4, 4096]);
    assert_eq!(whole.buffers[..2], [at(1, 0), at(0, 12)]);
    assert_eq!(program.passes[0].result, at(0, 0));
}

#[test]
fn gate_and_up_become_one_command() {
    let act = |n| {
        let act = p::ActMul {
            n,
            act: 2,
            x_stride: 64,
            y_stride: 200,
        };
        command(Op::ActMul, &[], &[at(PAIR, 0), at(Y, 12)], act.words())
    };
    let product = matmul(3, 64, 64, at(PAIR, 0), 64);
    let (commands, buffers) = fused(vec![norm(64), product, act(32)]);
    let [whole] = commands[..] else {
        panic!("one command")
    };
    assert_eq!(whole.op, Op::NormMatmulActMul);
    assert_eq!(whole.weights, [3, 4, NO_WEIGHT]);
    let expected = p::NormMatmulActMul {
        n: 32,
        k: 64,
        eps: 1e-6,
        act: 2,
        x_stride: 100,
        y_stride: 200,
    };
    assert_eq!(p::NormMatmulActMul::of(&whole.params), expected);
    assert_eq!(buffers, ["x", "y", "kv"]);
    // Half of the product is not gate and up.
    let (commands, _) = fused(vec![norm(64), product, act(16)]);
    assert_eq!(ops(&commands), [Op::NormMatmul, Op::ActMul]);
    // A device that declares nothing gets what the model says.
    let fine = fuse(program(vec![norm(64), product, act(32)]), &[]);
    let commands = &fine.passes[0].commands;
    assert_eq!(ops(commands), [Op::Norm, Op::Matmul, Op::ActMul]);
}

#[test]
fn queries_and_keys_are_normed_turned_and_appended_at_once() {
    let (q, k, v) = (at(X, 16), at(X, 16 + 128), at(X, 16 + 192));
    let norm = |weight, place, groups| {
        let norm = p::Norm {
            dim: 8,
            groups,
            eps: 1e-6,
            x_stride: 96,
            y_stride: 96,
        };
        command(Op::Norm, &[weight], &[place, place], norm.words())
    };
    let rope = p::Rope {
        heads: 6,
        head_dim: 8,
        rot: 6,
        interleaved: 1,
        magnitude: 1.5,
        y_stride: 96,
        sections: 0x01_01_01,
    };
    let rope = command(Op::Rope, &[5], &[q], rope.words());
    let append = |values| {
        let append = p::KvAppend {
            layer: 7,
            kv_heads: 2,
            head_dim: 8,
            k_stride: 96,
            v_stride: 96,
        };
        command(Op::KvAppend, &[], &[k, values, at(KV, 0)], append.words())
    };
    let norms = [norm(6, q, 4), norm(8, k, 2)];
    let (commands, _) = fused(vec![norms[0], norms[1], rope, append(v)]);
    let [whole] = commands[..] else {
        panic!("one command")
    };
    assert_eq!((whole.op, whole.weights), (Op::RopeAppend, [5, 6, 8]));
    let expected = p::RopeAppend {
        layer: 7,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rot: 6,
        interleaved: 1,
        magnitude: 1.5,
        eps: 1e-6,
        qkv_stride: 96,
        sections: 0x01_01_01,
    };
    assert_eq!(p::RopeAppend::of(&whole.params), expected);
    // Without norms their weights are missing.
    let (commands, _) = fused(vec![rope, append(v)]);
    assert_eq!(commands[0].weights, [5, NO_WEIGHT, NO_WEIGHT]);
    // A norm of one of them only, or of something else, stays outside.
    for outside in [norms[1], norm(6, q, 2)] {
        let (commands, _) = fused(vec![outside, rope, append(v)]);
        assert_eq!(ops(&commands), [Op::Norm, Op::RopeAppend]);
        assert_eq!(commands[1].weights, [5, NO_WEIGHT, NO_WEIGHT]);
    }
    // So do norms without weights: the whole command would not norm.
    let plain = [norm(NO_WEIGHT, q, 4), norm(NO_WEIGHT, k, 2)];
    let (commands, _) = fused(vec![plain[0], plain[1], rope, append(v)]);
    assert_eq!(ops(&commands), [Op::Norm, Op::Norm, Op::RopeAppend]);
    // Values that are keys, as latents have them.
    let (commands, _) = fused(vec![rope, append(k)]);
    assert_eq!(ops(&commands), [Op::Rope, Op::KvAppend]);
    let program = fuse(program(vec![rope, append(v)]), PATTERNS);
    assert_eq!(program.passes[0].full_label(0), "layer 7 rope and append");
}

/// A pattern that no device has: two scales of one place are one, unless the first has a cap.
const SCALED_TWICE: Pattern = Pattern {
    op: Op::Scale,
    run: Run {
        steps: &[
            step!(Scale [] [y] { n, scale: first, cap = 0, y_stride }),
            step!(Scale [] [y] { n, scale: second, cap, y_stride }),
        ],
        relate: |b| {
            let both = b.float("first")? * b.float("second")?;
            b.set("scale", Value::Word(both.to_bits()))
        },
    },
    private: &[],
    main: 1,
    label: Some("scaled twice"),
    except: &[ModelPart::Router],
};

/// All that a new pattern needs is its declaration.
#[test]
fn a_made_up_pattern_is_data_alone() {
    let scale = |scale, cap, to| {
        let (n, y_stride) = (64, 100);
        let scale = p::Scale {
            n,
            scale,
            cap,
            y_stride,
        };
        command(Op::Scale, &[], &[to], scale.words())
    };
    let fused = |commands| fuse(program(commands), &[SCALED_TWICE]).passes.remove(0);
    let run = [scale(2.0, 0.0, at(Y, 4)), scale(3.0, 30.0, at(Y, 4))];
    let pass = fused(run.to_vec());
    assert_eq!(ops(&pass.commands), [Op::Scale]);
    let whole = p::Scale::of(&pass.commands[0].params);
    assert_eq!((whole.scale, whole.cap, whole.n), (6.0, 30.0, 64));
    assert_eq!(pass.full_label(0), "layer 7 scaled twice");
    // A cap between, another place, another part of the model.
    let apart = [
        [scale(2.0, 5.0, at(Y, 4)), run[1]],
        [run[0], scale(3.0, 30.0, at(Y, 8))],
        run.map(|c| Command {
            part: ModelPart::Router,
            ..c
        }),
    ];
    for commands in apart {
        assert_eq!(fused(commands.to_vec()).commands.len(), 2);
    }
}

#[test]
fn patterns_name_operands_and_parameters_that_exist() {
    for pattern in PATTERNS {
        let names: Vec<&str> = pattern
            .run
            .steps
            .iter()
            .flat_map(|s| s.buffers.iter().copied())
            .collect();
        for step in pattern.run.steps {
            let op = step.op;
            assert!(step.weights.len() <= op.weights().len(), "{}", op.name());
            let operands = op.reads().len() + op.writes().len();
            assert_eq!(step.buffers.len(), operands, "{}", op.name());
            for (param, _) in step.params {
                assert!(op.params().contains(param), "{} {param}", op.name());
            }
        }
        let all = pattern.op.reads().iter().chain(pattern.op.writes());
        assert!(
            all.into_iter().all(|role| names.contains(role)),
            "{pattern:?}"
        );
        assert!(pattern.private.iter().all(|name| names.contains(name)));
    }
}
