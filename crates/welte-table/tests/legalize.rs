//! Fused commands and the commands that they are split into, operand by operand.

use welte_table::{
    BufferRef, BufferSpec, CacheKind, CacheSpec, Class, Command, Format, NO_WEIGHT, Op, Params,
    Pass, PassKind, Program, legalize, params as p,
};

fn at(buffer: u32, offset: u32) -> BufferRef {
    BufferRef { buffer, offset }
}

fn fused(op: Op, weights: [u32; 3], buffers: &[BufferRef], params: Params) -> Command {
    let mut c = Command {
        op,
        format: Format::Q8_0,
        weights,
        buffers: [BufferRef::NONE; 4],
        params,
        bytes: 0,
        flops: 0,
    };
    c.buffers[..buffers.len()].copy_from_slice(buffers);
    c
}

/// A program of one command, which has buffers 0 (`decode.a`), 1 (`decode.b`) and 2 (`kv`).
fn program(c: Command) -> Program {
    let buffer = |name: &str, class| BufferSpec {
        name: name.into(),
        class,
        bytes: 4096,
    };
    Program {
        weights: Vec::new(),
        buffers: vec![
            buffer("decode.a", Class::ScratchDecode),
            buffer("decode.b", Class::ScratchDecode),
            buffer("kv", Class::Cache),
        ],
        caches: vec![CacheSpec {
            name: "kv".into(),
            buffer: 2,
            pages: 1,
            kind: CacheKind::Attention {
                format: Format::F16,
                layers: 1,
                kv_heads: 2,
                head_dim: 8,
                window: 0,
            },
        }],
        vocab: 10,
        context: 16,
        page: 16,
        slots: 1,
        tokens: 3,
        passes: vec![Pass {
            kind: PassKind::Decode,
            rows: 1,
            outputs: 1,
            width: 10,
            result: at(1, 0),
            commands: vec![c],
            labels: vec!["it".into()],
        }],
    }
}

/// The commands that a device without any fused op gets, and the buffers that were added.
fn split(c: Command) -> (Vec<Command>, Vec<BufferSpec>) {
    let mut program = program(c);
    let is_fine = |c: &Command| {
        !matches!(
            c.op,
            Op::NormMatmul | Op::MatmulAdd | Op::NormMatmulActMul | Op::RopeAppend
        )
    };
    legalize(&mut program, &is_fine).unwrap();
    (
        program.passes.remove(0).commands,
        program.buffers.split_off(3),
    )
}

#[test]
fn a_fused_append_is_split_at_the_heads() {
    let append = p::RopeAppend {
        layer: 7,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rot: 6,
        interleaved: 1,
        magnitude: 1.5,
        eps: 1e-6,
        qkv_stride: 96,
    };
    let c = |weights| {
        fused(
            Op::RopeAppend,
            weights,
            &[at(0, 16), at(2, 0)],
            append.words(),
        )
    };
    let (commands, added) = split(c([5, 6, 8]));
    assert_eq!(added, []);
    let ops: Vec<Op> = commands.iter().map(|c| c.op).collect();
    assert_eq!(ops, [Op::Norm, Op::Norm, Op::Rope, Op::KvAppend]);
    // Queries begin at byte 16, keys 4 heads of 8 floats later, values another 2 heads later.
    let (q, k, v) = (at(0, 16), at(0, 16 + 128), at(0, 16 + 192));
    let [q_norm, k_norm, rope, append] = commands[..] else {
        panic!("four commands")
    };
    assert_eq!(
        (q_norm.weights[0], q_norm.buffers[..2].to_vec()),
        (6, vec![q, q])
    );
    assert_eq!(
        (k_norm.weights[0], k_norm.buffers[..2].to_vec()),
        (8, vec![k, k])
    );
    let norm = |groups| p::Norm {
        dim: 8,
        groups,
        eps: 1e-6,
        x_stride: 96,
        y_stride: 96,
    };
    assert_eq!(p::Norm::of(&q_norm.params), norm(4));
    assert_eq!(p::Norm::of(&k_norm.params), norm(2));
    // Queries and keys are neighbours, so one command turns both.
    assert_eq!((rope.weights[0], rope.buffers[0]), (5, q));
    let expected = p::Rope {
        heads: 6,
        head_dim: 8,
        rot: 6,
        interleaved: 1,
        magnitude: 1.5,
        y_stride: 96,
    };
    assert_eq!(p::Rope::of(&rope.params), expected);
    assert_eq!(append.buffers[..3], [k, v, at(2, 0)]);
    let expected = p::KvAppend {
        layer: 7,
        kv_heads: 2,
        head_dim: 8,
        k_stride: 96,
        v_stride: 96,
    };
    assert_eq!(p::KvAppend::of(&append.params), expected);

    let (commands, _) = split(c([5, NO_WEIGHT, NO_WEIGHT]));
    let ops: Vec<Op> = commands.iter().map(|c| c.op).collect();
    assert_eq!(ops, [Op::Rope, Op::KvAppend]);
}

