//! A thin, checked layer over the driver: a context, one stream, memory, modules, launches, events, graphs. It adds no
//! synchronisation of its own.
#![allow(unsafe_code)]

use crate::ops::library::Library;
use crate::{Error, GpuInfo, info};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_void};
use std::sync::{Arc, OnceLock};

/// Attributes of a launch: the next kernel may start before this one is complete.
const SERIALISATION: sys::CUlaunchAttributeID =
    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;

/// There is no GPU, and why.
pub(crate) fn absent(why: impl Into<String>) -> Error {
    Error::Absent(why.into())
}

/// The driver's answer as a result.
pub(crate) fn check(result: CUresult, what: &str) -> Result<(), Error> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut at = std::ptr::null();
        // SAFETY: the driver is loaded (it gave an error); it writes the address of a constant text, or null.
        unsafe {
            if get(result, &mut at) != CUresult::CUDA_SUCCESS || at.is_null() {
                return "unknown error".to_string();
            }
            CStr::from_ptr(at).to_string_lossy().into_owned()
        }
    };
    Err(Error::Driver {
        what: what.to_string(),
        name: text(sys::cuGetErrorName),
        text: text(sys::cuGetErrorString),
        remedy: remedy(result),
    })
}

fn remedy(result: CUresult) -> &'static str {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "a smaller context (-c) or model needs less memory",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            "delete the kernel cache (welte/kernels in the cache folder) and try again"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUresult::CUDA_ERROR_NO_DEVICE => {
            "check that nvidia-smi works, then try again"
        }
        _ => "run on the CPU with --device cpu, and report this with what `welte doctor` says",
    }
}

/// A GPU in use: its context, and a stream that everything runs on in order.
pub(crate) struct Gpu {
    pub(crate) info: GpuInfo,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// cuBLASLt, once somebody has asked for it.
    pub(crate) library: OnceLock<Option<Library>>,
}

