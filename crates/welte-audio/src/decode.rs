//! From the bytes of a file to samples of one channel at 16 kHz.

use crate::{Error, RATE, Resampler};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

/// The most damaged packets in a row that are left out.
const MOST_DAMAGED: usize = 64;
/// The most frames of a packet that a header may promise.
const MOST_FRAMES: u64 = 1 << 16;
/// The most packets in a row that have no samples: those of other tracks among them.
const MOST_EMPTY: usize = 1 << 20;

/// The most changes of the sample rate. Each makes a resampler.
const MOST_CHANGES: usize = 64;
/// Samples of all channels for each second that a file may last: 96 kHz in stereo. Files of a few bytes may have many.
const VALUES_PER_SECOND: u64 = 192_000;
/// As many may have a short file at any rate.
const FEWEST_VALUES: u64 = 128 << 20;

/// What a file may have at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Seconds.
    pub seconds: u32,
    /// Samples of all channels together.
    pub values: u64,
    /// Channels.
    pub channels: usize,
    /// The lowest and the highest sample rate.
    pub rates: [u32; 2],
}

impl Limits {
    /// For files that last so many seconds.
    pub fn lasting(seconds: u32) -> Limits {
        Limits {
            seconds,
            values: FEWEST_VALUES.max(VALUES_PER_SECOND * u64::from(seconds)),
            channels: 32,
            rates: [1_000, 384_000],
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::lasting(4 * 3600)
    }
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// The mean of all channels, at [`RATE`], from -1 to 1.
    pub samples: Vec<f32>,
    /// Samples per second in the file.
    pub rate: u32,
    /// Channels in the file.
    pub channels: usize,
}

impl Audio {
    /// How long it is.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(RATE)
    }
}

/// Decodes the first track of sound of a file. Memory grows with the samples that are found, not with what headers promise.
pub fn decode(bytes: impl Into<Vec<u8>>, limits: &Limits) -> Result<Audio, Error> {
    decode_while(bytes, limits, &|| true)
}

/// As [`decode`], but gives up with [`Error::Unwanted`] once `wanted` is false.
pub fn decode_while(
    bytes: impl Into<Vec<u8>>,
    limits: &Limits,
    wanted: &dyn Fn() -> bool,
) -> Result<Audio, Error> {
    let bytes = bytes.into();
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    // The decoders may panic on hostile bytes.
    let work = AssertUnwindSafe(|| read(bytes, limits, wanted));
    catch_unwind(work).unwrap_or_else(|_| Err(Error::Damaged("it cannot be decoded".to_string())))
}

