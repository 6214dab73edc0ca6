//! Directories in Hugging Face layout, made for a test.

use tempfile::TempDir;

/// A tensor: name, type, shape, bytes.
pub(crate) type Tensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

fn safetensors(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let (mut head, mut data) = (Vec::new(), Vec::<u8>::new());
    for (name, kind, shape, bytes) in tensors {
        let from = data.len();
        data.extend(bytes);
        let to = data.len();
        head.push(format!(
            r#""{name}": {{"dtype": "{kind}", "shape": {shape:?}, "data_offsets": [{from}, {to}]}}"#
        ));
    }
    let head = format!("{{{}}}", head.join(", "));
    let mut out = (head.len() as u64).to_le_bytes().to_vec();
    out.extend(head.as_bytes());
    out.extend(data);
    out
}

/// A directory with these contents of `quantization_config` and these tensors.
pub(crate) fn directory_of(model: &str, quantization: &str, tensors: &[Tensor<'_>]) -> TempDir {
    let made = TempDir::new().unwrap();
    let config =
        format!(r#"{{"model_type": "{model}", "quantization_config": {{{quantization}}}}}"#);
    std::fs::write(made.path().join("config.json"), config).unwrap();
    let path = made.path().join("model.safetensors");
    std::fs::write(path, safetensors(tensors)).unwrap();
    made
}

#[track_caller]
pub(crate) fn holds(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
