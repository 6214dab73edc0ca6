//! Opens checkpoints by content.

use crate::gguf::{Gguf, MAGIC};
use crate::{Checkpoint, Error, ggml, hf, mapped};
use std::io::Read;
use std::path::Path;

/// Opens a GGUF file (any part of a split one), a directory in Hugging Face layout, or a Whisper model of whisper.cpp.
pub fn open(path: &Path) -> Result<Box<dyn Checkpoint>, Error> {
    if path.is_dir() {
        return Ok(Box::new(hf::Directory::open(path)?));
    }
    let start = first_bytes(path)?;
    if start.starts_with(&MAGIC) {
        return Ok(Box::new(Gguf::open(path)?));
    }
    if start.starts_with(&ggml::MAGIC) {
        return Ok(Box::new(ggml::GgmlWhisper::open(path)?));
    }
    Err(Error::unsupported(path, what_else(path, &start)))
}

/// True if a file begins as a GGUF file does.
pub(crate) fn is_gguf(path: &Path) -> Result<bool, Error> {
    Ok(first_bytes(path)?.starts_with(&MAGIC))
}

/// The first sixteen bytes of a file, or fewer.
fn first_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let mut start = Vec::new();
    let file = mapped::open_regular(path)?;
    file.take(16)
        .read_to_end(&mut start)
        .map_err(|source| Error::io(path, source))?;
    Ok(start)
}

/// What an unsupported file seems to be, and a remedy.
fn what_else(path: &Path, start: &[u8]) -> String {
    let ends = |ending: &str| {
        path.extension()
            .is_some_and(|e| e.eq_ignore_ascii_case(ending))
    };
    if ends("safetensors") || (start.get(8) == Some(&b'{') && start.get(4..8) == Some(&[0; 4])) {
        return "is a safetensors file, which has no configuration: give the directory that contains it and config.json"
            .to_string();
    }
    let zipped = start.starts_with(b"PK\x03\x04");
    let pickled = start.starts_with(&[0x80, 2]);
    if pickled || (zipped && !ends("zip")) || ends("bin") || ends("pth") || ends("pt") {
        return "seems to be a PyTorch file (pickle), which can run code when opened and is not supported: \
                convert the model to safetensors or GGUF"
            .to_string();
    }
    if ends("json") {
        return "is a JSON file: give the directory that contains it".to_string();
    }
    if start.starts_with(b"version https:/") {
        return "is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"
            .to_string();
    }
    "is not a known kind of model: supported are GGUF files and directories with config.json and safetensors".to_string()
}
