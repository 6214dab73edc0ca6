//! An open GPU: buffers, pipelines, submissions, errors.
#![allow(unsafe_code)]

use crate::kernels::Kernel;
use crate::kernels::cooperative::{Cooperative, Factors, Tile};
use crate::kernels::geometry::Geometry;
use crate::wait::{Signal, block_on};
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
#[cfg(not(target_arch = "wasm32"))]
use std::time::Duration;
use welte_device::{DeviceId, Error};
use welte_table::Format;
use wgpu::{
    Adapter, Backend, BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout,
    BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingResource, BindingType, Buffer,
    BufferBindingType, BufferDescriptor, BufferUsages, CommandEncoder, ComputePipeline,
    ComputePipelineDescriptor, DeviceDescriptor, DeviceType, ErrorFilter, ExperimentalFeatures,
    Features, MapMode, PipelineCompilationOptions, PipelineLayout, PipelineLayoutDescriptor,
    ShaderModuleDescriptor, ShaderRuntimeChecks, ShaderSource, ShaderStages, SubmissionIndex,
};

/// Bytes from one command's parameters to the next: the largest alignment that a GPU may ask for.
pub(crate) const COMMAND_BYTES: u64 = 256;

/// Where the bindings of every kernel are.
pub(crate) mod binding {
    pub(crate) const MEM: u32 = 0;
    pub(crate) const COMMAND: u32 = 1;
    pub(crate) const STATE: u32 = 2;
    pub(crate) const WEIGHTS: u32 = 3;
    /// In place of the third weight: the powers of two of the first one's rows.
    pub(crate) const POWERS: u32 = 5;
    pub(crate) const CACHE: u32 = 6;
    pub(crate) const PAGES: u32 = 7;
    /// The first weight again, as words of 16 bytes.
    pub(crate) const WEIGHT4: u32 = 8;
    pub(crate) const COUNT: u32 = 9;
    /// Those that are storage buffers.
    pub(crate) const STORAGE: u32 = 8;
}

/// How long a submission may take before the GPU counts as stuck.
#[cfg(not(target_arch = "wasm32"))]
const PATIENCE: Duration = Duration::from_secs(60);

/// What a submission failed with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failure(String);

/// Abilities of a GPU that are used where it has them. Tests take some away.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// Bytes of a buffer that a kernel sees.
    pub binding: u64,
    /// Products of packed integers.
    pub packed: bool,
    /// Cheap barriers, and with them products in large workgroups. None: software lacks them, hardware has them.
    pub barriers: Option<bool>,
    /// Sums through the registers of a subgroup.
    pub subgroups: bool,
    /// Products of prompt rows on cooperative matrices. None: where hardware has them. True: an adapter without them does not open.
    pub cooperative: Option<bool>,
}

impl Abilities {
    /// Whatever the GPU has.
    pub const ALL: Abilities = Abilities {
        binding: u64::MAX,
        packed: true,
        barriers: None,
        subgroups: true,
        cooperative: None,
    };
}

/// An open GPU.
pub(crate) struct Gpu {
    pub(crate) id: DeviceId,
    pub(crate) name: String,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// The largest part of a buffer that a kernel can see.
    pub(crate) binding: u64,
    pub(crate) software: bool,
    /// Products of packed integers of 8 bits are fast. Metal has no instruction for them.
    pub(crate) packed: bool,
    pub(crate) geometry: Geometry,
    /// For products of prompt rows.
    pub(crate) cooperative: Option<Cooperative>,
    /// Why the driver's cooperative matrices are not used, if it does not compile their kernels.
    pub(crate) refused: Option<String>,
    layout: BindGroupLayout,
    pipeline_layout: PipelineLayout,
    pipelines: Mutex<HashMap<String, ComputePipeline>>,
    /// The first error that no call has returned.
    failure: Arc<Mutex<Option<String>>>,
    /// Bound where a kernel has no operand: for reading, and for writing.
    nothing: [Buffer; 2],
}

