//! A small program that contains every op, with buffers exactly as large as needed.

#![allow(dead_code)] // Each test file uses a part.

use welte_table::{
    BufferRef, BufferSpec, CacheKind, CacheSpec, Class, Command, Format, Op, Params, Pass,
    PassKind, Program, Source, Usage, WeightSpec, cost, params as p,
};

pub(crate) fn at(buffer: u32, offset: u32) -> BufferRef {
    BufferRef { buffer, offset }
}

/// Scratch buffers, by number.
pub(crate) const X: u32 = 0;
pub(crate) const T: u32 = 1;
pub(crate) const QKV: u32 = 2;
pub(crate) const ATTN: u32 = 3;
pub(crate) const GATE_UP: u32 = 4;
pub(crate) const H: u32 = 5;
pub(crate) const ROUTER: u32 = 6;
pub(crate) const CHOICE: u32 = 7;
pub(crate) const EXPERTS: u32 = 8;
pub(crate) const LOGITS: u32 = 9;
pub(crate) const CHOSEN: u32 = 10;
pub(crate) const TOKENS: u32 = 11;
pub(crate) const KV: u32 = 12;
pub(crate) const STATE: u32 = 13;
pub(crate) const DELTA: u32 = 14;
pub(crate) const FEATURES: u32 = 15;

/// Weights: numbers in `weights()`.
const TABLE: u32 = 0;
const NORM: u32 = 1;
const QKV_MATRIX: u32 = 2;
const QKV_BIAS: u32 = 3;
const FREQS: u32 = 4;
const SINKS: u32 = 5;
const OUT: u32 = 6;
const GATE_UP_MATRIX: u32 = 7;
const KERNEL: u32 = 8;
const ROUTER_MATRIX: u32 = 9;
const EXPERTS_UP: u32 = 10;
const EXPERTS_UP_BIAS: u32 = 11;
const EXPERTS_DOWN: u32 = 12;
const EXPERTS_DOWN_BIAS: u32 = 13;
const HEAD_NORM: u32 = 14;
const DECAY: u32 = 15;
const ROUTE_BIAS: u32 = 16;
const PLACES: u32 = 20;
pub(crate) const MATRICES: u32 = 17;
const POSITIONS: u32 = 18;
const SEGMENTS: u32 = 19;

fn weights() -> Vec<WeightSpec> {
    let of = |(name, n, k, usage): (&str, u32, u32, Usage)| WeightSpec {
        name: name.into(),
        format: Format::F32,
        n,
        k,
        usage,
        add: 0.0,
        source: Source::Parts(vec![welte_table::Part {
            tensor: name.into(),
            first_row: 0,
            rows: n,
        }]),
    };
    let mut list: Vec<WeightSpec> = [
        ("table", 10, 8, Usage::Both),
        ("norm", 1, 8, Usage::Vector),
        ("qkv", 16, 8, Usage::Matrix),
        ("qkv bias", 1, 16, Usage::Vector),
        ("freqs", 1, 2, Usage::Vector),
        ("sinks", 1, 2, Usage::Vector),
        ("out", 8, 8, Usage::Matrix),
        ("gate and up", 12, 8, Usage::Matrix),
        ("kernel", 1, 24, Usage::Vector),
        ("router", 4, 8, Usage::Matrix),
        ("experts' gate and up", 48, 8, Usage::Matrix),
        ("experts' gate and up bias", 1, 48, Usage::Vector),
        ("experts' down", 32, 6, Usage::Matrix),
        ("experts' down bias", 1, 32, Usage::Vector),
        ("head norm", 1, 4, Usage::Vector),
        ("decay", 1, 2, Usage::Vector),
        ("route bias", 1, 4, Usage::Vector),
        ("matrices", 6, 2, Usage::Matrix),
        ("positions", 1, 136, Usage::Vector),
        ("segments", 1, 16, Usage::Vector),
        ("places", 1, 8, Usage::Vector),
    ]
    .map(of)
    .into();
    list[FREQS as usize].source = Source::Constant(vec![1.0, 0.5]);
    let places = vec![3.0, -1.0, 0.0, 7.0, -1.0, 1.0, 2.0, 6.0];
    list[PLACES as usize].source = Source::Constant(places);
    list
}

