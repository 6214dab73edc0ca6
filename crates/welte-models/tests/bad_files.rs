//! Every golden model with something missing or wrong: each reader names it, and none panics.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use welte_formats::checkpoint::{Checkpoint, Dialect, Error, Metadata, TensorInfo, Value};
use welte_models::{CompileOptions, compile, spec};

/// A file whose names, shapes and keys are changed.
struct Changed<'a> {
    file: &'a dyn Checkpoint,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Changed<'_> {
    fn of(file: &dyn Checkpoint) -> Changed<'_> {
        Changed {
            file,
            metadata: file.metadata().clone(),
            tensors: file.tensors().to_vec(),
        }
    }

    /// What loading it says.
    fn result(&self) -> Result<(), String> {
        let read = spec(self).map_err(|e| e.to_string())?;
        let program = compile(&read, self, &CompileOptions::default());
        program.map(|_| ()).map_err(|e| e.to_string())
    }
}

impl Checkpoint for Changed<'_> {
    fn origin(&self) -> &str {
        "changed"
    }

    fn dialect(&self) -> Dialect {
        self.file.dialect()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|info| info.name == name)
    }

    fn rows(&self, info: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let bytes = info.format.bytes(info.k).unwrap_or(0) * rows;
        match self.file.tensor(&info.name) {
            Some(own) if own == info => self.file.rows(info, first, rows),
            _ => Ok(Cow::Owned(vec![0; bytes])),
        }
    }
}

/// All golden models: GGUF files and directories, one of each kind and family.
fn goldens() -> Vec<(String, Box<dyn Checkpoint>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../welte/tests/goldens");
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = vec![folder.clone()];
    while let Some(path) = open.pop() {
        let is_model =
            path.join("config.json").is_file() || path.extension().is_some_and(|e| e == "gguf");
        if is_model {
            let name = path.strip_prefix(&folder).unwrap().display().to_string();
            let file = welte_formats::open(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
            found.push((name, file));
        } else if path.is_dir() {
            let list = std::fs::read_dir(&path).expect("a folder of goldens");
            open.extend(list.map(|entry| entry.unwrap().path()));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() > 100, "{} goldens", found.len());
    found
}

#[test]
fn a_missing_tensor_is_named() {
    let mut silent = Vec::new();
    for (name, file) in goldens() {
        let all = Changed::of(&*file);
        if let Err(e) = all.result() {
            panic!("{name}: {e}")
        }
        for i in 0..all.tensors.len() {
            let mut changed = Changed::of(&*file);
            let gone = changed.tensors.remove(i);
            match changed.result() {
                Ok(()) => silent.push(format!("{name}: {}", gone.name)),
                Err(e) if e.contains(&gone.name) => {}
                Err(e) => silent.push(format!("{name}: without {}: {e}", gone.name)),
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

#[test]
fn a_tensor_of_a_wrong_shape_is_named() {
    let mut silent = Vec::new();
    for (name, file) in goldens() {
        for i in 0..file.tensors().len() {
            let mut changed = Changed::of(&*file);
            let block = changed.tensors[i].format.block();
            let wider = |info: &mut TensorInfo| info.k += block;
            let longer = |info: &mut TensorInfo| info.n += 1;
            for change in [&wider as &dyn Fn(&mut TensorInfo), &longer] {
                changed.tensors[i] = file.tensors()[i].clone();
                change(&mut changed.tensors[i]);
                match changed.result() {
                    Ok(()) => silent.push(format!("{name}: {:?}", changed.tensors[i])),
                    Err(e) if e.contains(&changed.tensors[i].name) => {}
                    Err(e) => silent.push(format!("{name}: {:?}: {e}", changed.tensors[i])),
                }
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

#[test]
fn a_wrong_key_is_named() {
    let mut silent = Vec::new();
    for (name, file) in goldens() {
        for key in file.metadata().keys() {
            if key.starts_with("tokenizer.") {
                continue;
            }
            let wrong = [
                None,
                Some(Value::U64(0)),
                Some(Value::U64(u64::MAX)),
                Some(Value::I64(-1)),
                Some(Value::F64(f64::NAN)),
                Some(Value::String("wrong".into())),
                Some(Value::Array(Vec::new())),
            ];
            for value in wrong {
                let mut changed = Changed::of(&*file);
                match value.clone() {
                    Some(value) => changed.metadata.insert(key.clone(), value),
                    None => changed.metadata.remove(key),
                };
                let Err(error) = changed.result() else {
                    continue;
                };
                let short = key.rsplit('.').next().unwrap();
                let names_tensor = file.tensors().iter().any(|t| error.contains(&t.name));
                if !error.contains(short) && !names_tensor {
                    silent.push(format!("{name}: {key} = {value:?}: {error}"));
                }
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}
