//! A causal convolution over the last few inputs of each channel.

use super::cache::StateCache;
use super::{FloatRows, Floats, State, sigmoid};

/// Channels of one chunk.
const CHANNELS: usize = 256;

pub(crate) struct ShortConv {
    pub(crate) x: FloatRows,
    pub(crate) y: FloatRows,
    /// `[channel][tap]`
    pub(crate) kernel: Floats,
    pub(crate) bias: Floats,
    pub(crate) n: usize,
    pub(crate) taps: usize,
    pub(crate) silu: bool,
    pub(crate) layer: usize,
    pub(crate) cache: StateCache,
}

impl ShortConv {
    /// Chunks are ranges of channels: the rows of a sequence depend on each other, channels do not.
    pub(crate) fn chunks(&self) -> usize {
        self.n.div_ceil(CHANNELS)
    }

    /// # Safety
    /// See `super`; rows of a slot come in the order of their positions.
    pub(crate) unsafe fn run(&self, state: &State, rows: usize, chunk: usize) {
        let channels = chunk * CHANNELS..self.n.min((chunk + 1) * CHANNELS);
        let past_len = self.taps - 1;
        for row in 0..rows {
            let at = state.rows[row];
            // Inputs before position 0 are zero, whatever the page held before.
            let missing = past_len - past_len.min(at.position as usize);
            // SAFETY: rows lie in their buffers, the state in its cache; chunks use different channels.
            unsafe {
                let x = self.x.row(row, self.n);
                let past = self.cache.at(state, self.layer, at.slot as usize);
                let past = |tap: usize, channel: usize| past.add(tap * self.n + channel);
                let kernel = self.kernel.get(self.n * self.taps).unwrap_or(&[]);
                let bias = self.bias.get(self.n);
                for channel in channels.clone() {
                    let kernel = &kernel[channel * self.taps..][..self.taps];
                    let mut sum = bias.map_or(0.0, |bias| bias[channel]);
                    for (tap, weight) in kernel.iter().enumerate().take(past_len).skip(missing) {
                        sum += weight * *past(tap, channel);
                    }
                    sum += kernel[past_len] * x[channel];
                    for tap in 1..past_len {
                        let moved = if tap < missing {
                            0.0
                        } else {
                            *past(tap, channel)
                        };
                        *past(tap - 1, channel) = moved;
                    }
                    *past(past_len - 1, channel) = x[channel];
                    let y = if self.silu { sum * sigmoid(sum) } else { sum };
                    *self.y.start.add(row * self.y.stride + channel) = y;
                }
            }
        }
    }
}
