//! Finding the tuning parameters of the persistent kernels. This happens once, when a model is loaded, or by [`CudaProgram::tune`]. The
//! result is kept in the program and beside the compiled kernel on disk. It changes speed, never results.

use super::{CudaContext, DECODE};
use crate::gpu::Event;
use crate::load::CudaProgram;
use crate::loaded::LoadedProgram;
use crate::persistent::{TUNED_VARIANTS, Tuning};
use crate::{Error, compile, disk};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use welte_device::{ChainStart, Control, Progress, Replay};
use welte_table::{Op, Row};

/// How long the GPU is kept busy first: at the clock of an idle GPU other parameters are fastest.
const WARM_UP: Duration = Duration::from_millis(200);
/// How long one trial lasts, and how many each candidate has.
const TRIAL: Duration = Duration::from_millis(4);
const ROUNDS: usize = 2;
/// How many of the best candidates are tried again, and how often.
const FINALISTS: usize = 4;
const FINAL_ROUNDS: usize = 6;
/// Differences below this part (0.5 %) are noise.
const NOISE: u64 = 200;
/// The position of all trials.
const DEPTH: u32 = 256;
/// Nothing is tuned where a token takes longer.
const SLOW: Duration = Duration::from_millis(20);

impl CudaProgram {
    /// Measures which tuning parameters of the persistent kernels are fastest here. Contexts that are made from now on use them.
    /// Takes about a second and the memory of a context. `progress` hears of trials done and in all. Does nothing where chains
    /// are not replayed by the persistent kernel, the context is short, or a token takes long.
    pub fn tune(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let loaded = &self.0;
        let Ok(recording) = &loaded.recording else {
            return Ok(());
        };
        if !loaded.can_be_tuned() {
            return Ok(());
        }
        let context = CudaContext::new(loaded, None)?;
        let mut trials = Trials::new(context, &recording.in_flight, progress);
        let Some(tuning) = trials.fastest()? else {
            return Ok(());
        };
        loaded.set_tuning(tuning);
        keep(loaded.tuning_file(), &tuning.to_bytes());
        let agrees = trials.context.check_rows(16)?;
        if let Some(agrees) = agrees {
            loaded.set_rows_agree(agrees);
            keep(loaded.rows_file(), &[u8::from(agrees)]);
        }
        trials.finish();
        Ok(())
    }
}

/// Writes a result to disk. A result that cannot be written is measured again at the next load.
fn keep(file: Option<PathBuf>, bytes: &[u8]) {
    if let Some(file) = file {
        let _ = disk::write_cached(&file, bytes);
    }
}

impl LoadedProgram {
    /// Whether chains are replayed by a persistent kernel, in a context that has the position of the trials.
    fn can_be_tuned(&self) -> bool {
        // A rank alone cannot be timed.
        let timed = self
            .recording
            .as_ref()
            .is_ok_and(|recording| recording.ranks == 1);
        let persistent = self.replay == Replay::Persistent && timed;
        persistent && self.program.context >= DEPTH + 64
    }

    /// Takes the results of an earlier load from disk, unless they are to be measured again. True if there are none and
    /// [`CudaProgram::tune`] can find them.
    pub(crate) fn needs_tuning(&self, retune: bool) -> bool {
        if !self.can_be_tuned() || retune {
            return self.can_be_tuned();
        }
        let read = |file: Option<PathBuf>| file.as_deref().and_then(disk::read_cached);
        let tuning = read(self.tuning_file()).and_then(|bytes| Tuning::of_bytes(&bytes));
        let agrees = read(self.rows_file()).and_then(|bytes| match bytes[..] {
            [agrees @ (0 | 1)] => Some(agrees == 1),
            _ => None,
        });
        if let Some(tuning) = tuning {
            self.set_tuning(tuning);
        }
        if let Some(agrees) = agrees {
            self.set_rows_agree(agrees);
        }
        tuning.is_none() || agrees.is_none()
    }

    /// Where the tuning parameters of this kernel on this GPU are kept.
    fn tuning_file(&self) -> Option<PathBuf> {
        let unit = self.recording.as_ref().ok()?.unit();
        compile::choice(&unit, &self.gpu.info)
    }

    /// Where it is kept whether the kernel for steps agrees with launched kernels.
    fn rows_file(&self) -> Option<PathBuf> {
        let unit = match &self.rows {
            Ok(rows) => rows.unit(),
            // Steps go by the kernel for chains. The macro tells this file from that of the tuning parameters.
            Err(_) => {
                let mut unit = self.recording.as_ref().ok()?.unit();
                unit.defines.push(("STEPS", "1".to_string()));
                unit
            }
        };
        compile::choice(&unit, &self.gpu.info)
    }
}

