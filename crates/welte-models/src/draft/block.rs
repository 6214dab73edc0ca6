//! DFlash drafters: some layers of Qwen3's kind that guess a block of tokens at once. They attend to keys and values that are made of
//! hidden states of the model, and to each other. Directories of its authors and of Speculators, and GGUF files of llama.cpp.

use super::{BlockDraft, DraftNames, DraftSpec, Placed, Taps, check_vocab, taps};
use crate::arch::{Architecture, layer_types, window_pattern};
use crate::keys::Keys;
use crate::names::weight;
use crate::read::read;
use crate::{Error, ModelSpec};
use welte_formats::DRAFT;
use welte_formats::checkpoint::{Checkpoint, Dialect, TOKEN_MAP, Value};
use welte_table::Block;

/// The most tokens of a block.
const MOST: u32 = 256;

/// What llama.cpp calls such drafters.
const NAME: &str = "dflash";

/// What drafters of a later kind have in the names of their architectures.
const DSPARK: &str = "DSpark";

/// True if a checkpoint is a DFlash drafter, of whatever version.
pub(super) fn is_block_drafter(head: &dyn Checkpoint) -> bool {
    let keys = Keys::new(head, NAME);
    let is_own = |kind: &Value| match kind {
        Value::String(kind) => kind.starts_with("DFlash") || kind.contains(DSPARK),
        _ => false,
    };
    match (head.dialect(), keys.value("architectures")) {
        (Dialect::Gguf, _) => keys.text("general.architecture").ok().flatten() == Some(NAME),
        (_, Some(Value::Array(kinds))) if kinds.iter().any(is_own) => true,
        _ => keys.value("dflash_config.target_layer_ids").is_some(),
    }
}

/// Reads the drafter of a model.
pub(super) fn read_block(model: &ModelSpec, head: &dyn Checkpoint) -> Result<DraftSpec, Error> {
    let gguf = head.dialect() == Dialect::Gguf;
    let arch = Architecture::by_name("qwen3");
    let arch = arch.ok_or_else(|| {
        Keys::new(head, NAME).error("general.architecture", "needs the architecture 'qwen3'")
    })?;
    let names = arch.names(head.dialect());
    let placed = Placed::new(head, weight(names.embed, 0), (model.vocab, model.dim));
    let keys = Keys::new(&placed, NAME);
    refuse_others(&keys, head)?;
    let refused = |key: &str, problem: String| Err(keys.error(key, problem));
    if model.residual_scale != 1.0 || model.altup.is_some() || model.encoder.is_some() {
        let problem = format!("cannot draft for the architecture '{}'", model.architecture);
        return refused("general.architecture", problem);
    }
    if !gguf && let Some(kind) = keys.text("model_type")?.filter(|kind| *kind != "qwen3") {
        let problem = format!("is '{kind}'; a drafter has layers of the kind 'qwen3'");
        return refused("model_type", problem);
    }
    let width = keys.name("embedding_length", "hidden_size");
    for key in [
        &width,
        &keys.name("target_hidden_size", "target_hidden_size"),
    ] {
        if let Some(said) = keys.u32(key)?.filter(|said| *said != model.dim) {
            let problem = format!("is {said}; the model has a width of {}", model.dim);
            return refused(key, problem);
        }
    }
    // Files may count the tokens of their vocabulary, whose table has more rows.
    let vocab = keys.name("vocab_size", "vocab_size");
    let fits = |said: &u32| *said == model.vocab || gguf && *said < model.vocab;
    if let Some(said) = keys.u32(&vocab)?.filter(|said| !fits(said)) {
        let problem = format!("is {said}; the model has {} tokens", model.vocab);
        return refused(&vocab, problem);
    }
    let mut spec = read(&placed, arch, NAME)?;
    let sizes = [
        keys.name("block_size", "dflash_config.block_size"),
        "block_size".into(),
    ];
    let size = known(&keys, sizes);
    let count = keys.size(&size, None, MOST)?;
    if count < 2 {
        return refused(&size, format!("is {count}; must be from 2 to {MOST}"));
    }
    let masks = match gguf {
        true => [TOKENIZER_MASK.to_string(), keys.name("mask_token_id", "")],
        false => [
            "dflash_config.mask_token_id".to_string(),
            "mask_token_id".to_string(),
        ],
    };
    let key = known(&keys, masks);
    let mask = keys
        .u32(&key)?
        .ok_or_else(|| keys.error(&key, "is missing"))?;
    if mask >= model.vocab {
        let problem = format!("is {mask}; the model has {} tokens", model.vocab);
        return refused(&key, problem);
    }
    // llama.cpp's first converter counted layers as configurations do, and named this norm as they do.
    let has = |name: &str| head.tensor(&weight(name, 0)).is_some();
    let early = gguf && has(HIDDEN_NORM) && !has(NORM_IN_FILES);
    let lists = match gguf {
        true => vec![(keys.name("target_layers", ""), u32::from(early))],
        false => vec![
            ("dflash_config.target_layer_ids".to_string(), 1),
            ("target_layer_ids".to_string(), 1),
            ("aux_hidden_state_layer_ids".to_string(), 0),
        ],
    };
    let layers = taps(model, &keys, &lists)?;
    let layers = layers.ok_or_else(|| keys.error(&lists[0].0, "is missing"))?;
    let causal_windows;
    (spec.windows, causal_windows) = windows(&keys, spec.layers)?;
    spec.causal_layers = causal(&keys, &spec.windows, causal_windows)?;
    spec.rope.sections = None;
    (spec.logit_scale, spec.logit_softcap) = (model.logit_scale, model.logit_softcap);
    let own = |name: &str| format!("{DRAFT}{name}");
    let [embed, table] = match gguf {
        true => ["token_embd", "output"],
        false => ["embed_tokens", "lm_head"],
    };
    if let Some(table) = head.tensor(&format!("{table}.weight")) {
        spec.vocab = table.n as u32;
    } else if head.tensor(TOKEN_MAP).is_some() && keys.u32("draft_vocab_size")?.is_some() {
        return refused(
            "draft_vocab_size",
            format!("needs a head of its own, {table}.weight"),
        );
    }
    check_vocab(&keys, spec.vocab, model)?;
    Ok(DraftSpec {
        spec,
        names: DraftNames {
            embed: own(embed),
            head: own(table),
            ..DraftNames::default()
        },
        taps: Some(Taps { layers, norm: None }),
        eagle: None,
        assistant: None,
        block: Some(BlockDraft {
            block: Block { size: count, mask },
            hidden_norm: if gguf && !early {
                NORM_IN_FILES
            } else {
                HIDDEN_NORM
            },
            names,
        }),
    })
}

