//! llama.cpp's fields that ask for more than the text, in its own completions and in OpenAI's.

use crate::adapters;
use crate::ask::Ask;
use crate::error::Failure;
use crate::fields::Fields;

/// What a request asks for beside the text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// llama.cpp's whole response beside that of another API.
    pub(crate) verbose: bool,
}

impl Extras {
    /// Takes the fields.
    pub(crate) fn take(fields: &mut Fields, ask: &mut Ask) -> Result<Extras, Failure> {
        ask.report.timings = fields.take("timings_per_token")?.unwrap_or(false);
        ask.report.progress = fields.take("return_progress")?.unwrap_or(false);
        let verbose: bool = fields.take("verbose")?.unwrap_or(ask.report.prompt);
        ask.report.prompt = verbose;
        // All slots share the prompt cache, and tokens are chosen on the device where it can, so these change nothing.
        adapters::take(fields, ask)?;
        fields.take::<i64>("id_slot")?;
        fields.take::<bool>("backend_sampling")?;
        Ok(Extras { verbose })
    }
}
