//! Compiles a spec to a program: weights, buffers, caches and passes.

use crate::arch::{Architecture, unsupported};
use crate::buffers::Buffers;
use crate::emit::{DraftPlaces, Emitter, LayerCache, Places};
use crate::encoder;
use crate::weights::collect;
use crate::{CompileOptions, Error, LayerKind, LayerShape, ModelSpec};
use welte_formats::Checkpoint;
use welte_table::{
    BufferRef, CacheKind, CacheSpec, Class, Format, NO_BUFFER, PassKind, Program, cost,
};

/// Compiles the decode, prompt and (unless `embed_rows` is 0) embed passes over the same weights and buffers, in fine ops. `fuse`
/// makes of them what a device declares.
pub fn compile(
    spec: &ModelSpec,
    checkpoint: &dyn Checkpoint,
    options: &CompileOptions,
) -> Result<Program, Error> {
    let arch = Architecture::by_name(&spec.architecture)
        .ok_or_else(|| unsupported(checkpoint, &spec.architecture))?;
    let spec = &spec.within(options.context);
    check(spec, options)?;
    let names = arch.names(checkpoint.dialect());
    if spec.encoder.is_some() {
        return encoder::compile(spec, checkpoint, names, options);
    }
    let (weights, list) = collect(spec, checkpoint, names, options)?;
    let mut buffers = Buffers::default();
    let outputs = options.prompt_outputs.clamp(1, options.prompt_rows);
    let mut shared_rows = options.prompt_rows.max(options.embed_rows);
    if weights.draft.is_some() {
        shared_rows = shared_rows.max(options.decode_rows);
    }
    let draft = spec.draft(checkpoint)?.filter(|_| weights.draft.is_some());
    let block = draft.as_ref().and_then(|draft| draft.block.as_ref());
    let block = block.map(|block| block.block);
    let step_rows = options.decode_rows.max(options.prompt_rows);
    // A block for each slot, if they are as many rows as a step has.
    let draft_rows = block.map_or(step_rows, |block| {
        let all = block.size.saturating_mul(options.slots);
        all.min(step_rows).max(block.size)
    });
    let tokens = options.decode_rows.max(shared_rows).max(draft_rows);
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(tokens));
    let assistant = draft.as_ref().and_then(|draft| draft.assistant.as_ref());
    let draft_layers = draft.as_ref().filter(|_| assistant.is_none());
    // What the draft pass reads of the model is as wide as the model.
    let tap_width = draft.as_ref().map(|draft| match assistant {
        Some(_) => spec.dim,
        None => draft.spec.dim,
    });
    let (caches, layer_caches) = caches(
        spec,
        draft_layers.map(|draft| &draft.spec),
        options,
        &mut buffers,
    )?;
    let logits = 4 * u64::from(options.decode_rows.max(outputs)) * u64::from(spec.vocab);
    let logits = buffers.add("logits", Class::ScratchDecode, logits);
    let mut set = |kind: PassKind, rows: u32| {
        let (name, class) = kind.scratch();
        buffers.set(name, class, rows, spec)
    };
    if options.embed_rows > 0 {
        options.check_pooling(spec)?;
    }
    let decode = set(PassKind::Decode, options.decode_rows);
    let shared = set(PassKind::Prompt, shared_rows);
    let chosen = 4 * u64::from(outputs.max(options.embed_rows)) * u64::from(spec.dim);
    let chosen = buffers.add("prompt.chosen", Class::ScratchPrompt, chosen);
    let features = match options.features {
        0 => NO_BUFFER,
        count => {
            let parts = 1 + spec.deep_features.len() as u64;
            let bytes = 4 * u64::from(count) * u64::from(spec.dim) * parts;
            let features = buffers.add("features", Class::ScratchPrompt, bytes);
            features.buffer
        }
    };
    let places = Places {
        tokens,
        caches: &layer_caches,
        logits,
        chosen,
        features: features != NO_BUFFER,
        pooling: options.pooling,
        scores: weights.scores.map(|_| {
            let bytes = 8 * u64::from(outputs.max(options.embed_rows));
            buffers.add("prompt.scores", Class::ScratchPrompt, bytes)
        }),
        context: options.context,
        results: &[],
        taps: tap_width.map(|width| {
            let bytes = 4 * u64::from(step_rows) * u64::from(width);
            buffers.add("taps", Class::ScratchPrompt, bytes)
        }),
        captured: draft.as_ref().and_then(|draft| {
            let count = draft.taps.as_ref()?.layers.len() as u64;
            let bytes = 4 * u64::from(step_rows) * count * u64::from(spec.dim);
            Some(buffers.add("captured", Class::ScratchPrompt, bytes))
        }),
        stored: draft.as_ref().filter(|_| block.is_some()).map(|draft| {
            let width = 2 * u64::from(draft.spec.kv_heads * draft.spec.head_dim);
            let bytes = 4 * u64::from(step_rows) * width;
            let stored = buffers.add("draft.kv", Class::ScratchPrompt, bytes);
            (stored, &layer_caches[spec.layers as usize..])
        }),
    };
    let emit = |kind, set, rows, outputs| {
        Emitter::new(spec, &weights, &list, set, &places).pass(kind, rows, outputs)
    };
    let rows = options.decode_rows;
    let mut passes = vec![
        emit(PassKind::Decode, &decode, rows, rows),
        emit(PassKind::Prompt, &shared, options.prompt_rows, outputs),
    ];
    if options.embed_rows > 0 {
        let rows = options.embed_rows;
        passes.push(emit(PassKind::Embed, &shared, rows, rows));
    }
    if let (Some(draft), Some(weights)) = (&draft, &weights.draft) {
        let rows = draft_rows;
        let outputs = options.decode_rows.min(rows);
        let width = 4 * u64::from(draft.spec.dim);
        let joined = 8 * u64::from(tap_width.unwrap_or(0)) * u64::from(rows);
        let own = DraftPlaces {
            joined: match block {
                Some(_) => BufferRef::NONE,
                None => buffers.add("draft.joined", Class::ScratchPrompt, joined),
            },
            chosen: buffers.add(
                "draft.chosen",
                Class::ScratchPrompt,
                width * u64::from(outputs),
            ),
            logits,
        };
        let known = weights.map.map(|_| {
            let bytes = 4 * u64::from(outputs) * u64::from(draft.spec.vocab);
            buffers.add("draft.logits", Class::ScratchPrompt, bytes)
        });
        let caches: Vec<LayerCache> = match assistant {
            Some(assistant) => {
                let sources = assistant.sources.iter();
                sources.map(|layer| layer_caches[*layer as usize]).collect()
            }
            None => layer_caches[spec.layers as usize..].to_vec(),
        };
        let places = Places {
            caches: &caches,
            logits: known.unwrap_or(logits),
            ..places
        };
        // Another shape needs a set of its own.
        let differs = draft.eagle.is_some() || assistant.is_some() || block.is_some();
        let set = differs.then(|| buffers.set("draft", Class::ScratchPrompt, rows, &draft.spec));
        let set = set.as_ref().unwrap_or(&shared);
        let emitter = Emitter::new(&draft.spec, &weights.model, &list, set, &places);
        passes.push(match block {
            Some(_) => emitter.block_pass(weights, spec, own, (rows, outputs)),
            None => emitter.draft_pass(weights, spec, own, (rows, outputs)),
        });
    }
    let mut program = Program {
        weights: list,
        buffers: buffers.into_list(),
        caches,
        vocab: spec.vocab,
        context: options.context,
        page: options.page,
        slots: options.slots,
        tokens: tokens.buffer,
        features,
        adapters: None,
        block,
        passes,
    };
    cost::fill(&mut program);
    Ok(program)
}

