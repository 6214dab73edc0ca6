//! `verify` at its limits: the last value that is accepted, the first that is refused, and what the error says.

mod common;

use common::{ATTN, CHOICE, FEATURES, KV, MATRICES, QKV, STATE, T, X, at, every_op};
use welte_table::{
    Block, BufferRef, CacheKind, Class, Command, Format, NO_WEIGHT, Op, Part, PassKind, Program,
    Source, Usage, cost, verify,
};

/// A change to the program.
type Change = fn(&mut Program);

/// The first command with an op.
fn command(p: &mut Program, op: Op) -> &mut Command {
    let mut commands = p.passes.iter_mut().flat_map(|pass| &mut pass.commands);
    commands.find(|c| c.op == op).unwrap()
}

/// Sets a parameter by name.
fn set(p: &mut Program, op: Op, name: &str, value: u32) {
    let c = command(p, op);
    let names = op.show_params(&c.params);
    let at = names.iter().position(|(n, _)| *n == name).unwrap();
    c.params[at] = value;
}

/// The program after a change, with its cost counted again.
fn changed(change: Change) -> Program {
    let mut p = every_op();
    change(&mut p);
    cost::fill(&mut p);
    p
}

fn accepted(changes: &[(&str, Change)]) {
    for (what, change) in changes {
        assert_eq!(verify(&changed(*change)), Ok(()), "{what}");
    }
}

/// Each change must be refused with an error that contains these words.
fn refused(changes: &[(&str, Change)]) {
    for (words, change) in changes {
        let error = verify(&changed(*change)).expect_err(words);
        assert!(error.contains(words), "{error:?} does not say {words:?}");
    }
}

/// Blocks need a draft pass with a row for each of their tokens.
#[test]
fn a_block_is_that_of_a_draft_pass() {
    let mut program = every_op();
    program.block = Some(Block { size: 5, mask: 0 });
    let why = verify(&program).unwrap_err();
    assert!(why.contains("blocks of 5 rows"), "{why}");
}

#[test]
fn every_op_is_accepted_and_every_buffer_is_needed_to_its_last_byte() {
    let program = every_op();
    assert_eq!(verify(&program), Ok(()));
    let mut ops: Vec<Op> = program
        .passes
        .iter()
        .flat_map(|p| &p.commands)
        .map(|c| c.op)
        .collect();
    ops.sort();
    ops.dedup();
    let others = Op::ALL.iter().filter(|op| !op.is_low_rank());
    assert_eq!(ops, others.copied().collect::<Vec<_>>());
    for i in 0..program.buffers.len() {
        let mut p = program.clone();
        p.buffers[i].bytes -= 1;
        let error = verify(&p).unwrap_err();
        let name = &p.buffers[i].name;
        let words = match p.buffers[i].class {
            Class::Cache => format!("cache '{name}': its buffer has"),
            Class::Tables => "the tokens buffer must be of class tables and hold 3".to_string(),
            _ if i == FEATURES as usize => "must hold whole features".to_string(),
            _ => format!("of '{name}', which has {}", p.buffers[i].bytes),
        };
        // The logits are checked as the result of the pass first.
        let result = format!("its result ends at {} of", p.buffers[i].bytes + 1);
        assert!(error.contains(&words) || error.contains(&result), "{error}");
    }
}

#[test]
fn costs_are_checked() {
    for damage in [
        |c: &mut Command| c.bytes += 1,
        |c: &mut Command| c.flops += 1,
    ] {
        let mut p = every_op();
        damage(command(&mut p, Op::Matmul));
        let error = verify(&p).unwrap_err();
        assert!(
            error.starts_with("decode, command 2 (matmul): its cost is"),
            "{error}"
        );
    }
}

