//! Control vectors: GGUF files of llama.cpp, with a vector for each layer that is added to its output.

use crate::checkpoint::{Checkpoint, Value};
use crate::gguf::Gguf;
use crate::{Error, quant};
use std::path::Path;

/// A vector, and the layer after which it is added, counted from 0.
pub type Direction = (u32, Vec<f32>);

/// Reads the vectors of a file.
pub fn control_vectors(path: &Path) -> Result<Vec<Direction>, Error> {
    let file = Gguf::open(path)?;
    let kind = file.metadata().get("general.architecture");
    if kind != Some(&Value::String("controlvector".into())) {
        let problem = "is not controlvector: the file has no control vectors";
        return Err(Error::malformed(path, "general.architecture", problem));
    }
    let mut found = Vec::new();
    for tensor in file.tensors() {
        let wrong =
            |problem: &str| Error::malformed(path, format!("tensor {}", tensor.name), problem);
        let number = tensor.name.strip_prefix("direction.");
        let layer = number.and_then(|number| number.parse().ok());
        let layer = layer.ok_or_else(|| wrong("is not called direction.N, N being a layer"))?;
        if layer == 0 {
            return Err(wrong(
                "is of layer 0, which has none: layers count from 0, and vectors from 1",
            ));
        }
        if tensor.n != 1 {
            return Err(wrong("is not a vector"));
        }
        let mut values = vec![0.0; tensor.k];
        quant::decode(tensor.format, &file.rows(tensor, 0, 1)?, &mut values);
        if !values.iter().all(|v| v.is_finite()) {
            return Err(wrong("has values that are not numbers"));
        }
        found.push((layer, values));
    }
    if found.is_empty() {
        return Err(Error::unsupported(path, "has no control vectors"));
    }
    Ok(found)
}