#[test]
fn a_fused_norm_goes_through_scratch() {
    let params = p::NormMatmul {
        n: 32,
        k: 64,
        eps: 1e-6,
        x_stride: 100,
        y_stride: 200,
    };
    let buffers = [at(0, 8), at(1, 12)];
    let (commands, added) = split(fused(
        Op::NormMatmul,
        [3, 4, NO_WEIGHT],
        &buffers,
        params.words(),
    ));
    let scratch = BufferSpec {
        name: "decode.norm".into(),
        class: Class::ScratchDecode,
        bytes: 256,
    };
    assert_eq!(added, [scratch]);
    let [norm, matmul] = commands[..] else {
        panic!("two commands")
    };
    assert_eq!(
        (norm.op, norm.format, norm.weights[0]),
        (Op::Norm, Format::F32, 4)
    );
    assert_eq!(norm.buffers[..2], [at(0, 8), at(3, 0)]);
    let expected = p::Norm {
        dim: 64,
        groups: 1,
        eps: 1e-6,
        x_stride: 100,
        y_stride: 64,
    };
    assert_eq!(p::Norm::of(&norm.params), expected);
    assert_eq!(
        (matmul.op, matmul.format, matmul.weights[0]),
        (Op::Matmul, Format::Q8_0, 3)
    );
    assert_eq!(matmul.buffers[..2], [at(3, 0), at(1, 12)]);
    let expected = p::Matmul {
        n: 32,
        k: 64,
        x_stride: 64,
        y_stride: 200,
    };
    assert_eq!(p::Matmul::of(&matmul.params), expected);
}

#[test]
fn a_fused_addition_goes_through_scratch() {
    let params = p::MatmulAdd {
        n: 32,
        k: 64,
        x_stride: 100,
        y_stride: 200,
    };
    let weights = [3, NO_WEIGHT, NO_WEIGHT];
    let buffers = [at(0, 8), at(1, 12)];
    let (commands, added) = split(fused(Op::MatmulAdd, weights, &buffers, params.words()));
    assert_eq!(
        (added[0].name.as_str(), added[0].bytes),
        ("decode.sum", 128)
    );
    let [matmul, add] = commands[..] else {
        panic!("two commands")
    };
    assert_eq!((matmul.op, matmul.weights[0]), (Op::Matmul, 3));
    assert_eq!(matmul.buffers[..2], [at(0, 8), at(3, 0)]);
    let expected = p::Matmul {
        n: 32,
        k: 64,
        x_stride: 100,
        y_stride: 32,
    };
    assert_eq!(p::Matmul::of(&matmul.params), expected);
    assert_eq!((add.op, add.weights), (Op::Add, [NO_WEIGHT; 3]));
    assert_eq!(add.buffers[..2], [at(3, 0), at(1, 12)]);
    let expected = p::Add {
        n: 32,
        x_stride: 32,
        y_stride: 200,
    };
    assert_eq!(p::Add::of(&add.params), expected);
}

#[test]
fn a_fused_gate_is_split_twice() {
    let params = p::NormMatmulActMul {
        n: 32,
        k: 64,
        eps: 1e-6,
        act: 2,
        x_stride: 100,
        y_stride: 200,
    };
    let weights = [3, 4, NO_WEIGHT];
    let buffers = [at(0, 8), at(1, 12)];
    let c = fused(Op::NormMatmulActMul, weights, &buffers, params.words());
    let (commands, added) = split(c);
    let added: Vec<_> = added.iter().map(|b| (b.name.as_str(), b.bytes)).collect();
    assert_eq!(added, [("decode.gate_up", 256), ("decode.norm", 256)]);
    let [norm, matmul, act] = commands[..] else {
        panic!("three commands")
    };
    assert_eq!((norm.op, norm.weights[0]), (Op::Norm, 4));
    assert_eq!(norm.buffers[..2], [at(0, 8), at(4, 0)]);
    assert_eq!((matmul.op, matmul.weights[0]), (Op::Matmul, 3));
    assert_eq!(matmul.buffers[..2], [at(4, 0), at(3, 0)]);
    let expected = p::Matmul {
        n: 64,
        k: 64,
        x_stride: 64,
        y_stride: 64,
    };
    assert_eq!(p::Matmul::of(&matmul.params), expected);
    assert_eq!(act.buffers[..2], [at(3, 0), at(1, 12)]);
    let expected = p::ActMul {
        n: 32,
        act: 2,
        x_stride: 64,
        y_stride: 200,
    };
    assert_eq!(p::ActMul::of(&act.params), expected);
}

#[test]
fn scratch_is_shared_and_as_large_as_the_widest_use() {
    let add = |n, k| {
        let params = p::MatmulAdd {
            n,
            k,
            x_stride: k,
            y_stride: n,
        };
        let weights = [3, NO_WEIGHT, NO_WEIGHT];
        fused(
            Op::MatmulAdd,
            weights,
            &[at(0, 0), at(1, 0)],
            params.words(),
        )
    };
    let mut program = program(add(8, 64));
    program.passes[0].commands.extend([add(32, 8), add(16, 8)]);
    program.passes[0].labels.extend(["b".into(), "c".into()]);
    // The same commands for 5 rows.
    let rows = Pass {
        kind: PassKind::Prompt,
        rows: 5,
        ..program.passes[0].clone()
    };
    program.passes.push(rows);
    legalize(&mut program, &|c| c.op != Op::MatmulAdd).unwrap();
    let added: Vec<_> = program.buffers[3..]
        .iter()
        .map(|b| (b.name.as_str(), b.class, b.bytes))
        .collect();
    assert_eq!(
        added,
        [
            ("decode.sum", Class::ScratchDecode, 128),
            ("prompt.sum", Class::ScratchPrompt, 640),
        ]
    );
    let labels = &program.passes[0].labels;
    assert_eq!(labels[2..4], ["b: matmul", "b: add"]);
}
