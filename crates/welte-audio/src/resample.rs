//! Changes the sample rate by a windowed sinc.

/// Zeros of the kernel on each side of its middle.
const ZEROS: f64 = 32.0;
/// The cutoff, as a part of the lower Nyquist frequency.
const CUTOFF: f64 = 0.95;
/// The shape of the Kaiser window: about 90 dB.
const BETA: f64 = 9.0;
/// The most phases whose kernels are kept. Others are mixed from neighbours.
const MOST_PHASES: u64 = 640;

/// A stream of samples at another rate.
pub struct Resampler {
    /// The rates without their common divisor: output `n` lies at input `n * down / up`.
    up: u64,
    down: u64,
    /// Kernels of `taps` values, one for each phase and one more.
    kernels: Vec<f32>,
    phases: u64,
    taps: usize,
    /// Input that is still needed, from `first` on; it begins with half a kernel of silence.
    input: Vec<f32>,
    first: u64,
    /// The next output.
    next: u64,
    /// Input so far.
    taken: u64,
}

impl Resampler {
    /// From one rate to another.
    pub fn new(from: u32, to: u32) -> Resampler {
        let (from, to) = (u64::from(from.max(1)), u64::from(to.max(1)));
        let divisor = gcd(from, to);
        let (up, down) = (to / divisor, from / divisor);
        let phases = up.min(MOST_PHASES);
        let scale = CUTOFF * (up as f64 / down as f64).min(1.0);
        let half = (ZEROS / scale).ceil() as usize;
        let taps = 2 * half;
        let mut kernels = Vec::with_capacity((phases as usize + 1) * taps);
        for phase in 0..=phases {
            let start = kernels.len();
            let shift = phase as f64 / phases as f64;
            // Tap j reads the input half - 1 - j samples before the output's place, without its phase.
            let at = (0..taps).map(|j| j as f64 - (half as f64 - 1.0) - shift);
            kernels.extend(at.map(|at| kernel(at, scale, half as f64) as f32));
            let sum: f32 = kernels[start..].iter().sum();
            kernels[start..].iter_mut().for_each(|value| *value /= sum);
        }
        Resampler {
            up,
            down,
            kernels,
            phases,
            taps,
            input: vec![0.0; half - 1],
            first: 0,
            next: 0,
            taken: 0,
        }
    }

    /// Takes input and appends what follows from it.
    pub fn push(&mut self, input: impl IntoIterator<Item = f32>, output: &mut Vec<f32>) {
        if self.up == self.down {
            return output.extend(input);
        }
        let before = self.input.len();
        self.input.extend(input);
        self.taken += (self.input.len() - before) as u64;
        self.produce(output);
    }

    /// Ends the stream: appends what is left, as if silence followed.
    pub fn finish(&mut self, output: &mut Vec<f32>) {
        if self.up == self.down {
            return;
        }
        let wanted = (self.taken * self.up).div_ceil(self.down);
        let missing = wanted.saturating_sub(self.next) as usize;
        let end = output.len() + missing;
        self.input.extend(std::iter::repeat_n(0.0, self.taps));
        self.produce(output);
        output.truncate(end);
    }

    fn produce(&mut self, output: &mut Vec<f32>) {
        loop {
            let place = self.next * self.down;
            let start = (place / self.up - self.first) as usize;
            let Some(input) = self.input.get(start..start + self.taps) else {
                break;
            };
            let exact = (place % self.up) * self.phases;
            let (phase, rest) = (exact / self.up, exact % self.up);
            let sum = |phase: u64| -> f32 {
                let kernel = &self.kernels[phase as usize * self.taps..][..self.taps];
                dot(kernel, input)
            };
            let value = if rest == 0 {
                sum(phase)
            } else {
                let share = rest as f32 / self.up as f32;
                sum(phase) * (1.0 - share) + sum(phase + 1) * share
            };
            output.push(value);
            self.next += 1;
        }
        let start = (self.next * self.down / self.up - self.first) as usize;
        let start = start.min(self.input.len());
        self.input.drain(..start);
        self.first += start as u64;
    }
}

/// Eight sums at a time, which compilers turn into vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

fn kernel(at: f64, scale: f64, half: f64) -> f64 {
    let x = at * scale * std::f64::consts::PI;
    let sinc = if x.abs() < 1e-9 { 1.0 } else { x.sin() / x };
    let inside = 1.0 - (at / half).powi(2);
    if inside <= 0.0 {
        return 0.0;
    }
    scale * sinc * bessel(BETA * inside.sqrt()) / bessel(BETA)
}

/// The modified Bessel function of order zero.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term, mut k) = (1.0, 1.0, 1.0);
    while term > 1e-12 * sum {
        term *= (x / (2.0 * k)).powi(2);
        sum += term;
        k += 1.0;
    }
    sum
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, hertz: f64, count: usize) -> Vec<f32> {
        let step = 2.0 * std::f64::consts::PI * hertz / f64::from(rate);
        (0..count).map(|i| (i as f64 * step).sin() as f32).collect()
    }

    fn resampled(input: &[f32], from: u32, to: u32, piece: usize) -> Vec<f32> {
        let mut resampler = Resampler::new(from, to);
        let mut output = Vec::new();
        for piece in input.chunks(piece) {
            resampler.push(piece.iter().copied(), &mut output);
        }
        resampler.finish(&mut output);
        output
    }

    #[test]
    fn a_tone_stays_the_same_tone_at_any_rate() {
        for from in [
            1_000, 8_000, 11_025, 22_050, 44_100, 48_000, 47_999, 192_000,
        ] {
            let hertz = 0.2 * f64::from(from.min(16_000));
            let count = from as usize / 2;
            let output = resampled(&tone(from, hertz, count), from, 16_000, 777);
            assert_eq!(output.len(), 8_000, "{from}");
            let expected = tone(16_000, hertz, 8_000);
            let inner = 1_100..6_900;
            let worst = output[inner.clone()]
                .iter()
                .zip(&expected[inner])
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(worst < 1e-3, "{from} Hz: {worst}");
        }
    }

    #[test]
    fn frequencies_that_the_lower_rate_lacks_are_left_out() {
        let output = resampled(&tone(48_000, 9_000.0, 48_000), 48_000, 16_000, 48_000);
        let loudest = output[500..15_500]
            .iter()
            .fold(0.0f32, |m, v| m.max(v.abs()));
        assert!(loudest < 1e-3, "{loudest}");
    }

    #[test]
    fn pieces_do_not_change_the_samples() {
        let input = tone(44_100, 440.0, 5_000);
        let whole = resampled(&input, 44_100, 16_000, 5_000);
        assert_eq!(whole.len(), 5_000 * 160 / 441 + 1);
        for piece in [1, 7, 1_000] {
            assert_eq!(resampled(&input, 44_100, 16_000, piece), whole);
        }
        assert_eq!(resampled(&input, 16_000, 16_000, 9), input);
    }
}
