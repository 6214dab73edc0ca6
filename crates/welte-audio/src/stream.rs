//! Sound that comes in pieces without a file around it: 16-bit samples at 24 kHz, or G.711 as telephones have it.

use crate::{RATE, Resampler};

/// What the bytes of a stream are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamFormat {
    /// 16 bits per sample, little-endian, at 24 kHz.
    #[default]
    Pcm16,
    /// G.711 with the mu law, at 8 kHz.
    Ulaw,
    /// G.711 with the A law, at 8 kHz.
    Alaw,
}

impl StreamFormat {
    /// Samples per second.
    pub fn rate(self) -> u32 {
        match self {
            StreamFormat::Pcm16 => 24_000,
            StreamFormat::Ulaw | StreamFormat::Alaw => 8_000,
        }
    }

    /// Bytes of a sample.
    pub fn bytes(self) -> usize {
        match self {
            StreamFormat::Pcm16 => 2,
            StreamFormat::Ulaw | StreamFormat::Alaw => 1,
        }
    }
}

/// Makes samples at [`RATE`] of the bytes of a stream.
pub struct StreamDecoder {
    format: StreamFormat,
    resampler: Resampler,
    /// The first byte of a sample whose second one has not come.
    half: Option<u8>,
}

impl StreamDecoder {
    /// At the beginning of a stream.
    pub fn new(format: StreamFormat) -> StreamDecoder {
        StreamDecoder {
            format,
            resampler: Resampler::new(format.rate(), RATE),
            half: None,
        }
    }

    /// Takes bytes and appends what follows from them.
    pub fn push(&mut self, bytes: &[u8], samples: &mut Vec<f32>) {
        let scaled = |value: i16| f32::from(value) / 32_768.0;
        match self.format {
            StreamFormat::Pcm16 => {
                let half = self.half.take();
                let mut bytes = half.into_iter().chain(bytes.iter().copied());
                let half = &mut self.half;
                let pairs = std::iter::from_fn(|| {
                    let first = bytes.next()?;
                    let second = bytes.next();
                    if second.is_none() {
                        *half = Some(first);
                    }
                    Some(scaled(i16::from_le_bytes([first, second?])))
                });
                self.resampler.push(pairs, samples);
            }
            StreamFormat::Ulaw => {
                let values = bytes.iter().map(|byte| scaled(of_ulaw(*byte)));
                self.resampler.push(values, samples);
            }
            StreamFormat::Alaw => {
                let values = bytes.iter().map(|byte| scaled(of_alaw(*byte)));
                self.resampler.push(values, samples);
            }
        }
    }

    /// Ends the stream, and is at the beginning of another one.
    pub fn finish(&mut self, samples: &mut Vec<f32>) {
        let mut ended = StreamDecoder::new(self.format);
        std::mem::swap(self, &mut ended);
        ended.resampler.finish(samples);
    }
}

/// G.711: four bits of a sample in one of eight segments, each twice as coarse as the one below.
fn of_ulaw(byte: u8) -> i16 {
    let byte = !byte;
    let (segment, step) = (byte >> 4 & 7, i16::from(byte & 15));
    let magnitude = (((step << 3) + 0x84) << segment) - 0x84;
    if byte & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

fn of_alaw(byte: u8) -> i16 {
    let byte = byte ^ 0x55;
    let (segment, step) = (byte >> 4 & 7, i16::from(byte & 15));
    let magnitude = match segment {
        0 => (step << 4) + 8,
        segment => ((step << 4) + 0x108) << (segment - 1),
    };
    if byte & 0x80 == 0 {
        -magnitude
    } else {
        magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the tables in ITU-T G.711, as 16 bits.
    #[test]
    fn g711_is_decoded() {
        for (byte, value) in [
            (0xff, 0),
            (0x7f, 0),
            (0xfe, 8),
            (0x7e, -8),
            (0x80, 32_124),
            (0x00, -32_124),
            (0xa0, 7_932),
        ] {
            assert_eq!(of_ulaw(byte), value, "{byte:#x}");
        }
        for (byte, value) in [
            (0xd5, 8),
            (0x55, -8),
            (0xd4, 24),
            (0xaa, 32_256),
            (0x2a, -32_256),
            (0x80, 5_504),
        ] {
            assert_eq!(of_alaw(byte), value, "{byte:#x}");
        }
    }

    /// However a stream is cut, its samples are the same, and as many as its length says.
    #[test]
    fn pieces_make_the_same_samples() {
        for format in [StreamFormat::Pcm16, StreamFormat::Ulaw, StreamFormat::Alaw] {
            let count = format.rate() as usize / 4;
            let bytes: Vec<u8> = (0..count * format.bytes())
                .map(|i| (i * 7 % 251) as u8)
                .collect();
            let decode = |cut: usize| {
                let (mut decoder, mut samples) = (StreamDecoder::new(format), Vec::new());
                for piece in bytes.chunks(cut) {
                    decoder.push(piece, &mut samples);
                }
                decoder.finish(&mut samples);
                samples
            };
            let whole = decode(bytes.len());
            assert_eq!(whole.len(), RATE as usize / 4);
            for cut in [1, 3, 160] {
                assert_eq!(decode(cut), whole, "{format:?} {cut}");
            }
        }
    }

    #[test]
    fn a_decoder_begins_again() {
        let (mut decoder, mut first) = (StreamDecoder::new(StreamFormat::Pcm16), Vec::new());
        let bytes = [0, 16, 0, 32, 0, 48, 9];
        decoder.push(&bytes, &mut first);
        decoder.finish(&mut first);
        let mut second = Vec::new();
        decoder.push(&bytes, &mut second);
        decoder.finish(&mut second);
        assert_eq!(first, second);
    }
}
