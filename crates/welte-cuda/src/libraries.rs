//! Finds the CUDA toolkit: its headers, and its libraries in places where the system's loader does not look.
#![allow(unsafe_code)]

use std::path::PathBuf;

/// Folders that may contain a toolkit, the most explicit first.
pub(crate) fn homes() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"]
        .into_iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from);
    let usual = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"].map(PathBuf::from);
    // The parent of each folder on the library path: Python's packages are laid out like that.
    let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let around = std::env::split_paths(&libraries)
        .filter_map(|path| Some(path.parent()?.to_path_buf()))
        .collect::<Vec<_>>();
    named.chain(usual).chain(around).collect()
}

/// Whether the run-time compiler can be opened. It then stays open, because opening it takes long.
pub(crate) fn has_nvrtc() -> bool {
    use cudarc::nvrtc::sys::{culib, is_culib_present};
    let files = ["libnvrtc-builtins.so.", "libnvrtc.so."];
    // SAFETY: only tries to open the library.
    let found = is_found(|| unsafe { is_culib_present() }, &files);
    if found {
        // SAFETY: opens the library, which was just found.
        unsafe { culib() };
    }
    found
}

/// The file that the open compiler comes from.
#[cfg(unix)]
pub(crate) fn nvrtc_file() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the compiler is open, so this finds the open library. The function is not called.
    let function =
        unsafe { cudarc::nvrtc::sys::culib().get::<*const libc::c_void>(b"nvrtcVersion") };
    let address = *function.ok()?;
    // SAFETY: plain data, which the loader fills. The name it gives lives as long as the library, which stays open.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &mut about) == 0 || about.dli_fname.is_null() {
            return None;
        }
        let name = std::ffi::CStr::from_ptr(about.dli_fname);
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
    }
}

/// On other systems the compiler is opened at every start.
#[cfg(not(unix))]
pub(crate) fn nvrtc_file() -> Option<PathBuf> {
    None
}

/// Whether cuBLASLt can be opened. It then stays open.
pub(crate) fn has_cublaslt() -> bool {
    use cudarc::cublaslt::sys::{culib, is_culib_present};
    let files = ["libcublas.so.", "libcublasLt.so."];
    // SAFETY: only tries to open the library.
    let found = is_found(|| unsafe { is_culib_present() }, &files);
    if found {
        // SAFETY: opens the library, which was just found.
        unsafe { culib() };
    }
    found
}

/// Whether the system's loader finds a library, if need be in a toolkit whose files are opened first.
fn is_found(present: impl Fn() -> bool, files: &[&str]) -> bool {
    present() || {
        preload(files);
        present()
    }
}

/// Opens a toolkit's libraries whose file names start with `names`, in that order. The loader then finds them by name,
/// because it knows every open library by its name.
#[cfg(unix)]
fn preload(names: &[&str]) {
    use std::os::unix::ffi::OsStrExt;
    for folder in homes()
        .iter()
        .flat_map(|h| [h.join("lib64"), h.join("lib")])
    {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        let files: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
        let mut opened = 0;
        for name in names {
            let starts = |file: &&std::ffi::OsString| file.as_bytes().starts_with(name.as_bytes());
            let Some(file) = files.iter().filter(starts).max_by_key(|file| file.len()) else {
                continue;
            };
            let Ok(path) = std::ffi::CString::new(folder.join(file).as_os_str().as_bytes()) else {
                continue;
            };
            // SAFETY: the path ends in a zero. Libraries of the toolkit have no harmful initialisers.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            opened += usize::from(!handle.is_null());
        }
        if opened == names.len() {
            return;
        }
    }
}

/// On other systems the loader's own rules are enough.
#[cfg(not(unix))]
fn preload(names: &[&str]) {
    let _ = names;
}
