//! The eyes of a model: from the bytes of a picture to the features that rows read in its place.
//!
//! [`Vision::read`] decodes a picture and cuts it up as the model's family wants it. [`Vision::layout`] says what stands in the
//! prompt for the picture, and [`Vision::encode`] computes the features. The prompt's placeholder ([`Vision::placeholder`]) is what
//! the chat template writes for a picture; the layout takes its place.

mod budget;
mod places;
mod processor;
mod stages;

use crate::devices::{KINDS, open_device};
use crate::engine::{Encoder, Turns};
use crate::model::plan_program;
use crate::text::TextSide;
use crate::{DeviceChoice, Error};
pub(crate) use budget::Budget;
use places::Places;
use sha2::{Digest, Sha256};
use stages::{Stage, ends};
use std::path::Path;
use std::sync::Arc;
use welte_device::{Device, DeviceId, DeviceOptions, Plan, Role, Step};
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata};
use welte_models::{VisionFamily, VisionSpec};
use welte_table::{Input, Row};
use welte_text::Clip;
pub use welte_vision::Piece;
use welte_vision::{Film, Limits, Prepared, Processor, Tile, decode, decoding_memory};

/// How to open a model's eyes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VisionOptions {
    /// Where the encoder runs. An automatic choice takes the first device that runs it.
    pub device: DeviceChoice,
    /// The device that an automatic choice tries first: that of the language model.
    pub near: Option<DeviceId>,
    /// Threads of the CPU device, as in [`LoadOptions`](crate::LoadOptions).
    pub threads: Option<usize>,
    /// The processors that these threads are pinned to, as in [`LoadOptions`](crate::LoadOptions).
    pub cpus: Option<Vec<usize>>,
    /// The most pixels of a picture before it is resized.
    pub most_pixels: u64,
    /// What features are multiplied by, as their language model does with embeddings.
    pub scale: f32,
    /// Features attend to each other, if the family leaves that to the language model: Gemma 4.
    pub both_ways: bool,
    /// The most features of a picture. Families that take pictures of any size scale larger ones down.
    pub most_features: u32,
}

impl Default for VisionOptions {
    fn default() -> Self {
        VisionOptions {
            device: DeviceChoice::Auto,
            near: None,
            threads: None,
            cpus: None,
            most_pixels: 64 << 20,
            scale: 1.0,
            both_ways: false,
            most_features: 1280,
        }
    }
}

/// An encoder of pictures that is ready to run. It belongs to one language model, whose rows read what it yields.
pub struct Vision {
    spec: VisionSpec,
    processor: Processor,
    film: Film,
    limits: Limits,
    /// What pictures that are being decoded take together: as much as the largest one may take.
    decoding: Budget,
    /// The learned vectors of each encoder's places.
    places: Vec<Places>,
    /// The queries that become features, if the family has some.
    queries: Vec<f32>,
    /// What is added to queries and patches of windows, if the family has some.
    windows: [Vec<f32>; 2],
    /// The features that end lines of pictures that are cut, and pictures.
    ends: [Option<Vec<f32>>; 2],
    scale: f32,
    device: DeviceId,
    /// The encoders, the one that reads patches first. Each other one reads the features of the one before it.
    encoders: Vec<Encoder>,
}

/// An encoder as its file describes it.
type Described = (VisionSpec, Box<dyn Checkpoint>);

/// A picture that is decoded and cut up, but not encoded.
#[derive(Clone, Debug)]
pub struct Picture {
    hash: [u8; 32],
    size: [u32; 2],
    prepared: Arc<Prepared>,
}

/// What an encoder makes of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// The picture's hash ([`Picture::hash`]).
    pub hash: [u8; 32],
    /// Floats of a feature: [`Vision::width`].
    pub width: usize,
    /// The features, one after the other.
    pub rows: Arc<[f32]>,
}

impl Picture {
    /// The SHA-256 of the picture's bytes; of a clip, one of all that its features depend on.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Width and height as the picture is shown.
    pub fn size(&self) -> [u32; 2] {
        self.size
    }

    /// How many features it becomes.
    pub fn features(&self) -> usize {
        self.prepared.count()
    }

    /// Bytes that it takes until it is encoded.
    pub fn bytes(&self) -> usize {
        let tiles = self.prepared.tiles.iter();
        let all = tiles.flat_map(|tile| [&tile.pixels].into_iter().chain(&tile.later));
        all.map(|pixels| pixels.bytes.len()).sum()
    }
}

