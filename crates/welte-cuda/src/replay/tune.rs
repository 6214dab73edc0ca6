//! What is best for the persistent kernel depends on model and GPU: it is tried when the first session of a model is made,
//! and kept beside the compiled kernel. So is how many rows it takes together rather than leaving them to launched kernels.

use super::Session;
use crate::gpu::Event;
use crate::ops::sample::Sampler;
use crate::persistent::KINDS;
use crate::{Error, Replay, compile};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use welte_table::Row;

/// How the kernel's blocks wait (`Watch` and `Streamer` of `kernels/persistent/`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Habits {
    /// Clock ticks after a product before the next one's input is asked for.
    pub(super) delay: u32,
    /// When weights wait.
    pub(super) pauses: Pauses,
    /// Slots of weights that may be on their way beyond the usual number.
    pub(super) more: u8,
    /// By kind of instruction, how many beyond that, or (negative) short of it.
    pub(super) apart: [i8; KINDS],
}

/// When the weights of a block wait: never, while a product's input is awaited (`FOR_INPUT`), or, but for a few, while attention is
/// (`FOR_ATTENTION`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pauses {
    Never,
    ForInput,
    ForAttention,
}

/// The words of habits that both kernels' arguments have (`PersistentArgs`, `RowsArgs`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    delay: u32,
    pauses: u32,
    /// Slots that may be on their way, by kind of instruction.
    ahead: [u8; KINDS],
}

impl Default for Habits {
    fn default() -> Habits {
        Habits {
            delay: 1500,
            pauses: Pauses::Never,
            more: 0,
            apart: [0; KINDS],
        }
    }
}

