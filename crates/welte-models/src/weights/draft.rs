//! The weights of a model's own draft layer.

use super::layer::{BlockWeights, DraftWeights, EagleWeights, Layer, TapWeights, Weights, layer};
use super::{Collector, NormWeights, OutputPart, RopeConstants, Rows};
use crate::draft::{Assistant, BlockDraft, DraftSpec, Eagle, Placed, draft_tokens};
use crate::names::{Names, weight};
use crate::weights::EncoderWeights;
use crate::{Error, ModelSpec};
use welte_formats::DRAFT;
use welte_formats::checkpoint::{Checkpoint, TOKEN_MAP};
use welte_table::{Format, Source, Usage, WeightId, WeightSpec};

/// What it shares with the model.
pub(crate) struct Shared {
    pub(crate) embed: WeightId,
    pub(crate) head: WeightId,
    pub(crate) final_norm: Option<NormWeights>,
    /// Of all layers, and of windowed ones.
    pub(crate) ropes: [RopeConstants; 2],
    pub(crate) head_bias: Vec<OutputPart>,
    /// Width of the model's stream, and its tokens.
    pub(crate) dim: u32,
    pub(crate) vocab: u32,
    /// The most positions.
    pub(crate) context: u32,
}

/// Rows of a table that are compared with those of another one.
const SAMPLES: usize = 16;

/// Collects them. The layer is layer 0 of the draft's spec.
pub(super) fn collect(
    c: &mut Collector<'_>,
    draft: &DraftSpec,
    names: &Names,
    shared: Shared,
) -> Result<DraftWeights, Error> {
    if let (Some(assistant), Some(head)) = (&draft.assistant, c.checkpoint.draft()) {
        return assistant_weights(c, &draft.spec, assistant, head, shared);
    }
    if let (Some(block), Some(head)) = (&draft.block, c.checkpoint.draft()) {
        return block_weights(c, draft, block, head, shared);
    }
    let (spec, own) = (&draft.spec, &draft.names);
    let norm = |c: &mut Collector<'_>, what: &str, name: &str| {
        c.norm(&format!("draft {what}"), name, 0, spec)
    };
    let embedding_norm = norm(c, "embedding norm", &own.embedding_norm)?;
    let hidden_norm = norm(c, "hidden norm", &own.hidden_norm)?;
    let joined = match &draft.taps {
        Some(taps) => taps.layers.len() as u32 * shared.dim,
        None => 2 * spec.dim,
    };
    let join = c.matrix(
        "draft join",
        Usage::Matrix,
        &format!("{}.weight", own.join),
        spec.dim,
        joined,
    )?;
    let first = c.list.len();
    c.draft = Some(own.layer.clone());
    let layer = match &draft.eagle {
        Some(eagle) => eagle_layer(c, draft, eagle),
        None => layer(c, spec, names, 0),
    };
    c.draft = None;
    let layer: Layer = layer?;
    for weight in &mut c.list[first..] {
        weight.name = weight.name.replacen("layer 0", "draft", 1);
    }
    let final_norm = if c.has(&format!("{}.weight", own.head_norm)) {
        Some(norm(c, "head norm", &own.head_norm)?)
    } else {
        shared.final_norm
    };
    let ropes = match (&draft.eagle, c.checkpoint.draft()) {
        (Some(_), Some(head)) => {
            let what = "draft rope frequencies";
            [c.rope_constants_of(what, &spec.rope, head, shared.context)?; 2]
        }
        _ => shared.ropes,
    };
    let taps = match &draft.taps {
        Some(taps) => Some(TapWeights {
            layers: taps.layers.clone(),
            norm: match &taps.norm {
                Some(name) => {
                    let tensor = [(format!("{name}.weight"), joined)];
                    let weight = c.vector("draft tap norm", &tensor, 0.0)?;
                    Some(NormWeights { weight, bias: None })
                }
                None => None,
            },
            dim: spec.dim,
            eps: spec.eps,
        }),
        None => None,
    };
    let (embed, head) = tables_of(c, draft, &shared)?;
    Ok(DraftWeights {
        norms: Some([embedding_norm, hidden_norm]),
        join,
        taps,
        up: None,
        eagle: draft.eagle.as_ref().map(|eagle| EagleWeights {
            adds_to_norm: eagle.adds_to_norm,
        }),
        block: None,
        vocab: shared.vocab,
        map: map(c, spec.vocab, shared.vocab)?,
        model: Weights {
            embed,
            rope_constants: ropes[0],
            local_rope_constants: ropes[1],
            per_layer: None,
            altup: None,
            hyper: None,
            layers: vec![layer],
            final_norm,
            head,
            scores: None,
            encoder: EncoderWeights::default(),
            head_bias: Vec::new(),
            draft: None,
        },
    })
}

