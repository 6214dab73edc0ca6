//! The programs of an encoder of sound.

use super::convolutions::{first_two, third};
use super::{HearingFamily, HearingSpec, Rest};
use crate::Error;
use crate::speech::parts::{GLM_ASR, WHISPER};
use crate::speech::tower::{End, Front, Gated, Tower};
use welte_formats::Checkpoint;
use welte_table::Program;

/// The programs, each of which reads what the one before it yields: with pieces three, the first two of which run piece by piece.
pub fn compile_hearing(
    spec: &HearingSpec,
    checkpoint: &dyn Checkpoint,
) -> Result<Vec<Program>, Error> {
    if let Some(own) = &spec.conformer {
        return super::gemma::compile(spec, own, checkpoint);
    }
    if let Some(own) = &spec.granite {
        return super::granite::compile(spec, own, checkpoint);
    }
    if let Some(own) = &spec.fast {
        return super::fast_conformer::compile(spec, own, checkpoint);
    }
    let projector = |name: &str| format!("multi_modal_projector.{name}");
    // Qwen3-ASR's authors count the projector to the encoder.
    let is_inside = checkpoint
        .tensor("thinker.audio_tower.proj1.weight")
        .is_some();
    let names = if is_inside {
        ["proj", "proj1", "proj2"].map(|name| format!("audio_tower.{name}"))
    } else {
        ["linear", "linear_1", "linear_2"].map(projector)
    };
    let width = spec.width;
    let (inner, has_bias) = match spec.family {
        HearingFamily::Qwen3Asr => (spec.dim, true),
        HearingFamily::AudioFlamingo3 => (width, true),
        HearingFamily::GlmAsr => (2 * width, true),
        _ => (width, false),
    };
    let one = [(names[0].as_str(), width, true)];
    let two = [
        (names[1].as_str(), inner, has_bias),
        (names[2].as_str(), width, has_bias),
    ];
    let norms = ["ln_pre", "ln_mid"].map(projector);
    let mut programs = Vec::new();
    let front = match &spec.pieces {
        None => Front::Frames {
            mels: spec.mels,
            places: spec.rotation.is_none().then_some(spec.places),
            ends: spec.family.rest() == Rest::Nothing,
        },
        Some(pieces) => {
            programs.push(first_two(spec, pieces, checkpoint)?);
            programs.push(third(spec, pieces, checkpoint)?);
            // Places begin again with every piece.
            let own = waves(pieces.each(), spec.dim);
            Front::States {
                places: own.repeat((spec.positions / pieces.each()) as usize),
            }
        }
    };
    let tower = Tower {
        prefix: "audio_tower",
        dim: spec.dim,
        layers: spec.layers,
        rows: spec.positions,
        front,
        key_bias: spec.family == HearingFamily::Qwen3Asr,
        windowed: spec.pieces.is_some() || spec.family == HearingFamily::Ultravox,
        names: match spec.family {
            HearingFamily::GlmAsr => &GLM_ASR,
            _ => &WHISPER,
        },
        rotation: spec.rotation,
        last_norm: match spec.family {
            HearingFamily::Qwen3Asr => "ln_post",
            HearingFamily::GlmAsr => "norm",
            _ => "layer_norm",
        },
        end: match spec.family {
            HearingFamily::Qwen2Audio | HearingFamily::Qwen2_5Omni => End {
                group: spec.group,
                pool: 1,
                norm_later: true,
                matrices: &one,
                gated: None,
            },
            HearingFamily::AudioFlamingo3 => End {
                group: spec.group,
                pool: 1,
                norm_later: true,
                matrices: &two,
                gated: None,
            },
            HearingFamily::Voxtral | HearingFamily::GlmAsr => End {
                group: spec.group,
                pool: 3,
                matrices: &two,
                ..End::STATES
            },
            HearingFamily::Ultravox => End {
                group: spec.group,
                pool: 3,
                gated: Some(Gated {
                    norms: [&norms[0], &norms[1]],
                    matrices: [&names[1], &names[2]],
                    rows: [spec.hidden, width],
                }),
                ..End::STATES
            },
            _ => End {
                matrices: &two,
                ..End::STATES
            },
        },
    };
    programs.push(tower.compile(checkpoint)?);
    Ok(programs)
}

/// Vectors of places: sines of slower and slower waves, then their cosines.
fn waves(places: u32, dim: u32) -> Vec<f32> {
    const SLOWEST: f64 = 10_000.0;
    let half = dim / 2;
    let step = SLOWEST.ln() / f64::from(half - 1);
    let each = |place: u32| {
        let angle = move |i: u32| f64::from(place) * (-step * f64::from(i)).exp();
        let sines = (0..half).map(move |i| angle(i).sin() as f32);
        sines.chain((0..half).map(move |i| angle(i).cos() as f32))
    };
    (0..places).flat_map(each).collect()
}
