//! A thin, checked layer over the driver: a context, one stream, memory, modules, launches and events. It adds no
//! synchronisation of its own.
#![allow(unsafe_code)]

use crate::Error;
use crate::cublas::Library;
use crate::disk;
use crate::info::{self, GpuInfo, check};
use crate::launch::DeviceWeight;
use cudarc::driver::sys::{self, CUresult};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use welte_table::Format;

/// Launch attribute: the kernel may start before the one ahead of it on the stream is complete.
const OVERLAP: sys::CUlaunchAttributeID =
    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;

/// A GPU in use: its primary context and one stream, on which all work runs in order.
pub(crate) struct Gpu {
    pub(crate) info: GpuInfo,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// cuBLASLt. All streams share it.
    pub(crate) library: Arc<Library>,
}

// SAFETY: driver handles may be used from any thread. Every user makes the context current on its thread first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver's calls are thread-safe.
unsafe impl Sync for Gpu {}

/// What GPUs can do with each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    Nothing,
    /// Read and write it.
    Write,
    /// Count in it, too.
    Count,
}

impl Reach {
    /// What each of these GPUs, of which one may be named several times, can do with the memory of each other one.
    pub(crate) fn among(devices: &[u32]) -> Result<Reach, Error> {
        let handle = |device: &u32| -> Result<sys::CUdevice, Error> {
            let device = info::info(*device)?.device;
            let mut handle = 0;
            // SAFETY: the device exists, and the driver writes its handle.
            let found = unsafe { sys::cuDeviceGet(&mut handle, device as i32) };
            check(found, "opening the GPU").map(|()| handle)
        };
        let handles: Vec<_> = devices.iter().map(handle).collect::<Result<_, _>>()?;
        let mut least = Reach::Count;
        for from in &handles {
            for to in handles.iter().filter(|to| *to != from) {
                let (mut writes, mut counts) = (0, 0);
                let attribute =
                    sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
                // SAFETY: both devices exist, and the driver writes two numbers.
                unsafe {
                    let what = "asking which GPUs reach each other";
                    check(sys::cuDeviceCanAccessPeer(&mut writes, *from, *to), what)?;
                    let asked = sys::cuDeviceGetP2PAttribute(&mut counts, attribute, *from, *to);
                    check(asked, what)?;
                }
                least = least.min(match (writes, counts) {
                    (0, _) => Reach::Nothing,
                    (_, 0) => Reach::Write,
                    _ => Reach::Count,
                });
            }
        }
        Ok(least)
    }
}

impl Gpu {
    /// Opens a GPU's primary context and creates a stream of its own.
    pub(crate) fn open(device: u32) -> Result<Gpu, Error> {
        Gpu::new(info::info(device)?, Arc::default())
    }

    /// The same GPU with another stream.
    pub(crate) fn with_own_stream(&self) -> Result<Gpu, Error> {
        Gpu::new(self.info.clone(), self.library.clone())
    }

    fn new(info: GpuInfo, library: Arc<Library>) -> Result<Gpu, Error> {
        let device = info.device;
        let mut gpu = Gpu {
            info,
            handle: 0,
            context: std::ptr::null_mut(),
            stream: std::ptr::null_mut(),
            library,
        };
        // SAFETY: the device exists. The driver writes handles to valid places; drop releases them.
        unsafe {
            check(
                sys::cuDeviceGet(&mut gpu.handle, device as i32),
                "opening the GPU",
            )?;
            check(
                sys::cuDevicePrimaryCtxRetain(&mut gpu.context, gpu.handle),
                "creating a context on the GPU",
            )?;
            gpu.current()?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check(
                sys::cuStreamCreate(&mut gpu.stream, flags),
                "creating a stream",
            )?;
        }
        Ok(gpu)
    }

    /// Makes the context current on this thread. Every other call requires it.
    pub(crate) fn current(&self) -> Result<(), Error> {
        // SAFETY: the context is retained until drop.
        check(
            unsafe { sys::cuCtxSetCurrent(self.context) },
            "entering the GPU's context",
        )
    }

