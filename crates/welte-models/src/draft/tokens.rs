//! The tokens of a head that knows a part of them.

use crate::Error;
use welte_formats::checkpoint::{Checkpoint, Dialect, TOKEN_MAP};

/// The tokens that a head knows. Directories have their distances from the head's own numbers, GGUF files the tokens.
pub(crate) fn tokens(
    head: &dyn Checkpoint,
    count: u32,
    vocab: u32,
) -> Result<Option<Vec<u32>>, Error> {
    let Some(map) = head.tensor(TOKEN_MAP) else {
        return Ok(None);
    };
    let wrong = |problem: String| Error::Tensor {
        origin: head.origin().into(),
        name: TOKEN_MAP.into(),
        problem,
    };
    if map.n != 1 || map.k != 2 * count as usize {
        return Err(wrong(format!("must hold {count} integers of 64 bits")));
    }
    let bytes = head.rows(map, 0, 1)?;
    let (words, _) = bytes.as_chunks::<8>();
    let own = if head.dialect() == Dialect::Gguf {
        0
    } else {
        1
    };
    let token = |(number, word): (i64, &[u8; 8])| {
        let token = i64::from_le_bytes(*word).checked_add(own * number);
        let token = token.and_then(|token| u32::try_from(token).ok());
        token.filter(|token| *token < vocab).ok_or_else(|| {
            wrong(format!(
                "leads to a token outside the vocabulary of {vocab}"
            ))
        })
    };
    (0..)
        .zip(words)
        .map(token)
        .collect::<Result<_, _>>()
        .map(Some)
}
