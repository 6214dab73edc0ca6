//! EAGLE-3 heads: directories of SGLang, vLLM and Speculators, and GGUF files of llama.cpp.

use super::{DraftNames, DraftSpec, Eagle};
use crate::arch::Architecture;
use crate::keys::Keys;
use crate::names::weight;
use crate::read::read;
use crate::{Error, ModelSpec};
use std::borrow::Cow;
use welte_formats::checkpoint::{
    Checkpoint, Dialect, Error as FormatError, Metadata, TensorInfo, Value,
};
use welte_formats::{DRAFT, Overlay};

/// A head with a place for the model's embedding, without which no spec is read. Keys of Speculators lie in a section.
struct Head<'a> {
    base: &'a dyn Checkpoint,
    metadata: Metadata,
    embedding: TensorInfo,
}

impl Overlay for Head<'_> {
    fn base(&self) -> &dyn Checkpoint {
        self.base
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        if name == self.embedding.name {
            return Some(&self.embedding);
        }
        self.base.tensor(name)
    }
    fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, FormatError> {
        self.base.rows(tensor, first, rows)
    }
}

const SECTION: &str = "transformer_layer_config.";

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
    let mut metadata = head.metadata().clone();
    for (key, value) in head.metadata() {
        if let Some(key) = key.strip_prefix(SECTION) {
            metadata.entry(key.to_string()).or_insert(value.clone());
        }
    }
    let placed = Head {
        base: head,
        metadata,
        embedding: TensorInfo {
            name: weight(names.embed, 0),
            format: welte_table::Format::F32,
            n: model.vocab as usize,
            k: model.dim as usize,
            stack: 1,
        },
    };
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
    let taps = taps(model, &keys)?;
    let norm = if gguf {
        "enc.output_norm"
    } else {
        "input_norm"
    };
    let norm = format!("{DRAFT}{norm}");
    let flag = |name: &str| Ok::<bool, Error>(keys.bool(&keys.name(name, name))?.unwrap_or(false));
    let eagle = Eagle {
        tap_norm: flag("norm_before_fc")?.then_some(norm),
        adds_to_norm: flag("norm_before_residual")?,
        vocab: model.vocab,
        taps,
        names,
    };
    spec.vocab = match known(&own.head) {
        Some(table) => table.n as u32,
        None => model.vocab,
    };
    if spec.vocab > model.vocab {
        let problem = format!(
            "guesses {} tokens; the model has {}",
            spec.vocab, model.vocab
        );
        return refused("draft_vocab_size", problem);
    }
    Ok(DraftSpec {
        spec,
        names: own,
        eagle: Some(eagle),
        assistant: None,
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

/// The layers of the model whose inputs the head reads. SGLang's section names layers whose outputs it reads.
fn taps(model: &ModelSpec, keys: &Keys<'_>) -> Result<Vec<u32>, Error> {
    let layers = model.layers;
    let key = keys.name("target_layers", "eagle_aux_hidden_state_layer_ids");
    let nested = "eagle_config.eagle_aux_hidden_state_layer_ids".to_string();
    let found = [(key, 0), (nested, 1)];
    let found = found.iter().find_map(|(key, ahead)| match keys.value(key) {
        Some(Value::Array(list)) if !list.is_empty() => Some((key, *ahead, list)),
        _ => None,
    });
    let Some((key, ahead, list)) = found else {
        return Ok(vec![2.min(layers), layers / 2, layers.saturating_sub(3)]);
    };
    let number = |value: &Value| {
        let number = match value {
            Value::U64(n) => u32::try_from(*n).ok(),
            Value::I64(n) => u32::try_from(*n).ok(),
            _ => None,
        };
        let number = number.and_then(|n| n.checked_add(ahead));
        let problem = || format!("must name layers of the model, which has {layers}");
        number
            .filter(|n| *n <= layers)
            .ok_or_else(|| keys.error(key, problem()))
    };
    list.iter().map(number).collect()
}
