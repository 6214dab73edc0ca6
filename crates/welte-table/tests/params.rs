//! Every op: its name, operands and parameters go there and back.

use welte_table::{Command, Format, Op, Params, accesses, from_lines, params as p};

/// Distinct words for every field; floats of them are no NaN, so that structs can be compared.
fn words(op: Op) -> Params {
    let used = op.show_params(&[0; 16]).len();
    std::array::from_fn(|i| if i < used { 0x3f00_0000 + i as u32 } else { 0 })
}

fn round_trip(op: Op, w: &Params) -> Params {
    match op {
        Op::Embed => p::Embed::of(w).words(),
        Op::Norm => p::Norm::of(w).words(),
        Op::LayerNorm => p::LayerNorm::of(w).words(),
        Op::HeadsMatmul => p::HeadsMatmul::of(w).words(),
        Op::PositionScale => p::PositionScale::of(w).words(),
        Op::CrossAttention => p::CrossAttention::of(w).words(),
        Op::ChoosePositions => p::ChoosePositions::of(w).words(),
        Op::SparseAttention => p::SparseAttention::of(w).words(),
        Op::EncodeAttention => p::EncodeAttention::of(w).words(),
        Op::EncodeConv => p::EncodeConv::of(w).words(),
        Op::AddPosition => p::AddPosition::of(w).words(),
        Op::AddFeature => p::AddFeature::of(w).words(),
        Op::Act => p::Act::of(w).words(),
        Op::Matmul => p::Matmul::of(w).words(),
        Op::Bias => p::Bias::of(w).words(),
        Op::Rope => p::Rope::of(w).words(),
        Op::KvAppend => p::KvAppend::of(w).words(),
        Op::Attention => p::Attention::of(w).words(),
        Op::ActMul => p::ActMul::of(w).words(),
        Op::Gate => p::Gate::of(w).words(),
        Op::Mamba2 => p::Mamba2::of(w).words(),
        Op::GatedDelta => p::GatedDelta::of(w).words(),
        Op::Multiply => p::Multiply::of(w).words(),
        Op::Cutoff => p::Cutoff::of(w).words(),
        Op::MatchSquares => p::MatchSquares::of(w).words(),
        Op::AltUpPredict => p::AltUpPredict::of(w).words(),
        Op::AltUpCorrect => p::AltUpCorrect::of(w).words(),
        Op::Spread => p::Spread::of(w).words(),
        Op::Add => p::Add::of(w).words(),
        Op::Scale => p::Scale::of(w).words(),
        Op::SelectRows => p::SelectRows::of(w).words(),
        Op::Pool => p::Pool::of(w).words(),
        Op::ShortConv => p::ShortConv::of(w).words(),
        Op::Route => p::Route::of(w).words(),
        Op::ExpertsActMul => p::ExpertsActMul::of(w).words(),
        Op::ExpertsAdd => p::ExpertsAdd::of(w).words(),
        Op::Sample => p::Sample::of(w).words(),
        Op::AdaptDown => p::AdaptDown::of(w).words(),
        Op::AdaptLookup => p::AdaptLookup::of(w).words(),
        Op::AdaptUp => p::AdaptUp::of(w).words(),
        Op::AdaptExpertsDown => p::AdaptExpertsDown::of(w).words(),
        Op::AdaptExpertsUp => p::AdaptExpertsUp::of(w).words(),
        Op::Exchange => p::Exchange::of(w).words(),
        Op::NormMatmul => p::NormMatmul::of(w).words(),
        Op::MatmulAdd => p::MatmulAdd::of(w).words(),
        Op::NormMatmulActMul => p::NormMatmulActMul::of(w).words(),
        Op::RopeAppend => p::RopeAppend::of(w).words(),
    }
}

#[test]
fn params_of_every_op_go_there_and_back() {
    for op in Op::ALL {
        assert_eq!(round_trip(*op, &words(*op)), words(*op), "{}", op.name());
        assert_eq!(Op::from_name(op.name()), Some(*op));
    }
}

#[test]
fn operands_fit_the_command_and_have_an_access_each() {
    for op in Op::ALL {
        let operands = op.reads().len() + op.writes().len();
        assert!(
            op.weights().len() <= 3 && (1..=4).contains(&operands),
            "{}",
            op.name()
        );
        let c = Command::new(*op, Format::F32, &[], &[], [u32::MAX; 16]);
        // Extreme parameters must not overflow.
        assert_eq!(accesses(&c).len(), operands, "{}", op.name());
        welte_table::cost::of(&c, &[]);
    }
}

#[test]
fn a_command_is_plain_data_of_fixed_size() {
    assert_eq!(std::mem::size_of::<Command>(), 144);
}

#[test]
fn bad_lines_are_refused_by_number() {
    for (text, line) in [
        ("", 1),
        ("welte-program 1\n", 1),
        ("welte-program 4\nprogram x 1 1 1 0\n", 2),
        ("welte-program 4\nprogram 5 1 1 1\n", 2),
        ("welte-program 4\nprogram 5 1 1 1 0 5\n", 2),
        ("welte-program 4\nprogram 5 1 1 1 0\nembed F32\n", 3),
        ("welte-program 4\npart a 0 1\n", 2),
        ("welte-program 4\npass decode 7 7 5 0 x\n", 2),
        ("welte-program 4\npass chain 7 7 5 0 0\n", 2),
        ("welte-program 4\ncache attention kv 1 2 Q3 1 1 1 0\n", 2),
        ("welte-program 4\ncache other kv 1 2 1 1\n", 2),
        ("welte-program 4\n\n", 2),
        ("welte-program 4\nbuffer %zz; cache 1\n", 2),
    ] {
        let error = from_lines(text).unwrap_err();
        assert!(
            error.contains(&format!("line {line}:")),
            "{text:?}: {error}"
        );
    }
}