fn command(op: Op, weights: &[u32], buffers: &[BufferRef], params: Params) -> Command {
    Command::new(op, Format::F32, weights, buffers, params)
}

fn pass(kind: PassKind, rows: u32, outputs: u32, width: u32, commands: Vec<Command>) -> Pass {
    let result = match kind {
        PassKind::Embed => CHOSEN,
        _ => LOGITS,
    };
    Pass {
        kind,
        adapted: false,
        rows,
        outputs,
        width,
        result: at(result, 0),
        labels: vec![String::new(); commands.len()],
        commands,
    }
}

fn embed() -> Command {
    let params = p::Embed {
        n: 10,
        k: 8,
        scale: 1.0,
        x_stride: 8,
    };
    command(
        Op::Embed,
        &[TABLE],
        &[at(TOKENS, 0), at(X, 0)],
        params.words(),
    )
}

fn head(x: u32) -> Command {
    let params = p::NormMatmul {
        n: 10,
        k: 8,
        eps: 1e-6,
        x_stride: 8,
        y_stride: 10,
    };
    command(
        Op::NormMatmul,
        &[TABLE, NORM],
        &[at(x, 0), at(LOGITS, 0)],
        params.words(),
    )
}

/// Width 8; 2 heads and 1 head of keys of 4 elements; 4 experts, of which 2 are used; a vocabulary of 10.
fn decode() -> Vec<Command> {
    let norm = p::Norm {
        dim: 8,
        groups: 1,
        eps: 1e-6,
        x_stride: 8,
        y_stride: 8,
    };
    let layer_norm = p::LayerNorm {
        dim: 8,
        groups: 1,
        eps: 1e-6,
        x_stride: 8,
        y_stride: 8,
    };
    let heads_matmul = p::HeadsMatmul {
        heads: 2,
        n: 3,
        k: 2,
        tail: 1,
        x_head: 4,
        y_head: 4,
        x_stride: 16,
        y_stride: 8,
    };
    let multiply = p::Multiply {
        n: 8,
        x_stride: 8,
        y_stride: 8,
    };
    let cutoff = p::Cutoff {
        n: 8,
        deviations: 0.5,
        y_stride: 8,
    };
    let match_squares = p::MatchSquares {
        dim: 8,
        groups: 2,
        x_stride: 8,
        y_stride: 16,
    };
    let predict = p::AltUpPredict {
        dim: 8,
        streams: 2,
        scale: 0.5,
        x_stride: 4,
        y_stride: 16,
    };
    let correct = p::AltUpCorrect {
        dim: 8,
        streams: 2,
        scale: 0.5,
        now_stride: 8,
        x_stride: 4,
        y_stride: 16,
    };
    let exchange = p::Exchange {
        rank: 0,
        ranks: 2,
        groups: 1,
        per: 2,
        unit: 4,
        vectors: 1,
        part_stride: 8,
        y_stride: 8,
    };
    let position_scale = p::PositionScale {
        n: 8,
        beta: 0.5,
        original: 16,
        y_stride: 16,
        ahead: 1,
    };
    let act = p::Act {
        n: 6,
        act: 5,
        a: 0.5,
        b: 0.25,
        c: 0.5,
        d: -1e-6,
        y_stride: 6,
    };
    let encode_attention = p::EncodeAttention {
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        window: 0,
        qkv_stride: 16,
        y_stride: 8,
        by_axis: 0,
        unseen: 0,
        by_reach: 0,
        places: 0,
        softcap: 0.0,
    };
    let encode_conv = p::EncodeConv {
        n: 8,
        taps: 1,
        before: 0,
        x_stride: 8,
        y_stride: 8,
    };
    // A context of two segments.
    let add_position = p::AddPosition {
        k: 8,
        period: 16,
        offset: 1,
        x_stride: 8,
    };
    let add_feature = p::AddFeature {
        n: 8,
        part: 1,
        x_stride: 8,
    };
    let spread = p::Spread {
        n: 8,
        k: 8,
        x_stride: 8,
        y_stride: 8,
    };
    let matmul = |n, k| {
        p::Matmul {
            n,
            k,
            x_stride: k,
            y_stride: n,
        }
        .words()
    };
    let rope = p::Rope {
        heads: 3,
        head_dim: 4,
        rot: 4,
        interleaved: 1,
        magnitude: 1.0,
        y_stride: 16,
        sections: 0,
    };
    let kv_append = p::KvAppend {
        layer: 0,
        kv_heads: 1,
        head_dim: 4,
        k_stride: 16,
        v_stride: 16,
    };
    let attention = p::Attention {
        layer: 0,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        window: 0,
        softcap: 0.0,
        q_stride: 16,
        y_stride: 8,
        causal: 0,
        chunked: 0,
    };
    let cross_attention = p::CrossAttention {
        layer: 0,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        positions: 4,
        q_stride: 16,
        y_stride: 8,
    };
    let choose_positions = p::ChoosePositions {
        layer: 0,
        heads: 2,
        head_dim: 8,
        used: 3,
        q_stride: 16,
        gates_stride: 8,
        y_stride: 8,
    };
    let sparse_attention = p::SparseAttention {
        layer: 0,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        used: 3,
        q_stride: 16,
        chosen_stride: 8,
        y_stride: 8,
    };
    let matmul_add = p::MatmulAdd {
        n: 8,
        k: 8,
        x_stride: 8,
        y_stride: 8,
    };
    let norm_matmul = p::NormMatmul {
        n: 12,
        k: 8,
        eps: 1e-6,
        x_stride: 8,
        y_stride: 12,
    };
    let act_mul = p::ActMul {
        n: 6,
        act: 3,
        x_stride: 12,
        y_stride: 6,
    };
    let fused = p::NormMatmulActMul {
        n: 6,
        k: 8,
        eps: 1e-6,
        act: 0,
        x_stride: 8,
        y_stride: 6,
    };
    let add = p::Add {
        n: 8,
        x_stride: 8,
        y_stride: 8,
    };
    let scale = p::Scale {
        n: 8,
        scale: 2.0,
        cap: 30.0,
        y_stride: 8,
    };
    let conv = p::ShortConv {
        layer: 0,
        n: 8,
        taps: 3,
        act: 1,
        x_stride: 8,
        y_stride: 8,
    };
    let gate = p::Gate {
        n: 8,
        gates: 4,
        act: 4,
        x_stride: 4,
        y_stride: 8,
    };
    let delta = p::GatedDelta {
        layer: 0,
        key_heads: 1,
        heads: 2,
        key_dim: 2,
        value_dim: 4,
        tiled: 0,
        eps: 1e-6,
        x_stride: 12,
        gates_stride: 4,
        y_stride: 8,
        by_channel: 0,
    };
    let mamba = p::Mamba2 {
        layer: 0,
        groups: 1,
        heads: 2,
        key_dim: 2,
        value_dim: 4,
        x_stride: 12,
        dt_stride: 4,
        y_stride: 8,
        by_channel: 0,
    };
    let route = p::Route {
        experts: 4,
        used: 2,
        renormalise: 1,
        scale: 1.0,
        x_stride: 4,
        y_stride: 4,
        scoring: 1,
        groups: 2,
        used_groups: 1,
        group_top: 2,
        margin: 0.0,
    };
    let experts_up = p::ExpertsActMul {
        n: 6,
        k: 8,
        experts: 4,
        used: 2,
        act: 3,
        x_stride: 8,
        choice_stride: 4,
        y_stride: 12,
    };
    let experts_down = p::ExpertsAdd {
        n: 8,
        k: 6,
        experts: 4,
        used: 2,
        x_stride: 12,
        choice_stride: 4,
        y_stride: 8,
    };
    let rope_append = p::RopeAppend {
        layer: 0,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        rot: 4,
        interleaved: 0,
        magnitude: 1.0,
        eps: 1e-6,
        qkv_stride: 16,
        sections: 0,
    };
    let sample = p::Sample {
        n: 10,
        logits_stride: 10,
    };
    let (x, t, qkv, kv) = (at(X, 0), at(T, 0), at(QKV, 0), at(KV, 0));
    let (h, choice, experts) = (at(H, 0), at(CHOICE, 0), at(EXPERTS, 0));
    vec![
        embed(),
        command(Op::Norm, &[NORM], &[x, t], norm.words()),
        command(Op::Matmul, &[QKV_MATRIX], &[t, qkv], matmul(16, 8)),
        command(
            Op::Bias,
            &[QKV_BIAS],
            &[qkv],
            p::Bias {
                n: 16,
                y_stride: 16,
            }
            .words(),
        ),
        command(Op::LayerNorm, &[NORM, NORM], &[x, x], layer_norm.words()),
        command(Op::Rope, &[FREQS], &[qkv], rope.words()),
        command(Op::PositionScale, &[], &[qkv], position_scale.words()),
        command(
            Op::AddPosition,
            &[POSITIONS, SEGMENTS],
            &[x],
            add_position.words(),
        ),
        command(Op::AddFeature, &[], &[x], add_feature.words()),
        command(Op::Spread, &[PLACES], &[x, at(T, 0)], spread.words()),
        command(
            Op::EncodeAttention,
            &[],
            &[qkv, at(ATTN, 0)],
            encode_attention.words(),
        ),
        command(Op::EncodeConv, &[NORM, NORM], &[x, t], encode_conv.words()),
        command(
            Op::KvAppend,
            &[],
            &[at(QKV, 32), at(QKV, 48), kv],
            kv_append.words(),
        ),
        command(
            Op::HeadsMatmul,
            &[MATRICES],
            &[qkv, at(ATTN, 0)],
            heads_matmul.words(),
        ),
        command(
            Op::Attention,
            &[SINKS],
            &[qkv, kv, at(ATTN, 0)],
            attention.words(),
        ),
        command(
            Op::CrossAttention,
            &[],
            &[qkv, kv, at(ATTN, 0)],
            cross_attention.words(),
        ),
        command(
            Op::ChoosePositions,
            &[],
            &[qkv, kv, x, t],
            choose_positions.words(),
        ),
        command(
            Op::SparseAttention,
            &[],
            &[qkv, kv, t, at(ATTN, 0)],
            sparse_attention.words(),
        ),
        command(Op::MatmulAdd, &[OUT], &[at(ATTN, 0), x], matmul_add.words()),
        command(
            Op::NormMatmul,
            &[GATE_UP_MATRIX, NORM],
            &[x, at(GATE_UP, 0)],
            norm_matmul.words(),
        ),
        command(Op::ActMul, &[], &[at(GATE_UP, 0), h], act_mul.words()),
        command(Op::Act, &[], &[h], act.words()),
        command(
            Op::NormMatmulActMul,
            &[GATE_UP_MATRIX, NORM],
            &[x, h],
            fused.words(),
        ),
        command(Op::Add, &[], &[t, x], add.words()),
        command(Op::Scale, &[], &[x], scale.words()),
        command(
            Op::ShortConv,
            &[KERNEL, NORM],
            &[x, t, at(STATE, 0)],
            conv.words(),
        ),
        command(
            Op::GatedDelta,
            &[DECAY, DECAY],
            &[at(GATE_UP, 0), at(ROUTER, 0), t, at(DELTA, 0)],
            delta.words(),
        ),
        command(
            Op::Mamba2,
            &[DECAY, DECAY, DECAY],
            &[at(GATE_UP, 0), at(ROUTER, 0), t, at(DELTA, 0)],
            mamba.words(),
        ),
        command(Op::Gate, &[], &[at(ROUTER, 0), t], gate.words()),
        command(Op::Multiply, &[NORM], &[x, t], multiply.words()),
        command(Op::Cutoff, &[], &[t], cutoff.words()),
        command(Op::MatchSquares, &[], &[t, qkv], match_squares.words()),
        command(
            Op::AltUpPredict,
            &[NORM],
            &[at(ROUTER, 0), qkv],
            predict.words(),
        ),
        command(
            Op::AltUpCorrect,
            &[HEAD_NORM],
            &[t, at(ROUTER, 0), qkv],
            correct.words(),
        ),
        command(
            Op::Matmul,
            &[ROUTER_MATRIX],
            &[x, at(ROUTER, 0)],
            matmul(4, 8),
        ),
        command(
            Op::Route,
            &[ROUTE_BIAS],
            &[at(ROUTER, 0), choice],
            route.words(),
        ),
        command(
            Op::ExpertsActMul,
            &[EXPERTS_UP, EXPERTS_UP_BIAS],
            &[x, choice, experts],
            experts_up.words(),
        ),
        command(
            Op::ExpertsAdd,
            &[EXPERTS_DOWN, EXPERTS_DOWN_BIAS],
            &[experts, choice, x],
            experts_down.words(),
        ),
        command(
            Op::RopeAppend,
            &[FREQS, HEAD_NORM, HEAD_NORM],
            &[qkv, kv],
            rope_append.words(),
        ),
        command(Op::Exchange, &[], &[x, x], exchange.words()),
        head(X),
        command(
            Op::Sample,
            &[],
            &[at(LOGITS, 0), at(TOKENS, 0)],
            sample.words(),
        ),
    ]
}