#[test]
fn parameters_at_their_limits() {
    accepted(&[
        ("the last activation", |p| set(p, Op::ActMul, "act", 3)),
        ("the first activation", |p| set(p, Op::ActMul, "act", 0)),
        ("all experts", |p| {
            command(p, Op::Route).weights[0] = NO_WEIGHT;
            set(p, Op::Route, "experts", 2);
            set(p, Op::Route, "groups", 1);
            set(p, Op::Route, "group_top", 1);
        }),
        ("one group", |p| {
            set(p, Op::Route, "groups", 1);
            set(p, Op::Route, "group_top", 1);
        }),
        ("a group rated by its best expert", |p| {
            set(p, Op::Route, "group_top", 1)
        }),
        ("no renormalisation", |p| {
            set(p, Op::Route, "renormalise", 0)
        }),
        ("two rotated elements", |p| {
            set(p, Op::Rope, "rot", 2);
            set(p, Op::RopeAppend, "rot", 2);
            p.weights[4].k = 1;
            p.weights[4].source = Source::Constant(vec![1.0]);
        }),
        ("sections of two pairs", |p| {
            set(p, Op::Rope, "sections", 0x01_01);
            set(p, Op::RopeAppend, "sections", 0x01_01_01_00);
        }),
        ("the first kind of pooling", |p| set(p, Op::Pool, "kind", 0)),
        ("a pool of any length", |p| set(p, Op::Pool, "normalise", 0)),
        ("no activation of a convolution", |p| {
            set(p, Op::ShortConv, "act", 0)
        }),
        ("the shortest convolution", |p| {
            set(p, Op::ShortConv, "taps", 2);
            p.weights[8].k = 16;
            p.caches[1].kind = CacheKind::Recurrent {
                layers: 1,
                floats: 8,
            };
            p.buffers[STATE as usize].bytes = 2 * 32;
        }),
        ("a gate for each value, or one for all", |p| {
            set(p, Op::Gate, "gates", 1);
            set(p, Op::Gate, "act", 5);
        }),
        ("heads of values in turn", |p| {
            set(p, Op::GatedDelta, "tiled", 1)
        }),
        ("no optional weights", |p| {
            command(p, Op::Attention).weights[0] = NO_WEIGHT;
            command(p, Op::Route).weights[0] = NO_WEIGHT;
            command(p, Op::ShortConv).weights[1] = NO_WEIGHT;
            command(p, Op::ExpertsActMul).weights[1] = NO_WEIGHT;
            command(p, Op::ExpertsAdd).weights[1] = NO_WEIGHT;
            command(p, Op::RopeAppend).weights[1..].fill(NO_WEIGHT);
            command(p, Op::LayerNorm).weights[1] = NO_WEIGHT;
        }),
        ("a norm in place", |p| {
            let c = command(p, Op::Norm);
            c.buffers[1] = c.buffers[0];
        }),
        ("the widest window that the cache keeps", |p| {
            set(p, Op::Attention, "window", 8);
            window(p, 8);
        }),
        ("the narrowest window", |p| {
            set(p, Op::Attention, "window", 1);
            window(p, 8);
        }),
        ("a window in a cache that keeps everything", |p| {
            set(p, Op::Attention, "window", 8)
        }),
        ("a table that is only looked up", |p| {
            let mut head = p.weights[0].clone();
            head.usage = Usage::Matrix;
            p.weights[0].usage = Usage::Lookup;
            p.weights.push(head);
            for pass in &mut p.passes {
                let heads = pass.commands.iter_mut().filter(|c| c.op == Op::NormMatmul);
                heads
                    .filter(|c| c.weights[0] == 0)
                    .for_each(|c| c.weights[0] = 21);
            }
        }),
        ("one row whose stride is too small", |p| {
            for pass in &mut p.passes {
                (pass.rows, pass.outputs) = (1, 1);
            }
            set(p, Op::Add, "x_stride", 1);
        }),
        ("rows of zero elements apart, if there is one", |p| {
            for pass in &mut p.passes {
                (pass.rows, pass.outputs) = (1, 1);
            }
            set(p, Op::Add, "x_stride", 0);
        }),
    ]);
    refused(&[
        ("activation 4 is unknown", |p| set(p, Op::ActMul, "act", 4)),
        ("activation 4 is unknown", |p| {
            set(p, Op::NormMatmulActMul, "act", 4)
        }),
        ("activation 7 is unknown", |p| {
            set(p, Op::ExpertsActMul, "act", 7)
        }),
        // Without a gate the matrix has half as many rows.
        ("the command wants", |p| set(p, Op::ExpertsActMul, "act", 4)),
        ("activation 2 is unknown", |p| {
            set(p, Op::ShortConv, "act", 2)
        }),
        ("activation 3 does not gate", |p| set(p, Op::Gate, "act", 3)),
        ("activation 7 does not gate", |p| set(p, Op::Gate, "act", 7)),
        ("3 gates for 8 values", |p| set(p, Op::Gate, "gates", 3)),
        ("0 gates for 8 values", |p| set(p, Op::Gate, "gates", 0)),
        ("tiled is 2", |p| set(p, Op::GatedDelta, "tiled", 2)),
        ("by_channel is 2", |p| {
            set(p, Op::GatedDelta, "by_channel", 2)
        }),
        // A bias for each element of the key.
        ("the command wants", |p| {
            set(p, Op::GatedDelta, "by_channel", 1)
        }),
        ("an empty head", |p| set(p, Op::GatedDelta, "value_dim", 0)),
        ("2 value heads over 3 key heads", |p| {
            set(p, Op::GatedDelta, "key_heads", 3)
        }),
        ("2 value heads over 0 key heads", |p| {
            set(p, Op::GatedDelta, "key_heads", 0)
        }),
        ("by_channel is 2", |p| set(p, Op::Mamba2, "by_channel", 2)),
        // A decay for each element of the state.
        ("the command wants", |p| set(p, Op::Mamba2, "by_channel", 1)),
        ("2 heads in 3 groups", |p| set(p, Op::Mamba2, "groups", 3)),
        ("an empty head", |p| set(p, Op::Mamba2, "key_dim", 0)),
        ("5 of 4 experts", |p| set(p, Op::Route, "used", 5)),
        ("rank 0 of 0", |p| set(p, Op::Exchange, "ranks", 0)),
        ("rank 0 of 1", |p| set(p, Op::Exchange, "ranks", 1)),
        ("65 ranks; there may be 64", |p| {
            set(p, Op::Exchange, "ranks", 65)
        }),
        ("nothing or too much is exchanged", |p| {
            set(p, Op::Exchange, "vectors", 0)
        }),
        // The part of rank 1 is not where the part of rank 0 is.
        ("'part' and 'y' are in the same buffer", |p| {
            set(p, Op::Exchange, "rank", 1)
        }),
        ("9 streams; there may be 8", |p| {
            set(p, Op::AltUpPredict, "streams", 9)
        }),
        ("0 streams", |p| set(p, Op::AltUpCorrect, "streams", 0)),
        ("no values", |p| set(p, Op::Cutoff, "n", 0)),
        ("no values", |p| set(p, Op::MatchSquares, "groups", 0)),
        ("scoring 3 is unknown", |p| set(p, Op::Route, "scoring", 3)),
        ("scoring 2 with a bias, groups", |p| {
            set(p, Op::Route, "scoring", 2)
        }),
        ("one group, of which one is used", |p| {
            set(p, Op::Route, "groups", 1)
        }),
        ("1 of 3 groups of 4 experts", |p| {
            set(p, Op::Route, "groups", 3)
        }),
        ("3 of 2 groups of 4 experts", |p| {
            set(p, Op::Route, "used_groups", 3)
        }),
        ("0 of 2 groups of 4 experts", |p| {
            set(p, Op::Route, "used_groups", 0)
        }),
        ("1 of 0 groups of 4 experts", |p| {
            set(p, Op::Route, "groups", 0)
        }),
        ("groups of 2 rated by 3 experts", |p| {
            set(p, Op::Route, "group_top", 3)
        }),
        ("groups of 2 rated by 0 experts", |p| {
            set(p, Op::Route, "group_top", 0)
        }),
        ("3 experts of 1 groups of 2", |p| {
            set(p, Op::Route, "used", 3)
        }),
        ("0 of 4 experts", |p| set(p, Op::Route, "used", 0)),
        ("0 of 4 experts", |p| set(p, Op::ExpertsActMul, "used", 0)),
        ("0 of 4 experts", |p| set(p, Op::ExpertsAdd, "used", 0)),
        ("renormalise is 2", |p| set(p, Op::Route, "renormalise", 2)),
        ("activation 3 needs a gate", |p| set(p, Op::Act, "act", 3)),
        ("activation 8 needs a gate or is unknown", |p| {
            set(p, Op::Act, "act", 8)
        }),
        ("limits of 0 to -1", |p| {
            set(p, Op::Act, "act", 7);
            set(p, Op::Act, "a", 0);
            set(p, Op::Act, "b", (-1f32).to_bits());
        }),
        ("its activation has no constants", |p| {
            set(p, Op::Act, "act", 1)
        }),
        ("2 heads over 0", |p| {
            set(p, Op::EncodeAttention, "kv_heads", 0)
        }),
        ("rows that none sees within a window", |p| {
            set(p, Op::EncodeAttention, "window", 3);
            set(p, Op::EncodeAttention, "unseen", 1);
        }),
        ("places within a window", |p| {
            set(p, Op::EncodeAttention, "places", 1);
            set(p, Op::EncodeAttention, "window", 1);
            set(p, Op::EncodeAttention, "qkv_stride", 20);
        }),
        ("slopes beside places", |p| {
            set(p, Op::EncodeAttention, "places", 1);
            set(p, Op::EncodeAttention, "qkv_stride", 20);
            command(p, Op::EncodeAttention).weights[1] = 0;
        }),
        ("by_reach is 2", |p| {
            set(p, Op::EncodeAttention, "by_reach", 2)
        }),
        ("softcap is -1", |p| {
            set(p, Op::EncodeAttention, "softcap", (-1f32).to_bits())
        }),
        ("1 of 1 taps before a row", |p| {
            set(p, Op::EncodeConv, "before", 1)
        }),
        ("absent rows without places", |p| {
            command(p, Op::EncodeAttention).weights[0] = 0
        }),
        ("causal is 2", |p| set(p, Op::Attention, "causal", 2)),
        ("chunked is 1", |p| set(p, Op::Attention, "chunked", 1)),
        ("the context is", |p| {
            // One segment.
            command(p, Op::AddPosition).weights[1] = NO_WEIGHT;
        }),
        ("heads of 2 and 3 values and a tail of 1 overlap", |p| {
            set(p, Op::HeadsMatmul, "x_head", 2)
        }),
        ("heads of 2 and 3 values and a tail of 1 overlap", |p| {
            set(p, Op::HeadsMatmul, "y_head", 3)
        }),
        ("no original length", |p| {
            set(p, Op::PositionScale, "original", 0)
        }),
        ("pooling 3 is unknown", |p| set(p, Op::Pool, "kind", 3)),
        ("normalise is 2", |p| set(p, Op::Pool, "normalise", 2)),
        ("1 taps; at least 2", |p| set(p, Op::ShortConv, "taps", 1)),
        ("cannot rotate 0 of 4", |p| set(p, Op::Rope, "rot", 0)),
        ("cannot rotate 3 of 4", |p| set(p, Op::Rope, "rot", 3)),
        ("cannot rotate 6 of 4", |p| set(p, Op::RopeAppend, "rot", 6)),
        ("interleaved is 2", |p| set(p, Op::Rope, "interleaved", 2)),
        ("sections [1, 0, 0] of 2 pairs", |p| {
            set(p, Op::Rope, "sections", 1)
        }),
        ("sections [1, 1, 1] of 2 pairs", |p| {
            set(p, Op::RopeAppend, "sections", 0x01_01_01)
        }),
        ("the buffer of features does not exist", |p| {
            p.features = p.buffers.len() as u32
        }),
        ("the buffer of features must hold whole features", |p| {
            p.features = p.tokens
        }),
        ("7 values; an embedding has 8", |p| {
            set(p, Op::AddFeature, "n", 7)
        }),
        ("part 0 of a feature", |p| set(p, Op::AddFeature, "part", 0)),
        ("no features", |p| p.features = welte_table::NO_BUFFER),
        ("an empty norm", |p| set(p, Op::Norm, "groups", 0)),
        ("an empty norm", |p| set(p, Op::LayerNorm, "groups", 0)),
        ("layer 1 of 1", |p| set(p, Op::Attention, "layer", 1)),
        ("layer 1 of 1", |p| set(p, Op::KvAppend, "layer", 1)),
        ("layer 1 of 1", |p| set(p, Op::RopeAppend, "layer", 1)),
        ("layer 1 of 1", |p| set(p, Op::ShortConv, "layer", 1)),
        ("layer 1 of 1", |p| set(p, Op::GatedDelta, "layer", 1)),
        ("layer 1 of 1", |p| set(p, Op::Mamba2, "layer", 1)),
        ("a state of 8 floats, the cache has 16", |p| {
            set(p, Op::GatedDelta, "key_dim", 1)
        }),
        ("a state of 8 floats, the cache has 16", |p| {
            set(p, Op::ShortConv, "taps", 2);
            p.weights[8].k = 16;
        }),
        ("2 heads of 4, the cache has 1 of 4", |p| {
            set(p, Op::Attention, "kv_heads", 2)
        }),
        ("1 heads of 2, the cache has 1 of 4", |p| {
            set(p, Op::Attention, "head_dim", 2);
            set(p, Op::Attention, "heads", 2);
        }),
        ("3 heads over 2", |p| {
            attention(p, Format::F16, 1, 2, 4);
            p.buffers[KV as usize].bytes *= 2;
            command(p, Op::KvAppend).buffers[..2].copy_from_slice(&[at(QKV, 0), at(QKV, 32)]);
            set(p, Op::KvAppend, "kv_heads", 2);
            command(p, Op::Attention).weights[0] = NO_WEIGHT;
            set(p, Op::Attention, "heads", 3);
            set(p, Op::Attention, "kv_heads", 2);
        }),
        ("a window of 9, the cache keeps 8", |p| {
            set(p, Op::Attention, "window", 9);
            window(p, 8);
        }),
        ("a window of 0, the cache keeps 8", |p| window(p, 8)),
        ("0 positions, the context is 32", |p| {
            set(p, Op::CrossAttention, "positions", 0)
        }),
        ("33 positions, the context is 32", |p| {
            set(p, Op::CrossAttention, "positions", 33)
        }),
        ("2 heads of 7", |p| {
            set(p, Op::ChoosePositions, "head_dim", 7)
        }),
        ("1 heads of 2, the cache has 1 of 4", |p| {
            set(p, Op::ChoosePositions, "head_dim", 4)
        }),
        ("no positions", |p| set(p, Op::ChoosePositions, "used", 0)),
        ("no positions", |p| set(p, Op::SparseAttention, "used", 0)),
        ("9 tokens, the vocabulary has 10", |p| {
            set(p, Op::Embed, "n", 9);
            p.weights[0].n = 9;
            let Source::Parts(parts) = &mut p.weights[0].source else {
                return;
            };
            parts[0].rows = 9;
        }),
        ("9 logits, the vocabulary has 10", |p| {
            set(p, Op::Sample, "n", 9)
        }),
        ("unused parameter words are not zero", |p| {
            command(p, Op::Add).params[3] = 1
        }),
    ]);
    for (op, name) in [
        (Op::Embed, "scale"),
        (Op::Norm, "eps"),
        (Op::LayerNorm, "eps"),
        (Op::PositionScale, "beta"),
        (Op::CrossAttention, "scale"),
        (Op::SparseAttention, "scale"),
        (Op::EncodeAttention, "scale"),
        (Op::EncodeAttention, "softcap"),
        (Op::Act, "a"),
        (Op::Act, "d"),
        (Op::NormMatmul, "eps"),
        (Op::NormMatmulActMul, "eps"),
        (Op::Route, "scale"),
        (Op::Scale, "scale"),
        (Op::Scale, "cap"),
        (Op::Rope, "magnitude"),
        (Op::RopeAppend, "magnitude"),
        (Op::RopeAppend, "eps"),
        (Op::Attention, "scale"),
        (Op::Attention, "softcap"),
    ] {
        let mut p = every_op();
        set(&mut p, op, name, f32::INFINITY.to_bits());
        let error = verify(&p).unwrap_err();
        assert!(
            error.contains("a parameter is not finite"),
            "{op:?} {name}: {error}"
        );
    }
}

