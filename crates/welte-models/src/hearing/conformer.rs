//! The conformers of Gemma 3n and Gemma 4: what a checkpoint's is, and what the host needs to know of it.

use super::{HearingFamily, HearingSpec, MOST_CHANNELS, MOST_GROUP, Pieces};
use crate::Error;
use crate::keys::Keys;
use crate::names::weight;
use crate::spec::{MOST_HEADS, MOST_LAYERS};
use crate::speech::parts::Taker;
use crate::speech::{MOST_DIM, MOST_MELS, SpeechLayers};
use crate::weights::Collector;
use welte_formats::Checkpoint;
use welte_formats::checkpoint::Value;

/// States of the longest sound, which lasts 30 s.
const STATES: u32 = 750;
const MOST_TAPS: u32 = 64;
const MOST_SEEN: u32 = 64;
/// Limits of values from here on change nothing.
const NO_LIMIT: f64 = 1e6;

/// What a conformer is, besides its sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conformer {
    /// Values of a place after each of the two convolutions over time and pitch.
    pub channels: [u32; 2],
    /// Inputs before its own time that a place of these convolutions reads: 1 or none, of 3.
    pub before: u32,
    /// Rows that the convolution of a layer reads: a row's own and those before it.
    pub taps: u32,
    /// Rows that a row attends to: its own and those before it.
    pub seen: u32,
    /// The limit of scores.
    pub softcap: f32,
    /// The part of what a feed-forward part makes that is added.
    pub residual: f32,
    /// What keeps norms from dividing by zero: where the configuration says it, and of norms over all times so far.
    pub eps: [f32; 2],
    /// Values of a state that is projected to a feature.
    pub last: u32,
    /// Features of a sound, whatever its length.
    pub fixed: Option<u32>,
}

impl Conformer {
    /// Values that a row of the first program reads: a square of the spectrogram, what is subtracted from each of the three times of the
    /// first convolution, and the factor of each of its nine places. Padded.
    pub const ROW_VALUES: u32 = 64;
    /// Where the former begin.
    pub const MEANS: u32 = Pieces::SIDE * Pieces::SIDE;
    /// Where the latter begin.
    pub const FACTORS: u32 = Self::MEANS + 3;
    /// Times whose places are computed in a step.
    pub const TIMES: u32 = 32;

    /// Values of a row of the second program: all pitches of a time.
    pub fn line(&self, mels: u32) -> u32 {
        Pieces::after(mels, 2) * self.channels[1]
    }
}

/// Two numbers of a list.
fn pair(keys: &Keys<'_>, key: &str, default: [u32; 2], most: u32) -> Result<[u32; 2], Error> {
    let Some(value) = keys.value(key) else {
        return Ok(default);
    };
    let number = |value: &Value| match value {
        Value::U64(v) => u32::try_from(*v).ok(),
        Value::I64(v) => u32::try_from(*v).ok(),
        _ => None,
    };
    let list: Option<Vec<u32>> = match value {
        Value::Array(list) => list.iter().map(number).collect(),
        _ => None,
    };
    match list.as_deref() {
        Some([a, b]) if [a, b].iter().all(|v| (1..=most).contains(v)) => Ok([*a, *b]),
        _ => {
            let problem = format!("must be two numbers from 1 to {most}");
            Err(keys.error(key, problem))
        }
    }
}