/// What tells clips apart: the bytes of their frames, their length and their bound of features.
pub(crate) fn hash_of(clip: &Clip) -> [u8; 32] {
    let mut hash = Sha256::new();
    for frame in &clip.frames {
        hash.update(Sha256::digest(frame));
    }
    hash.update(clip.length.as_nanos().to_le_bytes());
    hash.update(clip.most_features.to_le_bytes());
    hash.finalize().into()
}

impl std::fmt::Debug for Vision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Vision").field(&self.spec.family).finish()
    }
}

impl Vision {
    /// Opens the eyes of a model: of the `mmproj` file, or else those that a Hugging Face directory has beside its language
    /// model. `None` if the model has none, or some of a family that is not supported.
    pub fn open(
        source: &str,
        mmproj: Option<&Path>,
        options: &VisionOptions,
    ) -> Result<Option<Vision>, Error> {
        let path = mmproj.unwrap_or(Path::new(source));
        match Vision::spec(path, mmproj.is_none())? {
            Some((spec, checkpoint)) => Vision::of(spec, &*checkpoint, path, options).map(Some),
            None => Ok(None),
        }
    }

    /// What a file says of an encoder, or a directory, which may have none.
    fn spec(path: &Path, of_model: bool) -> Result<Option<Described>, Error> {
        if of_model && !path.is_dir() {
            return Ok(None);
        }
        let checkpoint = welte_formats::open(path)?;
        match welte_models::vision_spec(&*checkpoint)? {
            Some(spec) => Ok(Some((spec, checkpoint))),
            None if of_model => Ok(None),
            None => Err(Error::File {
                path: path.display().to_string(),
                problem: unknown(&*checkpoint),
            }),
        }
    }

    /// Bytes that the encoder takes on a device. `None`: it is not there, or does not run there.
    pub(crate) fn bytes(
        source: &str,
        mmproj: Option<&Path>,
        options: &VisionOptions,
        device: &dyn Device,
    ) -> Option<u64> {
        let path = mmproj.unwrap_or(Path::new(source));
        let (spec, checkpoint) = Vision::spec(path, mmproj.is_none()).ok()??;
        let processor = processor_of(&spec, &*checkpoint, path, options).ok()?;
        let plans = plans(&spec, &*checkpoint, processor.most_patches(), device).ok()?;
        Some(plans.iter().map(|plan| plan.memory.total()).sum())
    }

    fn of(
        spec: VisionSpec,
        checkpoint: &dyn Checkpoint,
        path: &Path,
        options: &VisionOptions,
    ) -> Result<Vision, Error> {
        let processor = processor_of(&spec, checkpoint, path, options)?;
        let rows = processor.most_patches();
        let load = |device: Arc<dyn Device>| {
            let plans = plans(&spec, checkpoint, rows, &*device)?;
            let need = plans.iter().map(|plan| plan.memory.total()).sum();
            fits(need, &*device, checkpoint)?;
            let load = |plan: Plan| {
                let loaded = device.load(plan, checkpoint, &mut |_| ())?;
                Ok(Encoder::new(loaded)?)
            };
            let all = plans.into_iter().map(load);
            Ok((device.info().id, all.collect::<Result<Vec<_>, Error>>()?))
        };
        let (device, encoders) = place(options, load)?;
        let chain = spec.chain();
        let places = chain.iter().map(|part| Places::of(part, checkpoint));
        let limits = Limits::of_pixels(options.most_pixels);
        Ok(Vision {
            decoding: Budget::new(limits.bytes),
            limits,
            places: places.collect::<Result<_, Error>>()?,
            queries: welte_models::learned_queries(&spec, checkpoint)?,
            windows: welte_models::learned_windows(&spec, checkpoint)?,
            ends: ends_of(&spec, checkpoint)?,
            scale: options.scale,
            film: processor::film(&spec, checkpoint, path)?,
            device,
            encoders,
            processor,
            spec,
        })
    }

    /// The device that it runs on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// No language model reads what it makes: a picture's only feature is a vector beside those of texts.
    pub fn is_apart(&self) -> bool {
        self.spec.is_of_class()
    }

    /// The text that the chat template writes for a picture, and that the picture's layout replaces.
    pub fn placeholder(&self) -> &str {
        self.processor.marks.placeholder()
    }

