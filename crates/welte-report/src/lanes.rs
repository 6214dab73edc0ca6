//! A timeline as a picture: lanes down, time across, coloured by kind of command.

use crate::page::escape;
use std::fmt::{self, Write};
use std::ops::Range;
use welte_device::timeline::{Kind, Timeline};

/// Pixels of the time axis and of the margins to the left and below.
const WIDTH: usize = 1100;
const LEFT: usize = 70;
const BELOW: usize = 34;
/// Pixels that all lanes share.
const HEIGHT: usize = 560;
/// The smallest and the largest height of one lane.
const LANE_HEIGHT: Range<usize> = 2..40;
/// The most lanes drawn. With more, every second or third lane is drawn.
const MOST_LANES: usize = 400;
/// Kinds with a colour of their own, and one more colour that all others share.
const COLOURS: usize = 12;

/// The colours for the page's style: one per kind, paler for waiting.
pub(crate) fn style() -> String {
    const KINDS: [&str; COLOURS] = [
        "#3867c8", "#d9822b", "#2f9e6e", "#b5489b", "#c94f4f", "#6d5bd0", "#1f98b4", "#8a9a2b",
        "#a8683a", "#d06a94", "#4a7a8c", "#8c8c8c",
    ];
    let rules = KINDS.iter().enumerate();
    let rules = rules.map(|(i, colour)| format!(".k{i}{{stroke:{colour};background:{colour}}}"));
    rules.collect::<String>() + ".w{stroke-opacity:.28}"
}

/// A kind's colour: its place among all kinds, longest first.
fn colour(kinds: &[Kind], name: &str) -> usize {
    let place = kinds.iter().position(|kind| kind.name == name);
    place.unwrap_or(COLOURS).min(COLOURS - 1)
}

/// The kinds with their colours.
pub(crate) fn legend(out: &mut String, kinds: &[Kind]) -> fmt::Result {
    write!(out, "<p class=\"sub\">")?;
    for (i, kind) in kinds.iter().take(COLOURS - 1).enumerate() {
        let name = escape(&kind.name);
        write!(
            out,
            "<i class=\"bar k{i}\" style=\"width:.7rem\"></i> {name} &nbsp; "
        )?;
    }
    if kinds.len() >= COLOURS {
        let last = COLOURS - 1;
        write!(
            out,
            "<i class=\"bar k{last}\" style=\"width:.7rem\"></i> others &nbsp; "
        )?;
    }
    writeln!(out, "paler: waiting for input</p>")
}

/// The middle layer and its nanoseconds, from the first lane that begins it to the last that ends it.
pub(crate) fn middle_layer(timeline: &Timeline) -> Option<(u32, Range<u64>)> {
    let mut layers: Vec<u32> = timeline.commands.iter().filter_map(|c| c.layer).collect();
    layers.dedup();
    let layer = *layers.get(layers.len() / 2)?;
    let spans = timeline.lanes.iter().flatten().filter(|span| {
        let timed = timeline.commands.get(span.index as usize);
        timed.is_some_and(|timed| timed.layer == Some(layer))
    });
    let (mut from, mut to) = (u64::MAX, 0);
    for span in spans {
        from = from.min(span.begin);
        to = to.max(span.end);
    }
    (from < to).then_some((layer, from..to))
}

/// Draws some nanoseconds of a timeline. A pixel shows the kind that filled most of it, so a lane has at most one stroke per
/// pixel, however many spans there are.
pub(crate) fn svg(
    out: &mut String,
    timeline: &Timeline,
    time: Range<u64>,
    lane: &str,
) -> fmt::Result {
    let kinds = timeline.kinds();
    let every = timeline.lanes.len().div_ceil(MOST_LANES).max(1);
    let shown = timeline.lanes.len().div_ceil(every);
    let high = (HEIGHT / shown.max(1)).clamp(LANE_HEIGHT.start, LANE_HEIGHT.end);
    let bottom = shown * high;
    write!(
        out,
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Commands over time\">",
        LEFT + WIDTH + 10,
        bottom + BELOW
    )?;
    axis(out, &time, bottom)?;
    let classes: Vec<usize> = timeline
        .commands
        .iter()
        .map(|timed| colour(&kinds, &timed.kind()))
        .collect();
    let mut paths = vec![String::new(); COLOURS * 2];
    for (row, spans) in timeline.lanes.iter().step_by(every).enumerate() {
        let mut pixels = Pixels::new(&time);
        for span in spans {
            if let Some(class) = classes.get(span.index as usize) {
                pixels.fill(span.begin..span.ready, class * 2 + 1);
                pixels.fill(span.ready..span.end, class * 2);
            }
        }
        // Twice the row's middle, to stay in integers.
        let middle = row * 2 * high + high;
        for (class, run) in pixels.runs() {
            write!(
                paths[class],
                "M{} {}h{}",
                LEFT + run.start,
                middle as f64 / 2.0,
                run.len()
            )?;
        }
        if row % shown.div_ceil(8).max(1) == 0 {
            let number = if shown > 1 {
                format!(" {}", row * every)
            } else {
                String::new()
            };
            write!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{lane}{number}</text>",
                LEFT - 6,
                (middle / 2 + 4).max(10)
            )?;
        }
    }
    // One pixel between rows that are high enough.
    let thick = if high > 3 { high - 1 } else { high };
    for (class, path) in paths
        .iter()
        .enumerate()
        .filter(|(_, path)| !path.is_empty())
    {
        let pale = if class % 2 == 1 { " w" } else { "" };
        write!(
            out,
            "<path class=\"k{}{pale}\" stroke-width=\"{thick}\" fill=\"none\" d=\"{path}\"/>",
            class / 2
        )?;
    }
    writeln!(out, "</svg>")
}