// SAFETY: the driver's handles may be used from any thread; each use makes the context current first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver's calls are thread-safe.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a GPU's primary context and makes a stream of its own.
    pub(crate) fn open(device: u32) -> Result<Gpu, Error> {
        let info = info(device)?;
        let mut gpu = Gpu {
            info,
            handle: 0,
            context: std::ptr::null_mut(),
            stream: std::ptr::null_mut(),
            library: OnceLock::new(),
        };
        // SAFETY: the device exists; handles are written to the places given, and given back on drop.
        unsafe {
            check(
                sys::cuDeviceGet(&mut gpu.handle, device as i32),
                "opening the GPU",
            )?;
            check(
                sys::cuDevicePrimaryCtxRetain(&mut gpu.context, gpu.handle),
                "making a context on the GPU",
            )?;
            gpu.current()?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check(
                sys::cuStreamCreate(&mut gpu.stream, flags),
                "making a stream",
            )?;
        }
        Ok(gpu)
    }

    /// Makes the context current on this thread, which every other call needs.
    pub(crate) fn current(&self) -> Result<(), Error> {
        // SAFETY: the context is retained until drop.
        check(
            unsafe { sys::cuCtxSetCurrent(self.context) },
            "entering the GPU's context",
        )
    }

    /// The context.
    pub(crate) fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// The stream.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Bytes that are free now.
    pub(crate) fn free_memory(&self) -> Result<u64, Error> {
        self.current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two numbers are written.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check(result, "asking for free memory")?;
        Ok(free as u64)
    }

    /// Waits until everything on the stream is done.
    pub(crate) fn synchronise(&self) -> Result<(), Error> {
        // SAFETY: the stream is ours.
        check(
            unsafe { sys::cuStreamSynchronize(self.stream) },
            "waiting for the GPU",
        )
    }

    /// True if everything on the stream is done.
    pub(crate) fn is_idle(&self) -> Result<bool, Error> {
        // SAFETY: the stream is ours.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check(other, "asking the GPU whether it is done").map(|()| true),
        }
    }

    /// Enqueues a copy to the device. From pageable memory the bytes may be changed again when this returns; from
    /// pinned memory only when the copy is complete.
    ///
    /// # Safety
    /// `target` has room for the bytes; pinned bytes stay as they are until the stream has passed the copy.
    pub(crate) unsafe fn upload(&self, target: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: promised by the caller.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(target, bytes.as_ptr().cast(), bytes.len(), self.stream)
        };
        check(result, "copying to the GPU")
    }

    /// Enqueues a copy from the device.
    ///
    /// # Safety
    /// `source` has that many bytes; `out` is left alone until the stream has passed the copy.
    pub(crate) unsafe fn download(&self, source: u64, out: &mut [u8]) -> Result<(), Error> {
        if out.is_empty() {
            return Ok(());
        }
        // SAFETY: promised by the caller.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), source, out.len(), self.stream)
        };
        check(result, "copying from the GPU")
    }

    /// Allocates in the stream's order, as engines do that allocate while they run; [`Gpu::release_in_order`] frees.
    pub(crate) fn allocate_in_order(&self, bytes: u64) -> Result<u64, Error> {
        let mut start = 0;
        // SAFETY: an address is written; the caller releases it.
        let result =
            unsafe { sys::cuMemAllocAsync(&mut start, bytes.max(1) as usize, self.stream) };
        check(result, "allocating in the stream")?;
        Ok(start)
    }

    /// Frees what [`Gpu::allocate_in_order`] gave, in the stream's order.
    pub(crate) fn release_in_order(&self, start: u64) -> Result<(), Error> {
        // SAFETY: allocated on this stream, and nothing reads or writes it.
        check(
            unsafe { sys::cuMemFreeAsync(start, self.stream) },
            "freeing in the stream",
        )
    }

    /// Enqueues a kernel with one parameter, the struct in `args`.
    ///
    /// # Safety
    /// The function takes such a struct, and every address in it stays valid while it runs.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        args: &[u8],
    ) -> Result<(), Error> {
        let attribute = sys::CUlaunchAttribute {
            id: SERIALISATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let attribute = self.overlaps_kernels().then_some(attribute);
        // SAFETY: promised by the caller.
        unsafe { self.launch_with(kernel, grid, args, attribute) }
    }

    /// Whether a kernel may start before the one before it is complete. Kernels then wait by `grid_wait()`.
    pub(crate) fn overlaps_kernels(&self) -> bool {
        self.info.arch >= 90
    }

    /// Enqueues a kernel whose blocks wait for each other: the driver refuses it if they cannot all run at a time.
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
        // SAFETY: promised by the caller.
        unsafe { self.launch_with(kernel, [blocks, 1, 1], args, Some(attribute)) }
    }

    /// Enqueues filling memory with zeros.
    ///
    /// # Safety
    /// The memory is a block's, and nothing needs what it holds.
    pub(crate) unsafe fn clear(&self, start: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: promised by the caller.
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
        // SAFETY: promised by the caller; the driver copies the parameters before it returns.
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
        // SAFETY: both were made in `open`; nothing else uses the stream, and errors can have no consequence here.
        unsafe {
            if self.current().is_ok() && !self.stream.is_null() {
                let _ = sys::cuStreamSynchronize(self.stream);
                // It needs the context.
                self.library.take();
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.handle);
        }
    }
}

/// Device memory.
pub(crate) struct DeviceBlock {
    gpu: Arc<Gpu>,
    start: u64,
    bytes: u64,
}

impl DeviceBlock {
    /// Allocates; what it holds is undefined.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: u64, what: &str) -> Result<DeviceBlock, Error> {
        gpu.current()?;
        let mut start = 0;
        // SAFETY: an address is written; it is freed on drop.
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
        // SAFETY: the block has that many bytes.
        unsafe { gpu.clear(block.start, bytes)? };
        Ok(block)
    }

    /// Its address.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; freeing waits for what still runs.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuMemFree_v2(self.start);
            }
        }
    }
}