    /// What stands before the layout of a prompt's picture of this number, from 0 on, if anything does.
    pub fn number(&self, number: usize) -> Option<String> {
        self.processor.marks.number(number)
    }

    /// Floats of a feature: as many as an embedding of the language model, or a multiple of that if the model has several parts of it.
    pub fn width(&self) -> usize {
        self.spec.feature_values() as usize
    }

    /// Decodes a picture and cuts it up. Needs no device.
    pub fn read(&self, bytes: &[u8]) -> Result<Picture, Error> {
        let _share = self.decoding.take(decoding_memory(bytes, self.limits)?);
        let pixels = decode(bytes, self.limits)?;
        Ok(Picture {
            hash: Sha256::digest(bytes).into(),
            size: [pixels.width, pixels.height],
            prepared: Arc::new(self.processor.prepare(&pixels)?),
        })
    }

    /// How videos are shown.
    pub fn film(&self) -> Film {
        self.film
    }

    /// Decodes frames that become one picture. Needs no device.
    pub fn read_frames(&self, clip: &Clip) -> Result<Picture, Error> {
        let processor = self.processor.of_video(clip.most_features);
        let mut size = None;
        let frames = clip.frames.iter().map(|bytes| {
            // A frame gives it back before the next one asks, which would wait for itself.
            let _share = self.decoding.take(decoding_memory(bytes, self.limits)?);
            let pixels = decode(bytes, self.limits)?;
            size.get_or_insert([pixels.width, pixels.height]);
            processor.prepare(&pixels)
        });
        let prepared = processor.join_frames(frames, clip.length.as_secs_f64())?;
        Ok(Picture {
            hash: hash_of(clip),
            size: size.unwrap_or_default(),
            prepared: Arc::new(prepared),
        })
    }

    /// What stands in the prompt for a picture.
    pub fn layout(&self, picture: &Picture) -> Vec<Piece> {
        picture.prepared.layout()
    }

    /// Computes the features of a picture. One tile is encoded at a time; others wait.
    pub fn encode(&self, picture: &Picture) -> Result<Features, Error> {
        self.encode_in(picture, &Turns::at_once())
    }

    /// As [`Vision::encode`], in turns with others that use the device.
    pub fn encode_in(&self, picture: &Picture, turns: &Turns<'_>) -> Result<Features, Error> {
        let width = self.width();
        let prepared = &picture.prepared;
        let each = prepared
            .features
            .iter()
            .map(|[lines, columns]| lines * columns);
        let mut all = vec![0.0; each.sum::<u32>() as usize * width];
        let mut rest = &mut all[..];
        for (tile, [lines, columns]) in prepared.parts() {
            let (own, others) = rest.split_at_mut((lines * columns) as usize * width);
            self.tile(tile, own, turns)?;
            rest = others;
        }
        if !prepared.lines.is_empty() {
            let [end, separator] = self
                .ends
                .each_ref()
                .map(|end| end.as_deref().unwrap_or(&[]));
            all.extend_from_slice(separator);
            let feature = |number: &Option<u32>| match number {
                Some(number) => &all[*number as usize * width..][..width],
                None => end,
            };
            all = prepared
                .lines
                .iter()
                .flatten()
                .flat_map(feature)
                .copied()
                .collect();
        }
        if self.scale != 1.0 {
            all.iter_mut().for_each(|value| *value *= self.scale);
        }
        Ok(Features {
            hash: picture.hash,
            width,
            rows: all.into(),
        })
    }