/// The norm of what `fc` makes of the taps, in directories and in files.
const HIDDEN_NORM: &str = "hidden_norm";
const NORM_IN_FILES: &str = "enc.output_norm";
const TOKENIZER_MASK: &str = "tokenizer.ggml.mask_token_id";

/// The first key that has a value, or the first one.
fn known(keys: &Keys<'_>, [first, second]: [String; 2]) -> String {
    let is_known = |key: &String| keys.value(key).is_some();
    if !is_known(&first) && is_known(&second) {
        return second;
    }
    first
}

/// Later kinds have the same name in GGUF files, and parts that are not supported.
fn refuse_others(keys: &Keys<'_>, head: &dyn Checkpoint) -> Result<(), Error> {
    let dspark = |key: &str| Err(keys.error(key, "is of DSpark, which is not supported"));
    let is_own = |kind: &Value| matches!(kind, Value::String(kind) if kind.contains(DSPARK));
    match keys.value("architectures") {
        Some(Value::Array(kinds)) if kinds.iter().any(is_own) => return dspark("architectures"),
        _ if head.tensor("markov_w1.weight").is_some() => return dspark("markov_w1.weight"),
        _ => {}
    }
    // Writers have them in one place or another.
    let places = |name: &str| match keys.is_gguf() {
        true => vec![keys.name(name, name)],
        false => vec![name.to_string(), format!("dflash_config.{name}")],
    };
    for key in places("markov_rank") {
        if keys.u32(&key)?.is_some_and(|rank| rank > 0) {
            return dspark(&key);
        }
    }
    for key in places("selector_rank") {
        if keys.value(&key).is_some() {
            return Err(keys.error(&key, "is of DFlash 2, which is not supported"));
        }
    }
    let projector = "dflash_config.projector_type";
    if let Some(kind) = keys.text(projector)?.filter(|kind| *kind != NAME) {
        return Err(keys.error(projector, format!("is '{kind}'; supported is '{NAME}'")));
    }
    for name in ["sample_from_anchor", "query_zero_predicts_next"] {
        for key in places(name) {
            if keys.bool(&key)?.unwrap_or(false) {
                let problem = "is true; guesses of a block's first token are not supported";
                return Err(keys.error(&key, problem));
            }
        }
    }
    Ok(())
}

/// The windows of the layers, and whether rows of such layers see nothing after themselves if nothing else is said. Windows of one switch for
/// all layers (`use_swa`) see the whole block.
fn windows(keys: &Keys<'_>, layers: u32) -> Result<(Vec<u32>, bool), Error> {
    let plain = keys.name("attention.sliding_window", "sliding_window");
    if keys.is_gguf() {
        let window = keys.u32(&plain)?.unwrap_or(0);
        let windows = match window {
            0 => vec![0; layers as usize],
            _ => window_pattern(keys, layers, window)?,
        };
        return Ok((windows, true));
    }
    let own = "dflash_config.swa_window_size".to_string();
    let listed = layer_types(keys, layers, 1)?.unwrap_or_default();
    let switch = "dflash_config.use_swa";
    let (key, slides, causal) = match listed.contains(&1) {
        true => (known(keys, [plain, own]), listed, true),
        false => {
            let all = keys.bool(switch)?.unwrap_or(false);
            (
                known(keys, [own, plain]),
                vec![all.into(); layers as usize],
                false,
            )
        }
    };
    let window = keys.u32(&key)?.unwrap_or(0);
    if slides.contains(&1) && window == 0 {
        return Err(keys.error(&key, "is missing; layers with a window need it"));
    }
    let windows = slides.into_iter().map(|one| one * window);
    Ok((windows.collect(), causal))
}

/// The layers in which a block's rows see nothing after themselves: as the checkpoint says, else those with a window that is causal.
fn causal(keys: &Keys<'_>, windows: &[u32], causal_windows: bool) -> Result<Vec<bool>, Error> {
    let keys_of_all = match keys.is_gguf() {
        true => vec![keys.name("attention.causal", "")],
        false => ["is_causal", "dflash_config.causal", "causal"]
            .map(String::from)
            .to_vec(),
    };
    for key in &keys_of_all {
        if let Some(all) = keys.bool(key)? {
            return Ok(vec![all; windows.len()]);
        }
    }
    let free = !causal_windows || keys.bool("sliding_window_non_causal")?.unwrap_or(false);
    Ok(windows.iter().map(|window| *window > 0 && !free).collect())
}