/// The embedding and the head: the model's, unless the checkpoint has others.
fn tables_of(
    c: &mut Collector<'_>,
    draft: &DraftSpec,
    shared: &Shared,
) -> Result<(WeightId, WeightId), Error> {
    let (spec, own) = (&draft.spec, &draft.names);
    let mut table = |what: &str, name: &str, rows: u32, usage: Usage, model: WeightId| {
        let name = format!("{name}.weight");
        if !c.has(&name) {
            return Ok(model);
        }
        let tensor = c.tensor(&name, rows, spec.dim)?;
        // Files of several exporters repeat the model's own table.
        if is_copy(c.checkpoint, &c.list[model as usize], &tensor.name) {
            return Ok(model);
        }
        c.matrix(&format!("draft {what}"), usage, &name, rows, spec.dim)
    };
    Ok((
        table(
            "embedding",
            &own.embed,
            shared.vocab,
            Usage::Lookup,
            shared.embed,
        )?,
        table("head", &own.head, spec.vocab, Usage::Matrix, shared.head)?,
    ))
}

/// Where the head has each of the model's tokens, if it knows a part of them.
fn map(c: &mut Collector<'_>, known: u32, vocab: u32) -> Result<Option<WeightId>, Error> {
    let head = c.checkpoint.draft();
    let Some(tokens) = head
        .map(|head| draft_tokens(head, known, vocab))
        .transpose()?
    else {
        return Ok(None);
    };
    let Some(tokens) = tokens else {
        if known == vocab {
            return Ok(None);
        }
        let problem = format!("is missing; the head knows {known} of {vocab} tokens");
        return Err(c.fault(TOKEN_MAP, problem));
    };
    let mut places = vec![-1.0; vocab as usize];
    for (place, token) in tokens.into_iter().enumerate() {
        if places[token as usize] >= 0.0 {
            return Err(c.fault(TOKEN_MAP, format!("names token {token} twice")));
        }
        places[token as usize] = place as f32;
    }
    Ok(Some(c.push(WeightSpec {
        name: "draft tokens".into(),
        format: Format::F32,
        n: 1,
        k: vocab,
        usage: Usage::Vector,
        add: 0.0,
        source: Source::Constant(places),
    })))
}

/// The weights of an assistant, which has a checkpoint of its own and shares the model's embedding.
fn assistant_weights(
    c: &mut Collector<'_>,
    spec: &ModelSpec,
    assistant: &Assistant,
    head: &dyn Checkpoint,
    shared: Shared,
) -> Result<DraftWeights, Error> {
    let names = assistant.names;
    let mut own = Collector::new(head);
    own.list = std::mem::take(&mut c.list);
    let first = own.list.len();
    let matrix = |own: &mut Collector<'_>, what: &str, name: &str, n: u32, k: u32| {
        own.matrix(what, Usage::Matrix, &format!("{name}.weight"), n, k)
    };
    let (dim, wide) = (spec.dim, shared.dim);
    let join = matrix(&mut own, "join", assistant.down, dim, 2 * wide)?;
    let up = matrix(&mut own, "hidden state", assistant.up, wide, dim)?;
    let table = if spec.tied { names.embed } else { names.head };
    let table = matrix(&mut own, "head", table, spec.vocab, dim)?;
    let layers = (0..spec.layers).map(|i| layer(&mut own, spec, names, i));
    let layers = layers.collect::<Result<_, _>>()?;
    let final_norm = Some(own.norm("head norm", names.final_norm, 0, spec)?);
    let ropes = [Some(&spec.rope), spec.local_rope.as_ref()];
    let ropes = ropes.map(|rope| {
        let what = "rope frequencies";
        own.rope_constants(what, rope.unwrap_or(&spec.rope), shared.context)
    });
    let [rope_constants, local_rope_constants] = ropes;
    c.list = of_draft(own.list, first);
    Ok(DraftWeights {
        norms: None,
        join,
        taps: None,
        up: Some(up),
        eagle: None,
        block: None,
        vocab: spec.vocab,
        map: None,
        model: Weights {
            embed: shared.embed,
            rope_constants: rope_constants?,
            local_rope_constants: local_rope_constants?,
            per_layer: None,
            altup: None,
            hyper: None,
            layers,
            final_norm,
            head: table,
            scores: None,
            encoder: EncoderWeights::default(),
            head_bias: Vec::new(),
            draft: None,
        },
    })
}

/// Weights of which those from `first` on come from a draft head's own checkpoint.
fn of_draft(mut list: Vec<WeightSpec>, first: usize) -> Vec<WeightSpec> {
    for weight in &mut list[first..] {
        weight.name.insert_str(0, "draft ");
        if let Source::Parts(parts) | Source::Transposed(parts) = &mut weight.source {
            let tensors = parts.iter_mut().map(|part| &mut part.tensor);
            tensors.for_each(|name| name.insert_str(0, DRAFT));
        }
    }
    list
}

