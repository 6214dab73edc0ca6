//! What commands cost, with expected values worked out by hand.

use welte_table::{
    BufferRef, CacheKind, CacheSpec, Command, Format, Op, Params, Program, Row, Source, Usage,
    WeightId, WeightSpec, cost, params as p,
};

fn command(op: Op, params: Params, weights: &[WeightId]) -> Command {
    Command::new(op, Format::F32, weights, &[], params)
}

fn weight(format: Format, n: u32, k: u32) -> WeightSpec {
    WeightSpec {
        name: String::new(),
        format,
        n,
        k,
        usage: if n == 1 { Usage::Vector } else { Usage::Matrix },
        add: 0.0,
        source: Source::Parts(Vec::new()),
    }
}

/// Bytes and flops of one row.
fn of(op: Op, params: Params, weights: &[WeightSpec]) -> (u64, u64) {
    let ids: Vec<WeightId> = (0..weights.len() as u32).collect();
    let cost = cost::of(&command(op, params, &ids), weights);
    (cost.bytes, cost.flops)
}

#[test]
fn rows_of_every_format_are_counted_as_they_are_stored() {
    for (format, k, bytes) in [
        (Format::F32, 64, 256),
        (Format::F16, 64, 128),
        (Format::Q8_0, 64, 68),
        (Format::Q4_0, 64, 36),
        (Format::Q6_K, 256, 210),
        // No whole number of blocks.
        (Format::Q8_0, 33, 0),
    ] {
        let stored = cost::stored_bytes(&weight(format, 10, k));
        assert_eq!(stored, 10 * bytes, "{}", format.name());
    }
}

#[test]
fn products_read_the_matrix_once_and_each_activation_once() {
    let matrix = weight(Format::F16, 32, 64);
    let norm = weight(Format::F32, 1, 64);
    let matmul = p::Matmul {
        n: 32,
        k: 64,
        x_stride: 64,
        y_stride: 32,
    };
    // 4096 of the matrix, 256 of x, 128 of y.
    let got = of(Op::Matmul, matmul.words(), std::slice::from_ref(&matrix));
    assert_eq!(got, (4480, 4096));
    let add = p::MatmulAdd {
        n: 32,
        k: 64,
        x_stride: 64,
        y_stride: 32,
    };
    let got = of(Op::MatmulAdd, add.words(), std::slice::from_ref(&matrix));
    assert_eq!(got, (4480, 4128));
    let fused = p::NormMatmul {
        n: 32,
        k: 64,
        eps: 1e-5,
        x_stride: 64,
        y_stride: 32,
    };
    let got = of(Op::NormMatmul, fused.words(), &[matrix, norm.clone()]);
    assert_eq!(got, (4736, 4352));
    let fused = p::NormMatmulActMul {
        n: 32,
        k: 64,
        eps: 1e-5,
        act: 0,
        x_stride: 64,
        y_stride: 32,
    };
    // Gate and up have 64 rows together.
    let both = weight(Format::F16, 64, 64);
    let got = of(Op::NormMatmulActMul, fused.words(), &[both, norm]);
    assert_eq!(got, (8832, 8704));
}

