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
    let count = tokens_before(served, text, |count| count > context)?.1;
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
    let end = tokens_before(served, text, |count| count > context)?.0;
    Ok(&text[..end])
}

/// Counts tokens part by part until it is enough. Returns the end of the last part and the count, which is 0 for short texts.
fn tokens_before(
    served: &Served,
    text: &str,
    enough: impl Fn(usize) -> bool,
) -> Result<(usize, usize), Failure> {
    let part = (served.model.context() * BYTES_PER_POSITION).max(4096);
    if text.len() <= part {
        return Ok((text.len(), 0));
    }
    let tokenizer = served.model.tokenizer()?;
    let (mut end, mut count) = (0, 0);
    while end < text.len() && !enough(count) {
        let next = text.floor_char_boundary(end + part);
        let tokens = tokenizer.encode(&text[end..next], false, true)?.len();
        count += tokens.saturating_sub(TOKENS_PER_CUT);
        end = next;
    }
    Ok((end, count))
}
