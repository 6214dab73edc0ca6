//! When the workers of a device did what in one step: plain data, and its sums by kind of command.

use welte_table::{Op, Program, Row, cost};

/// One step of a pass on a device. A lane is a worker: a block of the persistent kernel, or all threads of a team
/// together where they are timed as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// What was timed, in the pass's order; what a command takes along (a rope, a norm) has no entry of its own.
    pub commands: Vec<Timed>,
    /// By lane, in the order of time.
    pub lanes: Vec<Vec<Span>>,
    /// Position of the step's last row.
    pub position: u32,
    /// Rows of the step.
    pub rows: u32,
}

/// A command as a timeline knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Its number in the pass.
    pub command: u32,
    /// What it is.
    pub op: Op,
    /// The layer that its label names.
    pub layer: Option<u32>,
    /// What it is for: the rest of its label.
    pub part: String,
    /// Bytes that it had to move at least in this step.
    pub bytes: u64,
}

/// What one worker did for one command, in nanoseconds after the step began: `begin <= ready <= done <= end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index into [`Timeline::commands`].
    pub index: u32,
    /// It turned to the command.
    pub begin: u64,
    /// Its input was there; as `begin` where that was not recorded.
    pub ready: u64,
    /// Its results were there; as `end` where that was not recorded.
    pub done: u64,
    /// They were handed on.
    pub end: u64,
}

/// What commands of one kind came to in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Op and part.
    pub name: String,
    /// The op.
    pub op: Op,
    /// Commands.
    pub calls: u64,
    /// Lanes that had a part in one of them, at most.
    pub lanes: u64,
    /// Nanoseconds of the median lane of those that took part, over all calls.
    pub ns: u64,
    /// Nanoseconds of those for which the median lane waited for its input.
    pub waiting_ns: u64,
    /// Nanoseconds from the end of the first lane to that of the last, over all calls.
    pub spread_ns: u64,
    /// Bytes that had to be moved at least.
    pub bytes: u64,
}

impl Timed {
    /// A command of a pass in a step with these rows.
    pub fn of(program: &Program, pass: usize, index: usize, rows: &[Row]) -> Option<Timed> {
        let pass = program.passes.get(pass)?;
        let command = pass.commands.get(index)?;
        let context = cost::of_context(command, program, rows).bytes;
        Some(Timed {
            command: index as u32,
            op: command.op,
            layer: pass.layer_of(index),
            part: pass.label(index).to_string(),
            bytes: command.bytes.saturating_add(context),
        })
    }

    /// What it has in common with the same command of other layers.
    pub fn kind(&self) -> String {
        match self.part.as_str() {
            "" => self.op.name().to_string(),
            part if part == self.op.name() => part.to_string(),
            part => format!("{} {part}", self.op.name()),
        }
    }

    /// As a person reads it.
    pub fn name(&self) -> String {
        match self.layer {
            Some(layer) => format!("layer {layer} {}", self.kind()),
            None => self.kind(),
        }
    }
}

impl Span {
    /// From the times at which a worker had begun, its input, its results, and had handed them on; 0 for what it did not
    /// come to. `None` if it had no part in the command.
    pub fn of_stamps(index: u32, [begin, ready, done, end]: [u64; 4]) -> Option<Span> {
        let end = end.max(done).max(ready);
        if end <= begin {
            return None;
        }
        let ready = ready.clamp(begin, end);
        let done = if done == 0 {
            end
        } else {
            done.clamp(ready, end)
        };
        Some(Span {
            index,
            begin,
            ready,
            done,
            end,
        })
    }
}

impl Timeline {
    /// A step whose commands ran one after the other: its rows, and number, begin and end of each command.
    pub fn in_order(
        program: &Program,
        pass: usize,
        rows: &[Row],
        ran: &[(u32, u64, u64)],
    ) -> Timeline {
        let mut timeline = Timeline {
            position: rows.last().map_or(0, |row| row.position),
            rows: rows.len() as u32,
            ..Timeline::default()
        };
        let mut lane = Vec::with_capacity(ran.len());
        for &(command, begin, end) in ran {
            let Some(timed) = Timed::of(program, pass, command as usize, rows) else {
                continue;
            };
            lane.push(Span {
                index: timeline.commands.len() as u32,
                begin,
                ready: begin,
                done: end.max(begin),
                end: end.max(begin),
            });
            timeline.commands.push(timed);
        }
        timeline.lanes.push(lane);
        timeline
    }

    /// Nanoseconds until the last lane was done.
    pub fn length(&self) -> u64 {
        let ends = self.lanes.iter().flatten().map(|span| span.end);
        ends.max().unwrap_or(0)
    }

    /// True if nothing was timed.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(Vec::is_empty)
    }

    /// The sums by kind of command, the longest first.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut spans: Vec<Vec<&Span>> = vec![Vec::new(); self.commands.len()];
        for span in self.lanes.iter().flatten() {
            if let Some(of_command) = spans.get_mut(span.index as usize) {
                of_command.push(span);
            }
        }
        let mut kinds: Vec<Kind> = Vec::new();
        for (timed, spans) in self.commands.iter().zip(spans) {
            if spans.is_empty() {
                continue;
            }
            let name = timed.kind();
            let known = kinds.iter().position(|kind| kind.name == name);
            let at = known.unwrap_or_else(|| {
                kinds.push(Kind::nothing(name, timed.op));
                kinds.len() - 1
            });
            kinds[at].add(timed, &spans);
        }
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.ns));
        kinds
    }
}

