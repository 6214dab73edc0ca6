//! The language model of PaddleOCR-VL: ERNIE 4.5 whose rope turns the halves of a head by three axes.

use super::architecture::Architecture;
use super::llama;

pub(super) const PADDLEOCR: Architecture = Architecture {
    name: "paddleocr",
    gguf: &["paddleocr"],
    hugging_face: &["paddleocr_vl", "paddleocr_vl_text"],
    gguf_interleaved: false,
    experts: false,
    finish: |spec, keys| match spec.rope.sections {
        Some(_) => Ok(()),
        None => {
            let key = keys.name("rope.dimension_sections", "rope_scaling.mrope_section");
            let problem = "is missing; it says how many pairs of a head follow each axis";
            Err(keys.error(&key, problem))
        }
    },
    ..llama::LLAMA
};
