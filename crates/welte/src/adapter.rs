//! Adapters as they are loaded: where they are, and what they put into the banks.

use crate::cache::{Sha256, sha256};
use crate::{AdapterSource, Error, LoadOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use welte_device::{Context, Error as DeviceError};
use welte_formats::checkpoint::Checkpoint;
use welte_formats::{AdapterFile, Dialect, MOST_RANK};
use welte_models::{AdapterData, ModelSpec};
use welte_table::Program;

impl LoadOptions {
    /// Adapters that may be loaded at a time, and their highest rank; `None`: none are.
    fn room_for_adapters(&self, files: &[AdapterFile]) -> Result<Option<(u32, u32)>, Error> {
        let wrong = |option, problem| Err(welte_models::Error::Option { option, problem }.into());
        let places = self.max_adapters.max(self.adapters.len() as u32);
        if places > MOST_PLACES {
            let problem = format!("{places}; there may be {MOST_PLACES}");
            return wrong("max_adapters", problem);
        }
        if self.max_rank > MOST_RANK {
            let problem = format!("{}; it may be {MOST_RANK}", self.max_rank);
            return wrong("max_rank", problem);
        }
        if self.adapters.iter().filter(|a| a.for_all).count() > 1 {
            let problem = "several are for all requests, and a request has one".to_string();
            return wrong("adapters", problem);
        }
        let highest = files.iter().map(AdapterFile::rank).max().unwrap_or(0);
        let rank = match self.max_rank {
            0 => highest.max(DEFAULT_RANK),
            rank => rank,
        };
        Ok((places > 0).then_some((places, rank)))
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

const MOST_PLACES: u32 = 4096;

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
    if let Some(room) = options.room_for_adapters(&files)? {
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
    /// Reads an adapter for a program.
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
