//! Options that a device may take, in terms that mean the same on every device.

use std::fmt;

/// How a device runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// CPU threads; `None`: one for each core that the process may use, or for each of `cpus`. Hardware threads of a core
    /// count once. Of a hybrid processor the performance cores count.
    pub threads: Option<usize>,
    /// The processors that CPU threads are pinned to, as the system numbers them; `None`: the system chooses.
    pub cpus: Option<Vec<usize>>,
    /// Name of the CPU's instruction set; `None`: the best of this machine.
    pub instructions: Option<String>,
    /// How a GPU replays chains; `None`: in the fastest way that has run on this kind of GPU.
    pub replay: Option<Replay>,
    /// Measure tuning parameters at load even if stored ones exist.
    pub retune: bool,
    /// How a GPU rounds the activations that it multiplies with weights in FP8.
    pub activations: Activations,
    /// Which kernels a GPU may use for steps of few generated rows.
    pub steps: Steps,
    /// Through which memory GPUs exchange that share a model.
    pub exchange: Exchange,
}

/// Through which memory ranks on GPUs give each other what they compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exchange {
    /// The GPUs write into each other's memory.
    #[default]
    Peers,
    /// They write into pinned memory of the host, for GPUs that do not reach each other's. It takes longer.
    Host,
}

/// Whether a generated row has the same bits in steps of few and of many rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steps {
    /// Yes: an answer does not depend on other requests.
    #[default]
    Alike,
    /// Not if other kernels are faster for few rows. The last bits of a row then depend on how many are computed with it.
    Fast,
}

/// How activations are rounded before a product with weights in FP8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// As for other floats: to 16 bits, or not at all.
    #[default]
    Wide,
    /// To FP8 (E4M3), with a scale for each row. Faster for many rows, and less exact.
    Float8,
}

impl Activations {
    /// Why other devices refuse [`Activations::Float8`].
    pub const ONLY_CUDA: &'static str =
        "activations in FP8 need an NVIDIA GPU of compute capability 9.0";
}

/// The numbers of a list of processors such as `0-3,8`, sorted, each once.
pub fn cpu_list(text: &str) -> Result<Vec<usize>, String> {
    /// More than any system numbers. It keeps a mistyped range from filling the memory.
    const MOST: usize = 1 << 16;
    let number = |digits: &str| {
        let number = digits
            .trim()
            .parse::<usize>()
            .ok()
            .filter(|number| *number < MOST);
        number
            .ok_or_else(|| format!("'{digits}' is no CPU number; a list of CPUs looks like 0-3,8"))
    };
    let mut numbers = std::collections::BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(format!("the range {part} of CPUs ends before it begins"));
        }
        numbers.extend(first..=last);
    }
    Ok(numbers.into_iter().collect())
}

/// How a chain is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// As `Launches`, with an allocation and a release per command besides: what an engine without a memory plan does.
    /// For comparisons.
    Allocate,
    /// The host launches every kernel.
    Launches,
    /// The decode pass is one graph, launched once per token, a few tokens ahead.
    Graph,
    /// The decode pass is the body of a loop on the device: one launch per chain.
    Loop,
    /// One kernel reads the decode pass on the GPU for a whole chain. A model that it does not support is replayed as a
    /// graph.
    Persistent,
}

impl Replay {
    /// Every way, from the slowest to the fastest.
    pub const ALL: [Replay; 5] = [
        Replay::Allocate,
        Replay::Launches,
        Replay::Graph,
        Replay::Loop,
        Replay::Persistent,
    ];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Replay::Allocate => "allocate",
            Replay::Launches => "launches",
            Replay::Graph => "graph",
            Replay::Loop => "loop",
            Replay::Persistent => "persistent",
        }
    }

    /// The way of that name.
    pub fn from_name(name: &str) -> Option<Replay> {
        Replay::ALL.into_iter().find(|replay| replay.name() == name)
    }
}

/// How chains are replayed, and why not as requested, if so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaying {
    /// In which way.
    pub replay: Replay,
    /// Why not as requested.
    pub note: Option<String>,
}

impl fmt::Display for Replaying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.replay.name())?;
        match &self.note {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-3,8,10-11"), Ok(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list("5,4,5"), Ok(vec![4, 5]));
        for wrong in [
            "",
            "none",
            "1,",
            "-1",
            "3-",
            "1.5",
            "0-99999999999",
            "0-70000",
        ] {
            let error = cpu_list(wrong).unwrap_err();
            assert!(error.contains("is no CPU number"), "{wrong}: {error}");
        }
        assert!(cpu_list("3-1").unwrap_err().contains("3-1"));
    }
}