/// The time axis.
fn axis(out: &mut String, time: &Range<u64>, bottom: usize) -> fmt::Result {
    let length = time.end.saturating_sub(time.start);
    let step = round_step(length / 8);
    let mut at = 0;
    while at <= length {
        let x = LEFT as f64 + WIDTH as f64 * at as f64 / length.max(1) as f64;
        write!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16,
            at as f64 / 1e3
        )?;
        match at.checked_add(step) {
            Some(next) => at = next,
            None => break,
        }
    }
    let from = time.start as f64 / 1e3;
    let after = if time.start == 0 {
        String::new()
    } else {
        format!(" after {from:.1}")
    };
    write!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">us{after}</text>",
        LEFT + WIDTH,
        bottom + 31
    )
}

/// The smallest of 1, 2 or 5 times a power of ten that is not below `least`.
fn round_step(least: u64) -> u64 {
    let mut decade = 1u64;
    loop {
        for times in [1, 2, 5] {
            match decade.checked_mul(times) {
                Some(step) if step < least => {}
                Some(step) => return step,
                None => return least,
            }
        }
        match decade.checked_mul(10) {
            Some(next) => decade = next,
            None => return least,
        }
    }
}

/// One lane as pixels: the nanoseconds of each class in each pixel.
struct Pixels {
    time: Range<u64>,
    filled: Vec<[u64; COLOURS * 2]>,
}

impl Pixels {
    fn new(time: &Range<u64>) -> Pixels {
        Pixels {
            time: time.clone(),
            filled: vec![[0; COLOURS * 2]; WIDTH],
        }
    }

    /// When a pixel begins.
    fn edge(&self, pixel: usize) -> u64 {
        let length = u128::from(self.time.end.saturating_sub(self.time.start));
        self.time.start + (length * pixel as u128 / WIDTH as u128) as u64
    }

    fn pixel_of(&self, time: u64) -> usize {
        let length = u128::from(self.time.end.saturating_sub(self.time.start)).max(1);
        let since = u128::from(time.saturating_sub(self.time.start));
        ((since * WIDTH as u128 / length) as usize).min(WIDTH - 1)
    }

    fn fill(&mut self, span: Range<u64>, class: usize) {
        let (from, to) = (span.start.max(self.time.start), span.end.min(self.time.end));
        if from >= to {
            return;
        }
        for pixel in self.pixel_of(from)..=self.pixel_of(to - 1) {
            let (begin, end) = (self.edge(pixel), self.edge(pixel + 1));
            // A pixel may be shorter than a nanosecond.
            let part = to.min(end).saturating_sub(from.max(begin)).max(1);
            let filled = &mut self.filled[pixel][class];
            *filled = filled.saturating_add(part);
        }
    }

