//! Machines that are described in a folder.

use super::*;
use std::fs;
use tempfile::TempDir;

struct Files(TempDir);

impl Files {
    /// A machine whose CPU i belongs to the core of the lowest of `siblings(i)`.
    fn new(cpus: usize, siblings: impl Fn(usize) -> String) -> Files {
        let files = Files(TempDir::new().unwrap());
        let last = cpus - 1;
        files.write("sys/devices/system/cpu/online", &format!("0-{last}"));
        files.write("sys/devices/system/node/online", "0");
        files.write(
            "sys/devices/system/node/node0/cpulist",
            &format!("0-{last}"),
        );
        for cpu in 0..cpus {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            files.write(&path, &siblings(cpu));
        }
        files.allow(&format!("0-{last}"));
        files
    }

    fn write(&self, path: &str, text: &str) -> &Files {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    fn allow(&self, list: &str) -> &Files {
        let status = format!("Name:\twelte\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}");
        self.write("proc/self/status", &status)
    }

    fn read(&self) -> Machine {
        Machine::read(self.0.path()).unwrap()
    }
}

/// 16 cores with two hardware threads each: CPU i and i + 16.
fn sixteen() -> Files {
    Files::new(32, |cpu| format!("{},{}", cpu % 16, cpu % 16 + 16))
}

/// 4 performance cores with two hardware threads each (0 to 7) and 8 efficiency cores (8 to 15).
fn hybrid() -> Files {
    let files = Files::new(16, |cpu| match cpu {
        0..8 => format!("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1),
        _ => cpu.to_string(),
    });
    files.write("sys/devices/cpu_core/cpus", "0-7");
    files.write("sys/devices/cpu_atom/cpus", "8-15");
    files
}

/// Two nodes of 48 cores with two hardware threads each.
fn two_nodes() -> Files {
    let files = Files::new(192, |cpu| format!("{},{}", cpu % 96, cpu % 96 + 96));
    files.write("sys/devices/system/node/online", "0-1");
    files.write("sys/devices/system/node/node0/cpulist", "0-47,96-143");
    files.write("sys/devices/system/node/node1/cpulist", "48-95,144-191");
    files
}

fn cpus(places: &[Place]) -> Vec<Vec<usize>> {
    places.iter().map(|place| place.cpus.clone()).collect()
}

fn fact(machine: &Machine, name: &str) -> Option<String> {
    let facts = machine.facts();
    let found = facts.into_iter().find(|(fact, _)| fact == name);
    found.map(|(_, value)| value)
}

#[test]
fn two_cores() {
    let machine = Files::new(2, |cpu| cpu.to_string()).read();
    assert_eq!(machine.default_threads(), 2);
    // Nothing to choose: the system places the threads.
    assert_eq!(machine.places(None, None), Ok(vec![Place::default(); 2]));
    assert_eq!(machine.places(Some(5), None), Ok(vec![Place::default(); 5]));
    assert_eq!(fact(&machine, "cores").unwrap(), "2: CPUs 0-1");
    assert_eq!(fact(&machine, "threads").unwrap(), "2 by default");
    assert_eq!(fact(&machine, "memory nodes"), None);
}

#[test]
fn hardware_threads_of_a_core_count_once() {
    let machine = sixteen().read();
    assert_eq!(machine.default_threads(), 16);
    let listed = machine.places(None, Some(&[0, 1, 16, 17, 18])).unwrap();
    assert_eq!(cpus(&listed), [[0], [1], [18]]);
    // A core's second hardware thread comes after the other cores.
    let more = machine.places(Some(6), Some(&[0, 1, 16, 17, 18])).unwrap();
    assert_eq!(cpus(&more), [[0], [1], [18], [16], [17], [0]]);
    assert_eq!(fact(&machine, "cores").unwrap(), "16: CPUs 0-31");
}

#[test]
fn the_affinity_mask_counts() {
    let machine = sixteen().allow("2-4,18").read();
    assert_eq!(machine.default_threads(), 3);
    assert!(machine.places(None, Some(&[2, 18])).is_ok());
    let error = machine.places(None, Some(&[2, 5])).unwrap_err();
    assert!(error.contains("CPU 5 is outside the affinity mask") && error.contains("2-4,18"));
    let error = machine.places(None, Some(&[2, 32])).unwrap_err();
    assert!(
        error.contains("there is no CPU 32") && error.contains("0-31"),
        "{error}"
    );
    assert!(machine.places(None, Some(&[])).is_err());
}

#[test]
fn a_hybrid_processor_uses_its_performance_cores() {
    let machine = hybrid().read();
    assert_eq!(machine.default_threads(), 4);
    let fast: Vec<usize> = vec![0, 2, 4, 6, 1, 3, 5, 7];
    assert_eq!(cpus(&machine.places(None, None).unwrap()), vec![fast; 4]);
    // More threads than performance cores run everywhere, and so does a list that says so.
    let all = machine.places(Some(12), None).unwrap();
    assert_eq!(all, vec![Place::default(); 12]);
    let listed = machine.places(None, Some(&[6, 7, 8, 9])).unwrap();
    assert_eq!(cpus(&listed), [[6], [8], [9]]);
    let text = fact(&machine, "cores").unwrap();
    assert_eq!(text, "12 (4 performance, 8 efficiency): CPUs 0-15");
    // Only efficiency cores are allowed.
    assert_eq!(hybrid().allow("8-10").read().default_threads(), 3);
}

#[test]
fn kinds_follow_from_capacities_as_well() {
    let files = Files::new(6, |cpu| cpu.to_string());
    for (cpu, capacity) in [400, 400, 900, 900, 1024, 1024].iter().enumerate() {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
        files.write(&path, &capacity.to_string());
    }
    assert_eq!(files.read().default_threads(), 4);
}

#[test]
fn threads_are_spread_over_nodes() {
    let machine = two_nodes().read();
    assert_eq!(machine.default_threads(), 96);
    let places = machine.places(None, None).unwrap();
    assert_eq!(places.len(), 96);
    for (thread, place) in places.iter().enumerate() {
        assert_eq!(place.node, thread / 48);
        assert_eq!(place.cpus.len(), 96);
        assert!(place.cpus.contains(&(48 * place.node)));
    }
    let nodes = |threads, list: Option<&[usize]>| {
        let places = machine.places(Some(threads), list).unwrap();
        places.iter().map(|place| place.node).collect::<Vec<_>>()
    };
    assert_eq!(nodes(5, None), [0, 0, 0, 1, 1]);
    // Node 1 has one listed core: it gets one thread until all cores have one.
    let list = [0, 1, 2, 48];
    assert_eq!(nodes(4, Some(&list)), [0, 0, 0, 1]);
    let pinned = machine.places(None, Some(&list)).unwrap();
    assert_eq!(cpus(&pinned), [[0], [1], [2], [48]]);
    let text = fact(&machine, "memory nodes").unwrap();
    assert_eq!(text, "2: CPUs 0-47,96-143 | 48-95,144-191");
    // The mask leaves one node.
    let machine = two_nodes().allow("50-53").read();
    assert_eq!(machine.nodes().into_iter().collect::<Vec<_>>(), [1]);
    assert_eq!(machine.places(None, None).unwrap().len(), 4);
}

#[test]
fn quotas_of_both_versions_of_control_groups() {
    let files = sixteen();
    files.write("proc/self/cgroup", "0::/a/b");
    assert_eq!(files.read().quota, None);
    files.write("sys/fs/cgroup/a/b/cpu.max", "max 100000");
    assert_eq!(files.read().default_threads(), 16);
    files.write("sys/fs/cgroup/a/cpu.max", "450000 100000");
    assert_eq!(files.read().default_threads(), 4);
    files.write("sys/fs/cgroup/a/b/cpu.max", "50000 100000");
    let machine = files.read();
    assert_eq!(machine.default_threads(), 1);
    let text = "1 by default; the control group allows 0.5 cores";
    assert_eq!(fact(&machine, "threads").unwrap(), text);
    // Threads that the user asks for are not limited.
    assert_eq!(machine.places(Some(8), None).unwrap().len(), 8);

    let files = sixteen();
    files.write(
        "proc/self/cgroup",
        "3:memory:/x\n2:cpu,cpuacct:/of/the/host",
    );
    files.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
    files.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
    assert_eq!(files.read().quota, None);
    files.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000");
    assert_eq!(files.read().default_threads(), 3);
}

#[test]
fn a_system_that_says_nothing() {
    let empty = TempDir::new().unwrap();
    assert_eq!(Machine::read(empty.path()), None);
    assert_eq!(cpu_ranges([0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
}