#[test]
fn small_ops() {
    let embed = p::Embed {
        n: 1000,
        k: 64,
        scale: 1.0,
        x_stride: 64,
    };
    // One row of the table, the token, the activations.
    let table = weight(Format::Q8_0, 1000, 64);
    assert_eq!(of(Op::Embed, embed.words(), &[table]), (68 + 4 + 256, 64));
    let norm = p::Norm {
        dim: 8,
        groups: 3,
        eps: 1e-5,
        x_stride: 24,
        y_stride: 24,
    };
    let vector = |k| weight(Format::F32, 1, k);
    assert_eq!(of(Op::Norm, norm.words(), &[vector(8)]), (32 + 96 + 96, 96));
    let bias = p::Bias {
        n: 32,
        y_stride: 32,
    };
    assert_eq!(of(Op::Bias, bias.words(), &[vector(32)]), (128 + 128, 32));
    let add = p::Add {
        n: 32,
        x_stride: 32,
        y_stride: 32,
    };
    assert_eq!(of(Op::Add, add.words(), &[]), (256, 32));
    let scale = p::Scale {
        n: 32,
        scale: 2.0,
        cap: 0.0,
        y_stride: 32,
    };
    assert_eq!(of(Op::Scale, scale.words(), &[]), (128, 64));
    let act = p::ActMul {
        n: 32,
        act: 0,
        x_stride: 64,
        y_stride: 32,
    };
    assert_eq!(of(Op::ActMul, act.words(), &[]), (256 + 128, 256));
    let select = p::SelectRows {
        n: 32,
        x_stride: 32,
        y_stride: 32,
    };
    assert_eq!(of(Op::SelectRows, select.words(), &[]), (256, 0));
    let pool = p::Pool {
        n: 32,
        kind: 1,
        normalise: 1,
        x_stride: 32,
        y_stride: 32,
        group: 0,
    };
    assert_eq!(of(Op::Pool, pool.words(), &[]), (256, 32));
    let conv = p::ShortConv {
        layer: 0,
        n: 32,
        taps: 4,
        act: 1,
        x_stride: 32,
        y_stride: 32,
    };
    // 4 taps of 32 channels; x and y.
    let got = of(Op::ShortConv, conv.words(), &[vector(128)]);
    assert_eq!(got, (512 + 256, 256));
    let gate = p::Gate {
        n: 32,
        gates: 4,
        act: 4,
        x_stride: 4,
        y_stride: 32,
    };
    assert_eq!(of(Op::Gate, gate.words(), &[]), (16 + 128, 160));
    let delta = p::GatedDelta {
        layer: 0,
        key_heads: 2,
        heads: 4,
        key_dim: 8,
        value_dim: 16,
        tiled: 0,
        eps: 1e-6,
        x_stride: 96,
        gates_stride: 8,
        y_stride: 64,
        by_channel: 0,
    };
    // Decays and biases of 4 heads; queries, keys and values; b and a; y.
    let got = of(Op::GatedDelta, delta.words(), &[vector(4), vector(4)]);
    assert_eq!(got, (32 + 384 + 32 + 256, 7 * 4 * 8 * 16));
    // A bias and an a of each element of the key.
    let delta = p::GatedDelta {
        gates_stride: 36,
        by_channel: 1,
        ..delta
    };
    let got = of(Op::GatedDelta, delta.words(), &[vector(4), vector(32)]);
    assert_eq!(got, (144 + 384 + 144 + 256, 7 * 4 * 8 * 16));
    let sample = p::Sample {
        n: 100,
        logits_stride: 100,
    };
    assert_eq!(of(Op::Sample, sample.words(), &[]), (400 + 4, 100));
    let rope = p::Rope {
        heads: 4,
        head_dim: 8,
        rot: 6,
        interleaved: 0,
        magnitude: 1.0,
        y_stride: 32,
        sections: 0,
    };
    assert_eq!(of(Op::Rope, rope.words(), &[vector(3)]), (12 + 128, 72));
    let fused = p::RopeAppend {
        layer: 0,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rot: 6,
        interleaved: 0,
        magnitude: 1.0,
        eps: 1e-5,
        qkv_stride: 64,
        sections: 0,
    };
    let weights = [vector(3), vector(8), vector(8)];
    let got = of(Op::RopeAppend, fused.words(), &weights);
    assert_eq!(got, (12 + 32 + 32 + 256, 108));
    let append = p::KvAppend {
        layer: 0,
        kv_heads: 2,
        head_dim: 8,
        k_stride: 64,
        v_stride: 64,
    };
    assert_eq!(of(Op::KvAppend, append.words(), &[]), (64 + 64, 0));
}

#[test]
fn of_experts_only_those_that_a_row_chose_are_counted() {
    let route = p::Route {
        scoring: 0,
        groups: 1,
        used_groups: 1,
        group_top: 1,
        margin: 0.0,
        experts: 8,
        used: 3,
        renormalise: 1,
        scale: 1.0,
        x_stride: 8,
        y_stride: 6,
    };
    assert_eq!(of(Op::Route, route.words(), &[]), (32 + 24, 32));
    let act_mul = |used, act| {
        let params = p::ExpertsActMul {
            n: 32,
            k: 64,
            experts: 8,
            used,
            act,
            x_stride: 64,
            choice_stride: 4,
            y_stride: 64,
        };
        // Of each expert 32 rows of gate and 32 of up, 68 bytes each, and as many biases.
        let rows = 8 * 32 * params.matrices();
        let weights = [weight(Format::Q8_0, rows, 64), weight(Format::F32, 1, rows)];
        of(Op::ExpertsActMul, params.words(), &weights)
    };
    assert_eq!(act_mul(1, 0), (4352 + 256 + 256 + 8 + 128, 8448));
    assert_eq!(act_mul(2, 0), (8704 + 512 + 256 + 16 + 256, 16_896));
    assert_eq!(act_mul(8, 0), (34_816 + 2048 + 256 + 64 + 1024, 67_584));
    // Without gates.
    assert_eq!(act_mul(1, 4), (2176 + 128 + 256 + 8 + 128, 4352));
    let add = |used| {
        let params = p::ExpertsAdd {
            n: 64,
            k: 32,
            experts: 8,
            used,
            x_stride: 64,
            choice_stride: 4,
            y_stride: 64,
        };
        let matrix = weight(Format::Q8_0, 8 * 64, 32);
        of(Op::ExpertsAdd, params.words(), &[matrix])
    };
    assert_eq!(add(1), (2176 + 128 + 8 + 256, 4224));
    assert_eq!(add(2), (4352 + 256 + 16 + 256, 8448));
}

