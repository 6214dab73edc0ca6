//! How passes of encoders are cut into pieces.

use std::ops::Range;
use web_time::Duration;
use welte_device::Place;

/// How far one piece may change the time that a command is expected to take.
const TRUST: f64 = 0.5;
/// The most that a piece counts as longer or shorter than expected.
const MOST: f64 = 4.0;

/// A command of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Task {
    /// The same for commands whose time is proportional to their units.
    pub(crate) kind: u64,
    /// How much work it is.
    pub(crate) units: u64,
    /// Parts of the same work in which it can be cut.
    pub(crate) parts: u32,
}

/// Cuts passes by what their commands have taken so far.
#[derive(Default)]
pub(crate) struct Pieces {
    /// Seconds that a unit takes, by the kind of command.
    rates: Vec<(u64, f64)>,
}

impl Pieces {
    fn rate(&self, kind: u64) -> Option<f64> {
        let known = self.rates.iter().find(|(known, _)| *known == kind);
        known.map(|(_, rate)| *rate)
    }

    /// Where the piece ends that begins at `from` and may take `limit`. It has a part at least, and no more than that of a command
    /// whose time is not known.
    pub(crate) fn end(&self, tasks: &[Task], from: Place, limit: Duration) -> Place {
        let mut left = limit.as_secs_f64();
        let mut at = from;
        while let Some(task) = tasks.get(at.command) {
            let least = u32::from(at == from);
            let rest = task.parts - at.part;
            let (fit, each) = match self.rate(task.kind) {
                Some(rate) => {
                    let each = rate * task.units as f64 / f64::from(task.parts);
                    ((left / each.max(1e-12)) as u32, each)
                }
                None => (0, f64::INFINITY),
            };
            let fit = fit.clamp(least, rest);
            if fit < rest {
                at.part += fit;
                break;
            }
            at = Place::before(at.command + 1);
            left -= f64::from(fit) * each;
        }
        at
    }

    /// A piece took `took`.
    pub(crate) fn ran(&mut self, tasks: &[Task], piece: Range<Place>, took: Duration) {
        let took = took.as_secs_f64();
        let units = |index: usize| {
            let task = &tasks[index];
            let before = |place: Place| match index.cmp(&place.command) {
                std::cmp::Ordering::Less => task.parts,
                std::cmp::Ordering::Equal => place.part,
                std::cmp::Ordering::Greater => 0,
            };
            let parts = before(piece.end) - before(piece.start);
            task.units as f64 * f64::from(parts) / f64::from(task.parts)
        };
        let touched = piece.start.command..tasks.len().min(piece.end.command + 1);
        let expected = |index: usize| Some(self.rate(tasks[index].kind)? * units(index));
        let all: f64 = touched.clone().filter_map(expected).sum();
        let ratio = (took / all.max(1e-12)).clamp(1.0 / MOST, MOST);
        for index in touched {
            let own = units(index);
            if own == 0.0 {
                continue;
            }
            let kind = tasks[index].kind;
            match self.rates.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, rate)) => {
                    let share = (*rate * own / all.max(1e-12)).min(1.0);
                    *rate *= 1.0 + TRUST * share * (ratio - 1.0);
                }
                // It was alone. A coarse clock may not have moved.
                None => self.rates.push((kind, (took / own).max(1e-15))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(10);

    /// Two layers of a long product, a short command and a command that cannot be cut.
    fn tasks() -> Vec<Task> {
        let task = |kind, units, parts| Task { kind, units, parts };
        let layer = [task(1, 40_000, 100), task(2, 100, 10), task(3, 2_000, 1)];
        [layer, layer].concat()
    }

    /// Microseconds that a unit of a kind takes.
    fn cost(kind: u64) -> f64 {
        [0.0, 3.0, 20.0, 9.0][kind as usize]
    }

    /// The time of a piece, if it takes what `cost` says.
    fn time(tasks: &[Task], piece: &Range<Place>) -> Duration {
        let parts = |index: usize, place: Place| {
            if index < place.command {
                tasks[index].parts
            } else if index == place.command {
                place.part
            } else {
                0
            }
        };
        let each = tasks.iter().enumerate().map(|(index, task)| {
            let run = parts(index, piece.end) - parts(index, piece.start);
            cost(task.kind) * task.units as f64 * f64::from(run) / f64::from(task.parts)
        });
        Duration::from_secs_f64(each.sum::<f64>() * 1e-6)
    }

    /// The pieces of a pass, with their times.
    fn all(pieces: &mut Pieces, tasks: &[Task]) -> Vec<(Range<Place>, Duration)> {
        let mut all = Vec::new();
        let mut at = Place::START;
        while at.command < tasks.len() {
            let piece = at..pieces.end(tasks, at, LIMIT);
            assert!(piece.end > at, "{at:?} is where it was");
            at = piece.end;
            let took = time(tasks, &piece);
            pieces.ran(tasks, piece.clone(), took);
            all.push((piece, took));
        }
        all
    }

    /// The first piece of each kind is its smallest part. From then on no piece is longer than the limit, unless it cannot be cut, and
    /// pieces are as long as they may be.
    #[test]
    fn pieces_take_what_they_may() {
        let (mut pieces, tasks) = (Pieces::default(), tasks());
        let first = all(&mut pieces, &tasks);
        assert_eq!(
            first[0].0,
            Place::START..Place {
                command: 0,
                part: 1
            }
        );
        let uncut = |piece: &Range<Place>| {
            let whole = Place::before(piece.start.command)..Place::before(piece.start.command + 1);
            *piece == whole && tasks[piece.start.command].parts == 1
        };
        let again = all(&mut pieces, &tasks);
        for (piece, took) in again.iter().chain(&first) {
            assert!(*took <= LIMIT || uncut(piece), "{piece:?} takes {took:?}");
        }
        let total: Duration = again.iter().map(|(_, took)| *took).sum();
        let fewest = total.as_secs_f64() / LIMIT.as_secs_f64();
        assert!(
            (again.len() as f64) < 1.3 * fewest,
            "{} pieces",
            again.len()
        );
    }

    /// Commands that have become slower are cut smaller.
    #[test]
    fn pieces_follow_the_times() {
        let (mut pieces, tasks) = (Pieces::default(), tasks());
        all(&mut pieces, &tasks);
        for _ in 0..20 {
            let piece = Place::START..pieces.end(&tasks, Place::START, LIMIT);
            pieces.ran(&tasks, piece.clone(), 3 * time(&tasks, &piece));
        }
        let piece = Place::START..pieces.end(&tasks, Place::START, LIMIT);
        let took = 3 * time(&tasks, &piece);
        assert!(took <= LIMIT && took > LIMIT / 2, "{took:?}");
    }

    #[test]
    fn without_a_limit_a_piece_has_one_part() {
        let (mut pieces, tasks) = (Pieces::default(), tasks());
        all(&mut pieces, &tasks);
        let end = pieces.end(
            &tasks,
            Place {
                command: 0,
                part: 7,
            },
            Duration::ZERO,
        );
        assert_eq!(
            end,
            Place {
                command: 0,
                part: 8
            }
        );
    }
}
