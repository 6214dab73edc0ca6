//! What is best for the persistent kernel depends on model and GPU: it is tried when the first session of a model is made,
//! and kept beside the compiled kernel. So is how many rows it takes together rather than leaving them to launched kernels.

use super::Session;
use crate::gpu::Event;
use crate::ops::sample::Sampler;
use crate::{Error, Replay, compile};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use welte_table::Row;

/// How the kernel's blocks wait (`Watch` and `Streamer` of `kernels/persistent/`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Habits {
    /// Clock ticks after a product before the next one's input is asked for.
    pub(super) delay: u32,
    /// Whether the weights wait while the input is awaited.
    pub(super) pauses: bool,
    /// Slots of weights that may be on their way beyond the usual number.
    pub(super) more: u32,
}

impl Default for Habits {
    fn default() -> Habits {
        Habits {
            delay: 1500,
            pauses: false,
            more: 0,
        }
    }
}

const DELAYS: [u32; 5] = [500, 1000, 1500, 2000, 2500];
const FLOWS: [(bool, u32); 4] = [(false, 0), (true, 0), (false, 1), (true, 1)];
/// For how long a GPU is kept busy first: at the clock of one that did nothing others are fastest than at its own.
const WARM: Duration = Duration::from_millis(200);
/// How long one way is tried, and how often all are gone through.
const TRIAL: Duration = Duration::from_millis(4);
const ROUNDS: usize = 2;
/// How many of them are tried again, and how often.
const FINALISTS: usize = 4;
const FINAL_ROUNDS: usize = 6;
/// The position at which they are tried.
const DEPTH: u32 = 256;
/// Where a token takes so long, nothing is tried.
const SLOW: Duration = Duration::from_millis(20);

impl Habits {
    /// All that are tried. Each with each: whether a pause helps depends on how much is on its way.
    fn all() -> impl Iterator<Item = Habits> {
        DELAYS.into_iter().flat_map(|delay| {
            FLOWS.map(|(pauses, more)| Habits {
                delay,
                pauses,
                more,
            })
        })
    }

    fn to_bytes(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[..4].copy_from_slice(&self.delay.to_le_bytes());
        bytes[4] = self.pauses.into();
        bytes[5..].copy_from_slice(&self.more.to_le_bytes());
        bytes
    }

    /// Nothing where they are none of those that are tried.
    fn of_bytes(bytes: &[u8]) -> Option<Habits> {
        Habits::all().find(|habits| habits.to_bytes() == bytes)
    }
}

impl Session {
    /// Finds the habits that decode fastest, or takes those found before. For a session in which nothing was decoded yet.
    pub(super) fn tune(&mut self) -> Result<(), Error> {
        let Ok(roll) = &self.model.inner.roll else {
            return Ok(());
        };
        if self.replay != Replay::Persistent {
            return Ok(());
        }
        let place = compile::choice(&roll.unit, &self.gpu.info);
        let known = place.as_deref().and_then(compile::read_cached);
        let known = known.and_then(|bytes| Habits::of_bytes(&bytes));
        let habits = match known {
            Some(habits) => Some(habits),
            None => {
                let fastest = self.fastest()?;
                // What was tried is no history.
                self.sampler = Sampler::new(&self.model.inner.program);
                self.sampler_changed = true;
                fastest
            }
        };
        if let Some(habits) = habits {
            self.set_habits(habits);
            if let (None, Some(place)) = (known, place) {
                // Where it cannot be kept it is found again.
                let _ = compile::write_cached(&place, &habits.to_bytes());
            }
        }
        self.tune_rows()
    }

    /// Finds how many rows go faster together than by launched kernels, or takes what was found before.
    fn tune_rows(&mut self) -> Result<(), Error> {
        let (Ok(roll), Ok(most)) = (&self.model.inner.rows, self.rows_together()) else {
            return Ok(());
        };
        let place = compile::choice(&roll.unit, &self.gpu.info);
        let known = place.as_deref().and_then(compile::read_cached);
        // What was tried with tables of fewer rows says nothing of these.
        let most = most.min(self.most_rows_of_a_table());
        let known = known.and_then(|bytes| match bytes[..] {
            [rows, of] if rows <= of && u32::from(of) == most => Some(u32::from(rows)),
            _ => None,
        });
        let found = match known {
            Some(rows) => Some(rows),
            None => self.fastest_rows(most)?,
        };
        // Where it was not tried, launched kernels take them.
        self.limit_rows(found.unwrap_or(0));
        if let (None, Some(rows), Some(place)) = (known, found, place) {
            let _ = compile::write_cached(&place, &[rows as u8, most as u8]);
        }
        Ok(())
    }