impl Kind {
    fn nothing(name: String, op: Op) -> Kind {
        Kind {
            name,
            op,
            calls: 0,
            lanes: 0,
            ns: 0,
            waiting_ns: 0,
            spread_ns: 0,
            bytes: 0,
        }
    }

    /// One more command with what its lanes did, of which there is one at least.
    fn add(&mut self, timed: &Timed, spans: &[&Span]) {
        let ends = || spans.iter().map(|span| span.end);
        let spread = ends().max().unwrap_or(0) - ends().min().unwrap_or(0);
        self.calls += 1;
        self.lanes = self.lanes.max(spans.len() as u64);
        self.ns += median(spans.iter().map(|s| s.end - s.begin).collect());
        self.waiting_ns += median(spans.iter().map(|s| s.ready - s.begin).collect());
        self.spread_ns += spread;
        self.bytes = self.bytes.saturating_add(timed.bytes);
    }

    /// Microseconds from the end of the first lane to that of the last, per call.
    pub fn spread_us(&self) -> f64 {
        self.spread_ns as f64 / 1e3 / self.calls.max(1) as f64
    }

    /// Bytes per nanosecond of the median lane: GB/s.
    pub fn gb_s(&self) -> f64 {
        self.bytes as f64 / (self.ns as f64).max(1.0)
    }
}

/// The upper one of two in the middle; 0 of none.
pub fn median(mut values: Vec<u64>) -> u64 {
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0;
    }
    *values.select_nth_unstable(middle).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(op: Op, layer: Option<u32>, part: &str, bytes: u64) -> Timed {
        Timed {
            command: 0,
            op,
            layer,
            part: part.to_string(),
            bytes,
        }
    }

    fn span(index: u32, begin: u64, ready: u64, end: u64) -> Span {
        Span {
            index,
            begin,
            ready,
            done: end,
            end,
        }
    }

    /// Two layers of two ops on three lanes, the third of which has no part in attention.
    fn made() -> Timeline {
        Timeline {
            commands: vec![
                timed(Op::NormMatmul, Some(0), "qkv", 100),
                timed(Op::Attention, Some(0), "attention", 10),
                timed(Op::NormMatmul, Some(1), "qkv", 100),
                timed(Op::Attention, Some(1), "attention", 10),
            ],
            lanes: vec![
                vec![
                    span(0, 0, 2, 10),
                    span(1, 10, 14, 20),
                    span(2, 20, 25, 31),
                    span(3, 31, 32, 40),
                ],
                vec![
                    span(0, 0, 3, 12),
                    span(1, 12, 15, 18),
                    span(2, 20, 22, 30),
                    span(3, 30, 32, 41),
                ],
                vec![span(0, 0, 4, 13), span(2, 13, 26, 33)],
            ],
            position: 7,
            rows: 1,
        }
    }

    #[test]
    fn kinds_are_summed_at_the_median_lane() {
        let kinds = made().kinds();
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
        assert_eq!(names, ["norm_matmul qkv", "attention"]);
        let qkv = &kinds[0];
        assert_eq!((qkv.calls, qkv.lanes, qkv.bytes), (2, 3, 200));
        // 12 of 10, 12, 13; then 11 of 10, 11, 20.
        assert_eq!(qkv.ns, 12 + 11);
        assert_eq!(qkv.waiting_ns, 3 + 5);
        assert_eq!(qkv.spread_ns, 3 + 3);
        let attention = &kinds[1];
        assert_eq!((attention.calls, attention.lanes), (2, 2));
        assert_eq!(attention.ns, 10 + 11);
        assert_eq!(made().length(), 41);
        assert!((qkv.gb_s() - 200.0 / 23.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_timed_is_no_kind() {
        let empty = Timeline::default();
        assert!(empty.is_empty() && empty.kinds().is_empty());
        assert_eq!(empty.length(), 0);
        let idle = Timeline {
            lanes: vec![Vec::new(); 4],
            ..made()
        };
        assert!(idle.is_empty() && idle.kinds().is_empty());
        // A span of nothing known is left out.
        let mut odd = made();
        odd.lanes[0].push(span(99, 50, 50, 60));
        assert_eq!(odd.kinds(), made().kinds());
    }

    #[test]
    fn stamps_become_spans_in_order() {
        let of = |stamps| Span::of_stamps(3, stamps).map(|s| [s.begin, s.ready, s.done, s.end]);
        assert_eq!(of([5, 7, 9, 12]), Some([5, 7, 9, 12]));
        // An embedding has no input, a block that adds nothing up is done when its part is.
        assert_eq!(of([0, 0, 0, 4]), Some([0, 0, 4, 4]));
        assert_eq!(of([5, 7, 9, 0]), Some([5, 7, 9, 9]));
        assert_eq!(of([5, 0, 9, 12]), Some([5, 5, 9, 12]));
        // Without a part: begun and left.
        assert_eq!(of([5, 0, 0, 0]), None);
        assert_eq!(of([0, 0, 0, 0]), None);
        // Stamps of an earlier turn lie before this one's.
        assert_eq!(of([50, 0, 0, 12]), None);
        assert_eq!(of([50, 7, 8, 60]), Some([50, 50, 50, 60]));
    }
}
