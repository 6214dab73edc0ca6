//! ERNIE 4.5: Llama with rope over neighbouring elements.

use super::architecture::Architecture;
use super::llama;

pub(super) const ERNIE4_5: Architecture = Architecture {
    name: "ernie4_5",
    gguf: &["ernie4_5"],
    hugging_face: &["ernie4_5"],
    experts: false,
    finish: |spec, _| {
        spec.rope.interleaved = true;
        Ok(())
    },
    ..llama::LLAMA
};