    /// Computes the features of a tile, line by line.
    fn tile(&self, tile: &Tile, features: &mut [f32], turns: &Turns<'_>) -> Result<(), Error> {
        let width = self.width();
        let rows = self.processor.rows(tile);
        let mut numbers = rows.features;
        let mut stage = Stage {
            values: rows.values,
            places: rows.places,
        };
        // What projectors with windows read.
        let mut states: Option<Stage> = None;
        let chain = self.spec.chain();
        for (index, spec) in chain.iter().enumerate() {
            if index > 0 {
                let before = chain[index - 1].feature_values() as usize;
                let [queries, patches] = &self.windows;
                stage = match (&spec.windows, &states) {
                    (Some(windows), Some(states)) if index == 1 => {
                        states.queries(windows, before, queries)
                    }
                    (Some(windows), Some(states)) => {
                        states.windows(windows, before, patches, &stage.values)
                    }
                    _ if spec.step > 0 => {
                        if index == 1 {
                            stage.values = stages::in_order(&stage.values, &numbers, before);
                        }
                        stage.squares(before, spec.step)
                    }
                    _ => stage.alone(before),
                };
            }
            let patches = stage.places.len() as u32;
            let bytes = self.rows(spec, &self.places[index], &stage);
            let (queries, _) = spec.queries_of(patches);
            let mut places = stage.places.clone();
            places.resize(
                places.len() + spec.class as usize + queries as usize,
                [0; 3],
            );
            let ends = ends(spec, patches, queries);
            let step = step(spec, &places, patches, &ends);
            stage.values = self.encoders[index].run(&bytes, step, turns)?;
            if index == 0 && spec.windows.is_some() {
                states = Some(std::mem::take(&mut stage));
            }
        }
        let count = (stage.values.len() / width) as u32;
        if let Some(windows) = &self.spec.windows {
            numbers = stages::numbers_in_windows(windows, count);
        } else if self.spec.step > 0 || self.spec.queries > 0 {
            numbers = (0..count).collect();
        }
        for (number, feature) in numbers.iter().zip(stage.values.chunks_exact(width)) {
            features[*number as usize * width..][..width].copy_from_slice(feature);
        }
        Ok(())
    }

    /// What the rows of an encoder read: patches, then the class and queries.
    fn rows(&self, spec: &VisionSpec, of: &Places, stage: &Stage) -> Vec<u8> {
        let width = spec.patch_values() as usize;
        let (row, vector) = (spec.row_values() as usize, spec.place_values() as usize);
        let (queries, before) = spec.queries_of(stage.places.len() as u32);
        let count = stage.places.len() + spec.class as usize + queries as usize;
        let mut bytes = Vec::with_capacity(4 * count * row);
        let mut add = |values: &[f32]| bytes.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
        let on_tile = of.on(&stage.places);
        let mut own = Vec::new();
        for (patch, [_, line, column]) in stage.values.chunks_exact(width).zip(&stage.places) {
            add(patch);
            if spec.positions > 0 {
                on_tile.read(*line, *column, &mut own);
                add(&own);
            } else {
                add(&vec![0.0; vector]);
            }
            add(of.of_key(*line, *column, &mut own));
        }
        if spec.class {
            add(&vec![0.0; width]);
            add(of.class());
        }
        if queries > 0 {
            let own = match spec.query_values() {
                0 => vector,
                values => values as usize,
            };
            let all = self.queries.chunks_exact(own).skip(before as usize);
            for query in all.take(queries as usize) {
                add(&vec![0.0; row - query.len()]);
                add(query);
            }
        }
        bytes
    }
}

/// The step of an encoder whose rows have these axes, and whose rows `ends` yield features. The first `patches` of them are patches.
fn step(spec: &VisionSpec, axes: &[[u32; 3]], patches: u32, ends: &[u32]) -> Step {
    let all = (0..).zip(axes).map(|(number, axes)| Row {
        input: Input::Feature(number),
        axes: *axes,
        // Causal queries see those before them, patches each other.
        reach: if spec.has_causal_queries() {
            number.max(patches - 1)
        } else {
            number
        },
        ..Row::new(0, number, 0)
    });
    let all: Vec<Row> = all.collect();
    Step::of(Role::Text, &all, ends)
}

/// The features that end lines and pictures. All parts of such a feature are the same.
fn ends_of(spec: &VisionSpec, checkpoint: &dyn Checkpoint) -> Result<[Option<Vec<f32>>; 2], Error> {
    let parts = 1 + spec.deep.len();
    let ends = welte_models::learned_ends(spec, checkpoint)?;
    Ok(ends.map(|end| end.map(|end| end.repeat(parts))))
}

fn processor_of(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
    path: &Path,
    options: &VisionOptions,
) -> Result<Processor, Error> {
    let of_model = (options.most_features, options.both_ways);
    processor::read(spec, checkpoint, path, of_model)
}

/// The plans of an encoder, and of the one before it first, for tiles of this many patches.
fn plans(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
    patches: u32,
    device: &dyn Device,
) -> Result<Vec<Plan>, Error> {
    let mut rows = patches;
    let plan = |part: &VisionSpec| {
        rows = part.rows_of(rows);
        let program = welte_models::compile_vision(part, checkpoint, rows)?;
        rows /= part.group();
        plan_program(device, checkpoint, program, device.patterns())
    };
    spec.chain().into_iter().map(plan).collect()
}