fn window(p: &mut Program, size: u32) {
    // Some ops need a cache without a window.
    let needs = [Op::CrossAttention, Op::ChoosePositions, Op::SparseAttention];
    for pass in &mut p.passes {
        while let Some(at) = pass.commands.iter().position(|c| needs.contains(&c.op)) {
            pass.commands.remove(at);
            pass.labels.remove(at);
        }
    }
    let CacheKind::Attention { window, .. } = &mut p.caches[0].kind else {
        panic!("the first cache holds keys and values")
    };
    *window = size;
}

#[test]
fn shapes_of_weights_are_those_of_the_command() {
    // Every parameter that is a size of a weight.
    for (op, name) in [
        (Op::Embed, "n"),
        (Op::Embed, "k"),
        (Op::Norm, "dim"),
        (Op::LayerNorm, "dim"),
        (Op::AddPosition, "k"),
        (Op::AddPosition, "period"),
        (Op::AddPosition, "offset"),
        (Op::Matmul, "n"),
        (Op::Matmul, "k"),
        (Op::Bias, "n"),
        (Op::MatmulAdd, "n"),
        (Op::MatmulAdd, "k"),
        (Op::NormMatmul, "n"),
        (Op::NormMatmul, "k"),
        (Op::NormMatmulActMul, "n"),
        (Op::NormMatmulActMul, "k"),
        (Op::ExpertsActMul, "n"),
        (Op::ExpertsActMul, "k"),
        (Op::ExpertsActMul, "experts"),
        (Op::ExpertsAdd, "n"),
        (Op::ExpertsAdd, "k"),
        (Op::ExpertsAdd, "experts"),
        (Op::ShortConv, "n"),
        (Op::EncodeConv, "n"),
        (Op::Route, "experts"),
        (Op::HeadsMatmul, "heads"),
        (Op::HeadsMatmul, "n"),
        (Op::HeadsMatmul, "k"),
        (Op::GatedDelta, "heads"),
    ] {
        let mut p = every_op();
        let words = command(&mut p, op).params;
        let shown = op.show_params(&words);
        let at = shown.iter().position(|(n, _)| *n == name).unwrap();
        set(&mut p, op, name, words[at] - 1);
        let error = verify(&p).unwrap_err();
        assert!(
            error.contains(", the command wants "),
            "{op:?} {name}: {error}"
        );
        // A size beyond 32 bits is an error too, not a wrap.
        set(&mut p, op, name, 1 << 31);
        assert!(verify(&p).is_err(), "{op:?} {name}");
    }
    refused(&[
        ("weight 'sinks' is 1 x 3, the command wants 1 x 2", |p| {
            p.weights[5].k = 3
        }),
        (
            "weight 'head norm' is 1 x 3, the command wants 1 x 4",
            |p| p.weights[14].k = 3,
        ),
        ("weight 'freqs' is 1 x 3, the command wants 1 x 2", |p| {
            p.weights[4].k = 3;
            p.weights[4].source = Source::Constant(vec![1.0; 3]);
        }),
        ("weight 'experts' gate and up bias' is 1 x 47", |p| {
            p.weights[11].k = 47
        }),
        ("weight 'experts' down bias' is 1 x 31", |p| {
            p.weights[13].k = 31
        }),
        ("its table is not a lookup", |p| {
            p.weights[0].usage = Usage::Matrix
        }),
        ("weight 'qkv' is not a matrix", |p| {
            p.weights[2].usage = Usage::Lookup
        }),
        ("weight 'norm' is not a vector", |p| {
            p.weights[1].usage = Usage::Matrix
        }),
    ]);
}

