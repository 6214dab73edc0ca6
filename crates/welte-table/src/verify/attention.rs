//! Checks of rotary positions and of caches of keys and values.

use super::weights::{ensure, finite, vector};
use crate::{CacheKind, Command, Program, Sections};

pub(super) fn rope(
    program: &Program,
    c: &Command,
    dim: u32,
    rot: u32,
    interleaved: u32,
    magnitude: f32,
) -> Result<(), String> {
    ensure(rot > 0 && rot <= dim && rot.is_multiple_of(2), || {
        format!("cannot rotate {rot} of {dim}")
    })?;
    ensure(interleaved <= 1, || format!("interleaved is {interleaved}"))?;
    finite(&[magnitude])?;
    vector(program, c, 0, rot / 2)
}

/// Checks that sections cover the pairs that are rotated.
pub(super) fn sections(word: u32, rot: u32) -> Result<(), String> {
    let Some(sections) = Sections::of(word) else {
        return Ok(());
    };
    let pairs: u32 = sections.pairs.iter().map(|n| u32::from(*n)).sum();
    ensure(pairs == rot / 2 && word >> 24 <= 1, || {
        format!("sections {:?} of {} pairs", sections.pairs, rot / 2)
    })
}

/// Checks that the command's attention cache has this shape. Returns the cache's window.
pub(super) fn attention_cache(
    program: &Program,
    c: &Command,
    layer: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
) -> Result<u32, String> {
    let Some(CacheKind::Attention {
        layers,
        kv_heads: known_heads,
        head_dim: known_dim,
        window,
        ..
    }) = program.cache_of(c).map(|cache| cache.kind)
    else {
        return Err("its keys and values are not in an attention cache".into());
    };
    ensure(layer < layers, || format!("layer {layer} of {layers}"))?;
    ensure((kv_heads, head_dim) == (known_heads, known_dim), || {
        format!("{kv_heads} heads of {head_dim}, the cache has {known_heads} of {known_dim}")
    })?;
    ensure(kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
        format!("{heads} heads over {kv_heads}")
    })?;
    Ok(window)
}
