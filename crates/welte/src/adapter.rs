//! Adapters as they are loaded: where they are, and what they put into the banks.

use crate::cache::{Sha256, sha256};
use crate::{Error, LoadOptions, Model};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use welte_device::{Context, Error as DeviceError};
use welte_formats::checkpoint::Checkpoint;
use welte_formats::{AdapterFile, Dialect};
use welte_models::{AdapterData, ModelSpec};
use welte_table::Program;

/// An adapter to load.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// What requests call it.
    pub name: String,
    /// A GGUF file, or a directory of PEFT.
    pub path: PathBuf,
    /// What it adds is multiplied by this.
    pub scale: f32,
    /// It was given without a name: it is for all requests that choose none.
    pub for_all: bool,
}

/// `NAME=PATH`, `NAME=PATH:SCALE`, `PATH` or `PATH:SCALE`. Without a name it has that of its file or directory.
impl FromStr for AdapterSource {
    type Err = String;

    fn from_str(text: &str) -> Result<AdapterSource, String> {
        let (name, rest) = match text.split_once('=') {
            Some((name, _)) if name.is_empty() => return Err("the name before = is empty".into()),
            Some((name, rest)) if !name.contains(['/', '\\']) => (Some(name), rest),
            _ => (None, text),
        };
        let scaled = rest.rsplit_once(':');
        let scaled = scaled.and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (path, scale) = scaled.unwrap_or((rest, 1.0));
        if path.is_empty() {
            return Err("names no file".into());
        }
        if !scale.is_finite() {
            return Err(format!("the scale {scale} is not a number"));
        }
        let path = PathBuf::from(path);
        let stem = || match path.is_dir() {
            true => path.file_name(),
            false => path.file_stem(),
        };
        let stem = || stem().map(|stem| stem.to_string_lossy().into_owned());
        let own = name.map(str::to_string).or_else(stem);
        Ok(AdapterSource {
            name: own.ok_or("names no file")?,
            path,
            scale,
            for_all: name.is_none(),
        })
    }
}

impl LoadOptions {
    /// Adapters that may be loaded at a time, and their highest rank; `None`: none are.
    pub(crate) fn room_for_adapters(&self, files: &[AdapterFile]) -> Option<(u32, u32)> {
        let places = self.max_adapters.max(self.adapters.len() as u32);
        let highest = files.iter().map(AdapterFile::rank).max().unwrap_or(0);
        let rank = match self.max_rank {
            0 => highest.max(DEFAULT_RANK),
            rank => rank,
        };
        (places > 0).then_some((places, rank))
    }

    /// The files of the adapters.
    pub(crate) fn adapter_files(&self) -> Result<Vec<AdapterFile>, Error> {
        let files = self.adapters.iter();
        let files = files.map(|source| Ok(AdapterFile::open(&source.path)?));
        files.collect()
    }
}

/// Ranks that there is room for if nothing says more.
const DEFAULT_RANK: u32 = 16;

/// Gives a program the control vectors and room for the adapters that the options ask for.
pub(crate) fn with_adapters(
    program: &mut Program,
    spec: &ModelSpec,
    checkpoint: &dyn Checkpoint,
    options: &LoadOptions,
) -> Result<(), Error> {
    let vectors = control_vectors(options)?;
    if !vectors.is_empty() {
        welte_models::steer(program, spec, &vectors)?;
    }
    let files = options.adapter_files()?;
    if let Some(room) = options.room_for_adapters(&files) {
        welte_models::adapt(program, spec, checkpoint.dialect(), &files, room)?;
    }
    Ok(())
}

/// The sum of the control vectors that the options ask for, by layer.
pub(crate) fn control_vectors(options: &LoadOptions) -> Result<BTreeMap<u32, Vec<f32>>, Error> {
    let mut sums: BTreeMap<u32, Vec<f32>> = BTreeMap::new();
    let (first, last) = options.control_layers.unwrap_or((0, u32::MAX));
    for (path, scale) in &options.control_vectors {
        for (layer, vector) in welte_formats::control_vectors(path)? {
            if !(first..=last).contains(&layer) {
                continue;
            }
            let sum = sums.entry(layer).or_insert_with(|| vec![0.0; vector.len()]);
            if sum.len() != vector.len() {
                return Err(Error::File {
                    path: path.display().to_string(),
                    problem: format!(
                        "direction.{layer} has {} values, that of another file {}",
                        vector.len(),
                        sum.len()
                    ),
                });
            }
            sum.iter_mut()
                .zip(vector)
                .for_each(|(sum, v)| *sum += scale * v);
        }
    }
    Ok(sums)
}

