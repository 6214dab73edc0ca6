//! The GPUs of this machine, and which of them a choice means.

use crate::kernels::cooperative::Cooperative;
use crate::wait::block_on;
use std::cmp::Reverse;
use std::sync::OnceLock;
use welte_device::{DeviceId, DeviceReport, Error};
use wgpu::{
    Adapter, AdapterInfo, Backend, Backends, DeviceType, Features, Instance, InstanceDescriptor,
};

/// The APIs of operating systems.
const NATIVE: Backends = Backends::VULKAN
    .union(Backends::METAL)
    .union(Backends::DX12);

/// A way to reach GPUs. A choice of a device names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Any; in a browser, its own.
    Gpu,
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// DirectX 12.
    Dx12,
}

impl Api {
    /// Its name in choices and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Api::Gpu => "gpu",
            Api::Vulkan => "vulkan",
            Api::Metal => "metal",
            Api::Dx12 => "dx12",
        }
    }

    /// A device reached this way.
    pub const fn id(self, ordinal: u32) -> DeviceId {
        DeviceId::numbered(self.name(), ordinal)
    }

    fn backends(self) -> Backends {
        match self {
            Api::Gpu => NATIVE | Backends::BROWSER_WEBGPU,
            Api::Vulkan => Backends::VULKAN,
            Api::Metal => Backends::METAL,
            Api::Dx12 => Backends::DX12,
        }
    }
}

/// The adapter of that number: the fastest kind first, of one kind the one with the most memory, software last.
pub(crate) fn open(api: Api, ordinal: u32) -> Result<Adapter, Error> {
    let adapters = adapters(api);
    let found = adapters.len();
    let adapter = adapters.into_iter().nth(ordinal as usize);
    adapter.ok_or_else(|| Error::Unavailable {
        device: api.id(ordinal),
        why: match found {
            0 => "no GPU found: a driver for Vulkan, Metal or DirectX 12 is needed".to_string(),
            _ => format!("this machine has {found} adapters, counted from 0"),
        },
    })
}

/// Lives as long as the process. The last instance to go unloads the driver, and a thread that has used the driver and ends afterwards would
/// call into it.
fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut descriptor = InstanceDescriptor::new_without_display_handle();
        descriptor.backends = Api::Gpu.backends();
        Instance::new(descriptor)
    })
}

fn adapters(api: Api) -> Vec<Adapter> {
    let found = block_on(instance().enumerate_adapters(api.backends()));
    let mut adapters = found.unwrap_or_default();
    adapters
        .sort_by_cached_key(|adapter| sort_key(&adapter.get_info(), crate::gpu::memory(adapter)));
    adapters
}

/// The kind, then the API, because one GPU may be reached by two of them, then the memory, the largest first.
fn sort_key(info: &AdapterInfo, memory: Option<u64>) -> (u32, bool, Reverse<Option<u64>>) {
    let kind = match info.device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    };
    (kind, info.backend == Backend::Dx12, Reverse(memory))
}

/// What keeps an adapter from being used unless it is named. An integrated GPU reads the CPU's memory and is no faster where decoding waits
/// for it; Apple's GPUs have memory of their own kind.
fn only_if_named(info: &AdapterInfo) -> Option<&'static str> {
    match info.device_type {
        DeviceType::Cpu => Some("software"),
        DeviceType::IntegratedGpu if info.backend != Backend::Metal => Some("integrated"),
        _ => None,
    }
}

/// The first adapter, if it may be used without being named.
pub(crate) fn open_hardware() -> Result<Adapter, Error> {
    let unavailable = |why: &str| Error::Unavailable {
        device: Api::Gpu.id(0),
        why: why.to_string(),
    };
    if !has_nodes() {
        return Err(unavailable("this system has no GPU"));
    }
    let adapter = open(Api::Gpu, 0)?;
    match only_if_named(&adapter.get_info()) {
        Some(kind) => Err(unavailable(&format!(
            "the best adapter is {kind}; --device gpu uses it"
        ))),
        None => Ok(adapter),
    }
}

/// Whether Linux shows a GPU of any maker. Asking Vulkan takes much longer, and Mesa prints an error where there is no display.
#[cfg(target_os = "linux")]
fn has_nodes() -> bool {
    ["/dev/dri", "/dev/nvidiactl", "/dev/kgsl-3d0", "/dev/dxg"]
        .iter()
        .any(|node| std::path::Path::new(node).exists())
}

#[cfg(not(target_os = "linux"))]
fn has_nodes() -> bool {
    true
}