/// Trials of tuning parameters in a context of their own.
struct Trials<'a> {
    context: CudaContext,
    /// Slots in flight before tuning.
    usual: &'a [u8; TUNED_VARIANTS],
    /// Tokens of a trial.
    tokens: usize,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> Trials<'a> {
    fn new(
        context: CudaContext,
        usual: &'a [u8; TUNED_VARIANTS],
        progress: &'a mut dyn FnMut(Progress),
    ) -> Trials<'a> {
        let first = Tuning::candidates().count() * ROUNDS + FINALISTS * FINAL_ROUNDS;
        let variants = usual.iter().filter(|slots| **slots > 0).count();
        let each = Tuning::VARIANT_CANDIDATES * ROUNDS + 2 * FINAL_ROUNDS;
        Trials {
            context,
            usual,
            tokens: 1,
            done: 0,
            total: (first + variants * each) as u64,
            progress,
        }
    }

    /// The fastest parameters. `None` if a token takes too long, or the kernel gave up.
    fn fastest(&mut self) -> Result<Option<Tuning>, Error> {
        if self.context.replay != Replay::Persistent {
            return Ok(None);
        }
        let begun = Instant::now();
        self.context.time_chain(1)?;
        if begun.elapsed() > SLOW {
            return Ok(None);
        }
        while begun.elapsed() < WARM_UP {
            self.context.time_chain(16)?;
        }
        let token = self.context.time_chain(16)? / 16;
        self.tokens = (TRIAL.as_nanos() as u64 / token.max(1)).clamp(1, 64) as usize;
        let Some(mut best) = fastest(Tuning::candidates(), |tuning| self.time(tuning))? else {
            return Ok(None);
        };
        let usual = self.usual;
        for (variant, usual) in usual.iter().enumerate().filter(|(_, slots)| **slots > 0) {
            let candidates: Vec<Tuning> = best.variant_candidates(*usual, variant).collect();
            let Some(times) = least_times(&candidates, ROUNDS, |tuning| self.time(tuning))? else {
                return Ok(None);
            };
            let of_both = candidates.iter().zip(times);
            let Some((candidate, _)) = of_both.min_by_key(|(_, time)| *time) else {
                continue;
            };
            let both = [best, *candidate];
            let Some(times) = least_times(&both, FINAL_ROUNDS, |tuning| self.time(tuning))? else {
                return Ok(None);
            };
            if times[1] < times[0] - times[0] / NOISE {
                best = *candidate;
            }
        }
        Ok(Some(best))
    }

    /// Nanoseconds of a trial. `None` if the kernel gave up.
    fn time(&mut self, tuning: Tuning) -> Result<Option<u64>, Error> {
        self.context.set_tuning(&tuning);
        let time = self.context.time_chain(self.tokens)?;
        self.done = (self.done + 1).min(self.total);
        self.tell(self.done);
        Ok((self.context.replay == Replay::Persistent).then_some(time))
    }

    fn tell(&mut self, done: u64) {
        let total = self.total;
        (self.progress)(Progress::Tuning { done, total });
    }

    fn finish(mut self) {
        self.tell(self.total);
    }
}

impl CudaContext {
    /// Nanoseconds of a chain of `tokens` tokens.
    fn time_chain(&mut self, tokens: usize) -> Result<u64, Error> {
        let start = ChainStart {
            slot: 0,
            token: 0,
            position: DEPTH,
            steps: tokens as u32,
            shift: 0,
        };
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        begin.record()?;
        self.decode(&start, &Control::default(), &mut |_| true)?;
        end.record()?;
        end.wait()?;
        end.since(&begin)
    }