fn read(bytes: Vec<u8>, limits: &Limits, wanted: &dyn Fn() -> bool) -> Result<Audio, Error> {
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let (files, packets) = (FormatOptions::default(), MetadataOptions::default());
    let probe = symphonia::default::get_probe();
    let mut format =
        probe
            .probe(&Hint::new(), stream, files, packets)
            .map_err(|fault| match fault {
                Fault::Unsupported(what) => Error::Unknown(what.to_string()),
                // The end came before a known beginning.
                Fault::IoError(error) => Error::Unknown(error.to_string()),
                other => Error::Damaged(other.to_string()),
            })?;
    let track = format.default_track(TrackType::Audio);
    let track = track.ok_or_else(|| Error::Unknown("a file without sound".to_string()))?;
    let id = track.id;
    let params = track.codec_params.as_ref().and_then(|all| all.audio());
    let params = params.ok_or_else(|| Error::Codec("it is not named".to_string()))?;
    if let Some(channels) = &params.channels {
        check_channels(channels.count(), limits)?;
    }
    if let Some(rate) = params.sample_rate {
        check_rate(rate, limits)?;
    }
    // Decoders make room for what a header says of its packets.
    let mut params = params.clone();
    params.max_frames_per_packet = params
        .max_frames_per_packet
        .filter(|frames| *frames <= MOST_FRAMES);
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(&params, &AudioDecoderOptions::default())
        .map_err(|fault| Error::Codec(fault.to_string()))?;
    let mut found: Option<Found> = None;
    let mut interleaved: Vec<f32> = Vec::new();
    let (mut damaged, mut empty, mut changes, mut values) = (0, 0, 0, 0);
    loop {
        if empty > MOST_EMPTY {
            let problem = "too many of its packets have no samples";
            return Err(Error::Damaged(problem.to_string()));
        }
        empty += 1;
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // The file was cut off: what came before it counts.
            Err(Fault::IoError(error)) if found.is_some() && is_end(&error) => break,
            // The next part of a chain has parameters of its own.
            Err(Fault::ResetRequired) => {
                let problem = "it has several parts one after the other; send them one by one";
                return Err(Error::Damaged(problem.to_string()));
            }
            Err(fault) => return Err(Error::Damaged(fault.to_string())),
        };
        if packet.track_id != id {
            continue;
        }
        let buffer = match decoder.decode(&packet) {
            Ok(buffer) => buffer,
            Err(Fault::DecodeError(_) | Fault::IoError(_)) if damaged < MOST_DAMAGED => {
                damaged += 1;
                continue;
            }
            Err(fault) => return Err(Error::Damaged(fault.to_string())),
        };
        damaged = 0;
        if !wanted() {
            return Err(Error::Unwanted);
        }
        let (rate, channels) = (buffer.spec().rate(), buffer.spec().channels().count());
        if buffer.is_empty() || channels == 0 {
            continue;
        }
        values += buffer.samples_interleaved() as u64;
        if values > limits.values {
            return Err(Error::Limit {
                what: format!("more than {} samples in all channels", limits.values),
                limit: "convert it to one channel at 16 kHz, or cut it".to_string(),
            });
        }
        if found.as_ref().is_none_or(|own| own.rate != rate) {
            changes += 1;
            if changes > MOST_CHANGES {
                let problem = "its sample rate changes too often";
                return Err(Error::Damaged(problem.to_string()));
            }
            check_rate(rate, limits)?;
            check_channels(channels, limits)?;
            let samples = found.take().map(Found::finish).unwrap_or_default();
            found = Some(Found {
                resampler: Resampler::new(rate, RATE),
                samples,
                rate,
                channels,
            });
        }
        empty = 0;
        interleaved.resize(buffer.samples_interleaved(), 0.0);
        buffer.copy_to_slice_interleaved(&mut interleaved);
        if let Some(found) = &mut found {
            found.add(&interleaved, channels);
            let most = limits.seconds as usize * RATE as usize;
            if found.samples.len() > most {
                return Err(Error::Long {
                    seconds: limits.seconds,
                });
            }
        }
    }
    let found = found.ok_or_else(|| Error::Damaged("it has no samples".to_string()))?;
    let (rate, channels) = (found.rate, found.channels);
    Ok(Audio {
        samples: found.finish(),
        rate,
        channels,
    })
}

fn is_end(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::UnexpectedEof
}

/// What was decoded so far.
struct Found {
    resampler: Resampler,
    samples: Vec<f32>,
    rate: u32,
    channels: usize,
}

impl Found {
    fn add(&mut self, interleaved: &[f32], channels: usize) {
        let mono = interleaved.chunks_exact(channels).map(|frame| {
            let sum: f32 = frame.iter().filter(|value| value.is_finite()).sum();
            (sum / channels as f32).clamp(-1.0, 1.0)
        });
        self.resampler.push(mono, &mut self.samples);
    }

    fn finish(mut self) -> Vec<f32> {
        self.resampler.finish(&mut self.samples);
        self.samples
    }
}

fn check_channels(channels: usize, limits: &Limits) -> Result<(), Error> {
    if channels <= limits.channels {
        return Ok(());
    }
    Err(Error::Limit {
        what: format!("{channels} channels"),
        limit: format!("at most {} are taken", limits.channels),
    })
}

fn check_rate(rate: u32, limits: &Limits) -> Result<(), Error> {
    let [low, high] = limits.rates;
    if (low..=high).contains(&rate) {
        return Ok(());
    }
    Err(Error::Limit {
        what: format!("a sample rate of {rate} Hz"),
        limit: format!("from {low} to {high} Hz are taken"),
    })
}