/// A report for every adapter, or one that says why there is none.
pub fn reports() -> Vec<DeviceReport> {
    let adapters = adapters(Api::Gpu);
    if adapters.is_empty() {
        let missing = open(Api::Gpu, 0).err().map(|error| match error {
            Error::Unavailable { why, .. } => why,
            other => other.to_string(),
        });
        return vec![DeviceReport {
            id: Api::Gpu.id(0),
            name: String::new(),
            memory_total: None,
            memory_available: None,
            facts: Vec::new(),
            replays: Vec::new(),
            missing,
        }];
    }
    (0..).zip(&adapters).map(|(i, a)| report(i, a)).collect()
}

fn report(ordinal: u32, adapter: &Adapter) -> DeviceReport {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let kind = match info.device_type {
        DeviceType::Cpu => "software",
        DeviceType::IntegratedGpu => "integrated",
        DeviceType::DiscreteGpu => "discrete",
        DeviceType::VirtualGpu => "virtual",
        DeviceType::Other => "unknown",
    };
    let kind = match only_if_named(&info) {
        Some(_) => format!("{kind}, used only if named"),
        None => kind.to_string(),
    };
    let subgroups = if features.contains(Features::SUBGROUP) {
        format!("{} to {}", info.subgroup_min_size, info.subgroup_max_size)
    } else {
        "none".to_string()
    };
    let f16 = if features.contains(Features::SHADER_F16) {
        "yes"
    } else {
        "no"
    };
    let matrices = match Cooperative::of(adapter) {
        Some(Cooperative { square, .. }) => format!("{square} x {square}"),
        None => "none, prompts use plain tiles".to_string(),
    };
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let driver = format!("{} {}", info.driver, info.driver_info);
    let facts = [
        ("kind", kind),
        ("API", info.backend.to_string()),
        ("driver", driver.trim().to_string()),
        ("subgroups", subgroups),
        ("16-bit floats", f16.to_string()),
        ("cooperative matrices", matrices),
        ("largest buffer", mib(limits.max_buffer_size)),
        (
            "largest binding",
            mib(limits.max_storage_buffer_binding_size),
        ),
    ];
    DeviceReport {
        id: Api::Gpu.id(ordinal),
        name: info.name,
        memory_total: crate::gpu::memory(adapter),
        memory_available: None,
        facts: facts.map(|(name, fact)| (name.to_string(), fact)).to_vec(),
        replays: Vec::new(),
        missing: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_a_report() {
        let reports = reports();
        assert!(!reports.is_empty());
        for (ordinal, report) in (0..).zip(reports) {
            assert_eq!(report.id, DeviceId::numbered("gpu", ordinal));
            assert_eq!(report.name.is_empty(), report.missing.is_some());
            let knows = cfg!(target_os = "linux") && report.missing.is_none();
            assert!(!knows || report.memory_total.is_some_and(|bytes| bytes > 0));
        }
    }

    #[test]
    fn integrated_and_software_adapters_must_be_named() {
        let named = |kind, backend| only_if_named(&AdapterInfo::new(kind, backend));
        assert_eq!(named(DeviceType::DiscreteGpu, Backend::Vulkan), None);
        assert_eq!(named(DeviceType::IntegratedGpu, Backend::Metal), None);
        let integrated = named(DeviceType::IntegratedGpu, Backend::Vulkan);
        assert_eq!(integrated, Some("integrated"));
        assert_eq!(named(DeviceType::Cpu, Backend::Vulkan), Some("software"));
    }

    #[test]
    fn the_fastest_kind_comes_first_and_of_one_kind_the_largest() {
        let of = |kind, memory| sort_key(&AdapterInfo::new(kind, Backend::Vulkan), memory);
        let mut all = [
            of(DeviceType::Cpu, Some(64 << 30)),
            of(DeviceType::DiscreteGpu, None),
            of(DeviceType::IntegratedGpu, Some(32 << 30)),
            of(DeviceType::DiscreteGpu, Some(8 << 30)),
            of(DeviceType::DiscreteGpu, Some(24 << 30)),
        ];
        all.sort();
        let sizes = all.map(|(_, _, Reverse(memory))| memory.map(|bytes| bytes >> 30));
        assert_eq!(sizes, [Some(24), Some(8), None, Some(32), Some(64)]);
    }

    #[test]
    fn a_number_too_large_is_named() {
        let error = open(Api::Gpu, 1000).err().map(|error| error.to_string());
        let error = error.expect("there are fewer adapters");
        assert!(error.starts_with("gpu:1000: "), "{error}");
    }
}