impl Gpu {
    /// Opens an adapter.
    pub(crate) fn open(id: DeviceId, adapter: Adapter, within: Abilities) -> Result<Gpu, Error> {
        let unavailable = |why: String| Error::Unavailable { device: id, why };
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let most = limits.max_storage_buffers_per_shader_stage;
        if most < binding::STORAGE {
            let needed = binding::STORAGE;
            let why = format!("its kernels may have {most} buffers; {needed} are needed");
            return Err(unavailable(why));
        }
        let software = info.device_type == DeviceType::Cpu;
        let binding = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size)
            .min(within.binding);
        // Software multiplies no faster by them.
        let wanted = within.cooperative.unwrap_or(!software);
        let cooperative = Cooperative::of(&adapter).filter(|_| wanted);
        if within.cooperative == Some(true) && cooperative.is_none() {
            return Err(unavailable("it has no cooperative matrices".to_string()));
        }
        let hardware = within.barriers.unwrap_or(!software);
        let memory = limits.max_compute_workgroup_storage_size;
        let invocations = limits.max_compute_invocations_per_workgroup;
        let subgroup = fixed_subgroup(&adapter).filter(|_| hardware && within.subgroups);
        // Profiles use the clock.
        let mut features = adapter.features() & Features::TIMESTAMP_QUERY;
        if subgroup.is_some() {
            features |= Features::SUBGROUP;
        }
        let mut experimental = ExperimentalFeatures::disabled();
        if cooperative.is_some() {
            features |= Cooperative::FEATURES;
            // SAFETY: of the experimental features, kernels use cooperative matrices alone. A kernel loads and stores them within
            // arrays of workgroup memory, by whole subgroups and in uniform control flow.
            experimental = unsafe { ExperimentalFeatures::enabled() };
        }
        let opened = block_on(adapter.request_device(&DeviceDescriptor {
            label: Some("welte"),
            required_features: features,
            experimental_features: experimental,
            required_limits: limits,
            ..DeviceDescriptor::default()
        }));
        let (device, queue) = opened
            .ok_or_else(|| unavailable("it did not open".to_string()))?
            .map_err(|error| unavailable(error.to_string()))?;
        let failure = Arc::new(Mutex::new(None));
        let (lost, uncaptured) = (failure.clone(), failure.clone());
        device.set_device_lost_callback(move |reason, why| {
            note(&lost, format!("the GPU was lost ({reason:?}): {why}"));
        });
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            note(&uncaptured, error.to_string());
        }));
        let layout = device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: None,
            entries: &layout_entries(),
        });
        let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let nothing = [(), ()].map(|()| {
            device.create_buffer(&BufferDescriptor {
                label: Some("nothing"),
                size: COMMAND_BYTES,
                usage: BufferUsages::STORAGE | BufferUsages::UNIFORM,
                mapped_at_creation: false,
            })
        });
        let mut geometry = if hardware {
            Geometry::HARDWARE
        } else {
            Geometry::SOFTWARE
        };
        if hardware {
            (geometry.memory, geometry.invocations) = (memory, invocations);
            geometry.subgroup = subgroup.unwrap_or(0);
        }
        let mut gpu = Gpu {
            id,
            name: info.name,
            binding,
            software,
            cooperative,
            refused: None,
            geometry,
            packed: within.packed && info.backend != Backend::Metal,
            layout,
            pipeline_layout,
            pipelines: Mutex::default(),
            failure,
            nothing,
            device,
            queue,
        };
        // A driver may offer matrices and fail to compile them. Tiles serve without.
        if let Some(cooperative) = cooperative {
            let tile = Tile::of(cooperative, 1024, 1 << 14);
            let trial = Factors {
                format: Format::F16,
                k: 256,
                aligned: true,
                adds: false,
                grouped: false,
            };
            let trial = tile.kernel(cooperative, trial);
            match gpu.pipeline(&trial) {
                Ok(_) => {}
                Err(why) if within.cooperative == Some(true) => return Err(why),
                Err(why) => (gpu.cooperative, gpu.refused) = (None, Some(why.to_string())),
            }
        }
        Ok(gpu)
    }

    /// An error of this GPU.
    pub(crate) fn failed(&self, why: impl Into<String>) -> Error {
        Error::Failed {
            device: self.id,
            source: Box::new(Failure(why.into())),
        }
    }

    /// An error if anything has gone wrong that no call has returned. A lost GPU stays lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &*lock(&self.failure) {
            Some(why) => Err(self.failed(why.clone())),
            None => Ok(()),
        }
    }

    /// Allocates a buffer, which is zero.
    pub(crate) fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<Buffer, Error> {
        let no_memory = || Error::OutOfMemory {
            device: self.id,
            what: what.to_string(),
            bytes,
            free: None,
        };
        if bytes > self.device.limits().max_buffer_size {
            return Err(no_memory());
        }
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: Some(what),
            size: bytes,
            usage,
            mapped_at_creation: false,
        });
        match block_on(memory.pop()) {
            Some(None) => Ok(buffer),
            _ => Err(no_memory()),
        }
    }

    /// The pipeline of a kernel, compiled at its first use.
    pub(crate) fn pipeline(&self, kernel: &Kernel) -> Result<ComputePipeline, Error> {
        if let Some(known) = lock(&self.pipelines).get(&kernel.name) {
            return Ok(known.clone());
        }
        let compiled = self.compiled(kernel)?;
        // Another thread may have compiled it meanwhile.
        let mut pipelines = lock(&self.pipelines);
        let pipeline = pipelines.entry(kernel.name.clone()).or_insert(compiled);
        Ok(pipeline.clone())
    }

    /// Compiles kernels before their first use: all cores do it, because a driver takes one for a kernel.
    pub(crate) fn prepare(&self, kernels: &[&Kernel]) -> Result<(), Error> {
        let mut missing: HashMap<&str, &Kernel> = kernels.iter().map(|k| (&*k.name, *k)).collect();
        missing.retain(|name, _| !lock(&self.pipelines).contains_key(*name));
        let missing: Vec<&Kernel> = missing.into_values().collect();
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), Error> {
            while let Some(kernel) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.pipeline(kernel)?;
            }
            Ok(())
        };
        // A browser has one thread, and compiles apart from it.
        let cores = if cfg!(target_arch = "wasm32") {
            1
        } else {
            std::thread::available_parallelism().map_or(1, NonZero::get)
        };
        std::thread::scope(|scope| {
            let others = 1..cores.min(missing.len());
            let others: Vec<_> = others.map(|_| scope.spawn(work)).collect();
            let own = work();
            let joined = others.into_iter().map(|other| match other.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.fold(own, Result::and)
        })
    }

    fn compiled(&self, kernel: &Kernel) -> Result<ComputePipeline, Error> {
        let errors = self.device.push_error_scope(ErrorFilter::Validation);
        let failures = self.device.push_error_scope(ErrorFilter::Internal);
        let descriptor = ShaderModuleDescriptor {
            label: Some(&kernel.name),
            source: ShaderSource::Wgsl(kernel.source().into()),
        };
        let checks = ShaderRuntimeChecks::unchecked();
        // SAFETY: the kernels are ours. They reach only places that `verify` has bounded and that `Checks` has checked for the
        // step at hand, and their loops end. The conformance suite runs every one of them.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let pipeline = self
            .device
            .create_compute_pipeline(&ComputePipelineDescriptor {
                label: Some(&kernel.name),
                layout: Some(&self.pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: PipelineCompilationOptions {
                    constants: &[],
                    zero_initialize_workgroup_memory: false,
                },
                cache: None,
            });
        let failure = block_on(failures.pop()).flatten();
        let error = block_on(errors.pop()).flatten();
        match failure.or(error) {
            Some(error) => Err(self.failed(format!("kernel {}: {error}", kernel.name))),
            None => Ok(pipeline),
        }
    }

    /// A bind group. Bindings that a command does not have get an empty buffer.
    pub(crate) fn bind(&self, bound: &[(u32, BindingResource<'_>)]) -> BindGroup {
        let entries: Vec<BindGroupEntry<'_>> = (0..binding::COUNT)
            .map(|number| {
                let given = bound.iter().find(|(at, _)| *at == number);
                let written = number == binding::CACHE;
                let nothing = &self.nothing[usize::from(written)];
                BindGroupEntry {
                    binding: number,
                    resource: given.map_or(nothing.as_entire_binding(), |(_, r)| r.clone()),
                }
            })
            .collect();
        self.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &entries,
        })
    }

    pub(crate) fn submit(&self, encoder: CommandEncoder) -> SubmissionIndex {
        self.queue.submit([encoder.finish()])
    }

    /// Waits for a submission.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn wait(&self, index: SubmissionIndex) -> Result<(), Error> {
        let waited = self.device.poll(wgpu::PollType::Wait {
            submission_index: Some(index),
            timeout: Some(PATIENCE),
        });
        self.check()?;
        match waited {
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    /// Waits for a submission. A browser can only be asked to wait for all.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn wait(&self, _: SubmissionIndex) -> Result<(), Error> {
        let done = Signal::new();
        let give = done.giver();
        self.queue.on_submitted_work_done(move || give(()));
        block_on(done);
        self.check()
    }

    /// Reads the start of a buffer that can be mapped, after the submission that wrote it.
    pub(crate) fn mapped<T>(
        &self,
        buffer: &Buffer,
        bytes: u64,
        index: SubmissionIndex,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Error> {
        let mapped = Signal::new();
        buffer.map_async(MapMode::Read, ..bytes, mapped.giver());
        // In a browser, mapping waits for the submission by itself.
        if cfg!(not(target_arch = "wasm32")) {
            self.wait(index)?;
        }
        // If another thread waits for this GPU too, it may be about to call back: the buffer is mapped before.
        let mapped = block_on(mapped);
        self.check()?;
        if let Some(Err(_)) = mapped {
            return Err(self.failed("results could not be read"));
        }
        let view = buffer.get_mapped_range(..bytes);
        let view = view.map_err(|error| self.failed(error.to_string()))?;
        let value = read(&view);
        drop(view);
        buffer.unmap();
        Ok(value)
    }
}

/// Invocations of a subgroup, if kernels can rely on their number. Naga's dialect of WGSL has no word that enables subgroups, as
/// browsers demand it.
fn fixed_subgroup(adapter: &Adapter) -> Option<u32> {
    let info = adapter.get_info();
    let size = info.subgroup_min_size;
    let is_fixed = size == info.subgroup_max_size && size.is_power_of_two();
    let has =
        adapter.features().contains(Features::SUBGROUP) && info.backend != Backend::BrowserWebGpu;
    (has && is_fixed && (4..=64).contains(&size)).then_some(size)
}

fn note(failure: &Mutex<Option<String>>, why: String) {
    lock(failure).get_or_insert(why);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of the adapter's own memory, where its API says them.
#[cfg(any(target_os = "linux", target_os = "android", windows))]
pub(crate) fn memory(adapter: &Adapter) -> Option<u64> {
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const ON_DEVICE: u32 = 1;
    // SAFETY: nothing is destroyed through the handle, which ends before the adapter does.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    let physical = vulkan.raw_physical_device();
    // SAFETY: the instance made the physical device, and both live.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    let heaps = &memory.memory_heaps[..memory.memory_heap_count as usize];
    let own = heaps
        .iter()
        .filter(|heap| heap.flags.as_raw() & ON_DEVICE != 0);
    Some(own.map(|heap| heap.size).sum())
}

#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
pub(crate) fn memory(_: &Adapter) -> Option<u64> {
    None
}

/// The same for every kernel, so that a kernel may leave any out.
fn layout_entries() -> Vec<BindGroupLayoutEntry> {
    let writes = BufferBindingType::Storage { read_only: false };
    let reads = BufferBindingType::Storage { read_only: true };
    let kind = |number: u32| match number {
        binding::COMMAND => BufferBindingType::Uniform,
        binding::MEM | binding::CACHE => writes,
        _ => reads,
    };
    (0..binding::COUNT)
        .map(|number| BindGroupLayoutEntry {
            binding: number,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: kind(number),
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{self, Api};
    use crate::kernels::source;

    /// None on a machine without an adapter, unless `WELTE_GPU_REQUIRED` is set.
    fn gpu() -> Option<Gpu> {
        let id = Api::Gpu.id(0);
        match adapter::open(Api::Gpu, 0).and_then(|adapter| Gpu::open(id, adapter, Abilities::ALL))
        {
            Ok(gpu) => Some(gpu),
            Err(why) if std::env::var_os("WELTE_GPU_REQUIRED").is_none() => {
                eprintln!("skipped: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    }

    #[test]
    fn a_lost_gpu_is_an_error_from_then_on() {
        let Some(gpu) = gpu() else { return };
        assert!(gpu.check().is_ok());
        gpu.device.destroy();
        let encoder = gpu.device.create_command_encoder(&Default::default());
        let index = gpu.submit(encoder);
        for _ in 0..2 {
            let error = gpu.wait(index.clone()).expect_err("it is lost").to_string();
            assert!(error.starts_with("gpu:0"), "{error}");
        }
    }

    #[test]
    fn a_buffer_that_does_not_fit_is_named() {
        let Some(gpu) = gpu() else { return };
        let bytes = gpu.device.limits().max_buffer_size + 4;
        let error = gpu.buffer("the weights", bytes, BufferUsages::STORAGE);
        let Err(Error::OutOfMemory {
            what, bytes: said, ..
        }) = error
        else {
            panic!("it was allocated");
        };
        assert_eq!((what.as_str(), said), ("the weights", bytes));
        assert!(gpu.check().is_ok(), "the GPU goes on");
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_named() {
        let Some(gpu) = gpu() else { return };
        let kernel = Kernel::each("wrong", "fn width() -> u32 { return nothing; }");
        let error = gpu.pipeline(&kernel).expect_err("it does not compile");
        assert!(error.to_string().contains("wrong"), "{error}");
        assert!(gpu.check().is_ok(), "the GPU goes on");
    }

    #[test]
    fn of_kernels_that_are_compiled_together_a_wrong_one_is_named() {
        let Some(gpu) = gpu() else { return };
        let right = |size: u32| Kernel::each("right", source::ADD).with("SIZE", &size.to_string());
        let all: Vec<Kernel> = (0..9).map(right).collect();
        let mut named: Vec<&Kernel> = all.iter().chain(&all).collect();
        let compiled = || lock(&gpu.pipelines).len();
        let before = compiled();
        for _ in 0..2 {
            gpu.prepare(&named).expect("they compile");
            assert_eq!(compiled(), before + 9);
        }
        let wrong = Kernel::each("wrong", "fn width() -> u32 { return nothing; }");
        let others: Vec<Kernel> = (9..14).map(right).collect();
        named.push(&wrong);
        named.extend(&others);
        let error = gpu.prepare(&named).expect_err("one does not compile");
        assert!(error.to_string().contains("wrong"), "{error}");
        assert!(gpu.check().is_ok(), "the GPU goes on");
    }

    #[test]
    fn only_the_clock_and_matrices_are_asked_of_an_adapter() {
        let Some(gpu) = gpu() else { return };
        let features = gpu.device.features();
        let known = Features::TIMESTAMP_QUERY | Cooperative::FEATURES;
        assert!(known.contains(features), "{features:?}");
    }
}
