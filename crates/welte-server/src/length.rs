//! Refuses texts that are far too long before all of their tokens are computed, which would take much memory.

use crate::error::{Failure, Overflow};
use crate::models::Served;

/// Texts with fewer bytes per position of the context are encoded as a whole.
const BYTES_PER_POSITION: usize = 16;
/// Tokens that a cut in the text may add.
const TOKENS_PER_CUT: usize = 64;

/// Refuses a text with more tokens than the context holds. Short texts are not looked at.
pub(crate) fn check(served: &Served, text: &str) -> Result<(), Failure> {
    let context = served.model.context();
    let (_, count) = tokens_before(text, context, |part| tokens(served, part))?;
    if count <= context {
        return Ok(());
    }
    let problem = format!(
        "the prompt has more than {count} tokens, which exceeds the available context size of {context}"
    );
    let overflow = Overflow {
        prompt: count,
        context,
    };
    Err(Failure::overflow(problem, overflow))
}

/// The beginning of a text that has all tokens which the context holds.
pub(crate) fn beginning<'a>(served: &Served, text: &'a str) -> Result<&'a str, Failure> {
    let context = served.model.context();
    let (end, _) = tokens_before(text, context, |part| tokens(served, part))?;
    Ok(&text[..end])
}

fn tokens(served: &Served, part: &str) -> Result<usize, Failure> {
    Ok(served.model.tokenizer()?.encode(part, false, true)?.len())
}

/// Counts tokens part by part until they exceed the context. Returns the end of the last part and the count, which is 0 for
/// short texts.
fn tokens_before(
    text: &str,
    context: usize,
    tokens: impl Fn(&str) -> Result<usize, Failure>,
) -> Result<(usize, usize), Failure> {
    let part = (context * BYTES_PER_POSITION).max(4096);
    if text.len() <= part {
        return Ok((text.len(), 0));
    }
    let (mut end, mut count) = (0, 0);
    while end < text.len() && count <= context {
        let next = text.floor_char_boundary(end + part);
        count += tokens(&text[end..next])?.saturating_sub(TOKENS_PER_CUT);
        end = next;
    }
    Ok((end, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end and the count for a text whose tokens have `bytes` bytes each, and the parts that were looked at.
    fn counted(text: &str, context: usize, bytes: usize) -> (usize, usize, usize) {
        let parts = std::cell::Cell::new(0);
        let tokens = |part: &str| {
            parts.set(parts.get() + 1);
            Ok(part.len() / bytes)
        };
        let (end, count) = tokens_before(text, context, tokens).unwrap();
        (end, count, parts.get())
    }

    #[test]
    fn short_texts_are_not_looked_at() {
        assert_eq!(counted("", 8, 1), (0, 0, 0));
        // 16 bytes for each position, and at least 4 KiB.
        let text = "x".repeat(20_000);
        for (context, whole) in [(8, 4096), (256, 4096), (1000, 16_000)] {
            assert_eq!(counted(&text[..whole], context, 1), (whole, 0, 0));
            assert_eq!(counted(&text[..whole + 1], context, 1).2, 1);
        }
    }

    /// A text of megabytes costs a part or two.
    #[test]
    fn counting_ends_with_the_context() {
        let text = "x".repeat(1 << 20);
        assert_eq!(counted(&text, 1000, 2), (16_000, 8000 - 64, 1));
        assert_eq!(counted(&text, 1000, 16), (32_000, 2 * (1000 - 64), 2));
        // As many tokens as the context has do not exceed it.
        assert_eq!(counted(&text, 192, 16), (8192, 2 * (256 - 64), 2));
    }

    /// Tokens may have more than 16 bytes.
    #[test]
    fn a_long_text_of_long_tokens_fits() {
        let text = "é".repeat(10_000);
        assert_eq!(counted(&text, 8, 4096), (20_000, 0, 5));
        let odd = "x".to_string() + &text;
        assert_eq!(counted(&odd, 8, 4096), (20_001, 0, 5));
        assert_eq!(counted(&text, 1000, 20), (20_000, 800 - 64 + 200 - 64, 2));
    }
}
