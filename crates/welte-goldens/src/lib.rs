//! The models of the goldens, for tests. A weight file is kept as `FILE.head`, the bytes before its first tensor, and
//! `FILE.fill`, which says how each tensor's bytes follow from a seed. `tools/goldens/seeded.py` explains the format, and
//! makes the same bytes.

mod seeded;

pub use seeded::tokens;

use std::fs;
use std::path::{Path, PathBuf};

/// A model in a temporary folder, which is removed with this value.
#[derive(Debug)]
pub struct Golden {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Golden {
    /// Writes the model at this path below [`folder`]: a GGUF file, or a directory.
    pub fn new(name: &str) -> Golden {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("no temporary folder: {e}"));
        let last = Path::new(name).file_name().unwrap_or_default();
        let path = folder.path().join(last);
        write(name, &path);
        Golden {
            path,
            _folder: folder,
        }
    }

    /// The GGUF file, or the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The folder of the goldens in the repository. A bundle for another machine has it elsewhere, and says so at run time.
pub fn folder() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).join("../welte/tests/goldens")
}

/// Writes a GGUF file, or a directory with all that it has.
pub fn write(name: &str, to: &Path) {
    let from = folder().join(name);
    let written = if from.is_dir() {
        copy(&from, to)
    } else {
        seeded::expand(&from).and_then(|bytes| fs::write(to, bytes))
    };
    written.unwrap_or_else(|e| panic!("golden {name}: {e}"));
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        let extension = path.extension().unwrap_or_default();
        if path.is_dir() {
            copy(&path, &target)?;
        } else if extension == "fill" {
            let bytes = seeded::expand(&path.with_extension(""))?;
            fs::write(target.with_extension(""), bytes)?;
        } else if extension != "head" {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// The names of all models, sorted.
pub fn names() -> Vec<String> {
    let root = folder();
    let (mut found, mut open) = (Vec::new(), vec![root.clone()]);
    while let Some(path) = open.pop() {
        let entries = fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for path in entries.map(|entry| entry.expect("an entry of a folder").path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "fill") {
                let file = path.with_extension("");
                let is_gguf = file.extension().is_some_and(|e| e == "gguf");
                let model = if is_gguf {
                    &*file
                } else {
                    file.parent().unwrap_or(&file)
                };
                let model = model.strip_prefix(&root).unwrap_or(model);
                found.push(model.display().to_string().replace('\\', "/"));
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sums of the files are those that Python computed.
    #[test]
    fn every_model_is_as_python_wrote_it() {
        let names = names();
        assert!(names.len() > 120, "{} goldens", names.len());
        for name in names {
            assert!(Golden::new(&name).path().exists(), "{name}");
        }
    }
}