/// The encoders of images and sounds of a Hugging Face directory as an `mmproj` file, and what is left out of it, in words: an encoder of a
/// family that such files do not have.
pub fn as_mmproj(
    checkpoint: Box<dyn Checkpoint>,
) -> Result<(Box<dyn Checkpoint>, Option<String>), Error> {
    let (mut keys, mut line_end) = (Metadata::new(), None);
    if checkpoint.dialect() == Dialect::HuggingFace
        && let Some(spec) = welte_models::vision_spec(&*checkpoint)?
    {
        let path = Path::new(checkpoint.origin());
        keys = processor::gguf_keys(&spec, &*checkpoint, path)?;
        if matches!(spec.family, VisionFamily::Pixtral | VisionFamily::Mistral3) {
            let tokenizer = TextSide::of(&*checkpoint)
                .ok()
                .and_then(|side| side.tokenizer);
            line_end = tokenizer.and_then(|t| t.id_of("[IMG_BREAK]"));
        }
    }
    let (file, left_out) = welte_models::as_mmproj(checkpoint, keys, line_end)?;
    Ok((Box::new(file), left_out))
}

/// Why a model without a known encoder takes no images.
pub(crate) fn unknown(checkpoint: &dyn Checkpoint) -> String {
    let known = VisionSpec::families();
    match welte_models::unknown_vision(checkpoint) {
        Some(name) => format!(
            "its encoder of images ({name}) is not supported; known are {known}. Use it without images, or another model"
        ),
        None => format!("has no encoder of images of a known family; known are {known}"),
    }
}

/// Loads on the device that is asked for, or on the first one that can.
pub(crate) fn place<T>(
    options: &VisionOptions,
    load: impl Fn(Arc<dyn Device>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut device = DeviceOptions::default();
    device.threads = options.threads;
    device.cpus = options.cpus.clone();
    match options.device {
        DeviceChoice::Named(id) => return load(open_device(id, &device)?),
        DeviceChoice::Assumed(name) => return Err(Error::NotHere { name }),
        DeviceChoice::Auto | DeviceChoice::Ranks { .. } => {}
    }
    let near = options.near.map(|id| open_device(id, &device));
    let kinds = KINDS.iter().filter(|kind| kind.is_automatic());
    let others = kinds.map(|kind| kind.open_first(&device));
    let mut why = Error::unknown_device("auto");
    for opened in near.into_iter().chain(others) {
        match opened.and_then(&load) {
            Ok(found) => return Ok(found),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Refuses plans of this many bytes that exceed the available memory.
pub(crate) fn fits(
    need: u64,
    device: &dyn Device,
    checkpoint: &dyn Checkpoint,
) -> Result<(), Error> {
    match device.available_memory().filter(|have| *have < need) {
        None => Ok(()),
        Some(have) => Err(Error::Memory {
            origin: checkpoint.origin().to_string(),
            device: device.info().id,
            need,
            have,
            fits_context: None,
            fits_cpu_experts: None,
            dealt: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: DeviceId = DeviceId::only("reference");

    /// The devices that were tried, and the one that was taken. The encoder can be loaded on all but one.
    fn tried(options: &VisionOptions, fails: &str) -> (Vec<&'static str>, Result<(), Error>) {
        let all = std::cell::RefCell::default();
        let load = |device: Arc<dyn Device>| {
            let kind = device.info().id.kind;
            Vec::push(&mut all.borrow_mut(), kind);
            if kind == fails {
                return Err(Error::unknown_device(kind));
            }
            Ok(())
        };
        let done = place(options, load);
        (all.into_inner(), done)
    }

    #[test]
    fn the_encoder_runs_near_the_model_or_where_it_can_be_loaded() {
        let near = VisionOptions {
            near: Some(REFERENCE),
            ..VisionOptions::default()
        };
        assert!(matches!(tried(&near, ""), (all, Ok(())) if all == ["reference"]));
        let (all, done) = tried(&near, "reference");
        assert!(all.len() > 1 && done.is_ok(), "{all:?}");
        let named = VisionOptions {
            device: DeviceChoice::Named(REFERENCE),
            ..near
        };
        assert!(matches!(tried(&named, "reference"), (all, Err(_)) if all.len() == 1));
    }
}