/// The weights of a drafter of blocks, which has a checkpoint of its own and shares the model's embedding and head.
fn block_weights(
    c: &mut Collector<'_>,
    draft: &DraftSpec,
    block: &BlockDraft,
    head: &dyn Checkpoint,
    shared: Shared,
) -> Result<DraftWeights, Error> {
    let (spec, names, dim) = (&draft.spec, block.names, draft.spec.dim);
    let embedding = weight(names.embed, 0);
    let placed = Placed::new(head, embedding.clone(), (shared.vocab, shared.dim));
    let mut own = Collector::new(&placed);
    own.list = std::mem::take(&mut c.list);
    own.keys_apart = true;
    let first = own.list.len();
    let tapped = draft.taps.as_ref().map_or(&[][..], |taps| &taps.layers);
    let joined = tapped.len() as u32 * shared.dim;
    let join = own.matrix("join", Usage::Matrix, "fc.weight", dim, joined)?;
    let hidden_norm = own.norm("hidden norm", block.hidden_norm, 0, spec)?;
    let layers = (0..spec.layers).map(|i| layer(&mut own, spec, names, i));
    let layers = layers.collect::<Result<_, _>>()?;
    let final_norm = Some(own.norm("head norm", names.final_norm, 0, spec)?);
    let rope = own.rope_constants("rope frequencies", &spec.rope, shared.context)?;
    let tables = [&draft.names.embed, &draft.names.head];
    let [embed, table] = tables.map(|name| format!("{}.weight", name.trim_start_matches(DRAFT)));
    let factors = weight(names.rope_factors, 0);
    let spare = [&embed, &table, TOKEN_MAP, KNOWN_TOKENS, &factors];
    own.refuse_unused_of_head("a DFlash drafter", &spare)?;
    c.list = of_draft(own.list, first);
    let (embed, head) = tables_of(c, draft, &shared)?;
    Ok(DraftWeights {
        norms: None,
        join,
        taps: Some(TapWeights {
            layers: tapped.to_vec(),
            norm: None,
            dim,
            eps: spec.eps,
        }),
        up: None,
        eagle: None,
        block: Some(BlockWeights {
            hidden_norm,
            spec: spec.clone(),
        }),
        vocab: shared.vocab,
        map: map(c, spec.vocab, shared.vocab)?,
        model: Weights {
            embed,
            rope_constants: rope,
            local_rope_constants: rope,
            per_layer: None,
            altup: None,
            hyper: None,
            layers,
            final_norm,
            head,
            scores: None,
            encoder: EncoderWeights::default(),
            // That of the model's own head.
            head_bias: shared
                .head_bias
                .into_iter()
                .filter(|_| head == shared.head)
                .collect(),
            draft: None,
        },
    })
}

/// In directories: which tokens a head knows, once more.
const KNOWN_TOKENS: &str = "t2d";

/// The layer of an EAGLE-3 head, whose queries, keys and values are made of an embedding and a hidden state side by side.
fn eagle_layer(c: &mut Collector<'_>, draft: &DraftSpec, eagle: &Eagle) -> Result<Layer, Error> {
    let spec = &draft.spec;
    let names = eagle.names;
    let w = |template: &str| weight(template, 0);
    let (q, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let (dim, ffn) = (spec.dim, spec.ffn);
    let qkv = [(names.q, q), (names.k, kv), (names.v, kv)];
    let qkv = qkv.map(|(name, rows)| Rows::all(w(name), rows));
    let gate_up = [(w(names.gate), ffn), (w(names.up), ffn)];
    Ok(Layer {
        attn_norm: None,
        qkv: c.joined_rows("draft qkv", &qkv, 2 * dim)?,
        qkv_bias: Vec::new(),
        head_ones: None,
        q_norm: None,
        q_norm_bias: None,
        k_norm: None,
        k_norm_bias: None,
        o: c.matrix("draft attention output", Usage::Matrix, &w(names.o), dim, q)?,
        o_bias: Vec::new(),
        sinks: None,
        post_attn_norm: None,
        second_norm: None,
        ffn_norm: Some(c.norm("draft feed-forward norm", names.ffn_norm, 0, spec)?),
        gate_up: c.joined("draft gate and up", &gate_up, dim)?,
        gate_up_bias: Vec::new(),
        down: Some(c.matrix("draft down", Usage::Matrix, &w(names.down), dim, ffn)?),
        down_bias: Vec::new(),
        post_ffn_norm: None,
        latent: None,
        experts: None,
        per_layer: None,
        altup: None,
        hyper: None,
        gates: None,
        cutoff: None,
        scalar: 1.0,
        delta: None,
        mamba: None,
        conv: None,
        values: None,
    })
}

/// True if a tensor repeats a weight of the model, as far as a sample of its rows tells. A wrong answer costs right guesses only.
fn is_copy(checkpoint: &dyn Checkpoint, weight: &welte_table::WeightSpec, name: &str) -> bool {
    let welte_table::Source::Parts(parts) = &weight.source else {
        return false;
    };
    let tensors = parts.first().map(|part| checkpoint.tensor(&part.tensor));
    let (Some(Some(known)), Some(other)) = (tensors, checkpoint.tensor(name)) else {
        return false;
    };
    if parts.len() != 1 || (known.format, known.n, known.k) != (other.format, other.n, other.k) {
        return false;
    }
    let mut rows = (0..SAMPLES).map(|at| at * (known.n - 1) / (SAMPLES - 1));
    rows.all(|row| {
        let rows = [known, other].map(|tensor| checkpoint.rows(tensor, row, 1));
        matches!(&rows, [Ok(one), Ok(two)] if one == two)
    })
}