/// Of habits as they are kept.
const BYTES: usize = 6 + KINDS;
const DELAYS: [u32; 5] = [500, 1000, 1500, 2000, 2500];
const FLOWS: [(Pauses, u8); 6] = [
    (Pauses::Never, 0),
    (Pauses::ForInput, 0),
    (Pauses::ForAttention, 0),
    (Pauses::Never, 1),
    (Pauses::ForInput, 1),
    (Pauses::ForAttention, 1),
];
/// Then, for one kind of instructions after the other: what is on its way while attention is awaited delays that, and little is
/// too little elsewhere.
const APART: [i8; 3] = [-1, -2, 1];
/// Fewer slots on their way are not tried: with one, all stands still whenever it has come. In places that is faster at the position at
/// which it is tried, and far slower at another.
const FEWEST: u8 = 2;
/// For how long a GPU is kept busy first: at the clock of one that did nothing others are fastest than at its own.
const WARM: Duration = Duration::from_millis(200);
/// How long one way is tried, and how often all are gone through.
const TRIAL: Duration = Duration::from_millis(4);
const ROUNDS: usize = 2;
/// How many of them are tried again, and how often.
const FINALISTS: usize = 4;
const FINAL_ROUNDS: usize = 6;
/// What takes less by no more than this part differs by chance.
const CHANCE: u64 = 200;
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
                apart: [0; KINDS],
            })
        })
    }

    /// What kernels are told, where usually so many slots may be on their way, by kind of instruction.
    pub(super) fn told(&self, usual: &[u8; KINDS]) -> Told {
        Told {
            delay: self.delay,
            pauses: self.pauses as u32,
            ahead: std::array::from_fn(|kind| match usual[kind] {
                0 => 0,
                usual => self.slots(usual, kind).max(FEWEST),
            }),
        }
    }

    fn slots(&self, usual: u8, kind: usize) -> u8 {
        (usual + self.more).saturating_add_signed(self.apart[kind])
    }

    /// The same for every kind of instruction.
    pub(super) fn for_all_kinds(self) -> Habits {
        Habits {
            apart: [0; KINDS],
            ..self
        }
    }

    /// The same but for one kind of instructions, of which usually so many slots may be on their way.
    fn apart_in(self, usual: u8, kind: usize) -> impl Iterator<Item = Habits> {
        let ways = APART.into_iter().map(move |apart| {
            let mut habits = self;
            habits.apart[kind] = apart;
            habits
        });
        ways.filter(move |habits| habits.slots(usual, kind) >= FEWEST)
    }

    fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&self.delay.to_le_bytes());
        bytes[4] = self.pauses as u8;
        bytes[5] = self.more;
        for (byte, apart) in bytes[6..].iter_mut().zip(self.apart) {
            *byte = apart as u8;
        }
        bytes
    }

    /// Nothing where they are none of those that are tried.
    fn of_bytes(bytes: &[u8]) -> Option<Habits> {
        let (first, rest) = bytes.split_at_checked(BYTES - KINDS)?;
        let mut habits = Habits::all().find(|habits| habits.to_bytes()[..first.len()] == *first)?;
        let apart: [u8; KINDS] = rest.try_into().ok()?;
        habits.apart = apart.map(|byte| byte as i8);
        let tried = |apart: &i8| *apart == 0 || APART.contains(apart);
        let tried = habits.apart.iter().all(tried);
        tried.then_some(habits)
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
        let usual = roll.ahead;
        let place = compile::choice(&roll.unit, &self.gpu.info);
        let known = place.as_deref().and_then(compile::read_cached);
        let known = known.and_then(|bytes| Habits::of_bytes(&bytes));
        let habits = match known {
            Some(habits) => Some(habits),
            None => {
                let fastest = self.fastest(&usual)?;
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
    fn fastest(&mut self, usual: &[u8; KINDS]) -> Result<Option<Habits>, Error> {
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
        let mut trial = |habits| {
            self.set_habits(habits);
            let time = self.trial(tokens as usize)?;
            // If it gave up, chains go by the graph now.
            Ok((self.replay == Replay::Persistent).then_some(time))
        };
        let Some(mut best) = least(Habits::all(), &mut trial)? else {
            return Ok(None);
        };
        for (kind, usual) in usual.iter().enumerate().filter(|(_, usual)| **usual > 0) {
            let ways: Vec<Habits> = best.apart_in(*usual, kind).collect();
            let Some(times) = least_times(&ways, ROUNDS, &mut trial)? else {
                return Ok(None);
            };
            let Some((way, _)) = ways.iter().zip(times).min_by_key(|(_, time)| *time) else {
                continue;
            };
            let Some(times) = least_times(&[best, *way], FINAL_ROUNDS, &mut trial)? else {
                return Ok(None);
            };
            if times[1] < times[0] - times[0] / CHANCE {
                best = *way;
            }
        }
        Ok(Some(best))
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
        let Some(times) = least_times(&ways, rounds, &mut trial)? else {
            return Ok(None);
        };
        let mut order: Vec<usize> = (0..ways.len()).collect();
        order.sort_by_key(|i| times[*i]);
        ways = order.iter().take(FINALISTS).map(|i| ways[*i]).collect();
    }
    Ok(ways.first().copied())
}

/// The least that each way takes, tried so often in turn; nothing once a trial has no result.
fn least_times<T: Copy>(
    ways: &[T],
    rounds: usize,
    mut trial: impl FnMut(T) -> Result<Option<u64>, Error>,
) -> Result<Option<Vec<u64>>, Error> {
    let mut least = vec![u64::MAX; ways.len()];
    for _ in 0..rounds {
        for (way, least) in ways.iter().zip(&mut least) {
            let Some(time) = trial(*way)? else {
                return Ok(None);
            };
            *least = time.min(*least);
        }
    }
    Ok(Some(least))
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
    use crate::persistent::SLOTS;

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
        for (i, mut habits) in Habits::all().enumerate() {
            habits.apart[i % KINDS] = APART[i % APART.len()];
            let bytes = habits.to_bytes();
            assert_eq!(Habits::of_bytes(&bytes), Some(habits));
            for place in 0..bytes.len() {
                let mut other = bytes;
                other[place] ^= 0x80;
                assert_eq!(Habits::of_bytes(&other), None);
            }
        }
        assert_eq!(Habits::of_bytes(&[]), None);
        let bytes = Habits::default().to_bytes();
        assert_eq!(Habits::of_bytes(&bytes[1..]), None);
        assert_eq!(Habits::of_bytes(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn at_least_two_slots_and_less_than_the_ring_are_in_flight() {
        let mut usual = [0; KINDS];
        usual[..4].copy_from_slice(&[0, 2, 3, 16]);
        let ahead = |more: u8, apart: i8| {
            let habits = Habits {
                more,
                apart: [apart; KINDS],
                ..Habits::default()
            };
            let ahead = habits.told(&usual).ahead;
            [ahead[0], ahead[1], ahead[2], ahead[3], ahead[4]]
        };
        assert_eq!(ahead(0, 0), [0, 2, 3, 16, 0]);
        assert_eq!(ahead(1, 0), [0, 3, 4, 17, 0]);
        assert_eq!(ahead(1, 1), [0, 4, 5, 18, 0]);
        assert_eq!(ahead(0, -1), [0, 2, 2, 15, 0]);
        assert_eq!(ahead(0, -2), [0, 2, 2, 14, 0]);
        assert_eq!(ahead(1, -2), [0, 2, 2, 15, 0]);
        // The recorder never asks for more than 16 slots, and these are the largest additions.
        let more = FLOWS.iter().map(|(_, more)| *more).max();
        assert_eq!((more, APART.into_iter().max()), (Some(1), Some(1)));
        const { assert!(18 < SLOTS) };
    }

    #[test]
    fn fewer_than_two_slots_in_flight_are_not_tried() {
        let mut usual = [0; KINDS];
        usual[..3].copy_from_slice(&[0, 2, 3]);
        let tried = |more: u8, kind: usize| -> Vec<u8> {
            let habits = Habits {
                more,
                ..Habits::default()
            };
            let ways = habits.apart_in(usual[kind], kind);
            ways.map(|habits| habits.told(&usual).ahead[kind]).collect()
        };
        assert_eq!(tried(0, 1), [3]);
        assert_eq!(tried(0, 2), [2, 4]);
        assert_eq!(tried(1, 1), [2, 4]);
        assert_eq!(tried(1, 2), [3, 2, 5]);
        let mut habits = Habits::default();
        habits.apart[2] = -1;
        assert_eq!(habits.told(&usual).ahead[2], 2);
        assert_eq!(habits.for_all_kinds().told(&usual).ahead[2], 3);
    }
}
