//! The replay ladder: the same tokens decoded in several ways, from one launch per command to one kernel per chain.

use serde_json::{Value, json};
use std::fmt::Write;

/// A measured ladder.
pub struct Ladder {
    /// The model's name or path.
    pub model: String,
    /// Bytes that a token reads at least.
    pub token_bytes: f64,
    /// Bytes per second that the device reads from memory.
    pub read_speed: f64,
    /// Milliseconds per token in which kernels work: a chain's time without its launches.
    pub kernel_ms: f64,
    /// From the slowest way to the fastest.
    pub rungs: Vec<Rung>,
}

/// One way to replay, in milliseconds per token.
pub struct Rung {
    /// Its name.
    pub name: &'static str,
    /// The median of all repetitions.
    pub median_ms: f64,
    /// The fastest repetition.
    pub fastest_ms: f64,
}

impl Ladder {
    /// Milliseconds in which memory delivers a token's bytes.
    fn floor_ms(&self) -> f64 {
        1e3 * self.token_bytes / self.read_speed
    }

    /// Milliseconds per token in which no kernel works.
    fn gap_ms(&self, rung: &Rung) -> f64 {
        (rung.median_ms - self.kernel_ms).max(0.0)
    }

    /// The share of the floor. `None`: it took less time than memory needs, so the bytes came from a cache.
    fn share(&self, rung: &Rung) -> Option<f64> {
        Some(self.floor_ms() / rung.median_ms).filter(|share| *share <= 1.0)
    }

    /// A Markdown table below a line with the floor.
    pub fn markdown(&self) -> String {
        let mut out = format!(
            "{}: {:.1} MB per token at {:.1} GB/s: at least {:.3} ms; kernels take {:.3} ms\n\
             | rung | ms per token | fastest | kernels ms | gaps ms | gaps | t/s | GB/s | % of floor |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
            self.model,
            self.token_bytes / 1e6,
            self.read_speed / 1e9,
            self.floor_ms(),
            self.kernel_ms,
        );
        for rung in &self.rungs {
            let (ms, gap) = (rung.median_ms, self.gap_ms(rung));
            let share = match self.share(rung) {
                Some(share) => format!("{:.0} %", 100.0 * share),
                None => "in cache".to_string(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "| {} | {ms:.3} | {:.3} | {:.3} | {gap:.3} | {:.1} % | {:.1} | {:.0} | {share} |",
                rung.name,
                rung.fastest_ms,
                ms - gap,
                100.0 * gap / ms,
                1e3 / ms,
                self.token_bytes / ms / 1e6,
            );
        }
        out
    }

    /// One line per rung below a line of names.
    pub fn csv(&self) -> String {
        let mut out =
            String::from("rung,ms_per_token,fastest_ms,kernel_ms,gap_ms,floor_ms,floor_gb_s\n");
        for rung in &self.rungs {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{},{:.5},{:.5},{:.5},{:.5},{:.5},{:.2}",
                rung.name,
                rung.median_ms,
                rung.fastest_ms,
                self.kernel_ms,
                self.gap_ms(rung),
                self.floor_ms(),
                self.read_speed / 1e9,
            );
        }
        out
    }

    /// One object.
    pub fn json(&self) -> Value {
        let rung = |rung: &Rung| {
            json!({
                "rung": rung.name, "ms_per_token": rung.median_ms, "fastest_ms": rung.fastest_ms,
                "gap_ms": self.gap_ms(rung), "floor_share": self.share(rung),
            })
        };
        json!({
            "model": self.model, "bytes_per_token": self.token_bytes, "floor_gb_s": self.read_speed / 1e9,
            "floor_ms": self.floor_ms(), "kernel_ms": self.kernel_ms,
            "rungs": self.rungs.iter().map(rung).collect::<Value>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder() -> Ladder {
        let rung = |name, median_ms, fastest_ms| Rung {
            name,
            median_ms,
            fastest_ms,
        };
        Ladder {
            model: "m".to_string(),
            token_bytes: 1e9,
            read_speed: 4e12,
            kernel_ms: 0.4,
            rungs: vec![rung("graph", 0.5, 0.49), rung("persistent", 0.3, 0.29)],
        }
    }

    #[test]
    fn gaps_are_what_exceeds_the_kernels() {
        let lines: Vec<String> = ladder().markdown().lines().map(str::to_string).collect();
        assert_eq!(
            lines[0],
            "m: 1000.0 MB per token at 4000.0 GB/s: at least 0.250 ms; kernels take 0.400 ms"
        );
        assert_eq!(
            lines[3],
            "| graph | 0.500 | 0.490 | 0.400 | 0.100 | 20.0 % | 2000.0 | 2000 | 50 % |"
        );
        assert_eq!(
            lines[4],
            "| persistent | 0.300 | 0.290 | 0.300 | 0.000 | 0.0 % | 3333.3 | 3333 | 83 % |"
        );
        assert_eq!(
            ladder().csv().lines().nth(1),
            Some("graph,0.50000,0.49000,0.40000,0.10000,0.25000,4000.00")
        );
        let value = ladder().json();
        assert_eq!(value["rungs"][1]["gap_ms"], 0.0);
        assert_eq!(value["rungs"][0]["floor_share"], 0.5);
    }

    #[test]
    fn shares_of_the_floor_end_at_one() {
        let mut ladder = ladder();
        ladder.rungs[0].median_ms = 0.25;
        ladder.rungs[1].median_ms = 0.2;
        let text = ladder.markdown();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[3].ends_with("| 100 % |"), "{text}");
        assert!(lines[4].ends_with("| in cache |"), "{text}");
        let value = ladder.json();
        assert_eq!(value["rungs"][0]["floor_share"], 1.0);
        assert!(value["rungs"][1]["floor_share"].is_null());
    }
}
