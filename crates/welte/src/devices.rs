//! The devices of this build. No other file of the engine names a device crate: a new device is one more entry here.

use crate::Error;
use std::sync::Arc;
use welte_device::{Activations, Device, DeviceId, DeviceOptions, DeviceReport, Exchange};

/// The most GPUs that the engine deals a model to by itself.
const MOST_GPUS: usize = 8;

type Assume = fn(&str, &DeviceOptions) -> Option<Arc<dyn Device>>;
type Deal = fn(&DeviceOptions, u32) -> Result<Vec<Arc<dyn Device>>, welte_device::Error>;
type Open = fn(u32, &DeviceOptions) -> Result<Arc<dyn Device>, welte_device::Error>;

/// A kind of device.
pub(crate) struct Kind {
    /// Its name in choices and reports.
    pub(crate) name: &'static str,
    /// Whether there can be several, so that a choice may give a number.
    pub(crate) numbered: bool,
    /// Opens the device of this number.
    open: Open,
    /// What there is of this kind on this machine.
    reports: fn() -> Vec<DeviceReport>,
    /// If the engine may choose it by itself: opens it, if it should on this machine.
    automatic: Option<Open>,
    /// Devices of this kind that can be planned for on a machine without one, by name, the typical one first.
    pub(crate) models: &'static [&'static str],
    assumed: Option<Assume>,
    /// Cuts the only device of its kind into one for each rank.
    deal: Option<Deal>,
    /// Whether devices of these numbers reach each other's memory, if the engine may deal a model to several by itself.
    together: Option<fn(&[u32]) -> bool>,
    /// Starts the device of this number, if that takes long. A load then need not wait for it.
    pub(crate) start: Option<fn(u32)>,
}

/// Every kind. An automatic choice tries them in this order.
pub(crate) const KINDS: &[Kind] = &[
    #[cfg(feature = "cuda")]
    Kind {
        name: "cuda",
        numbered: true,
        open: welte_cuda::device,
        reports: welte_cuda::reports,
        automatic: Some(welte_cuda::device),
        models: welte_cuda::GPUS,
        assumed: Some(welte_cuda::assumed_device),
        deal: None,
        together: Some(welte_cuda::reach_each_other),
        start: Some(welte_cuda::start),
    },
    #[cfg(feature = "gpu")]
    Kind {
        reports: welte_wgpu::reports,
        automatic: Some(|_, options| welte_wgpu::hardware(options)),
        ..portable(welte_wgpu::Api::Gpu, |ordinal, options| {
            welte_wgpu::device(welte_wgpu::Api::Gpu, ordinal, options)
        })
    },
    #[cfg(feature = "gpu")]
    portable(welte_wgpu::Api::Vulkan, |ordinal, options| {
        welte_wgpu::device(welte_wgpu::Api::Vulkan, ordinal, options)
    }),
    #[cfg(feature = "gpu")]
    portable(welte_wgpu::Api::Metal, |ordinal, options| {
        welte_wgpu::device(welte_wgpu::Api::Metal, ordinal, options)
    }),
    #[cfg(feature = "gpu")]
    portable(welte_wgpu::Api::Dx12, |ordinal, options| {
        welte_wgpu::device(welte_wgpu::Api::Dx12, ordinal, options)
    }),
    #[cfg(feature = "cpu")]
    Kind {
        name: "cpu",
        numbered: false,
        open: |_, options| welte_cpu::device(options),
        reports: welte_cpu::reports,
        automatic: Some(|_, options| welte_cpu::device(options)),
        models: &[],
        assumed: None,
        deal: Some(welte_cpu::devices),
        together: None,
        start: None,
    },
    Kind {
        name: "reference",
        numbered: false,
        open: |_, options| match options.activations {
            Activations::Wide => Ok(welte_reference::device()),
            Activations::Float8 => Err(welte_device::Error::Unavailable {
                device: DeviceId::only("reference"),
                why: Activations::ONLY_CUDA.to_string(),
            }),
        },
        reports: Vec::new,
        automatic: None,
        models: &[],
        assumed: None,
        deal: None,
        together: None,
        start: None,
    },
];