    /// Lets kernels here use the memory of another GPU, which stays open with what is returned; `None`: it is this one.
    pub(crate) fn reach(&self, device: u32) -> Result<Option<Gpu>, Error> {
        if device == self.info.device {
            return Ok(None);
        }
        let other = Gpu::open(device)?;
        self.current()?;
        let what = format!(
            "reaching the memory of GPU {device} from GPU {}",
            self.info.device
        );
        let mut can = 0;
        // SAFETY: both devices exist, and the driver writes a number.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.handle, other.handle) };
        check(asked, &what)?;
        if can == 0 {
            return Err(Error::Unavailable(format!(
                "{what} is not possible: there is neither NVLink nor a shared PCI Express switch between them; ranks can exchange through the host's memory (--exchange host)"
            )));
        }
        // SAFETY: this context is current, and the other one is retained until drop.
        let enabled = unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) };
        match enabled {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
            result => check(result, &what)?,
        }
        Ok(Some(other))
    }

    /// The driver's context handle.
    pub(crate) fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// The driver's stream handle.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Bytes of device memory that are free now.
    pub(crate) fn free_memory(&self) -> Result<u64, Error> {
        self.current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check(result, "asking for free memory")?;
        Ok(free as u64)
    }

    /// Blocks until all work on the stream is complete.
    pub(crate) fn synchronise(&self) -> Result<(), Error> {
        // SAFETY: the stream is ours.
        check(
            unsafe { sys::cuStreamSynchronize(self.stream) },
            "waiting for the GPU",
        )
    }

    /// Whether all work on the stream is complete.
    pub(crate) fn is_idle(&self) -> Result<bool, Error> {
        // SAFETY: the stream is ours.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check(other, "asking the GPU whether it is done").map(|()| true),
        }
    }

    /// Later work on this stream waits until that of the event's has passed it.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both handles are valid.
        check(
            unsafe { sys::cuStreamWaitEvent(self.stream, event.event, 0) },
            "letting a stream wait",
        )
    }

    /// Enqueues a copy to the device. The caller may change pageable bytes when this returns, but pinned bytes only
    /// after the copy is complete.
    ///
    /// # Safety
    /// `target` has room for the bytes. Pinned bytes do not change until the stream has passed the copy.
    pub(crate) unsafe fn upload(&self, target: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller guarantees it.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(target, bytes.as_ptr().cast(), bytes.len(), self.stream)
        };
        check(result, "copying to the GPU")
    }

    /// Enqueues a copy from the device.
    ///
    /// # Safety
    /// `source` is as long as `out`. Nothing reads or writes `out` until the stream has passed the copy.
    pub(crate) unsafe fn download(&self, source: u64, out: &mut [u8]) -> Result<(), Error> {
        if out.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller guarantees it.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), source, out.len(), self.stream)
        };
        check(result, "copying from the GPU")
    }

    /// Enqueues a copy within the device.
    ///
    /// # Safety
    /// Both ranges have `bytes` bytes, and they do not overlap.
    pub(crate) unsafe fn copy(&self, target: u64, source: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller guarantees it.
        let result =
            unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes as usize, self.stream) };
        check(result, "copying on the GPU")
    }

    /// Allocates in stream order, as engines without a memory plan do. [`Gpu::release_in_order`] frees it.
    pub(crate) fn allocate_in_order(&self, bytes: u64) -> Result<u64, Error> {
        let mut start = 0;
        // SAFETY: the driver writes an address; the caller releases it.
        let result =
            unsafe { sys::cuMemAllocAsync(&mut start, bytes.max(1) as usize, self.stream) };
        check(result, "allocating in the stream")?;
        Ok(start)
    }

    /// Frees memory from [`Gpu::allocate_in_order`], in stream order.
    pub(crate) fn release_in_order(&self, start: u64) -> Result<(), Error> {
        // SAFETY: it was allocated on this stream, and nothing uses it.
        check(
            unsafe { sys::cuMemFreeAsync(start, self.stream) },
            "freeing in the stream",
        )
    }

    /// Enqueues a kernel. Its only parameter is the struct whose bytes are `args`.
    ///
    /// # Safety
    /// The function takes that struct, and every address in it stays valid while the kernel runs.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        args: &[u8],
    ) -> Result<(), Error> {
        let attribute = sys::CUlaunchAttribute {
            id: OVERLAP,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let attribute = self.overlaps_kernels().then_some(attribute);
        // SAFETY: the caller guarantees it.
        unsafe { self.launch_with(kernel, grid, args, attribute) }
    }

    /// A tensor map of a matrix of 16-bit floats, or of a plane of FP8 weights, at `start` with rows `stride` bytes apart: for copies of
    /// boxes of `rows` rows of 128 bytes, in the swizzled order of `tile.cuh`. Elements beyond the matrix are zero.
    pub(crate) fn tensor_map(
        &self,
        weight: &DeviceWeight,
        start: u64,
        stride: u64,
        rows: u32,
    ) -> Result<[u64; 16], Error> {
        use sys::CUtensorMapDataType as Kind;
        self.current()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (kind, elements, k) = match weight.format {
            Format::BF16 => (Kind::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 64, weight.k),
            Format::F8_E4M3 => (Kind::CU_TENSOR_MAP_DATA_TYPE_UINT8, 128, weight.k / 2),
            _ => (Kind::CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 64, weight.k),
        };
        // SAFETY: the driver reads two dimensions, one stride, two sizes and two steps, and writes the map.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                kind,
                2,
                start as *mut c_void,
                [u64::from(k), u64::from(weight.n)].as_ptr(),
                [stride].as_ptr(),
                [elements, rows].as_ptr(),
                [1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check(made, "describing a matrix for copies")?;
        Ok(map.opaque)
    }

    /// Whether a kernel may start before the previous one is complete. It then waits in `grid_wait()`.
    pub(crate) fn overlaps_kernels(&self) -> bool {
        self.info.arch >= 90
    }

    /// Enqueues a kernel whose blocks wait for each other. The driver refuses it if they cannot all run at once.
    ///
    /// # Safety
    /// As for [`Gpu::launch`].
    pub(crate) unsafe fn launch_together(
        &self,
        kernel: &Kernel,
        blocks: u32,
        args: &[u8],
    ) -> Result<(), Error> {
        let attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { cooperative: 1 },
        };
        // SAFETY: the caller guarantees it.
        unsafe { self.launch_with(kernel, [blocks, 1, 1], args, Some(attribute)) }
    }

    /// Enqueues filling memory with zeros.
    ///
    /// # Safety
    /// The range lies within one [`DeviceBlock`], and nothing needs its contents.
    pub(crate) unsafe fn clear(&self, start: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller guarantees it.
        let result = unsafe { sys::cuMemsetD8Async(start, 0, bytes as usize, self.stream) };
        check(result, "clearing memory")
    }

    /// # Safety
    /// As for [`Gpu::launch`].
    unsafe fn launch_with(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        args: &[u8],
        mut attribute: Option<sys::CUlaunchAttribute>,
    ) -> Result<(), Error> {
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: kernel.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.shared,
            hStream: self.stream,
            numAttrs: u32::from(attribute.is_some()),
            attrs: attribute
                .as_mut()
                .map_or(std::ptr::null_mut(), std::ptr::from_mut),
        };
        let mut parameters = [args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the caller guarantees it. The driver copies the parameters before it returns.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                kernel.function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        if result == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        check(
            result,
            &format!("launching {} ({grid:?} x {})", kernel.name, kernel.block),
        )
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: both were created in `open`, and nothing else uses the stream. Errors cannot be reported from here.
        unsafe {
            if self.current().is_ok() && !self.stream.is_null() {
                let _ = sys::cuStreamSynchronize(self.stream);
                // Destroying cuBLASLt's handle needs the context. The last stream destroys it.
                self.library = Arc::default();
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.handle);
        }
    }
}