    /// The most rows, of a few numbers, that take no longer together; 0 for none. Nothing if to try it would take too long, or
    /// the context is short.
    fn fastest_rows(&mut self, most: u32) -> Result<Option<u32>, Error> {
        let Some(table) = self.tables_to_try().pop() else {
            return Ok(None);
        };
        if most < 2 || !self.reaches_depth() {
            return Ok(None);
        }
        let begun = Instant::now();
        self.trial_of_rows(table, 2, true)?;
        if begun.elapsed() > SLOW {
            return Ok(None);
        }
        // A step of one row goes another way.
        let mut tried = vec![most, most.div_ceil(2).max(2), 2];
        tried.dedup();
        for rows in tried {
            let mut least = [u64::MAX; 2];
            for trial in 0..2 * ROUNDS {
                let way = trial % 2;
                least[way] = least[way].min(self.trial_of_rows(table, rows, way == 0)?);
            }
            if least[0] <= least[1] {
                let same = self.check_rows(rows)?;
                return Ok(same.then_some(rows));
            }
        }
        Ok(Some(0))
    }

    /// Whether the context has the positions at which everything is tried.
    fn reaches_depth(&self) -> bool {
        self.model.inner.program.kv.context >= DEPTH + 64
    }

    /// Tables that the persistent kernel can stand for: the last has as many rows as any, of those that the kernel has room for.
    fn tables_to_try(&self) -> Vec<usize> {
        let room = self.model.inner.rows.as_ref().map_or(0, |roll| roll.rows);
        let tables = (0..self.tables.len()).filter(|table| self.takes_rows(*table));
        let mut tables: Vec<usize> = tables.collect();
        tables.sort_by_key(|table| self.tables[*table].shape.rows().min(room));
        tables
    }

    fn most_rows_of_a_table(&self) -> u32 {
        let last = self.tables_to_try().pop();
        last.map_or(0, |table| self.tables[table].shape.rows())
    }