/// GPUs reached by an API. `gpu` reports them, whichever API reaches them.
#[cfg(feature = "gpu")]
const fn portable(api: welte_wgpu::Api, open: Open) -> Kind {
    Kind {
        name: api.name(),
        numbered: true,
        open,
        reports: Vec::new,
        automatic: None,
        models: &[],
        assumed: None,
        deal: None,
        together: None,
        start: None,
    }
}

impl Kind {
    /// The device of this kind with that number.
    pub(crate) fn id(&self, ordinal: u32) -> DeviceId {
        if self.numbered {
            DeviceId::numbered(self.name, ordinal)
        } else {
            DeviceId::only(self.name)
        }
    }

    /// To how many of this machine's devices the engine may deal a model by itself, few first.
    pub(crate) fn counts_of_ranks(&self) -> Vec<u32> {
        match self.together {
            Some(_) => counts_of_ranks((self.reports)().len()),
            None => Vec::new(),
        }
    }

    /// Through which memory devices of these numbers exchange.
    fn exchange(&self, numbers: &[u32]) -> Exchange {
        match self.together {
            Some(reach) if !reach(numbers) => Exchange::Host,
            _ => Exchange::Peers,
        }
    }

    /// Why devices of these numbers cannot exchange through a memory that the options name.
    fn refuses(&self, exchange: Exchange, numbers: &[u32]) -> Option<String> {
        match (exchange, self.together) {
            (_, None) => Some(format!(
                "--exchange is for GPUs of cuda, not for {}",
                self.name
            )),
            (Exchange::Peers, Some(reach)) if !reach(numbers) => Some(format!(
                "GPUs {numbers:?} do not reach each other's memory: there is neither NVLink nor a shared PCI Express switch between them; they can \
                 exchange through the host's memory (--exchange host)"
            )),
            _ => None,
        }
    }

    /// Whether the engine may choose it by itself.
    pub(crate) fn is_automatic(&self) -> bool {
        self.automatic.is_some()
    }

    /// Whether it is the CPU.
    pub(crate) fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }

    /// Opens its first device for an automatic choice.
    pub(crate) fn open_first(&self, options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
        Ok(self.automatic.unwrap_or(self.open)(0, options)?)
    }

    /// This machine's first device of a kind that can be planned for without one, or a typical one. True if it is a
    /// typical one.
    pub(crate) fn for_planning(&self, options: &DeviceOptions) -> Option<(Arc<dyn Device>, bool)> {
        let typical = self.assumed(self.models.first()?, options)?;
        Some(match self.open(0, options) {
            Ok(device) => (device, false),
            Err(_) => (typical, true),
        })
    }

    /// The device of this name, for planning.
    pub(crate) fn assumed(&self, name: &str, options: &DeviceOptions) -> Option<Arc<dyn Device>> {
        self.assumed?(name, options)
    }

    fn open(&self, ordinal: u32, options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
        Ok((self.open)(ordinal, options)?)
    }
}

impl Error {
    pub(crate) fn unknown_device(name: &str) -> Error {
        let mut known = vec!["auto".to_string()];
        for kind in KINDS {
            known.push(kind.name.to_string());
            if kind.numbered {
                known.push(format!("{}:N", kind.name));
            }
            known.extend(kind.models.iter().map(ToString::to_string));
        }
        Error::UnknownDevice {
            name: name.to_string(),
            known,
        }
    }
}

/// Opens a device by itself, for tools. [`Model::load`](crate::Model::load) opens the device of its options.
pub fn open_device(id: DeviceId, options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    let kind = KINDS.iter().find(|kind| kind.name == id.kind);
    let kind = kind.ok_or_else(|| Error::unknown_device(&id.to_string()))?;
    kind.open(id.ordinal, options)
}