fn check(spec: &ModelSpec, options: &CompileOptions) -> Result<(), Error> {
    let bounded = |option, value: u32, least: u32, most: u32| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(Error::Option {
            option,
            problem: format!("is {value}; must be from {least} to {most}"),
        })
    };
    bounded("context", options.context, 1, 1 << 26)?;
    bounded("slots", options.slots, 1, 4096)?;
    bounded("page", options.page, 1, 1 << 16)?;
    bounded("decode_rows", options.decode_rows, 1, 4096)?;
    bounded("prompt_rows", options.prompt_rows, 1, 1 << 16)?;
    bounded("prompt_outputs", options.prompt_outputs, 1, 4096)?;
    bounded("embed_rows", options.embed_rows, 0, 1 << 16)?;
    for token in options.score_tokens.into_iter().flatten() {
        bounded("score_tokens", token, 0, spec.vocab - 1)?;
    }
    if let Some(most) = spec.indexed.filter(|most| options.context > *most) {
        return Err(Error::Option {
            option: "context",
            problem: format!(
                "is {}; the indexer of this model chooses {most} positions, and longer contexts are not supported",
                options.context
            ),
        });
    }
    let problem = match options.kv_format {
        Format::F16 => None,
        Format::Q8_0 => {
            let sizes = (0..spec.layers as usize).map(|i| spec.shape(i).head_dim);
            let keys = spec.indexer.iter().map(|indexer| indexer.head_dim / 2);
            let odd = sizes.chain(keys).find(|size| !size.is_multiple_of(32));
            odd.map(|size| format!("Q8_0 needs a head size divisible by 32; it is {size}"))
        }
        other => Some(format!("is {}; must be F16 or Q8_0", other.name())),
    };
    match problem {
        Some(problem) => Err(Error::Option {
            option: "kv_format",
            problem,
        }),
        None => Ok(()),
    }
}

