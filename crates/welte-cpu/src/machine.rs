//! The processors of this machine as Linux describes them: which belong to one core, which core is of which kind, which
//! memory node each is near to, and which of them this process may use.
//!
//! Everything is read below a root folder, so that tests describe machines in folders of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use welte_device::cpu_list;

/// A core is an efficiency core if its capacity is below this part of the largest one. (Linux reports capacities mostly on
/// ARM; x86 has lists of the kinds.)
const EFFICIENT: (u32, u32) = (2, 3);

/// A hardware thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) number: usize,
    /// The lowest number among the hardware threads of its core.
    pub(crate) core: usize,
    /// The memory node that it is near to.
    pub(crate) node: usize,
    /// It belongs to an efficiency core of a hybrid processor.
    pub(crate) efficient: bool,
}

/// The hardware threads of a machine, and those that this process may use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Machine {
    /// Those that are switched on, by number.
    pub(crate) cpus: Vec<Cpu>,
    /// Numbers of those that the affinity mask of this process has.
    pub(crate) allowed: BTreeSet<usize>,
    /// The processor time that the control group allows, in cores.
    pub(crate) quota: Option<f64>,
}

/// Where a thread of a team runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The processors that it may run on; empty: those of the process.
    pub(crate) cpus: Vec<usize>,
    /// The node whose memory it should read.
    pub(crate) node: usize,
}

impl Machine {
    /// This machine; `None` if the system does not describe it.
    pub(crate) fn here() -> Option<Machine> {
        Machine::read(Path::new("/"))
    }

    /// The machine that the files below `root` describe.
    pub(crate) fn read(root: &Path) -> Option<Machine> {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let list = |path: &str| cpu_list(text(path)?.trim()).ok();
        let system = "sys/devices/system";
        let online = list(&format!("{system}/cpu/online"))?;

        let mut nodes = BTreeMap::new();
        for node in list(&format!("{system}/node/online")).unwrap_or_default() {
            let cpus = list(&format!("{system}/node/node{node}/cpulist")).unwrap_or_default();
            nodes.extend(cpus.into_iter().map(|cpu| (cpu, node)));
        }
        let kinds = ["cpu_atom", "cpu_lowpower"];
        let listed = kinds
            .iter()
            .filter_map(|kind| list(&format!("sys/devices/{kind}/cpus")));
        let mut efficient: BTreeSet<usize> = listed.flatten().collect();
        if efficient.is_empty() {
            let capacity = |&cpu: &usize| {
                let text = text(&format!("{system}/cpu/cpu{cpu}/cpu_capacity"))?;
                Some((cpu, text.trim().parse::<u32>().ok()?))
            };
            let all: Vec<(usize, u32)> = online.iter().filter_map(capacity).collect();
            let most = all.iter().map(|(_, capacity)| *capacity).max();
            let (part, whole) = EFFICIENT;
            let limit = most.unwrap_or(0) / whole * part;
            efficient.extend(all.iter().filter(|(_, c)| *c < limit).map(|(cpu, _)| *cpu));
        }

        let cpus = online.into_iter().map(|number| {
            let siblings = format!("{system}/cpu/cpu{number}/topology/thread_siblings_list");
            let siblings = list(&siblings).unwrap_or_default();
            Cpu {
                number,
                core: siblings.into_iter().min().unwrap_or(number),
                node: nodes.get(&number).copied().unwrap_or(0),
                efficient: efficient.contains(&number),
            }
        });
        let cpus: Vec<Cpu> = cpus.collect();
        let status = text("proc/self/status")?;
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let mask: BTreeSet<usize> = cpu_list(mask.trim()).ok()?.into_iter().collect();
        let numbers = cpus.iter().map(|cpu| cpu.number);
        let allowed: BTreeSet<usize> = numbers.filter(|cpu| mask.contains(cpu)).collect();
        if allowed.is_empty() {
            return None;
        }
        Some(Machine {
            cpus,
            allowed,
            quota: quota(root),
        })
    }