/// Pinned host memory that the device can reach too.
pub(crate) struct HostBlock {
    gpu: Arc<Gpu>,
    start: *mut u8,
    bytes: usize,
    device: u64,
}

// SAFETY: owned memory; shared access is read-only or through volatile words.
unsafe impl Send for HostBlock {}

impl HostBlock {
    /// Allocates, filled with zeros.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize, what: &str) -> Result<HostBlock, Error> {
        gpu.current()?;
        let bytes = bytes.max(8);
        let mut start: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: an address of `bytes` bytes is written, which are then filled; freed on drop.
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

    /// Where the device finds it.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Its bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and filled in `new`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Its bytes, to write.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl HostBlock {
    /// Word `index` as the device left it.
    pub(crate) fn word(&self, index: usize) -> u64 {
        assert!(index < self.bytes / 8);
        // SAFETY: inside the block, which is aligned to pages; the device writes whole words.
        unsafe { self.start.cast::<u64>().add(index).read_volatile() }
    }

    /// Sets a flag that the device reads.
    pub(crate) fn set_flag(&self, value: u32) {
        // SAFETY: the block has at least 8 bytes; the device only reads it.
        unsafe { self.start.cast::<u32>().write_volatile(value) };
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; the stream is done with it once synchronised.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuStreamSynchronize(self.gpu.stream);
                let _ = sys::cuMemFreeHost(self.start.cast());
            }
        }
    }
}

/// Compiled code on the device.
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A function with its launch geometry.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    function: sys::CUfunction,
    /// Its name.
    pub(crate) name: &'static str,
    /// Threads of a block.
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The driver's handle.
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.function
    }
}

impl Module {
    /// Loads a cubin.
    pub(crate) fn new(gpu: &Arc<Gpu>, image: &[u8], what: &str) -> Result<Module, Error> {
        gpu.current()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the driver checks the image, which carries its own length.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        check(result, what)?;
        Ok(Module {
            gpu: gpu.clone(),
            module,
        })
    }

    /// A function of it.
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
        // SAFETY: the module is loaded; the name ends in a zero.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, self.module, text.as_ptr()) };
        check(result, &format!("looking for the kernel {name}"))?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut allowed = 0;
        // SAFETY: the function is loaded; a number is written.
        let result = unsafe { sys::cuFuncGetAttribute(&mut allowed, attribute, function) };
        check(result, &format!("asking for the shared memory of {name}"))?;
        // The limit is the function's, which other launches share: it only ever grows. It counts static memory too
        // unless it was asked for.
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
        // SAFETY: loaded in `new`; sessions hold the model that holds this, so nothing of it still runs.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuModuleUnload(self.module);
            }
        }
    }
}

/// A point on the stream whose time can be asked for.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// Makes one.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Event, Error> {
        gpu.current()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: a handle is written; it is given back on drop.
        let result =
            unsafe { sys::cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DEFAULT as u32) };
        check(result, "making an event")?;
        Ok(Event {
            gpu: gpu.clone(),
            event,
        })
    }

    /// Enqueues it.
    pub(crate) fn record(&self) -> Result<(), Error> {
        // SAFETY: both are ours.
        check(
            unsafe { sys::cuEventRecord(self.event, self.gpu.stream) },
            "recording an event",
        )
    }

    /// Waits until the stream has passed it.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        // SAFETY: the event is ours.
        check(
            unsafe { sys::cuEventSynchronize(self.event) },
            "waiting for the GPU",
        )
    }

    /// Nanoseconds from `earlier` to here; both have passed.
    pub(crate) fn since(&self, earlier: &Event) -> Result<u64, Error> {
        let mut ms = 0.0;
        // SAFETY: both are ours; one number is written.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut ms, earlier.event, self.event) };
        check(result, "timing the GPU")?;
        Ok((f64::from(ms) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        unsafe {
            if self.gpu.current().is_ok() {
                let _ = sys::cuEventDestroy_v2(self.event);
            }
        }
    }
}
