//! Memory of the machine and of this process, as the operating system reports it. Every figure is `None` if the system
//! does not report it.
#![allow(unsafe_code)]

#[cfg(not(any(target_os = "macos", windows)))]
pub use system::free_addresses;
pub use system::{available, peak, total};

/// Bytes of addresses that are left to this process, if they are limited.
#[cfg(any(target_os = "macos", windows))]
pub fn free_addresses() -> Option<u64> {
    None
}

/// Makes threads share one pool of the C library's allocator where the address space is limited (`ulimit -v`). A pool of
/// its own would take 64 MiB of addresses for every thread. Call it before threads start.
pub fn spare_addresses() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if free_addresses().is_some() {
        // SAFETY: it sets a number within the allocator. If it fails, nothing changes.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

#[cfg(not(any(target_os = "macos", windows)))]
mod system {
    use std::path::Path;

    /// Bytes that can be allocated now without swapping. The limits of a container and of the process count.
    pub fn available() -> Option<u64> {
        available_in(Path::new("/"))
    }

    fn available_in(root: &Path) -> Option<u64> {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let free = parse_field(&text("proc/meminfo")?, "MemAvailable:")?;
        [group_headroom(root), free_addresses_in(root)]
            .into_iter()
            .flatten()
            .fold(free, u64::min)
            .into()
    }

    /// The limit of the process's address space, if there is one (`ulimit -v`).
    fn address_space(limits: &str) -> Option<u64> {
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max address space"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Bytes of addresses that are left to this process, if they are limited (`ulimit -v`).
    pub fn free_addresses() -> Option<u64> {
        free_addresses_in(Path::new("/"))
    }

    fn free_addresses_in(root: &Path) -> Option<u64> {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let limit = address_space(&text("proc/self/limits")?)?;
        let used = parse_field(&text("proc/self/status").unwrap_or_default(), "VmSize:");
        Some(limit.saturating_sub(used.unwrap_or(0)))
    }

    /// Bytes of the machine's memory.
    pub fn total() -> Option<u64> {
        field("/proc/meminfo", "MemTotal:")
    }

    /// The most bytes that this process has held.
    pub fn peak() -> Option<u64> {
        field("/proc/self/status", "VmHWM:")
    }

    fn field(path: &str, name: &str) -> Option<u64> {
        parse_field(&std::fs::read_to_string(path).ok()?, name)
    }

    /// The bytes of a line such as `MemTotal:  1024 kB`.
    fn parse_field(text: &str, name: &str) -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// What the limits of this process's control group and those above it leave.
    fn group_headroom(root: &Path) -> Option<u64> {
        let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let mut least: Option<u64> = None;
        for line in groups.lines() {
            // `0::/path` in version 2, `4:memory:/path` in version 1.
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            let (folder, names) = match controllers {
                "" => ("sys/fs/cgroup", ["memory.max", "memory.current", "file "]),
                list if list.split(',').any(|name| name == "memory") => (
                    "sys/fs/cgroup/memory",
                    [
                        "memory.limit_in_bytes",
                        "memory.usage_in_bytes",
                        "total_cache ",
                    ],
                ),
                _ => continue,
            };
            // In a container the path may be one of the host, where the group itself is the root folder.
            for path in Path::new(path.trim_start_matches('/')).ancestors() {
                let folder = root.join(folder).join(path);
                let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
                let stat = read("memory.stat").unwrap_or_default();
                let left = read(names[0])
                    .zip(read(names[1]))
                    .and_then(|(limit, used)| headroom(&limit, &used, &stat, names[2]));
                least = least.into_iter().chain(left).min();
            }
        }
        least
    }

    /// The limit less the use. The page cache is part of the use, but the system frees it on demand.
    fn headroom(limit: &str, used: &str, stat: &str, cached: &str) -> Option<u64> {
        let limit: u64 = limit.trim().parse().ok()?;
        let used: u64 = used.trim().parse().ok()?;
        let file = stat.lines().find_map(|line| line.strip_prefix(cached));
        let file: u64 = file.and_then(|value| value.parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(file)))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn fields_are_read_in_bytes() {
            let text = "MemFree:          1 kB\nMemAvailable:   2048 kB\nHugePages_Total:  3\n";
            assert_eq!(parse_field(text, "MemAvailable:"), Some(2 << 20));
            assert_eq!(parse_field(text, "MemTotal:"), None);
            assert_eq!(parse_field(text, "HugePages_Total:"), None);
        }

        #[test]
        fn a_group_without_a_limit_has_no_headroom_of_its_own() {
            let left = |limit, used, stat| headroom(limit, used, stat, "file ");
            assert_eq!(left("max\n", "100\n", ""), None);
            let stat = "anon 100\nfile 300\nfile_mapped 9\n";
            assert_eq!(left("1000\n", "400\n", stat), Some(900));
            assert_eq!(left("1000\n", "400\n", ""), Some(600));
            assert_eq!(left("1000\n", "4000\n", ""), Some(0));
        }

        #[test]
        fn the_tightest_limit_counts() {
            let root = tempfile::tempdir().unwrap();
            let write = |path: &str, text: &str| {
                let path = root.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            };
            let left = || available_in(root.path());
            assert_eq!(left(), None);
            write("proc/meminfo", "MemAvailable:   900000 kB\n");
            assert_eq!(left(), Some(900_000 << 10));
            // A group of its own, far from the root.
            write("proc/self/cgroup", "0::/app.slice/welte.service\n");
            write("sys/fs/cgroup/app.slice/memory.max", "800000\n");
            write("sys/fs/cgroup/app.slice/memory.current", "1000\n");
            assert_eq!(left(), Some(799_000));
            write("sys/fs/cgroup/app.slice/welte.service/memory.max", "max\n");
            write(
                "sys/fs/cgroup/app.slice/welte.service/memory.current",
                "9\n",
            );
            assert_eq!(left(), Some(799_000));
            write(
                "sys/fs/cgroup/app.slice/welte.service/memory.max",
                "700000\n",
            );
            assert_eq!(left(), Some(699_991));
            // A container, whose path is one of the host.
            write("proc/self/cgroup", "0::/docker/1f\n");
            write("sys/fs/cgroup/memory.max", "600000\n");
            write("sys/fs/cgroup/memory.current", "100\n");
            assert_eq!(left(), Some(599_900));
            // Version 1.
            write(
                "proc/self/cgroup",
                "5:cpu:/x\n4:hugetlb,memory:/docker/1f\n",
            );
            write("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
            write("sys/fs/cgroup/memory/memory.usage_in_bytes", "400\n");
            write(
                "sys/fs/cgroup/memory/memory.stat",
                "cache 1\ntotal_cache 100\n",
            );
            assert_eq!(left(), Some(499_700));
            // The limit of the process.
            write("proc/self/status", "VmSize:\t     100 kB\n");
            let limits =
                |line: &str| format!("Max cpu time  unlimited\nMax address space  {line} bytes\n");
            write("proc/self/limits", &limits("unlimited unlimited"));
            assert_eq!(left(), Some(499_700));
            write("proc/self/limits", &limits("409600 unlimited"));
            assert_eq!(left(), Some(300 << 10));
            write("proc/self/limits", &limits("1000 unlimited"));
            assert_eq!(left(), Some(0));
        }
    }
}

#[cfg(target_os = "macos")]
mod system {
    use std::mem::{size_of, zeroed};

    unsafe extern "C" {
        fn mach_host_self() -> libc::mach_port_t;
    }

    /// Bytes that can be allocated now without swapping: free and inactive pages.
    pub fn available() -> Option<u64> {
        // SAFETY: all-zero bytes are a valid value of this struct of integers.
        let mut pages: libc::vm_statistics64 = unsafe { zeroed() };
        let words = size_of::<libc::vm_statistics64>() / size_of::<libc::integer_t>();
        let mut count = words as libc::mach_msg_type_number_t;
        // SAFETY: `count` is the size of `pages` in words, so the call writes within it.
        let status = unsafe {
            libc::host_statistics64(
                mach_host_self(),
                libc::HOST_VM_INFO64,
                (&raw mut pages).cast(),
                &raw mut count,
            )
        };
        // SAFETY: the call takes and returns plain numbers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if status != libc::KERN_SUCCESS {
            return None;
        }
        let free = u64::from(pages.free_count) + u64::from(pages.inactive_count);
        Some(free * u64::try_from(page).ok()?)
    }

    /// Bytes of the machine's memory.
    pub fn total() -> Option<u64> {
        let mut bytes = 0u64;
        let mut size = size_of::<u64>();
        // SAFETY: the name ends in zero, and `size` is the size of `bytes`.
        let status = unsafe {
            libc::sysctlbyname(
                c"hw.memsize".as_ptr(),
                (&raw mut bytes).cast(),
                &raw mut size,
                std::ptr::null_mut(),
                0,
            )
        };
        (status == 0 && size == size_of::<u64>()).then_some(bytes)
    }

    /// The most bytes that this process has held.
    pub fn peak() -> Option<u64> {
        // SAFETY: all-zero bytes are a valid value of this struct of integers.
        let mut usage: libc::rusage = unsafe { zeroed() };
        // SAFETY: the call writes one `rusage`.
        let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        (status == 0).then(|| u64::try_from(usage.ru_maxrss).ok())?
    }
}

#[cfg(windows)]
mod system {
    use std::mem::{size_of, zeroed};

    /// `MEMORYSTATUSEX` of the Windows API.
    #[repr(C)]
    struct MemoryStatus {
        length: u32,
        load: u32,
        total_physical: u64,
        available_physical: u64,
        total_page_file: u64,
        available_page_file: u64,
        total_virtual: u64,
        available_virtual: u64,
        available_extended: u64,
    }

    /// `PROCESS_MEMORY_COUNTERS` of the Windows API.
    #[repr(C)]
    struct ProcessMemory {
        length: u32,
        page_faults: u32,
        peak_working_set: usize,
        working_set: usize,
        quota_peak_paged_pool: usize,
        quota_paged_pool: usize,
        quota_peak_non_paged_pool: usize,
        quota_non_paged_pool: usize,
        page_file: usize,
        peak_page_file: usize,
    }

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GlobalMemoryStatusEx(status: *mut MemoryStatus) -> i32;
        fn GetCurrentProcess() -> *mut std::ffi::c_void;
        fn K32GetProcessMemoryInfo(
            process: *mut std::ffi::c_void,
            counters: *mut ProcessMemory,
            length: u32,
        ) -> i32;
    }

    fn status() -> Option<MemoryStatus> {
        // SAFETY: all-zero bytes are a valid value of this struct of integers.
        let mut status: MemoryStatus = unsafe { zeroed() };
        status.length = size_of::<MemoryStatus>() as u32;
        // SAFETY: `length` is the size of the struct, so the call writes within it.
        (unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0).then_some(status)
    }

    /// Bytes that can be allocated now without swapping.
    pub fn available() -> Option<u64> {
        Some(status()?.available_physical)
    }

    /// Bytes of the machine's memory.
    pub fn total() -> Option<u64> {
        Some(status()?.total_physical)
    }

    /// The most bytes that this process has held.
    pub fn peak() -> Option<u64> {
        // SAFETY: all-zero bytes are a valid value of this struct of integers.
        let mut counters: ProcessMemory = unsafe { zeroed() };
        counters.length = size_of::<ProcessMemory>() as u32;
        // SAFETY: the handle stands for this process; `length` is the size of the struct.
        let done = unsafe {
            K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, counters.length)
        };
        (done != 0).then_some(counters.peak_working_set as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_this_machine_are_plausible() {
        let (available, total, peak) = (available(), total(), peak());
        let (available, total, peak) = (available.unwrap(), total.unwrap(), peak.unwrap());
        assert!(0 < available && available <= total);
        assert!(1 << 20 <= peak && peak <= total);
    }
}