/// Reads the encoder of Gemma 3n or Gemma 4; `None` if the checkpoint has no section for one.
pub(super) fn read(keys: &Keys<'_>, family: HearingFamily) -> Result<Option<HearingSpec>, Error> {
    let metadata = keys.checkpoint.metadata();
    if !metadata.keys().any(|key| key.starts_with("audio_config.")) {
        return Ok(None);
    }
    let large = family == HearingFamily::Gemma4;
    // Gemma 3n has a prefix for what Gemma 4 has none.
    let own = |name: &str| {
        let prefix = if large { "" } else { "conf_" };
        format!("audio_config.{prefix}{name}")
    };
    let size = |name: &str, default: u32, most: u32| keys.size(name, Some(default), most);
    let dim = size(
        "audio_config.hidden_size",
        if large { 1024 } else { 1536 },
        MOST_DIM,
    )?;
    let layers = SpeechLayers {
        count: size(&own("num_hidden_layers"), 12, MOST_LAYERS)?,
        heads: size(&own("num_attention_heads"), 8, MOST_HEADS)?,
        ffn: 4 * dim,
    };
    if !dim.is_multiple_of(layers.heads) || dim < 4 || !dim.is_multiple_of(2) {
        let problem = format!("{} heads of {dim} values", layers.heads);
        return Err(keys.error("audio_config.hidden_size", problem));
    }
    let channels_key = if large {
        "audio_config.subsampling_conv_channels"
    } else {
        "audio_config.sscp_conv_channel_size"
    };
    let channels = pair(keys, channels_key, [128, 32], MOST_CHANNELS)?;
    for (name, wanted) in [("kernel", [3, 3]), ("stride", [2, 2])] {
        for number in 0..2 {
            let key = format!("audio_config.sscp_conv_{name}_size.{number}");
            if pair(keys, &key, wanted, MOST_TAPS)? != wanted {
                return Err(keys.error(&key, format!("must be {wanted:?}")));
            }
        }
    }
    // The matrix after the convolutions of Gemma 4 counts as many pitches as there are channels.
    let mels = if large {
        channels[0] / 4 * 4
    } else {
        size("audio_config.input_feat_size", 128, MOST_MELS)?
    };
    if mels == 0 || mels > MOST_MELS {
        let problem = format!("stands for {mels} pitches; must be from 4 to {MOST_MELS}");
        return Err(keys.error(channels_key, problem));
    }
    let chunk = size(&own("attention_chunk_size"), 12, 1 << 12)?;
    let left_key = own("attention_context_left");
    let left = size(&left_key, 13, MOST_SEEN)?;
    let right_key = own("attention_context_right");
    if keys.u32(&right_key)?.unwrap_or(0) != 0 {
        return Err(keys.error(&right_key, "must be 0: rows see none after them"));
    }
    let seen = if large { left - 1 } else { left };
    // Gemma 4 counts distances from the middle of what a chunk sees.
    if seen < 2 || (large && chunk != left - 1) {
        let problem = format!("is {left} for chunks of {chunk}");
        return Err(keys.error(&left_key, problem));
    }
    if let Some(key) = ["audio_config.hidden_act"].into_iter().find(|_| large) {
        match keys.text(key)? {
            None | Some("silu") => {}
            Some(other) => return Err(keys.error(key, format!("is '{other}'; supported is silu"))),
        }
    }
    let limit_key = "audio_config.gradient_clipping";
    if keys.positive(limit_key, Some(1e10))? < NO_LIMIT {
        return Err(keys.error(limit_key, "limits values, which is not supported"));
    }
    let eps = keys.positive("audio_config.rms_norm_eps", Some(1e-6))? as f32;
    let group_eps = keys.positive("audio_config.sscp_conv_group_norm_eps", Some(1e-3))? as f32;
    let (group, fixed) = if large {
        (1, None)
    } else {
        let group = size("audio_config.conf_reduction_factor", 4, MOST_GROUP)?;
        let fixed = size("audio_soft_tokens_per_image", 188, 1 << 12)?;
        if fixed < STATES.div_ceil(group) {
            let problem = format!("is {fixed}; a sound has up to {}", STATES.div_ceil(group));
            return Err(keys.error("audio_soft_tokens_per_image", problem));
        }
        (group, Some(fixed))
    };
    let conformer = Conformer {
        channels,
        before: u32::from(large),
        taps: size(&own("conv_kernel_size"), 5, MOST_TAPS)?,
        seen,
        softcap: keys.positive(&own("attention_logit_cap"), Some(50.0))? as f32,
        residual: keys.positive(&own("residual_weight"), Some(0.5))? as f32,
        eps: [eps, group_eps],
        last: if large {
            size("audio_config.output_proj_dims", 1536, MOST_DIM)?
        } else {
            dim
        },
        fixed,
    };
    Ok(Some(HearingSpec {
        family,
        mels,
        dim,
        layers,
        positions: STATES.next_multiple_of(group),
        group,
        width: keys.size("hidden_size", None, MOST_DIM)?,
        window: 0,
        places: 0,
        hidden: 0,
        rotation: None,
        pieces: None,
        conformer: Some(conformer),
        granite: None,
        fast: None,
    }))
}

/// What the host does between the programs of Gemma 3n: norms over all times so far, and what stands for the rest of a sound.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningNorms {
    /// The kernels of the first convolution, by time and then by pitch: their sums, and the sums of their products.
    sums: [f64; 9],
    products: [[f64; 9]; 9],
    channels: u32,
    eps: f64,
    /// The factors of the second norm.
    factors: Vec<f32>,
    /// The feature of what a sound lacks.
    pub filler: Vec<f32>,
}

/// Sums of values, and of their squared distances from the mean at the time.
#[derive(Default)]
struct SoFar {
    count: f64,
    sum: f64,
    squares: f64,
}

impl SoFar {
    /// The mean, and the factor that makes the variance 1, after `count` more values of this sum and this sum of squares.
    fn after(&mut self, count: f64, sum: f64, squares: f64, eps: f64) -> [f32; 2] {
        self.count += count;
        self.sum += sum;
        let mean = self.sum / self.count;
        self.squares += squares - 2.0 * mean * sum + count * mean * mean;
        let variance = (self.squares / self.count).max(0.0);
        [mean as f32, (1.0 / (variance + eps).sqrt()) as f32]
    }
}