    /// Whether the persistent kernel's logits of steps of so many rows and of two are those of launched kernels. If not, it takes
    /// no more steps; if it gives up meanwhile, no as well.
    #[doc(hidden)]
    pub fn check_rows(&mut self, rows: u32) -> Result<bool, Error> {
        let most = self.rows_together().unwrap_or(0);
        if most < 2 {
            return Ok(false);
        }
        for table in self.tables_to_try() {
            for count in [rows, 2] {
                let count = count.min(self.tables[table].shape.rows()).min(most);
                if count < 2 {
                    continue;
                }
                let rows = self.rows_to_try(count);
                let together = self.step(table, &rows)?.to_vec();
                if self.replay != Replay::Persistent {
                    return Ok(false);
                }
                self.limit_rows(0);
                let same = agree(&together, self.step(table, &rows)?);
                self.limit_rows(most);
                if !same {
                    self.refuse_rows(
                        "its logits are not those of the launched kernels, which is a bug in Welte",
                    );
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn rows_to_try(&self, rows: u32) -> Vec<Row> {
        let vocab = self.model.inner.program.vocab.max(1);
        let row = |i| Row {
            token: (1 + 97 * i) % vocab,
            position: DEPTH + i,
            ..Row::default()
        };
        (0..rows).map(row).collect()
    }

    /// Nanoseconds of a step of so many rows, by the persistent kernel or by launched ones.
    fn trial_of_rows(&mut self, table: usize, rows: u32, together: bool) -> Result<u64, Error> {
        const STEPS: u64 = 2;
        let rows = self.rows_to_try(rows);
        self.set_rows(table, &rows)?;
        self.upload_step(&rows, 0)?;
        let all = self.timed(|session| {
            for _ in 0..STEPS {
                if !together || !session.launch_rows(table, rows.len())? {
                    session.replay(table, usize::MAX, false, &rows)?;
                }
            }
            Ok(())
        })?;
        Ok(all / STEPS)
    }

    /// Tries all habits; nothing if that would take too long, or the context is short.
    fn fastest(&mut self) -> Result<Option<Habits>, Error> {
        if !self.reaches_depth() {
            return Ok(None);
        }
        let begun = Instant::now();
        self.trial(1)?;
        if begun.elapsed() > SLOW {
            return Ok(None);
        }
        while begun.elapsed() < WARM {
            self.trial(16)?;
        }
        let token = self.trial(16)? / 16;
        let tokens = (TRIAL.as_nanos() as u64 / token.max(1)).clamp(1, 64);
        least(Habits::all(), |habits| {
            self.set_habits(habits);
            let time = self.trial(tokens as usize)?;
            // If it gave up, chains go by the graph now.
            Ok((self.replay == Replay::Persistent).then_some(time))
        })
    }

    /// Nanoseconds of a chain of so many tokens.
    fn trial(&mut self, tokens: usize) -> Result<u64, Error> {
        let never = AtomicBool::new(false);
        let start = Row {
            position: DEPTH,
            ..Row::default()
        };
        self.timed(|session| {
            let made = session.chain(start, tokens, &[], &never, &mut |_| true);
            made.map(|_| ())
        })
    }

    /// Nanoseconds that the GPU takes for it.
    fn timed(
        &mut self,
        work: impl FnOnce(&mut Session) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        begin.record()?;
        work(self)?;
        end.record()?;
        end.wait()?;
        end.since(&begin)
    }
}

/// The way that takes least; nothing once a trial has no result. All are tried a few times, then the best of them more often:
/// they differ by less than one trial does from the next.
fn least<T: Copy>(
    ways: impl Iterator<Item = T>,
    mut trial: impl FnMut(T) -> Result<Option<u64>, Error>,
) -> Result<Option<T>, Error> {
    let mut ways: Vec<T> = ways.collect();
    for rounds in [ROUNDS, FINAL_ROUNDS] {
        let mut least = vec![u64::MAX; ways.len()];
        for _ in 0..rounds {
            for (way, least) in ways.iter().zip(&mut least) {
                let Some(time) = trial(*way)? else {
                    return Ok(None);
                };
                *least = time.min(*least);
            }
        }
        let mut order: Vec<usize> = (0..ways.len()).collect();
        order.sort_by_key(|i| least[*i]);
        ways = order.iter().take(FINALISTS).map(|i| ways[*i]).collect();
    }
    Ok(ways.first().copied())
}

/// Whether logits differ by no more than roundings make of them: by a tenth of what they range over, or less.
fn agree(a: &[f32], b: &[f32]) -> bool {
    let finite = b.iter().filter(|v| v.is_finite());
    let (least, most) = finite.fold((f32::MAX, f32::MIN), |(least, most), v| {
        (least.min(*v), most.max(*v))
    });
    let allowed = 0.1 * (most - least);
    // Not a number is not near to anything, infinity to nothing but itself.
    let near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= allowed;
    a.len() == b.len() && a.iter().zip(b).all(near)
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
    fn the_way_that_takes_least_is_found() {
        // Now and then one is lucky: once in the first rounds, by more than what the best differ by.
        let mut trials = 0u64;
        let found = least(0..20u64, |way| {
            trials += 1;
            let luck = if trials == 13 { 200 } else { 0 };
            Ok(Some(1000 + 10 * way.abs_diff(7) + trials % 5 - luck))
        });
        assert_eq!(found.unwrap(), Some(7));
        assert_eq!(trials as usize, 20 * ROUNDS + FINALISTS * FINAL_ROUNDS);
        let mut left = 50;
        let found = least(0..20, |_| {
            left -= 1;
            Ok((left > 0).then_some(1))
        });
        assert_eq!((found.unwrap(), left), (None, 0));
        assert_eq!(least(0..0, |_: i32| Ok(Some(1))).unwrap(), None);
    }

    #[test]
    fn habits_are_kept_and_nothing_else_is_taken_for_them() {
        assert!(Habits::all().any(|habits| habits == Habits::default()));
        for habits in Habits::all() {
            let bytes = habits.to_bytes();
            assert_eq!(Habits::of_bytes(&bytes), Some(habits));
            for place in 0..bytes.len() {
                let mut other = bytes;
                other[place] ^= 0x80;
                assert_eq!(Habits::of_bytes(&other), None);
            }
        }
        assert_eq!(Habits::of_bytes(&[]), None);
    }
}