    /// The processors that the default takes: the performance cores, unless only others are allowed.
    fn preferred(&self) -> Vec<&Cpu> {
        let (efficient, fast): (Vec<&Cpu>, Vec<&Cpu>) =
            self.usable().into_iter().partition(|cpu| cpu.efficient);
        if fast.is_empty() { efficient } else { fast }
    }

    /// How many threads a team has by default: one for each core that it should use, but not more than the control group
    /// has processor time for.
    pub(crate) fn default_threads(&self) -> usize {
        let cores = cores(&self.preferred());
        let quota = self.quota.map_or(usize::MAX, |quota| quota as usize);
        cores.min(quota).max(1)
    }

    /// Memory nodes whose processors this process may use.
    pub(crate) fn nodes(&self) -> BTreeSet<usize> {
        self.usable().into_iter().map(|cpu| cpu.node).collect()
    }

    /// Where each thread of a team runs; threads of one node follow each other.
    ///
    /// With a list, each thread has one processor of it. Without, threads may move between the cores of their node, and are
    /// not bound at all if the machine has one node and one kind of core.
    pub(crate) fn places(
        &self,
        threads: Option<usize>,
        list: Option<&[usize]>,
    ) -> Result<Vec<Place>, String> {
        if let Some(list) = list {
            let chosen = self.chosen(list)?;
            let threads = threads.unwrap_or(cores(&chosen));
            return Ok(spread(&chosen, threads, |node, nth| {
                vec![node[nth % node.len()].number]
            }));
        }
        let threads = threads.unwrap_or(self.default_threads());
        let (allowed, preferred) = (self.usable(), self.preferred());
        let chosen = if cores(&preferred) >= threads {
            preferred
        } else {
            allowed.clone()
        };
        let bound = self.nodes().len() > 1 || chosen.len() < allowed.len();
        Ok(spread(&chosen, threads, |node, _| {
            if bound {
                node.iter().map(|cpu| cpu.number).collect()
            } else {
                Vec::new()
            }
        }))
    }

    /// The processors of a user's list, or why they cannot be used.
    fn chosen(&self, list: &[usize]) -> Result<Vec<&Cpu>, String> {
        let numbers = || self.cpus.iter().map(|cpu| cpu.number);
        for cpu in list {
            if !numbers().any(|number| number == *cpu) {
                let all = cpu_ranges(numbers());
                return Err(format!("there is no CPU {cpu}; this machine has {all}"));
            }
            if !self.allowed.contains(cpu) {
                let allowed = cpu_ranges(self.allowed.iter().copied());
                return Err(format!(
                    "CPU {cpu} is outside the affinity mask of this process, which has {allowed}"
                ));
            }
        }
        if list.is_empty() {
            return Err("the list of CPUs is empty".to_string());
        }
        let all = self.cpus.iter();
        Ok(all.filter(|cpu| list.contains(&cpu.number)).collect())
    }

    /// The processors that this process may use.
    fn usable(&self) -> Vec<&Cpu> {
        let all = self.cpus.iter();
        all.filter(|cpu| self.allowed.contains(&cpu.number))
            .collect()
    }

    /// What `welte doctor` shows.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let usable = self.usable();
        let (efficient, fast): (Vec<&Cpu>, Vec<&Cpu>) =
            usable.iter().partition(|cpu| cpu.efficient);
        let mut number = cores(&usable).to_string();
        if !efficient.is_empty() {
            let (fast, efficient) = (cores(&fast), cores(&efficient));
            number += &format!(" ({fast} performance, {efficient} efficiency)");
        }
        let numbers = cpu_ranges(self.allowed.iter().copied());
        let mut facts = vec![("cores".to_string(), format!("{number}: CPUs {numbers}"))];
        let nodes = self.nodes();
        if nodes.len() > 1 {
            let node = |node: &usize| {
                let cpus = usable.iter().filter(|cpu| cpu.node == *node);
                cpu_ranges(cpus.map(|cpu| cpu.number))
            };
            let nodes: Vec<String> = nodes.iter().map(node).collect();
            let text = format!("{}: CPUs {}", nodes.len(), nodes.join(" | "));
            facts.push(("memory nodes".to_string(), text));
        }
        let mut threads = format!("{} by default", self.default_threads());
        if let Some(quota) = self.quota {
            threads += &format!("; the control group allows {quota} cores");
        }
        facts.push(("threads".to_string(), threads));
        facts
    }
}