fn attention(window: u32) -> Command {
    let params = p::Attention {
        layer: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        scale: 1.0,
        window,
        softcap: 0.0,
        q_stride: 128,
        y_stride: 128,
        causal: 0,
        chunked: 0,
    };
    let mut c = command(Op::Attention, params.words(), &[]);
    c.buffers[1] = CACHE;
    c
}

/// Where the cache of [`with_cache`] lies.
const CACHE: BufferRef = BufferRef {
    buffer: 5,
    offset: 0,
};

/// A program with one cache in buffer 5, and an unrelated one before it.
fn with_cache(kind: CacheKind) -> Program {
    let cache = |buffer, kind| CacheSpec {
        name: String::new(),
        buffer,
        pages: 64,
        kind,
    };
    let other = CacheKind::Attention {
        format: Format::F16,
        layers: 1,
        kv_heads: 7,
        head_dim: 8,
        window: 0,
    };
    Program {
        weights: Vec::new(),
        buffers: Vec::new(),
        caches: vec![cache(4, other), cache(5, kind)],
        vocab: 10,
        context: 1024,
        page: 16,
        slots: 1,
        tokens: 0,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: Vec::new(),
    }
}

#[test]
fn recurrent_state_is_read_and_written_by_each_row() {
    let conv = p::ShortConv {
        layer: 0,
        n: 8,
        taps: 4,
        act: 0,
        x_stride: 8,
        y_stride: 8,
    };
    let mut c = command(Op::ShortConv, conv.words(), &[]);
    c.buffers[2] = CACHE;
    let program = with_cache(CacheKind::Recurrent {
        layers: 2,
        floats: 24,
    });
    let cost = cost::of_context(&c, &program, &[Row::default(); 3]);
    assert_eq!((cost.bytes, cost.flops), (3 * 2 * 96, 0));
}

#[test]
fn attention_reads_the_positions_within_its_window() {
    let kv = |format| {
        with_cache(CacheKind::Attention {
            format,
            layers: 3,
            kv_heads: 2,
            head_dim: 32,
            window: 0,
        })
    };
    let rows = [0, 9, 99].map(|position| Row::new(0, position, 0));
    // One position of one layer: keys and values of 2 heads, 64 bytes each in F16, 34 in Q8_0.
    for (format, bytes) in [(Format::F16, 256), (Format::Q8_0, 136)] {
        for (window, positions) in [
            (0, 1 + 10 + 100),
            (1, 1 + 1 + 1),
            (9, 1 + 9 + 9),
            (10, 1 + 10 + 10),
            (11, 1 + 10 + 11),
            (99, 1 + 10 + 99),
            (100, 1 + 10 + 100),
            (u32::MAX, 1 + 10 + 100),
        ] {
            let cost = cost::of_context(&attention(window), &kv(format), &rows);
            assert_eq!(cost.bytes, positions * bytes, "window {window}");
            // Two flops for a score and two for a value, for each of 4 heads of 32.
            assert_eq!(cost.flops, positions * 4 * 4 * 32, "window {window}");
        }
    }
    let none = cost::of_context(&attention(0), &kv(Format::F16), &[]);
    assert_eq!(none, cost::Cost::default());
    let other = command(Op::KvAppend, [1; 16], &[]);
    let none = cost::of_context(&other, &kv(Format::F16), &rows);
    assert_eq!(none, cost::Cost::default());
    // Without context: queries and outputs.
    assert_eq!(cost::of(&attention(10), &[]).bytes, 512 + 512);
}
