//! EAGLE-3 heads: directories of SGLang, vLLM and Speculators, and GGUF files of llama.cpp.

use super::{DraftNames, DraftSpec, Eagle, Placed, Taps, check_vocab, taps};
use crate::arch::Architecture;
use crate::keys::Keys;
use crate::names::weight;
use crate::read::read;
use crate::{Error, ModelSpec};
use welte_formats::DRAFT;
use welte_formats::checkpoint::{Checkpoint, Dialect};

/// Reads the head of a model, whose own layers must be `plain`.
pub(super) fn read_eagle(
    model: &ModelSpec,
    head: &dyn Checkpoint,
    plain: bool,
) -> Result<DraftSpec, Error> {
    let keys = Keys::new(head, "eagle3");
    let refused = |key: &str, problem: String| Err(keys.error(key, problem));
    if !plain || model.residual_scale != 1.0 || model.embedding_scale != 1.0 {
        let problem = format!("cannot draft for the architecture '{}'", model.architecture);
        return refused("general.architecture", problem);
    }
    let arch = Architecture::by_name("llama")
        .ok_or_else(|| keys.error("general.architecture", "needs the architecture 'llama'"))?;
    let names = arch.names(head.dialect());
    let placed = Placed::new(head, weight(names.embed, 0), (model.vocab, model.dim));
    let mut spec = read(&placed, arch, "eagle3")?;
    let gguf = head.dialect() == Dialect::Gguf;
    let own = names_of(head);
    let known = |name: &str| {
        let name = format!("{name}.weight");
        head.tensor(name.strip_prefix(DRAFT).unwrap_or(&name))
    };
    if known(&own.join).is_none() || spec.layers != 1 {
        let problem = "is not an EAGLE-3 head: it needs one layer and the tensor fc.weight";
        return refused("general.architecture", problem.to_string());
    }
    if spec.dim != model.dim && known(&own.embed).is_none() {
        let problem = format!(
            "is {}, but the model whose embedding it shares has {}",
            spec.dim, model.dim
        );
        return refused(&keys.name("embedding_length", "hidden_size"), problem);
    }
    // SGLang's section names layers whose outputs it reads.
    let lists = [
        (
            keys.name("target_layers", "eagle_aux_hidden_state_layer_ids"),
            0,
        ),
        (
            "eagle_config.eagle_aux_hidden_state_layer_ids".to_string(),
            1,
        ),
    ];
    let all = model.layers;
    let layers = taps(model, &keys, &lists)?
        .unwrap_or_else(|| vec![2.min(all), all / 2, all.saturating_sub(3)]);
    let norm = if gguf {
        "enc.output_norm"
    } else {
        "input_norm"
    };
    let norm = format!("{DRAFT}{norm}");
    let flag = |name: &str| Ok::<bool, Error>(keys.bool(&keys.name(name, name))?.unwrap_or(false));
    let taps = Taps {
        layers,
        norm: flag("norm_before_fc")?.then_some(norm),
    };
    let eagle = Eagle {
        adds_to_norm: flag("norm_before_residual")?,
        names,
    };
    spec.vocab = match known(&own.head) {
        Some(table) => table.n as u32,
        None => model.vocab,
    };
    check_vocab(&keys, spec.vocab, model)?;
    Ok(DraftSpec {
        spec,
        names: own,
        taps: Some(taps),
        eagle: Some(eagle),
        assistant: None,
        block: None,
    })
}

/// Names with the prefix of a head's tensors.
fn names_of(head: &dyn Checkpoint) -> DraftNames {
    let own = |name: &str| format!("{DRAFT}{name}");
    if head.dialect() == Dialect::Gguf {
        return DraftNames {
            layer: own("blk.0."),
            join: own("fc"),
            embedding_norm: own("blk.0.attn_norm"),
            hidden_norm: own("blk.0.attn_norm_2"),
            head_norm: own("output_norm"),
            embed: own("token_embd"),
            head: own("output"),
        };
    }
    let layer = ["midlayer.", "layers.0."].into_iter().find(|layer| {
        let norm = format!("{layer}hidden_norm.weight");
        head.tensor(&norm).is_some()
    });
    let layer = own(layer.unwrap_or("midlayer."));
    DraftNames {
        join: own("fc"),
        embedding_norm: format!("{layer}input_layernorm"),
        hidden_norm: format!("{layer}hidden_norm"),
        head_norm: own("norm"),
        embed: own("embed_tokens"),
        head: own("lm_head"),
        layer,
    }
}