/// An allocation of device memory.
pub(crate) struct DeviceBlock {
    gpu: Arc<Gpu>,
    start: u64,
    bytes: u64,
}

impl DeviceBlock {
    /// Allocates. The contents are undefined.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: u64, what: &str) -> Result<DeviceBlock, Error> {
        gpu.current()?;
        let mut start = 0;
        // SAFETY: the driver writes an address; drop frees it.
        let result = unsafe { sys::cuMemAlloc_v2(&mut start, bytes.max(1) as usize) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::OutOfMemory {
                what: what.to_string(),
                bytes,
                free: gpu.free_memory().unwrap_or(0),
            });
        }
        check(result, what)?;
        Ok(DeviceBlock {
            gpu: gpu.clone(),
            start,
            bytes,
        })
    }

    /// Allocates and enqueues filling it with zeros.
    pub(crate) fn zeroed(gpu: &Arc<Gpu>, bytes: u64, what: &str) -> Result<DeviceBlock, Error> {
        let block = DeviceBlock::new(gpu, bytes, what)?;
        if bytes == 0 {
            return Ok(block);
        }
        // SAFETY: the block has `bytes` bytes, which nothing has written.
        unsafe { gpu.clear(block.start, bytes)? };
        Ok(block)
    }

    /// The device address.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. Freeing waits for running kernels.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuMemFree_v2(self.start);
            }
        }
    }
}

/// Pinned host memory that the device can access too.
pub(crate) struct HostBlock {
    gpu: Arc<Gpu>,
    start: *mut u8,
    bytes: usize,
    device: u64,
}

// SAFETY: the memory is owned. Shared access only reads, or goes through volatile or atomic words.
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Allocates, filled with zeros.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize, what: &str) -> Result<HostBlock, Error> {
        gpu.current()?;
        let bytes = bytes.max(8);
        let mut start: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the driver writes the address of `bytes` bytes, which are then filled; drop frees them.
        unsafe {
            check(sys::cuMemHostAlloc(&mut start, bytes, flags), what)?;
            std::ptr::write_bytes(start.cast::<u8>(), 0, bytes);
        }
        let mut block = HostBlock {
            gpu: gpu.clone(),
            start: start.cast(),
            bytes,
            device: 0,
        };
        // SAFETY: the memory was allocated as mapped.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut block.device, start, 0) };
        check(result, what)?;
        Ok(block)
    }

    /// Its address for the device.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and filled in `new`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The bytes, for writing.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl HostBlock {
    /// Word `index`, which the device may be writing.
    pub(crate) fn word(&self, index: usize) -> u64 {
        assert!(index < self.bytes / 8);
        // SAFETY: inside the block, which is page-aligned. The device writes whole words.
        unsafe { self.start.cast::<u64>().add(index).read_volatile() }
    }

    /// Sets word 0, which the device polls.
    pub(crate) fn set_flag(&self, value: u32) {
        // SAFETY: the block has at least 8 bytes, and the device only reads them.
        unsafe { self.start.cast::<u32>().write_volatile(value) };
    }
}

