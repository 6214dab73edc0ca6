//! The roofline: Gflop/s over flops per byte, both axes logarithmic. The memory floor is a line.

use super::{Report, per_ns};
use std::fmt::{self, Write};

/// The drawing's size and its margins.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 15.0;
const BOTTOM: f64 = HEIGHT - 45.0;
const RADIUS: f64 = 6.0;
/// A label's height, and the width of a character in a wide font at 12 px.
const LINE: f64 = 14.0;
const CHARACTER: f64 = 7.4;

/// Draws every op of every part that has both bytes and flops.
pub(super) fn write(out: &mut String, report: &Report) -> fmt::Result {
    let ops = report.parts.iter().enumerate();
    let ops = ops.flat_map(|(i, part)| part.ops().iter().map(move |op| (i, part.name, op)));
    let ops: Vec<_> = ops
        .filter(|(_, _, op)| op.flops > 0 && op.bytes > 0)
        .map(|(i, part, op)| (i, part, op, op.flops as f64 / op.bytes as f64))
        .collect();
    let x = Axis::of(
        ops.iter().map(|(_, _, _, intensity)| *intensity),
        LEFT,
        RIGHT,
    );
    let y = Axis::of(
        ops.iter().map(|(_, _, op, _)| per_ns(op.flops, op.ns)),
        BOTTOM,
        TOP,
    );
    write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Gflop/s over flops per byte\">"
    )?;
    write_grid(out, &x, &y)?;
    write_floor(out, &x, &y, report.floor.speed / 1e9)?;
    let points: Vec<Point> = ops
        .iter()
        .map(|(_, _, op, intensity)| Point {
            x: x.at(*intensity),
            y: y.at(per_ns(op.flops, op.ns)),
            name: op.op.name(),
        })
        .collect();
    let labels = place(&points);
    for (((i, part, op, intensity), point), label) in ops.iter().zip(&points).zip(labels) {
        write!(
            out,
            "<circle class=\"p{i}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{RADIUS}\"><title>{} ({part}): {:.1} GB/s, {:.1} Gflop/s, \
             {intensity:.2} flops per byte</title></circle>",
            point.x,
            point.y,
            point.name,
            per_ns(op.bytes, op.ns),
            per_ns(op.flops, op.ns),
        )?;
        if let Some(label) = label {
            write_label(out, point, &label)?;
        }
    }
    writeln!(
        out,
        "<text x=\"{RIGHT}\" y=\"{:.1}\" text-anchor=\"end\">flops per byte</text><text x=\"{:.1}\" y=\"12\">Gflop/s</text></svg>\
         <p class=\"sub\">",
        HEIGHT - 8.0,
        LEFT + 6.0,
    )?;
    for (i, part) in report.parts.iter().enumerate() {
        write!(
            out,
            "<i class=\"bar b{i}\" style=\"width:.7rem\"></i> {} &nbsp; ",
            part.name
        )?;
    }
    writeln!(out, "line: {:.1} GB/s</p>", report.floor.speed / 1e9)
}

/// A logarithmic axis over whole decades, from one pixel to another.
struct Axis {
    from: i32,
    to: i32,
    first: f64,
    last: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, first: f64, last: f64) -> Axis {
        let logs = values.filter(|v| *v > 0.0 && v.is_finite()).map(f64::log10);
        let (low, high) = logs.fold((0.0f64, 1.0f64), |(low, high), v| (low.min(v), high.max(v)));
        Axis {
            from: low.floor() as i32,
            to: high.ceil() as i32,
            first,
            last,
        }
    }

    /// The pixel of a value.
    fn at(&self, value: f64) -> f64 {
        let part = (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        self.first + (self.last - self.first) * part
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.from..=self.to).map(|decade| 10f64.powi(decade))
    }

    fn range(&self) -> (f64, f64) {
        (10f64.powi(self.from), 10f64.powi(self.to))
    }
}

fn write_grid(out: &mut String, x: &Axis, y: &Axis) -> fmt::Result {
    for value in x.decades() {
        let at = x.at(value);
        write!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{BOTTOM}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
            BOTTOM + 18.0
        )?;
    }
    for value in y.decades() {
        let at = y.at(value);
        write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT - 6.0,
            at + 4.0
        )?;
    }
    Ok(())
}

/// The floor in GB/s is the line `Gflop/s = floor * intensity`, cut at the edges of the drawing.
fn write_floor(out: &mut String, x: &Axis, y: &Axis, floor: f64) -> fmt::Result {
    let ((first, last), (low, high)) = (x.range(), y.range());
    let (from, to) = (first.max(low / floor), last.min(high / floor));
    if from >= to {
        return Ok(());
    }
    write!(
        out,
        "<line class=\"floor\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        x.at(from),
        y.at(from * floor),
        x.at(to),
        y.at(to * floor)
    )
}

/// A point to be labelled.
struct Point {
    x: f64,
    y: f64,
    name: &'static str,
}

/// The rectangle of a label.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Label {
    left: f64,
    top: f64,
    width: f64,
}

impl Label {
    fn overlaps(&self, other: &Label) -> bool {
        self.left < other.left + other.width
            && other.left < self.left + self.width
            && (self.top - other.top).abs() < LINE
    }

    fn covers(&self, point: &Point) -> bool {
        let x = point.x.clamp(self.left, self.left + self.width);
        let y = point.y.clamp(self.top, self.top + LINE);
        (x - point.x).hypot(y - point.y) < RADIUS
    }

