//! Control vectors: constants that are added to the stream after layers.

use crate::{Error, ModelSpec};
use std::collections::BTreeMap;
use welte_table::{
    BufferRef, Command, Format, ModelPart, Op, Pass, PassKind, Program, Source, Usage, WeightId,
    WeightSpec, cost, params as p,
};

/// Adds vectors to the stream after their layers, in all passes that generate text.
pub fn steer(
    program: &mut Program,
    spec: &ModelSpec,
    vectors: &BTreeMap<u32, Vec<f32>>,
) -> Result<(), Error> {
    let wrong = |problem: String| Error::Option {
        option: "control vectors",
        problem,
    };
    let passes = program.passes.iter();
    let streams = passes.flat_map(|pass| &pass.commands);
    if streams.into_iter().any(|c| c.part == ModelPart::Streams) {
        let architecture = &spec.architecture;
        return Err(wrong(format!(
            "{architecture} has several streams, which are not supported"
        )));
    }
    for (layer, vector) in vectors {
        if *layer >= spec.layers {
            let layers = spec.layers;
            return Err(wrong(format!(
                "direction.{layer}; the model has {layers} layers"
            )));
        }
        if vector.len() != spec.dim as usize {
            let (given, dim) = (vector.len(), spec.dim);
            return Err(wrong(format!(
                "direction.{layer} has {given} values; the model's vectors have {dim}: it belongs to another model"
            )));
        }
    }
    let mut weights: BTreeMap<u32, WeightId> = BTreeMap::new();
    for (layer, vector) in vectors {
        weights.insert(*layer, program.weights.len() as WeightId);
        program.weights.push(WeightSpec {
            name: format!("layer {layer} control vector"),
            format: Format::F32,
            n: 1,
            k: spec.dim,
            usage: Usage::Vector,
            add: 0.0,
            source: Source::Constant(vector.clone()),
        });
    }
    let kinds = [PassKind::Decode, PassKind::Prompt];
    let passes = program.passes.iter_mut();
    for pass in passes.filter(|pass| kinds.contains(&pass.kind)) {
        steer_pass(pass, spec, &weights);
    }
    cost::fill(program);
    Ok(())
}

fn steer_pass(pass: &mut Pass, spec: &ModelSpec, weights: &BTreeMap<u32, WeightId>) {
    let embed = pass.commands.iter().find(|c| c.op == Op::Embed);
    let stream: Option<BufferRef> = embed.map(|c| c.buffers[1]);
    let Some(stream) = stream else { return };
    for (layer, weight) in weights {
        let last = pass.commands.iter().rposition(|c| c.layer == Some(*layer));
        let Some(last) = last else { continue };
        let params = p::Bias {
            n: spec.dim,
            y_stride: spec.dim,
        };
        let own = pass.commands[last];
        let command = Command {
            part: own.part,
            layer: own.layer,
            ..Command::new(Op::Bias, Format::F32, &[*weight], &[stream], params.words())
        };
        pass.commands.insert(last + 1, command);
        pass.labels.insert(last + 1, "control vector".into());
    }
}