    /// Runs of neighbouring pixels of one class. A pixel of which less than half is filled stays empty.
    fn runs(&self) -> Vec<(usize, Range<usize>)> {
        let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
        for (pixel, filled) in self.filled.iter().enumerate() {
            let most = filled.iter().enumerate().max_by_key(|(_, ns)| **ns);
            let all: u128 = filled.iter().map(|ns| u128::from(*ns)).sum();
            let room = u128::from(self.edge(pixel + 1) - self.edge(pixel));
            let Some((class, _)) = most.filter(|_| all > 0 && all * 2 >= room) else {
                continue;
            };
            match runs.last_mut() {
                Some((last, run)) if *last == class && run.end == pixel => run.end += 1,
                _ => runs.push((class, pixel..pixel + 1)),
            }
        }
        runs
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use welte_device::timeline::{Span, Timed};
    use welte_table::Op;

    pub(crate) fn span(index: u32, begin: u64, ready: u64, end: u64) -> Span {
        Span {
            index,
            begin,
            ready,
            done: end,
            end,
        }
    }

    /// Layers of two commands of 1,000 and 500 ns, a quarter of that waiting, the same on all lanes.
    pub(crate) fn made(lanes: usize, layers: u32) -> Timeline {
        let command = |op, layer, part: &str| Timed {
            command: 0,
            op,
            layer: Some(layer),
            part: part.to_string(),
            bytes: 10,
        };
        let commands = (0..layers).flat_map(|layer| {
            [
                command(Op::NormMatmul, layer, "qkv"),
                command(Op::Attention, layer, "attention"),
            ]
        });
        let spans = (0..layers).flat_map(|layer| {
            let begin = u64::from(layer) * 1_500;
            [
                span(layer * 2, begin, begin + 250, begin + 1_000),
                span(layer * 2 + 1, begin + 1_000, begin + 1_125, begin + 1_500),
            ]
        });
        let lane: Vec<Span> = spans.collect();
        Timeline {
            commands: commands.collect(),
            lanes: vec![lane; lanes],
            position: 9,
            rows: 1,
        }
    }

    fn drawn(timeline: &Timeline) -> String {
        let mut out = String::new();
        svg(&mut out, timeline, 0..timeline.length(), "block").unwrap();
        assert!(out.starts_with("<svg") && out.ends_with("</svg>\n"));
        assert_eq!(out.matches("<text").count(), out.matches("</text>").count());
        out
    }

    /// The strokes of a class: where each begins, and how long it is.
    fn strokes(picture: &str, class: &str) -> Vec<(usize, usize)> {
        let path = picture.split(&format!("<path class=\"{class}\"")).nth(1);
        let path = path.and_then(|rest| rest.split(" d=\"").nth(1));
        let path = path.and_then(|rest| rest.split('"').next()).unwrap_or("");
        let strokes = path.split('M').filter(|stroke| !stroke.is_empty());
        strokes
            .map(|stroke| {
                let (x, rest) = stroke.split_once(' ').unwrap();
                let (_, length) = rest.split_once('h').unwrap();
                (x.parse().unwrap(), length.parse().unwrap())
            })
            .collect()
    }

    #[test]
    fn strokes_lie_where_the_spans_are() {
        let picture = drawn(&made(2, 1));
        // 1,100 pixels for 1,500 ns: 250 are 183, 1,000 are 733, 1,125 are 825.
        for (class, first, length) in [
            ("k0 w", 0, 183),
            ("k0", 183, 550),
            ("k1 w", 733, 92),
            ("k1", 825, 275),
        ] {
            let strokes = strokes(&picture, class);
            assert_eq!(strokes.len(), 2, "{class}");
            for (x, long) in strokes {
                assert!(
                    x.abs_diff(LEFT + first) <= 1 && long.abs_diff(length) <= 1,
                    "{class} {x} {long}"
                );
            }
        }
    }

    #[test]
    fn thousands_of_spans_leave_a_small_picture() {
        let many = made(132, 2_000);
        let picture = drawn(&many);
        // At most a stroke per pixel and lane.
        assert!(picture.len() < 132 * WIDTH * 16, "{}", picture.len());
        let crowd = drawn(&made(5_000, 1));
        assert!(strokes(&crowd, "k0").len() <= MOST_LANES);
        let all: usize = ["k0", "k0 w", "k1", "k1 w"]
            .iter()
            .flat_map(|class| strokes(&picture, class))
            .map(|(_, long)| long)
            .sum();
        assert_eq!(all, 132 * WIDTH);
    }

    #[test]
    fn empty_and_overlapping_timelines_can_be_drawn() {
        assert!(!drawn(&Timeline::default()).contains("<path"));
        assert!(!drawn(&made(3, 0)).contains("<path"));
        let mut odd = made(1, 2);
        odd.lanes[0].push(span(0, 100, 100, 2_900));
        odd.lanes[0].push(span(99, 0, 0, 1));
        odd.lanes[0].push(span(1, 3_000, 3_000, 3_000));
        assert!(drawn(&odd).contains("<path"));
        // Times near the largest.
        let mut far = made(1, 1);
        far.lanes[0] = vec![span(0, 0, u64::MAX / 2, u64::MAX)];
        assert!(drawn(&far).contains("<path"));
        let mut out = String::new();
        svg(&mut out, &made(1, 1), 5..5, "block").unwrap();
        assert!(!out.contains("<path"));
    }

    #[test]
    fn more_kinds_than_colours_share_the_last() {
        let mut timeline = made(1, 1);
        timeline.lanes[0].clear();
        timeline.commands.clear();
        for i in 0..30u32 {
            let mut timed = made(1, 1).commands[0].clone();
            timed.part = format!("part <{i}>");
            timeline.commands.push(timed);
            let begin = u64::from(i) * 100;
            timeline.lanes[0].push(span(i, begin, begin, begin + 100));
        }
        let last = format!("k{}", COLOURS - 1);
        let shared: usize = strokes(&drawn(&timeline), &last).iter().map(|s| s.1).sum();
        assert!(shared > WIDTH / 2);
        let mut out = String::new();
        legend(&mut out, &timeline.kinds()).unwrap();
        assert!(out.contains("others") && out.contains("&lt;") && !out.contains("part <"));
    }

    #[test]
    fn the_middle_layer_is_drawn_enlarged() {
        let timeline = made(2, 5);
        assert_eq!(middle_layer(&timeline), Some((2, 3_000..4_500)));
        assert_eq!(middle_layer(&Timeline::default()), None);
        let mut out = String::new();
        svg(&mut out, &timeline, 3_000..4_500, "block").unwrap();
        assert!(out.contains("after 3.0"));
        assert_eq!(strokes(&out, "k0").len(), 2);
        assert_eq!([round_step(0), round_step(3), round_step(51)], [1, 5, 100]);
        assert_eq!(round_step(u64::MAX), u64::MAX);
    }
}