    fn inside(&self) -> bool {
        self.left >= LEFT
            && self.left + self.width <= RIGHT
            && self.top >= TOP
            && self.top + LINE <= BOTTOM
    }
}

/// Places labels so that none covers another label or a point. Each takes the nearest free place to the right or left of
/// its point, on the same line or above and below. A point without a free place has no label.
fn place(points: &[Point]) -> Vec<Option<Label>> {
    let lines = ((BOTTOM - TOP) / LINE) as i32;
    let mut taken: Vec<Label> = Vec::new();
    let mut placed = Vec::new();
    for point in points {
        let width = CHARACTER * point.name.chars().count() as f64;
        // 0, 1, -1, 2, -2, …
        let shifts =
            (0..=2 * lines).map(|i| f64::from(if i % 2 == 0 { -(i / 2) } else { i / 2 + 1 }));
        let candidates = shifts.flat_map(|shift| {
            let top = point.y - LINE / 2.0 + shift * LINE;
            let sides = [point.x + RADIUS + 3.0, point.x - RADIUS - 3.0 - width];
            sides.map(|left| Label { left, top, width })
        });
        let free = |label: &Label| {
            label.inside()
                && !taken.iter().any(|other| label.overlaps(other))
                && !points.iter().any(|point| label.covers(point))
        };
        let label = { candidates }.find(free);
        taken.extend(label);
        placed.push(label);
    }
    placed
}

fn write_label(out: &mut String, point: &Point, label: &Label) -> fmt::Result {
    let middle = label.top + LINE / 2.0;
    // The side of the label that faces the point stays in place whatever the font.
    let (side, anchor) = if label.left > point.x {
        (label.left, "start")
    } else {
        (label.left + label.width, "end")
    };
    if (middle - point.y).abs() > LINE {
        write!(
            out,
            "<line class=\"leader\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{side:.1}\" y2=\"{middle:.1}\"/>",
            point.x, point.y
        )?;
    }
    write!(
        out,
        "<text class=\"name\" x=\"{side:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
        middle + 4.0,
        point.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64, name: &'static str) -> Point {
        Point { x, y, name }
    }

    /// Left and top of each label.
    fn corners(points: &[Point]) -> Vec<(f64, f64)> {
        let labels = place(points).into_iter().flatten();
        labels.map(|label| (label.left, label.top)).collect()
    }

    #[test]
    fn labels_of_close_points_take_the_nearest_free_places() {
        // Apart: to the right of each point.
        let apart = [point(100.0, 100.0, "norm"), point(100.0, 200.0, "rope")];
        assert_eq!(corners(&apart), [(109.0, 93.0), (109.0, 193.0)]);
        // At one place: right, left, then a line below on both sides, then a line above.
        let same = ["norm"; 5].map(|name| point(300.0, 100.0, name));
        let left = 300.0 - 9.0 - 4.0 * 7.4;
        assert_eq!(
            corners(&same),
            [
                (309.0, 93.0),
                (left, 93.0),
                (309.0, 107.0),
                (left, 107.0),
                (309.0, 79.0)
            ]
        );
        // The right edge leaves only the left side; the top edge only lines below.
        assert_eq!(
            corners(&[point(870.0, 100.0, "norm")]),
            [(870.0 - 9.0 - 29.6, 93.0)]
        );
        assert_eq!(corners(&[point(300.0, 16.0, "norm")]), [(309.0, 23.0)]);
        // A label does not cover a neighbour's point.
        let beside = [point(300.0, 100.0, "norm"), point(320.0, 100.0, "rope")];
        assert_eq!(corners(&beside), [(left, 93.0), (329.0, 93.0)]);
    }

    #[test]
    fn no_label_overlaps_whatever_the_points() {
        let mut seed = 1u32;
        let mut random = |range: f64| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(seed >> 8) / f64::from(1 << 24) * range
        };
        let mut points: Vec<Point> = (0..20)
            .map(|_| {
                let (x, y) = (LEFT + random(RIGHT - LEFT), TOP + random(BOTTOM - TOP));
                point(x, y, "norm_matmul_act_mul")
            })
            .collect();
        points.extend((0..20).map(|i| point(400.0 + f64::from(i), 200.0, "attention")));
        let labels: Vec<Label> = place(&points).into_iter().flatten().collect();
        assert_eq!(labels.len(), points.len());
        for (i, label) in labels.iter().enumerate() {
            assert!(label.inside(), "{label:?}");
            assert!(
                !labels[..i].iter().any(|other| label.overlaps(other)),
                "{label:?}"
            );
            assert!(!points.iter().any(|point| label.covers(point)), "{label:?}");
        }
    }

    #[test]
    fn far_labels_have_a_leader() {
        let mut out = String::new();
        let far = Label {
            left: 309.0,
            top: 149.0,
            width: 30.0,
        };
        write_label(&mut out, &point(300.0, 100.0, "norm"), &far).unwrap();
        assert_eq!(
            out,
            "<line class=\"leader\" x1=\"300.0\" y1=\"100.0\" x2=\"309.0\" y2=\"156.0\"/>\
             <text class=\"name\" x=\"309.0\" y=\"160.0\" text-anchor=\"start\">norm</text>"
        );
        let mut out = String::new();
        let left = Label {
            left: 261.4,
            top: 93.0,
            width: 29.6,
        };
        write_label(&mut out, &point(300.0, 100.0, "norm"), &left).unwrap();
        assert_eq!(
            out,
            "<text class=\"name\" x=\"291.0\" y=\"104.0\" text-anchor=\"end\">norm</text>"
        );
    }
}