#[test]
fn weights_are_sound() {
    accepted(&[("a matrix in two parts", |p| {
        let part = |first_row, rows| Part {
            tensor: "a".into(),
            first_row,
            rows,
        };
        p.weights[2].source = Source::Parts(vec![part(0, 4), part(0, 12)]);
        // Parts of a vector have lengths of their own.
        p.weights[1].source = Source::Parts(vec![part(0, 1), part(0, 1)]);
        p.weights[MATRICES as usize].source = Source::Transposed(vec![part(0, 2), part(4, 2)]);
    })]);
    fn transposed(p: &mut Program, rows: &[u32]) {
        let parts = rows.iter().map(|rows| Part {
            tensor: "a".into(),
            first_row: 0,
            rows: *rows,
        });
        p.weights[MATRICES as usize].source = Source::Transposed(parts.collect());
    }
    refused(&[
        ("weight 'qkv': 0 x 8 is empty", |p| p.weights[2].n = 0),
        ("weight 'qkv': 16 x 0 is empty", |p| p.weights[2].k = 0),
        ("rows of 8 are not a whole number of Q8_0 blocks", |p| {
            p.weights[2].format = Format::Q8_0
        }),
        ("a vector is one row of F32", |p| {
            p.weights[1].format = Format::F16
        }),
        ("a vector is one row of F32", |p| p.weights[1].n = 2),
        ("what is added is not finite", |p| {
            p.weights[1].add = f32::NAN
        }),
        ("an empty part", |p| {
            p.weights[2].source = Source::Parts(Vec::new())
        }),
        ("an empty part", |p| {
            let Source::Parts(parts) = &mut p.weights[2].source else {
                return;
            };
            let empty = Part {
                rows: 0,
                ..parts[0].clone()
            };
            parts.push(empty);
        }),
        ("its parts have 15 rows, it has 16", |p| {
            let Source::Parts(parts) = &mut p.weights[2].source else {
                return;
            };
            parts[0].rows = 15;
        }),
        ("its 4 parts do not make 6 rows of 2", |p| {
            transposed(p, &[2; 4])
        }),
        ("its 2 parts do not make 6 rows of 2", |p| {
            transposed(p, &[2, 3])
        }),
        ("its 0 parts do not make 6 rows of 2", |p| {
            transposed(p, &[])
        }),
        ("what is transposed is not a matrix of floats", |p| {
            transposed(p, &[2; 3]);
            p.weights[MATRICES as usize].usage = Usage::Lookup;
        }),
        ("1 values for 1 x 2", |p| {
            p.weights[4].source = Source::Constant(vec![1.0])
        }),
        ("constants are finite F32", |p| {
            p.weights[4].source = Source::Constant(vec![1.0, f32::INFINITY])
        }),
        ("constants are finite F32", |p| {
            p.weights[2].format = Format::F16;
            p.weights[2].source = Source::Constant(vec![1.0; 128]);
        }),
    ]);
}