/// The ranks of a model as one device: GPUs of these numbers, or as many parts of a device of which there is one. Without `exchange` GPUs
/// exchange through the memory that they reach. `least`: see [`welte_ranks::device`].
pub(crate) fn open_ranks(
    kind: &str,
    numbers: &[u32],
    options: &DeviceOptions,
    exchange: Option<Exchange>,
    least: Option<u64>,
) -> Result<Arc<dyn Device>, Error> {
    let kind = KINDS.iter().find(|known| known.name == kind);
    let kind = kind.ok_or_else(|| Error::unknown_device("ranks"))?;
    let mut own = options.clone();
    own.exchange = exchange.unwrap_or_else(|| kind.exchange(numbers));
    let devices = match kind.deal {
        Some(deal) => deal(&own, numbers.len() as u32)?,
        None => {
            let opened = numbers.iter().map(|number| kind.open(*number, &own));
            opened.collect::<Result<_, Error>>()?
        }
    };
    if let Some(why) = exchange.and_then(|exchange| kind.refuses(exchange, numbers)) {
        return Err(Error::Ranks { why });
    }
    Ok(welte_ranks::device(devices, least))
}

/// Halves and quarters of a model have parts of one size, which the fastest kernels need. Others come last.
fn counts_of_ranks(devices: usize) -> Vec<u32> {
    let most = devices.min(MOST_GPUS) as u32;
    let mut counts: Vec<u32> = [2, 4, 8]
        .into_iter()
        .filter(|count| *count <= most)
        .collect();
    if most > 2 && !counts.contains(&most) {
        counts.push(most);
    }
    counts
}

/// A device with the experts of the first `layers` layers on the CPU.
pub(crate) fn with_experts_on_cpu(
    device: Arc<dyn Device>,
    layers: u32,
    options: &DeviceOptions,
) -> Result<Arc<dyn Device>, Error> {
    let cpu = KINDS.iter().find(|kind| kind.is_cpu());
    let cpu = cpu.ok_or_else(|| Error::unknown_device("cpu"))?;
    if device.info().id.kind == cpu.name {
        Err(Error::ExpertsOnCpu)
    } else {
        // The experts have activations of their own.
        let mut of_cpu = options.clone();
        of_cpu.activations = Activations::Wide;
        Ok(welte_split::device(device, cpu.open(0, &of_cpu)?, layers))
    }
}

/// Every device of this machine, in the order in which an automatic choice tries them. A kind that cannot be used here
/// has one entry that says why.
pub fn devices() -> Vec<DeviceReport> {
    KINDS.iter().flat_map(|kind| (kind.reports)()).collect()
}

/// Names of the CPU's instruction sets on this machine, the best last.
#[cfg(feature = "cpu")]
pub fn instruction_sets() -> Vec<&'static str> {
    welte_cpu::instruction_sets()
}

/// The most bytes that this process has held in the machine's memory, if the system reports it.
#[cfg(feature = "cpu")]
pub fn peak_memory() -> Option<u64> {
    welte_cpu::peak()
}

/// Bytes of addresses that are left to this process, if they are limited.
#[cfg(not(feature = "cpu"))]
pub(crate) fn free_addresses() -> Option<u64> {
    None
}
#[cfg(feature = "cpu")]
pub(crate) use welte_cpu::free_addresses;

/// Makes the allocator spare addresses, if the process may have a limited number of them. Call it before threads start.
#[cfg(feature = "cpu")]
pub fn spare_addresses() {
    welte_cpu::spare_addresses();
}

/// Bytes that this process can still allocate, if the system reports it.
#[cfg(feature = "cpu")]
pub fn available_memory() -> Option<u64> {
    welte_cpu::available()
}

/// Bytes per second that a device reads from its memory, measured for about `seconds`.
pub fn read_bandwidth(
    device: DeviceId,
    options: &DeviceOptions,
    seconds: f64,
) -> Result<f64, Error> {
    Ok(open_device(device, options)?.read_bandwidth(seconds)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_dealt_to_few_gpus_first_and_to_all_last() {
        for (gpus, counts) in [
            (0, &[][..]),
            (1, &[]),
            (2, &[2]),
            (3, &[2, 3]),
            (4, &[2, 4]),
            (6, &[2, 4, 6]),
            (8, &[2, 4, 8]),
            (9, &[2, 4, 8]),
        ] {
            assert_eq!(counts_of_ranks(gpus), counts, "{gpus}");
        }
    }
}