    /// Whether the persistent kernel's logits of steps of `rows` rows (or as many as the decode pass has) and of one are those of
    /// launched kernels, except for rounding. `None` if it gave up.
    #[doc(hidden)]
    pub fn check_rows(&mut self, rows: u32) -> Result<Option<bool>, Error> {
        let rows = rows.min(self.passes[DECODE].rows);
        for count in [rows.min(self.loaded.few.unwrap_or(rows)), 1] {
            let together = self.logits_of_trial(count)?;
            if self.replay != Replay::Persistent {
                return Ok(None);
            }
            self.use_replay(Replay::Graph)?;
            let plain = self.logits_of_trial(count)?;
            let same = if self.chooses_experts() {
                alike(&together, &plain)
            } else {
                agree(&together, &plain)
            };
            self.use_replay(Replay::Persistent)?;
            if !same {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }

    /// Whether the decode pass has mixtures of experts.
    fn chooses_experts(&self) -> bool {
        let commands = &self.loaded.program.passes[DECODE].commands;
        commands.iter().any(|command| command.op == Op::Route)
    }

    /// The logits of a decode step of `count` rows.
    fn logits_of_trial(&mut self, count: u32) -> Result<Vec<f32>, Error> {
        let vocab = self.loaded.program.vocab.max(1);
        // Recurrent states begin at position 0, the same for both kinds of kernels.
        let first = if self.has_states() { 0 } else { DEPTH };
        let row = |i| Row::new((1 + 97 * i) % vocab, first + i, 0);
        let rows: Vec<Row> = (0..count).map(row).collect();
        let values = self.run_step(DECODE, &rows, &[], rows.len())?;
        Ok(self.outputs(values).to_vec())
    }
}

/// The candidate that takes least; `None` once a trial has no result. All are tried a few times, then the best of them more
/// often: the best differ by less than two trials of one do.
fn fastest<T: Copy>(
    candidates: impl Iterator<Item = T>,
    mut trial: impl FnMut(T) -> Result<Option<u64>, Error>,
) -> Result<Option<T>, Error> {
    let mut candidates: Vec<T> = candidates.collect();
    for rounds in [ROUNDS, FINAL_ROUNDS] {
        let Some(times) = least_times(&candidates, rounds, &mut trial)? else {
            return Ok(None);
        };
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|i| times[*i]);
        candidates = order
            .iter()
            .take(FINALISTS)
            .map(|i| candidates[*i])
            .collect();
    }
    Ok(candidates.first().copied())
}

/// The least time of each candidate, tried in turn, `rounds` times; `None` once a trial has no result.
fn least_times<T: Copy>(
    candidates: &[T],
    rounds: usize,
    mut trial: impl FnMut(T) -> Result<Option<u64>, Error>,
) -> Result<Option<Vec<u64>>, Error> {
    let mut least = vec![u64::MAX; candidates.len()];
    for _ in 0..rounds {
        for (candidate, least) in candidates.iter().zip(&mut least) {
            let Some(time) = trial(*candidate)? else {
                return Ok(None);
            };
            *least = time.min(*least);
        }
    }
    Ok(Some(least))
}

/// Whether logits differ by rounding only: by at most a tenth of their range.
fn agree(a: &[f32], b: &[f32]) -> bool {
    let finite = b.iter().filter(|v| v.is_finite());
    let (least, most) = finite.fold((f32::MAX, f32::MIN), |(least, most), v| {
        (least.min(*v), most.max(*v))
    });
    let allowed = 0.1 * (most - least);
    // NaN is near nothing, infinity only itself.
    let near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= allowed;
    a.len() == b.len() && a.iter().zip(b).all(near)
}

/// Whether logits are those of one model whose experts were chosen differently here and there. Rounding decides between experts that are
/// nearly equally good, and all later layers follow, so [`agree`] asks too much. Logits that have nothing in common are further apart
/// than their own size; those of 48 layers with random weights were 0.84 of it apart at most.
fn alike(a: &[f32], b: &[f32]) -> bool {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let apart: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    let size: f64 = b.iter().map(|b| square(*b)).sum();
    // NaN is not less than anything.
    a.len() == b.len() && apart < size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_agree_if_all_of_them_are_near() {
        let plain = [-3.0, 0.5, 7.0, 1.0];
        assert!(agree(&plain, &plain));
        assert!(agree(&[-3.1, 0.4, 7.5, 1.0], &plain));
        assert!(!agree(&[-3.0, 0.5, 7.0, 3.0], &plain));
        assert!(!agree(&[-3.0, 0.5, 7.0], &plain));
        let unbounded = [-3.0, f32::INFINITY, 7.0, 1.0];
        assert!(agree(&unbounded, &unbounded));
        assert!(!agree(&[-3.0, f32::INFINITY, 7.0, 3.0], &unbounded));
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!(!agree(&[-3.0, wrong, 7.0, 1.0], &plain));
            assert!(!agree(&plain, &[-3.0, wrong, 7.0, 1.0]));
        }
        assert!(agree(&[0.0; 3], &[0.0; 3]) && !agree(&[0.0, 0.0, 0.1], &[0.0; 3]));
    }

    #[test]
    fn logits_are_alike_if_most_of_them_is_the_same() {
        let plain = [-3.0, 0.5, 7.0, 1.0];
        assert!(alike(&plain, &plain) && !alike(&plain[..3], &plain));
        assert!(alike(&[-1.0, 2.5, 6.0, 3.0], &plain));
        assert!(!alike(&[1.0, 7.0, 0.5, -3.0], &plain));
        assert!(!alike(&[0.0; 4], &plain) && !alike(&plain, &[0.0; 4]));
        assert!(!alike(&[-3.0, f32::NAN, 7.0, 1.0], &plain));
    }

    #[test]
    fn the_fastest_candidate_is_found() {
        // One trial of the first rounds is lucky, by more than the best differ by.
        let mut trials = 0u64;
        let found = fastest(0..20u64, |candidate| {
            trials += 1;
            let luck = if trials == 13 { 200 } else { 0 };
            Ok(Some(1000 + 10 * candidate.abs_diff(7) + trials % 5 - luck))
        });
        assert_eq!(found.unwrap(), Some(7));
        assert_eq!(trials as usize, 20 * ROUNDS + FINALISTS * FINAL_ROUNDS);
        let mut left = 50;
        let found = fastest(0..20, |_| {
            left -= 1;
            Ok((left > 0).then_some(1))
        });
        assert_eq!((found.unwrap(), left), (None, 0));
        assert_eq!(fastest(0..0, |_: i32| Ok(Some(1))).unwrap(), None);
    }
}