#[test]
fn operands_are_in_their_places() {
    refused(&[
        ("weight 'matrix' (21) does not exist", |p| {
            command(p, Op::Matmul).weights[0] = 21
        }),
        ("it has no weight 1", |p| {
            command(p, Op::Matmul).weights[1] = 0
        }),
        ("weight 'freqs' (4294967295) does not exist", |p| {
            command(p, Op::RopeAppend).weights[0] = NO_WEIGHT
        }),
        ("its format is F16, its weight's F32", |p| {
            command(p, Op::Matmul).format = Format::F16
        }),
        ("a buffer too many", |p| {
            command(p, Op::Matmul).buffers[2] = at(T, 0)
        }),
        ("'x' has no buffer", |p| {
            command(p, Op::Matmul).buffers[0] = BufferRef::NONE
        }),
        ("'x' has no buffer", |p| {
            command(p, Op::Matmul).buffers[0].buffer = 16
        }),
        ("'y' cannot be in 'kv'", |p| {
            command(p, Op::Matmul).buffers[1].buffer = KV
        }),
        ("'y' cannot be in 'tokens'", |p| {
            command(p, Op::Matmul).buffers[1].buffer = p_tokens()
        }),
        ("'kv' cannot be in 'x'", |p| {
            command(p, Op::Attention).buffers[1] = at(X, 0)
        }),
        ("'tokens' cannot be in 'x'", |p| {
            command(p, Op::Embed).buffers[0] = at(X, 0)
        }),
        ("'x' and 'y' are in the same buffer", |p| {
            command(p, Op::MatmulAdd).buffers[0] = at(X, 0)
        }),
        // A norm in place must cover what it reads.
        ("'x' and 'y' are in the same buffer", |p| {
            let c = command(p, Op::Norm);
            c.buffers[1] = at(X, 4);
        }),
        ("'q' and 'y' are in the same buffer", |p| {
            command(p, Op::Attention).buffers[2] = at(QKV, 0)
        }),
        ("its keys and values are not in an attention cache", |p| {
            command(p, Op::Attention).buffers[1] = at(STATE, 0)
        }),
        ("its state is not in a recurrent cache", |p| {
            command(p, Op::ShortConv).buffers[2] = at(KV, 0)
        }),
        ("its state is not in a recurrent cache", |p| {
            command(p, Op::GatedDelta).buffers[3] = at(KV, 0)
        }),
        ("'kv' starts at 4", |p| {
            command(p, Op::Attention).buffers[1].offset = 4
        }),
        ("'tokens' starts at 4", |p| {
            command(p, Op::Embed).buffers[0].offset = 4
        }),
        ("'q': offset 2 is not a multiple of 4", |p| {
            command(p, Op::Attention).buffers[0].offset = 2
        }),
        ("'k' ends at byte 208 of 'qkv', which has 192", |p| {
            command(p, Op::KvAppend).buffers[0].offset = 64
        }),
        ("'k': rows of 4 do not fit a stride of 16", |p| {
            command(p, Op::KvAppend).buffers[0].offset = 52
        }),
        ("'x': rows of 8 do not fit a stride of 7", |p| {
            set(p, Op::MatmulAdd, "x_stride", 7)
        }),
        ("'y' ends at byte", |p| {
            command(p, Op::Attention).buffers[2].offset = u32::MAX - 31
        }),
    ]);
    accepted(&[
        ("rows further apart than they are wide", |p| {
            p.buffers[ATTN as usize].bytes = 4 * (2 * 9 + 8);
            set(p, Op::Attention, "y_stride", 9);
            set(p, Op::MatmulAdd, "x_stride", 9);
        }),
        ("an offset of whole rows", |p| {
            p.buffers[CHOICE as usize].bytes += 16;
            for op in [Op::Route, Op::ExpertsActMul, Op::ExpertsAdd] {
                command(p, op).buffers[1].offset = 16;
            }
        }),
    ]);
}