impl RunningNorms {
    /// The norm of the first convolution at each of its times. `value` yields a value of the spectrogram of `mels` pitches, or 0 beyond
    /// its ends.
    pub fn first(&self, times: u32, mels: u32, value: impl Fn(u32, i64) -> f32) -> Vec<[f32; 2]> {
        let pitches = Pieces::after(mels, 1);
        let mut so_far = SoFar::default();
        let norm = |time: u32| {
            let (mut sum, mut squares) = (0.0, 0.0);
            for pitch in 0..pitches {
                let tap = |tap: usize| {
                    let at = 2 * i64::from(pitch) + (tap % 3) as i64 - 1;
                    f64::from(value(2 * time + (tap / 3) as u32, at))
                };
                let x: [f64; 9] = std::array::from_fn(tap);
                sum += x.iter().zip(self.sums).map(|(x, k)| x * k).sum::<f64>();
                for (x_i, row) in x.iter().zip(&self.products) {
                    squares += x_i * x.iter().zip(row).map(|(x, k)| x * k).sum::<f64>();
                }
            }
            let count = f64::from(pitches * self.channels);
            so_far.after(count, sum, squares, self.eps)
        };
        (0..times).map(norm).collect()
    }

    /// Norm and activation of the second convolution, a line of values for each time.
    pub fn second(&self, places: &mut [f32], line: u32) {
        let mut so_far = SoFar::default();
        for values in places.chunks_mut(line as usize) {
            let sum = values.iter().map(|v| f64::from(*v)).sum();
            let squares = values.iter().map(|v| f64::from(*v).powi(2)).sum();
            let [mean, scale] = so_far.after(f64::from(line), sum, squares, self.eps);
            let factors = self.factors.iter().cycle();
            for (value, factor) in values.iter_mut().zip(factors) {
                *value = ((*value - mean) * scale * factor).max(0.0);
            }
        }
    }
}

/// What the host does between the programs; `None`: nothing.
pub fn running_norms(
    spec: &HearingSpec,
    checkpoint: &dyn Checkpoint,
) -> Result<Option<RunningNorms>, Error> {
    let Some(conformer) = spec.conformer.filter(|own| own.fixed.is_some()) else {
        return Ok(None);
    };
    let mut taker = Taker {
        collector: Collector::new(checkpoint),
        dim: spec.dim,
        key_bias: false,
    };
    let [first, second] = conformer.channels;
    let front = |name: &str| weight(&format!("audio_tower.subsample_conv_projection.{name}"), 0);
    let kernels = taker.values(&front("conv_0.conv"), 9 * u64::from(first))?;
    let mut sums = [0.0; 9];
    let mut products = [[0.0; 9]; 9];
    for kernel in kernels.chunks_exact(9) {
        for (i, a) in kernel.iter().enumerate() {
            sums[i] += f64::from(*a);
            for (j, b) in kernel.iter().enumerate() {
                products[i][j] += f64::from(*a) * f64::from(*b);
            }
        }
    }
    // The last token of the encoder's own vocabulary.
    let (dim, eps) = (spec.dim as usize, f64::from(conformer.eps[0]));
    let keys = Keys::new(checkpoint, "");
    let vocab = keys.size("audio_config.vocab_size", Some(128), 1 << 20)?;
    let table = weight("embed_audio.embedding", 0);
    let table = taker.values(&table, u64::from(vocab) * u64::from(spec.dim))?;
    let scale = |values: &[f64]| {
        let squares: f64 = values.iter().map(|v| v * v).sum();
        1.0 / (squares / values.len() as f64 + eps).sqrt()
    };
    let row: Vec<f64> = table[table.len() - dim..]
        .iter()
        .map(|v| f64::from(*v))
        .collect();
    let norm = taker.values(
        &weight("embed_audio.hard_embedding_norm", 0),
        spec.dim.into(),
    )?;
    let own = scale(&row);
    let row: Vec<f64> = row
        .iter()
        .zip(&norm)
        .map(|(v, n)| v * own * f64::from(*n))
        .collect();
    let matrix = weight("embed_audio.embedding_projection", 0);
    let matrix = taker.values(&matrix, u64::from(spec.width) * u64::from(spec.dim))?;
    let made = matrix.chunks_exact(dim).map(|m| {
        let each = m.iter().zip(&row);
        each.map(|(m, v)| f64::from(*m) * v).sum::<f64>()
    });
    let made: Vec<f64> = made.collect();
    let own = scale(&made);
    Ok(Some(RunningNorms {
        sums,
        products,
        channels: first,
        eps: f64::from(conformer.eps[1]),
        factors: taker.values(&front("conv_1.norm"), second.into())?,
        filler: made.iter().map(|v| (v * own) as f32).collect(),
    }))
}