/// Decode takes 3 rows, the other passes 3 rows with 2 outputs.
pub(crate) fn every_op() -> Program {
    let select = p::SelectRows {
        n: 8,
        x_stride: 8,
        y_stride: 8,
    };
    let pool = p::Pool {
        n: 8,
        kind: 2,
        normalise: 1,
        x_stride: 8,
        y_stride: 8,
        group: 0,
    };
    let select = command(
        Op::SelectRows,
        &[],
        &[at(X, 0), at(CHOSEN, 0)],
        select.words(),
    );
    let pool = command(Op::Pool, &[], &[at(X, 0), at(CHOSEN, 0)], pool.words());
    let buffer = |(name, class, bytes): (&str, Class, u64)| BufferSpec {
        name: name.into(),
        class,
        bytes,
    };
    let decode_class = Class::ScratchDecode;
    let mut program = Program {
        weights: weights(),
        buffers: [
            ("x", decode_class, 3 * 32),
            ("t", decode_class, 3 * 32),
            ("qkv", decode_class, 3 * 64),
            ("attn", decode_class, 3 * 32),
            ("gate_up", decode_class, 3 * 48),
            ("h", decode_class, 3 * 24),
            ("router", decode_class, 3 * 16),
            ("choice", decode_class, 3 * 16),
            ("experts", decode_class, 3 * 48),
            ("logits", decode_class, 3 * 40),
            ("chosen", Class::ScratchPrompt, 2 * 32),
            ("tokens", Class::Tables, 3 * 4),
            // Keys and values of 4 pages of 16 positions, 4 halves each.
            ("kv", Class::Cache, 2 * 4 * 16 * 8),
            // 2 pages of two inputs of 8 floats.
            ("state", Class::Cache, 2 * 2 * 32),
            // 2 pages of two heads of 2 x 4 floats.
            ("delta", Class::Cache, 2 * 2 * 32),
            // A feature of two parts.
            ("features", Class::ScratchPrompt, 2 * 32),
        ]
        .map(buffer)
        .into(),
        caches: vec![
            CacheSpec {
                name: "kv".into(),
                buffer: KV,
                pages: 4,
                kind: CacheKind::Attention {
                    format: Format::F16,
                    layers: 1,
                    kv_heads: 1,
                    head_dim: 4,
                    window: 0,
                },
            },
            CacheSpec {
                name: "state".into(),
                buffer: STATE,
                pages: 2,
                kind: CacheKind::Recurrent {
                    layers: 1,
                    floats: 16,
                },
            },
            CacheSpec {
                name: "delta".into(),
                buffer: DELTA,
                pages: 2,
                kind: CacheKind::Recurrent {
                    layers: 1,
                    floats: 16,
                },
            },
        ],
        vocab: 10,
        context: 32,
        page: 16,
        slots: 2,
        tokens: TOKENS,
        features: FEATURES,
        adapters: None,
        block: None,
        passes: vec![
            pass(PassKind::Decode, 3, 3, 10, decode()),
            pass(
                PassKind::Prompt,
                3,
                2,
                10,
                vec![embed(), select, head(CHOSEN)],
            ),
            pass(PassKind::Embed, 3, 2, 8, vec![embed(), pool]),
        ],
    };
    cost::fill(&mut program);
    program
}
