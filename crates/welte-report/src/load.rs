//! A chart of a loaded server: throughput against latency.

use crate::page::escape;
use std::fmt::Write;

/// What one rate of arrivals gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Requests that arrived per second; infinite if all came at once.
    pub rate: f64,
    /// Tokens generated per second.
    pub speed: f64,
    /// Milliseconds until the first token: p50, p90, p99.
    pub first_token: [f64; 3],
    /// Milliseconds between two tokens of an answer: p50, p90, p99.
    pub next_token: [f64; 3],
}

const WIDTH: f64 = 760.0;
const PLOT: f64 = 190.0;
const PANEL: f64 = 270.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 88.0;
const INK: &str = "#1c2430";
const QUIET: &str = "#5d6776";
const GRID: &str = "#e3e7ec";
const SERIES: [(&str, &str); 3] = [("p50", "#1f6fb2"), ("p90", "#2f9e83"), ("p99", "#e08a2e")];

/// The chart as SVG: time to first token above, time between tokens below. Each point is a rate of arrivals.
pub fn svg(about: &str, points: &[Point]) -> String {
    let height = TOP + 2.0 * PANEL;
    let mut out = Svg(String::new());
    out.text(16.0, 26.0, 16, INK, "start", "Throughput against latency");
    out.text(16.0, 45.0, 12, QUIET, "start", about);
    for (series, (name, color)) in SERIES.iter().enumerate() {
        let x = 16.0 + 60.0 * series as f64;
        out.dot(x + 5.0, 62.0, color);
        out.text(x + 16.0, 66.0, 12, INK, "start", name);
    }
    let fastest = points.iter().map(|point| point.speed).fold(0.0, f64::max);
    let first = |point: &Point| point.first_token;
    let next = |point: &Point| point.next_token;
    panel(
        &mut out,
        TOP,
        "Time to first token, ms",
        fastest,
        points,
        &first,
    );
    panel(
        &mut out,
        TOP + PANEL,
        "Time between tokens, ms",
        fastest,
        points,
        &next,
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" font-family=\"system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif\">\n\
         <title>Throughput against latency</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n{}</svg>\n",
        out.0
    )
}

/// One plot with its axes.
fn panel(
    out: &mut Svg,
    top: f64,
    title: &str,
    fastest: f64,
    points: &[Point],
    of: &dyn Fn(&Point) -> [f64; 3],
) {
    let highest = points.iter().flat_map(of).fold(0.0, f64::max);
    let (across, up) = (ticks(fastest), ticks(highest));
    let (x_end, y_end) = (across[across.len() - 1], up[up.len() - 1]);
    let (top, bottom) = (top + 20.0, top + 20.0 + PLOT);
    let x = |speed: f64| LEFT + (WIDTH - LEFT - RIGHT) * speed / x_end;
    let y = |ms: f64| bottom - PLOT * ms / y_end;
    out.text(16.0, top - 8.0, 12, INK, "start", title);
    for tick in across {
        out.line(x(tick), top, x(tick), bottom, GRID, 1.0);
        out.text(
            x(tick),
            bottom + 15.0,
            11,
            QUIET,
            "middle",
            &tick.to_string(),
        );
    }
    for tick in up {
        out.line(LEFT, y(tick), WIDTH - RIGHT, y(tick), GRID, 1.0);
        out.text(
            LEFT - 8.0,
            y(tick) + 4.0,
            11,
            QUIET,
            "end",
            &tick.to_string(),
        );
    }
    out.text(
        LEFT,
        bottom + 32.0,
        11,
        QUIET,
        "start",
        "generated tokens per second",
    );
    for (series, (_, color)) in SERIES.iter().enumerate() {
        let places: Vec<(f64, f64)> = points
            .iter()
            .map(|point| (x(point.speed), y(of(point)[series])))
            .collect();
        for pair in places.windows(2) {
            out.line(pair[0].0, pair[0].1, pair[1].0, pair[1].1, color, 1.6);
        }
        for (place, point) in places.iter().zip(points) {
            out.dot(place.0, place.1, color);
            if series == 2 {
                let label = format!("{}/s", point.rate);
                out.text(place.0, place.1 - 8.0, 10, QUIET, "middle", &label);
            }
        }
    }
}

/// Round numbers from 0 to the first that is not below the largest value, at least three.
fn ticks(largest: f64) -> Vec<f64> {
    let largest = if largest > 0.0 { largest } else { 1.0 };
    let power = 10f64.powf(largest.log10().floor());
    let steps = [5.0, 2.0, 1.0, 0.5, 0.2].map(|factor| factor * power);
    let fits = |step: &&f64| (largest / **step).ceil() >= 4.0;
    let step = *steps.iter().find(fits).unwrap_or(&steps[4]);
    let count = (largest / step).ceil() as u32;
    // Rounded, because 3 x 0.2 is not 0.6.
    let digits = 1e6 / power;
    (0..=count)
        .map(|i| (f64::from(i) * step * digits).round() / digits)
        .collect()
}

/// Elements of an image. Coordinates are rounded.
struct Svg(String);

impl Svg {
    fn text(&mut self, x: f64, y: f64, size: u32, color: &str, anchor: &str, content: &str) {
        let content = escape(content);
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{color}\" text-anchor=\"{anchor}\">{content}</text>"
        );
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, color: &str, width: f64) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\" stroke-width=\"{width}\"/>"
        );
    }

    fn dot(&mut self, x: f64, y: f64, color: &str) {
        let _ = writeln!(
            self.0,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        assert_eq!(ticks(37.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(ticks(0.6), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(0.0), ticks(1.0));
        for largest in [3.0, 99.0, 1234.5, 1e-3] {
            assert!((4..=11).contains(&ticks(largest).len()), "{largest}");
            assert!(ticks(largest).last().is_some_and(|last| *last >= largest));
        }
    }

    #[test]
    fn every_rate_has_a_point_in_every_series() {
        let point = |rate, speed| Point {
            rate,
            speed,
            first_token: [10.0, 20.0, 30.0],
            next_token: [1.0, 2.0, 3.0],
        };
        let points = [point(0.5, 100.0), point(f64::INFINITY, 220.0)];
        let text = svg("a <model>", &points);
        assert_eq!(text.matches("<circle").count(), 3 + 2 * 3 * 2);
        assert!(text.contains("a &lt;model&gt;") && text.contains(">inf/s<"));
        assert!(svg("nothing", &[]).ends_with("</svg>\n"));
    }
}
