//! Drafters of Gemma 4: a few layers without keys and values of their own, which attend to those of the model. What they read is
//! projected down to their width, and their hidden state back up.

use super::{Assistant, DraftNames, DraftSpec};
use crate::arch::GEMMA4_ASSISTANT;
use crate::keys::Keys;
use crate::read::read;
use crate::{Error, LayerKind, ModelSpec};
use welte_formats::checkpoint::{Checkpoint, Dialect};
use welte_table::Sections;

/// True if a checkpoint is one.
pub(crate) fn is_assistant(head: &dyn Checkpoint) -> bool {
    let keys = Keys::new(head, GEMMA4_ASSISTANT.name);
    let said = keys.text("general.architecture").ok().flatten();
    let known = match head.dialect() {
        Dialect::Gguf => GEMMA4_ASSISTANT.gguf,
        Dialect::HuggingFace => GEMMA4_ASSISTANT.hugging_face,
    };
    said.is_some_and(|said| known.contains(&said))
}

/// Reads the drafter of a model.
pub(super) fn read_assistant(model: &ModelSpec, head: &dyn Checkpoint) -> Result<DraftSpec, Error> {
    let keys = Keys::new(head, GEMMA4_ASSISTANT.name);
    let refused = |key: &str, problem: String| Err(keys.error(key, problem));
    if model.architecture != "gemma4" {
        let problem = format!("drafts for Gemma 4, not for '{}'", model.architecture);
        return refused("general.architecture", problem);
    }
    let spec = read(head, &GEMMA4_ASSISTANT, GEMMA4_ASSISTANT.name)?;
    let width = keys.name("embedding_length_out", "backbone_hidden_size");
    let said = keys.u32(&width)?.unwrap_or(0);
    if said != model.dim {
        let problem = format!("is {said}; the model has a width of {}", model.dim);
        return refused(&width, problem);
    }
    if spec.per_layer_width > 0 {
        let key = keys.name(
            "embedding_length_per_layer_input",
            "hidden_size_per_layer_input",
        );
        return refused(&key, "is not supported in a drafter".to_string());
    }
    if spec.experts.is_some() {
        let key = keys.name("expert_count", "enable_moe_block");
        return refused(&key, "is not supported in a drafter".to_string());
    }
    let widest = (0..spec.layers as usize).map(|i| spec.shape(i).head_dim);
    if let Some(size) = widest.max().filter(|size| *size > Sections::MOST_ALONG) {
        let problem = format!("is {size}; must be at most {}", Sections::MOST_ALONG);
        return refused(&keys.name("attention.key_length", "head_dim"), problem);
    }
    if spec.vocab != model.vocab {
        let problem = format!("is {}; the model has {} tokens", spec.vocab, model.vocab);
        return refused("vocab_size", problem);
    }
    let of_kind = |layer: u32| -> Result<u32, Error> {
        let shape = |spec: &ModelSpec, at: u32| {
            let shape = spec.shape(at as usize);
            (spec.windows[at as usize], shape.kv_heads, shape.head_dim)
        };
        let wanted = shape(&spec, layer);
        let like = |at: &u32| {
            model.kind(*at) == LayerKind::Attention && model.windows[*at as usize] == wanted.0
        };
        let last = (0..model.layers).rev().find(like);
        let source = last.map(|last| model.kv_source(last as usize) as u32);
        source.filter(|at| shape(model, *at) == wanted).ok_or_else(|| {
            let (window, heads, size) = wanted;
            let problem = format!(
                "layer {layer} reads {heads} heads of {size} (window {window}); the model's last layer of its kind has others"
            );
            keys.error(&keys.name("attention.sliding_window_pattern", "layer_types"), problem)
        })
    };
    let sources = (0..spec.layers).map(of_kind).collect::<Result<_, _>>()?;
    let [down, up] = match head.dialect() {
        Dialect::Gguf => ["nextn.pre_projection", "nextn.post_projection"],
        Dialect::HuggingFace => ["pre_projection", "post_projection"],
    };
    Ok(DraftSpec {
        spec,
        names: DraftNames::default(),
        taps: None,
        eagle: None,
        block: None,
        assistant: Some(Assistant {
            sources,
            down,
            up,
            names: GEMMA4_ASSISTANT.names(head.dialect()),
        }),
    })
}
