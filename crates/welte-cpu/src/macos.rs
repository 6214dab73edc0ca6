//! What macOS says of its processor. Not run on one yet.
#![allow(unsafe_code)]

use std::ffi::CStr;

/// The processor's name.
pub(crate) fn name() -> Option<String> {
    let mut text = [0u8; 256];
    let bytes = read(c"machdep.cpu.brand_string", &mut text)?;
    let name = CStr::from_bytes_until_nul(&text[..bytes]).ok()?;
    Some(name.to_str().ok()?.to_string())
}

/// The cores of the fastest kind.
pub(crate) fn performance_cores() -> Option<usize> {
    number(c"hw.perflevel0.physicalcpu").filter(|cores| *cores > 0)
}

/// Bytes of the last-level cache that cores of the fastest kind share.
pub(crate) fn cache_bytes() -> Option<u64> {
    number(c"hw.perflevel0.l2cachesize").map(|bytes| bytes as u64)
}

/// A number of 4 or 8 bytes.
fn number(name: &CStr) -> Option<usize> {
    let mut bytes = [0u8; 8];
    // The rest of the bytes stay zero, and all its processors are little-endian.
    read(name, &mut bytes)?;
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

/// Reads a value into `out` and returns its size in bytes; `None` if there is no such value or no room.
fn read(name: &CStr, out: &mut [u8]) -> Option<usize> {
    let mut bytes = out.len();
    // SAFETY: the name ends with NUL, and the call writes at most `bytes` bytes, the size of `out`.
    let status = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            out.as_mut_ptr().cast(),
            &raw mut bytes,
            std::ptr::null_mut(),
            0,
        )
    };
    (status == 0).then_some(bytes)
}