/// The caches, and each layer's place in them. All attention layers with the same head count, head size and window share a cache; the inputs
/// of convolutions have one, and so have states and the keys of an indexer. A layer without keys and values of its own has the place of the
/// layer that it shares. The layers of a draft follow the others.
fn caches(
    spec: &ModelSpec,
    draft: Option<&ModelSpec>,
    options: &CompileOptions,
    buffers: &mut Buffers,
) -> Result<(Vec<CacheSpec>, Vec<LayerCache>), Error> {
    let mut shapes: Vec<(u32, u32, u32)> = Vec::new();
    let mut counts: Vec<u32> = Vec::new();
    let mut places: Vec<Option<(usize, u32)>> = Vec::with_capacity(spec.layers as usize);
    let own = |spec: &ModelSpec, layer: usize| {
        let window = spec.windows.get(layer).copied().unwrap_or(0);
        (spec.shape(layer), window)
    };
    let layers = (0..spec.layers as usize).map(|layer| (layer, own(spec, layer)));
    let draft = draft.into_iter().flat_map(|draft| {
        let layers = 0..draft.layers as usize;
        layers.map(move |layer| (spec.layers as usize + layer, own(draft, layer)))
    });
    for (layer, (shape, window)) in layers.chain(draft) {
        if let Some(place) = places.get(spec.kv_source(layer)) {
            places.push(*place);
            continue;
        }
        if spec.kind(layer as u32) != LayerKind::Attention {
            places.push(None);
            continue;
        }
        let LayerShape {
            kv_heads, head_dim, ..
        } = shape;
        let shape = (kv_heads, head_dim, window);
        let cache = shapes.iter().position(|s| *s == shape).unwrap_or_else(|| {
            shapes.push(shape);
            counts.push(0);
            shapes.len() - 1
        });
        places.push(Some((cache, counts[cache])));
        counts[cache] += 1;
    }
    let too_large = |option, problem: String| Error::Option { option, problem };
    let pages = match options.pages {
        0 => u64::from(options.context.div_ceil(options.page)) * u64::from(options.slots),
        pages => pages.into(),
    };
    let pages = u32::try_from(pages).map_err(|_| {
        let (slots, context) = (options.slots, options.context);
        let problem = format!("{slots} slots of {context} positions need more than 2^32 pages");
        too_large("slots", problem)
    })?;
    let mut caches: Vec<CacheSpec> = Vec::new();
    for ((kv_heads, head_dim, window), layers) in shapes.into_iter().zip(counts) {
        let name = match window {
            0 => "kv".to_string(),
            window => format!("kv window {window}"),
        };
        let mut cache = CacheSpec {
            name,
            buffer: 0,
            pages,
            kind: CacheKind::Attention {
                format: options.kv_format,
                layers,
                kv_heads,
                head_dim,
                window,
            },
        };
        let bytes = cache
            .bytes(options.page)
            .ok_or_else(|| too_large("context", "the cache is too large".into()))?;
        cache.buffer = buffers.add(&cache.name, Class::Cache, bytes).buffer;
        caches.push(cache);
    }
    let mut layer_caches: Vec<Option<LayerCache>> = Vec::new();
    for place in places {
        layer_caches.push(place.map(|(cache, layer)| LayerCache {
            buffer: BufferRef {
                buffer: caches[cache].buffer,
                offset: 0,
            },
            layer,
            inputs: BufferRef::NONE,
            state: BufferRef::NONE,
            index: None,
        }));
    }
    if let Some(indexer) = &spec.indexer {
        let choosing: Vec<usize> = (0..spec.layers as usize)
            .filter(|layer| indexer.chooses.get(*layer) == Some(&true))
            .collect();
        let mut cache = CacheSpec {
            name: "kv index".to_string(),
            buffer: 0,
            pages,
            // Each half of a key is a head: the one that caches keep for keys, and the one for values.
            kind: CacheKind::Attention {
                format: options.kv_format,
                layers: choosing.len() as u32,
                kv_heads: 1,
                head_dim: indexer.head_dim / 2,
                window: 0,
            },
        };
        let bytes = cache
            .bytes(options.page)
            .ok_or_else(|| too_large("context", "the cache is too large".into()))?;
        let place = buffers.add(&cache.name, Class::Cache, bytes);
        cache.buffer = place.buffer;
        caches.push(cache);
        for (number, layer) in (0..).zip(choosing) {
            if let Some(own) = &mut layer_caches[layer] {
                own.index = Some((place, number));
            }
        }
    }
    let delta = spec
        .delta
        .map(|d| ((d.taps - 1) * d.channels(), d.values() * d.key_dim));
    let conv = (spec.conv_taps > 1).then(|| ((spec.conv_taps - 1) * spec.dim, 0));
    let mamba = spec
        .mamba
        .map(|m| ((m.taps - 1) * m.channels(), m.values() * m.key_dim));
    let kinds = [
        (LayerKind::Delta, delta),
        (LayerKind::Conv, conv),
        (LayerKind::Mamba, mamba),
    ];
    for (kind, floats) in kinds {
        let beside = kind == LayerKind::Mamba && spec.mamba.is_some_and(|m| m.beside);
        let layers = (0..spec.layers).filter(|layer| beside || spec.kind(*layer) == kind);
        let count = layers.clone().count() as u32;
        let Some((convolution, state)) = floats.filter(|_| count > 0) else {
            continue;
        };
        let mut add = |name: &str, floats: u32| -> Result<BufferRef, Error> {
            if floats == 0 {
                return Ok(BufferRef::NONE);
            }
            let layers = count;
            let kind = CacheKind::Recurrent { layers, floats };
            let cache = recurrent_cache(name, kind, options, buffers)?;
            let buffer = cache.buffer;
            caches.push(cache);
            Ok(BufferRef { buffer, offset: 0 })
        };
        let (inputs, state) = (add("convolution", convolution)?, add("state", state)?);
        for (number, layer) in (0..).zip(layers) {
            let place = &mut layer_caches[layer as usize];
            let buffer = match place {
                // All layers have both kinds of caches, and one number in them.
                Some(kv) if kv.layer == number => kv.buffer,
                _ => inputs,
            };
            *place = Some(LayerCache {
                buffer,
                layer: number,
                inputs,
                state,
                index: None,
            });
        }
    }
    // Layers that mix nothing have no cache.
    let none = LayerCache {
        buffer: BufferRef::NONE,
        layer: 0,
        inputs: BufferRef::NONE,
        state: BufferRef::NONE,
        index: None,
    };
    let each = layer_caches.into_iter().map(|place| place.unwrap_or(none));
    Ok((caches, each.collect()))
}

/// A cache of recurrent state: a page for each slot and for each checkpoint.
fn recurrent_cache(
    name: &str,
    kind: CacheKind,
    options: &CompileOptions,
    buffers: &mut Buffers,
) -> Result<CacheSpec, Error> {
    let too_large = || Error::Option {
        option: "checkpoints",
        problem: "makes the cache too large".into(),
    };
    let pages = options.slots.checked_add(options.checkpoints);
    let mut cache = CacheSpec {
        name: name.to_string(),
        buffer: 0,
        pages: pages.ok_or_else(too_large)?,
        kind,
    };
    let bytes = cache.bytes(options.page).ok_or_else(too_large)?;
    cache.buffer = buffers.add(name, Class::Cache, bytes).buffer;
    Ok(cache)
}