fn p_tokens() -> u32 {
    common::TOKENS
}

#[test]
fn passes_take_and_yield_what_their_kind_says() {
    refused(&[
        ("decode: labels and commands differ in number", |p| {
            drop(p.passes[0].labels.pop())
        }),
        ("decode: no vocabulary", |p| p.vocab = 0),
        ("prompt: no rows", |p| {
            (p.passes[1].rows, p.passes[1].outputs) = (0, 0)
        }),
        ("prompt: 0 sample, 1 select_rows and 0 pool commands", |p| {
            p.passes[1].outputs = 0
        }),
        ("prompt: 4 outputs of 3 rows", |p| p.passes[1].outputs = 4),
        ("decode: 2 outputs of 3 rows", |p| p.passes[0].outputs = 2),
        ("prompt: 9 logits, the vocabulary has 10", |p| {
            p.passes[1].width = 9
        }),
        ("prompt: 0 sample, 0 select_rows and 0 pool commands", |p| {
            p.passes[1].commands.remove(1);
            p.passes[1].labels.remove(1);
        }),
        ("embed: 0 sample, 0 select_rows and 2 pool commands", |p| {
            let pool = p.passes[2].commands[1];
            p.passes[2].commands.push(pool);
            p.passes[2].labels.push(String::new());
        }),
        ("decode must end in sample", |p| {
            let last = p.passes[0].commands.len() - 1;
            p.passes[0].commands.swap(last - 1, last)
        }),
        ("prompt: embed on output rows", |p| {
            let embed = p.passes[1].commands[0];
            p.passes[1].commands.push(embed);
            p.passes[1].labels.push(String::new());
        }),
        ("prompt: its result has no buffer", |p| {
            p.passes[1].result.buffer = 16
        }),
        (
            "prompt: its result is not what its last command writes",
            |p| p.passes[1].result = at(X, 0),
        ),
        // The last command reads its input there.
        (
            "prompt: its result is not what its last command writes",
            |p| p.passes[1].result = at(common::CHOSEN, 0),
        ),
        ("embed: its result ends at 72 of 64 bytes", |p| {
            p.passes[2].width = 9
        }),
        ("embed: its result ends at 0 of 64 bytes", |p| {
            p.passes[2].width = 0
        }),
        ("the first pass must be decode", |p| p.passes.swap(0, 1)),
        ("the first pass must be decode", |p| p.passes.clear()),
        ("the first pass must be decode", |p| {
            p.passes.truncate(2);
            p.passes.remove(0);
        }),
        ("2 prompt passes", |p| {
            let prompt = p.passes[1].clone();
            p.passes.push(prompt);
        }),
        ("the tokens buffer does not exist", |p| p.tokens = 16),
        ("the tokens buffer must be of class tables", |p| {
            p.buffers[common::TOKENS as usize].class = Class::ScratchDecode
        }),
    ]);
    accepted(&[("passes with as many outputs as rows", |p| {
        (p.passes[1].outputs, p.passes[2].outputs) = (3, 3);
        p.buffers[common::CHOSEN as usize].bytes = 3 * 32;
    })]);
    let program = every_op();
    assert_eq!(program.pass(PassKind::Embed), Some(2));
}