/// How many cores these processors belong to.
fn cores(cpus: &[&Cpu]) -> usize {
    cpus.iter()
        .map(|cpu| cpu.core)
        .collect::<BTreeSet<_>>()
        .len()
}

/// Spreads threads evenly over the nodes of these processors. `place` gives the processors of the nth thread of a node,
/// from those of the node, where one of each core comes before the others.
fn spread(
    cpus: &[&Cpu],
    threads: usize,
    place: impl Fn(&[&Cpu], usize) -> Vec<usize>,
) -> Vec<Place> {
    let mut nodes: BTreeMap<usize, Vec<&Cpu>> = BTreeMap::new();
    for cpu in cpus {
        nodes.entry(cpu.node).or_default().push(cpu);
    }
    let mut counts: Vec<(usize, Vec<&Cpu>, usize)> = Vec::new();
    for (node, mut cpus) in nodes {
        let mut seen = BTreeMap::new();
        cpus.sort_by_cached_key(|cpu| {
            let earlier: &mut usize = seen.entry(cpu.core).or_default();
            *earlier += 1;
            (*earlier, cpu.number)
        });
        counts.push((node, cpus, 0));
    }
    for _ in 0..threads {
        // A node gets no second thread for a core while another has a core without one.
        let next = counts
            .iter_mut()
            .min_by_key(|(_, cpus, count)| (*count / cores(cpus), *count));
        next.expect("there are processors").2 += 1;
    }
    let places = counts.iter().flat_map(|(node, cpus, count)| {
        let place = &place;
        (0..*count).map(move |nth| Place {
            cpus: place(cpus, nth),
            node: *node,
        })
    });
    places.collect()
}

/// Numbers as ranges, such as `0-3,8`.
pub(crate) fn cpu_ranges(numbers: impl IntoIterator<Item = usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = ranges.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    text.collect::<Vec<_>>().join(",")
}

/// The processor time, in cores, that the control group of this process and those above it allow.
fn quota(root: &Path) -> Option<f64> {
    let text = |path: &Path| std::fs::read_to_string(path).ok();
    let groups = text(&root.join("proc/self/cgroup"))?;
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        // `0::/path` in version 2, `1:cpu,cpuacct:/path` in version 1.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let folder = match controllers {
            "" => "sys/fs/cgroup",
            list if list.split(',').any(|name| name == "cpu") => "sys/fs/cgroup/cpu",
            _ => continue,
        };
        // In a container the path may be one of the host, where the group itself is the root folder.
        for path in Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = root.join(folder).join(path);
            let limit = match text(&folder.join("cpu.max")) {
                Some(line) => line,
                None => {
                    let read = |name: &str| text(&folder.join(name)).unwrap_or_default();
                    format!(
                        "{} {}",
                        read("cpu.cfs_quota_us").trim(),
                        read("cpu.cfs_period_us")
                    )
                }
            };
            if let Some(cores) = allowance(&limit) {
                least = Some(least.map_or(cores, |least| least.min(cores)));
            }
        }
    }
    least
}

/// The cores of a line such as `400000 100000`: microseconds of work in a period, and the period. `max` and -1 mean no limit.
fn allowance(line: &str) -> Option<f64> {
    let (work, period) = line.trim().split_once(' ')?;
    let (work, period): (u64, u64) = (work.parse().ok()?, period.trim().parse().ok()?);
    (period > 0).then(|| work as f64 / period as f64)
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