/// What an adapter puts into the banks.
pub(crate) struct AdapterContent {
    pub(crate) data: AdapterData,
    /// Over all that it puts there.
    pub(crate) hash: Sha256,
    /// By bank: its buffer and the bytes of a place.
    banks: Vec<(u32, u64, u64)>,
}

impl AdapterContent {
    /// Reads an adapter for a model.
    pub(crate) fn read(model: &Model, source: &AdapterSource) -> Result<AdapterContent, Error> {
        AdapterContent::of(model.program(), model.spec(), model.inner.dialect, source)
    }

    pub(crate) fn of(
        program: &Program,
        spec: &ModelSpec,
        dialect: Dialect,
        source: &AdapterSource,
    ) -> Result<AdapterContent, Error> {
        let file = AdapterFile::open(&source.path)?;
        let data = welte_models::adapter_data(program, spec, dialect, &file)?;
        let banks = program.adapters.iter().flat_map(|adapters| &adapters.banks);
        let banks = banks.map(|spec| {
            let bytes = spec.bank.place_bytes().unwrap_or(0);
            (spec.buffer, bytes, spec.bank.head_bytes())
        });
        let numbers = data.places.iter().map(|(buffer, _)| buffer.to_le_bytes());
        let numbers: Vec<u8> = numbers.flatten().collect();
        Ok(AdapterContent {
            hash: sha256(data.content().chain([numbers.as_slice()])),
            banks: banks.collect(),
            data,
        })
    }

    /// Puts it into a place of all banks.
    pub(crate) fn write(&self, context: &mut dyn Context, place: u32) -> Result<(), DeviceError> {
        for (buffer, bytes, head) in &self.banks {
            let own = self.data.places.iter().find(|(bank, _)| bank == buffer);
            let at = u64::from(place) * bytes;
            match own {
                Some((_, own)) => context.write_bytes(*buffer, at, own)?,
                // Ranks of 0: nothing is added.
                None => context.write_bytes(*buffer, at, &vec![0; *head as usize])?,
            }
        }
        Ok(())
    }
}

/// Reads the adapters that a model is loaded with.
pub(crate) fn read_all(
    program: &Program,
    spec: &ModelSpec,
    dialect: Dialect,
    options: &LoadOptions,
) -> Result<Vec<(AdapterSource, Arc<AdapterContent>)>, Error> {
    let each = options.adapters.iter().map(|source| {
        let content = AdapterContent::of(program, spec, dialect, source)?;
        Ok((source.clone(), Arc::new(content)))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_from_text() {
        let source = |text: &str| text.parse::<AdapterSource>().unwrap();
        let fields = |s: AdapterSource| (s.name, s.path, s.scale, s.for_all);
        let path = PathBuf::from;
        let cases = [
            ("fox=dir/fox.gguf", "fox", "dir/fox.gguf", 1.0, false),
            ("fox=fox.gguf:0.5", "fox", "fox.gguf", 0.5, false),
            ("dir/fox.gguf", "fox", "dir/fox.gguf", 1.0, true),
            ("dir/fox.gguf:-2", "fox", "dir/fox.gguf", -2.0, true),
            ("c:/dir/a=b.gguf", "a=b", "c:/dir/a=b.gguf", 1.0, true),
        ];
        for (text, name, file, scale, for_all) in cases {
            let wanted = (name.to_string(), path(file), scale, for_all);
            assert_eq!(fields(source(text)), wanted, "{text}");
        }
        for wrong in ["", "=a", "a=", "a=b:inf", ":1"] {
            assert!(wrong.parse::<AdapterSource>().is_err(), "{wrong}");
        }
    }
}