#[test]
fn caches_are_sound() {
    refused(&[
        ("no page size, no context or no slots", |p| p.page = 0),
        ("no page size, no context or no slots", |p| p.context = 0),
        ("no page size, no context or no slots", |p| p.slots = 0),
        ("cache 'kv': no pages", |p| p.caches[0].pages = 0),
        ("cache 'kv': no layers or no heads", |p| {
            attention(p, Format::F16, 0, 1, 4)
        }),
        ("cache 'kv': no layers or no heads", |p| {
            attention(p, Format::F16, 1, 0, 4)
        }),
        ("cache 'kv': no layers or no heads", |p| {
            attention(p, Format::F16, 1, 1, 0)
        }),
        ("cache 'kv': no format F32", |p| {
            attention(p, Format::F32, 1, 1, 4)
        }),
        ("cache 'kv': heads of 4 cannot be stored as Q8_0", |p| {
            attention(p, Format::Q8_0, 1, 1, 4)
        }),
        ("cache 'state': no layers or no state", |p| {
            p.caches[1].kind = CacheKind::Recurrent {
                layers: 0,
                floats: 16,
            }
        }),
        ("cache 'state': no layers or no state", |p| {
            p.caches[1].kind = CacheKind::Recurrent {
                layers: 1,
                floats: 0,
            }
        }),
        ("cache 'state': it is too large", |p| {
            p.caches[1].kind = CacheKind::Recurrent {
                layers: u32::MAX,
                floats: u32::MAX,
            }
        }),
        ("cache 'kv': it has no buffer", |p| p.caches[0].buffer = 16),
        ("its buffer 'x' is not of class cache", |p| {
            p.caches[0].buffer = X
        }),
        ("cache 'again': another cache has its buffer", |p| {
            let mut again = p.caches[0].clone();
            again.name = "again".into();
            p.caches.push(again);
        }),
        ("a buffer of class cache belongs to no cache", |p| {
            let spare = p.buffers[KV as usize].clone();
            p.buffers.push(spare);
        }),
    ]);
}

fn attention(p: &mut Program, format: Format, layers: u32, kv_heads: u32, head_dim: u32) {
    p.caches[0].kind = CacheKind::Attention {
        format,
        layers,
        kv_heads,
        head_dim,
        window: 0,
    };
}

#[test]
fn an_encoder_has_an_embed_pass_only() {
    let mut program = every_op();
    program.passes.retain(|pass| pass.kind == PassKind::Embed);
    assert_eq!(verify(&program), Ok(()));
}