impl AsRef<[AtomicU32]> for HostBlock {
    /// Its words, which the device may be reading.
    fn as_ref(&self) -> &[AtomicU32] {
        // SAFETY: allocated and filled in `new`, and page-aligned. Blocks that are used so are never borrowed as bytes.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes / 4) }
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. After the synchronisation the stream no longer uses it.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuStreamSynchronize(self.gpu.stream);
                let _ = sys::cuMemFreeHost(self.start.cast());
            }
        }
    }
}

/// Compiled code, loaded on the device.
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    /// Changes with the code.
    pub(crate) sum: u64,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A function of a module, with its block size and shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    function: sys::CUfunction,
    /// The function's name.
    pub(crate) name: &'static str,
    /// Threads per block.
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory per block.
    pub(crate) shared: u32,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The driver's function handle.
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.function
    }
}

impl Module {
    /// Loads a cubin.
    pub(crate) fn new(gpu: &Arc<Gpu>, image: &[u8], what: &str) -> Result<Module, Error> {
        gpu.current()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the driver checks the image, which contains its own length.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        check(result, what)?;
        Ok(Module {
            gpu: gpu.clone(),
            module,
            sum: disk::sum(image),
        })
    }

    /// Looks up a function.
    pub(crate) fn kernel(
        &self,
        name: &'static str,
        block: u32,
        shared: u32,
    ) -> Result<Kernel, Error> {
        self.gpu.current()?;
        let text = std::ffi::CString::new(name)
            .map_err(|_| Error::Program(format!("a kernel named {name:?}")))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends in a zero.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, self.module, text.as_ptr()) };
        check(result, &format!("looking for the kernel {name}"))?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut allowed = 0;
        // SAFETY: the function is loaded; the driver writes a number.
        let result = unsafe { sys::cuFuncGetAttribute(&mut allowed, attribute, function) };
        check(result, &format!("asking for the shared memory of {name}"))?;
        // The limit belongs to the function, which other launches share, so it only grows. Its default also counts static
        // shared memory; a limit that was set does not.
        if shared > 0 {
            let most = allowed.max(shared as i32);
            // SAFETY: the function is loaded.
            let result = unsafe { sys::cuFuncSetAttribute(function, attribute, most) };
            let what = format!("giving {name} {most} bytes of shared memory");
            check(result, &what)?;
        }
        Ok(Kernel {
            function,
            name,
            block,
            shared,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `new`. Contexts hold the program that owns this module, so none of its kernels still runs.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuModuleUnload(self.module);
            }
        }
    }
}

/// A point on the stream whose time can be read.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// Creates an event that has not been recorded.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Event, Error> {
        gpu.current()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver writes a handle; drop destroys it.
        let result =
            unsafe { sys::cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DEFAULT as u32) };
        check(result, "creating an event")?;
        Ok(Event {
            gpu: gpu.clone(),
            event,
        })
    }

    /// Enqueues the event.
    pub(crate) fn record(&self) -> Result<(), Error> {
        // SAFETY: both handles are valid.
        check(
            unsafe { sys::cuEventRecord(self.event, self.gpu.stream) },
            "recording an event",
        )
    }

    /// Blocks until the stream has passed the event.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        // SAFETY: the event is valid.
        check(
            unsafe { sys::cuEventSynchronize(self.event) },
            "waiting for the GPU",
        )
    }

    /// Nanoseconds from `earlier` to this event. The stream has passed both.
    pub(crate) fn since(&self, earlier: &Event) -> Result<u64, Error> {
        let mut ms = 0.0;
        // SAFETY: both events are valid; the driver writes one number.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut ms, earlier.event, self.event) };
        check(result, "timing the GPU")?;
        Ok((f64::from(ms) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuEventDestroy_v2(self.event);
            }
        }
    }
}

/// GPUs that were opened for a query. They stay open, because creating a context takes a fifth of a second and a load
/// usually follows.
static OPEN: Mutex<BTreeMap<u32, Gpu>> = Mutex::new(BTreeMap::new());

/// Bytes of device memory that are free now.
pub(crate) fn free_memory(device: u32) -> Result<u64, Error> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let gpu = match open.entry(device) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            entry.insert(info::STARTED.time("starting the GPU", || Gpu::open(device))?)
        }
    };
    gpu.free_memory()
}
