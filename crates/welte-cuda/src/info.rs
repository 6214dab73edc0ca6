//! Queries the driver and the GPU's properties.
#![allow(unsafe_code)]

use crate::Error;
use cudarc::driver::sys::{self, CUdevice_attribute as A, CUresult};
use std::ffi::CStr;
use welte_device::Phases;

/// The oldest supported driver. It must have conditional graph nodes.
const OLDEST_DRIVER: i32 = 12080;

/// Properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// The driver's index.
    pub device: u32,
    /// Number of GPUs that the driver sees.
    pub devices: u32,
    /// The product name.
    pub name: String,
    /// Compute capability: 90 for 9.0.
    pub arch: u32,
    /// Number of streaming multiprocessors.
    pub sms: u32,
    /// Bytes of device memory.
    pub memory: u64,
    /// The most shared memory of one block, in bytes.
    pub shared_per_block: u32,
    /// Bytes of shared memory per multiprocessor.
    pub shared_per_sm: u32,
    /// Bytes of level-2 cache.
    pub l2_bytes: u64,
    /// The driver's CUDA version: 13000 for 13.0.
    pub driver: u32,
    /// The highest clock of the multiprocessors, in kHz.
    pub clock_khz: u64,
    /// Theoretical memory bandwidth in bytes per second, from clock and bus width; 0 where the driver reports none.
    pub bandwidth: u64,
}

/// GPUs that can be planned for where they are not.
pub const GPUS: &[&str] = &[
    "h200", "a100", "a10", "rtx-3090", "rtx-4090", "l4", "l40s", "h100", "b200", "rtx-5090",
];

/// The properties of one of [`GPUS`].
pub(crate) fn known(name: &str) -> Option<GpuInfo> {
    let [arch, sms, shared_kib, memory_gib, l2_mib] = match name {
        "a100" => [80, 108, 163, 80, 40],
        "a10" => [86, 72, 99, 24, 6],
        "rtx-3090" => [86, 82, 99, 24, 6],
        "rtx-4090" => [89, 128, 99, 24, 72],
        "l4" => [89, 58, 99, 24, 48],
        "l40s" => [89, 142, 99, 48, 96],
        "h100" => [90, 132, 227, 80, 50],
        "h200" => return Some(h200()),
        "b200" => [100, 148, 227, 180, 126],
        "rtx-5090" => [120, 170, 99, 32, 96],
        _ => return None,
    };
    Some(GpuInfo {
        name: name.to_uppercase(),
        arch,
        sms,
        memory: u64::from(memory_gib) << 30,
        shared_per_block: shared_kib << 10,
        // A multiprocessor keeps 1 KiB for itself.
        shared_per_sm: (shared_kib + 1) << 10,
        l2_bytes: u64::from(l2_mib) << 20,
        ..h200()
    })
}

/// The properties of an H200: for planning without a GPU, and for tests.
pub fn h200() -> GpuInfo {
    GpuInfo {
        device: 0,
        devices: 1,
        name: "H200".to_string(),
        arch: 90,
        sms: 132,
        memory: 141 << 30,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        l2_bytes: 60 << 20,
        driver: 13_000,
        clock_khz: 1_980_000,
        bandwidth: 0,
    }
}

/// Turns a driver status into a result. `what` names the attempted action.
pub(crate) fn check(result: CUresult, what: &str) -> Result<(), Error> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut at = std::ptr::null();
        // SAFETY: the driver is loaded, because it returned a status. It writes the address of a constant string, or null.
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
    })
}

/// Queries a GPU. The error says why it cannot be used.
pub(crate) fn info(device: u32) -> Result<GpuInfo, Error> {
    // SAFETY: this only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Unavailable(
            "the NVIDIA driver's library (libcuda.so.1, nvcuda.dll) is missing".to_string(),
        ));
    }
    let mut driver = 0;
    // SAFETY: the library is present, and every driver has these functions. They write to valid places.
    unsafe {
        check(sys::cuInit(0), "starting the driver")?;
        check(
            sys::cuDriverGetVersion(&mut driver),
            "asking for the driver's version",
        )?;
    }
    if driver < OLDEST_DRIVER {
        return Err(Error::Unavailable(format!(
            "the driver supports CUDA {}.{}; install one for 12.8 or later",
            driver / 1000,
            driver % 1000 / 10
        )));
    }
    let mut count = 0;
    // SAFETY: as above.
    unsafe { check(sys::cuDeviceGetCount(&mut count), "counting the GPUs")? };
    if i64::from(device) >= i64::from(count) {
        return Err(Error::Unavailable(format!(
            "GPU {device} does not exist; the driver sees {count}"
        )));
    }
    let mut handle = 0;
    let mut name = [0u8; 128];
    let mut memory = 0;
    // SAFETY: the device exists. Each call writes within a valid place.
    unsafe {
        check(
            sys::cuDeviceGet(&mut handle, device as i32),
            "opening the GPU",
        )?;
        let room = name.len() as i32 - 1;
        check(
            sys::cuDeviceGetName(name.as_mut_ptr().cast(), room, handle),
            "asking for the GPU's name",
        )?;
        check(
            sys::cuDeviceTotalMem_v2(&mut memory, handle),
            "asking for the GPU's memory",
        )?;
    }
    let ask = |attribute: A| -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: the device exists; the driver writes one integer.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, handle) };
        check(result, "asking for a property of the GPU")?;
        Ok(value.max(0) as u32)
    };
    let khz = ask(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0);
    let bits = ask(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0);
    let length = name.iter().position(|b| *b == 0).unwrap_or(0);
    Ok(GpuInfo {
        device,
        devices: count as u32,
        name: String::from_utf8_lossy(&name[..length]).into_owned(),
        arch: ask(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + ask(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        sms: ask(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory: memory as u64,
        shared_per_block: ask(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_sm: ask(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        l2_bytes: ask(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        driver: driver as u32,
        clock_khz: ask(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0).into(),
        bandwidth: u64::from(khz) * 1000 * 2 * u64::from(bits / 8),
    })
}

/// What opening GPUs and libraries has taken.
pub(crate) static STARTED: Phases = Phases::new();
