//! Facts for `doctor` beyond the GPU itself: the libraries that are opened at load, and the kernel cache.
#![allow(unsafe_code)]

use crate::{Error, compile};
use cudarc::cublaslt::sys as cublaslt;
use std::path::PathBuf;

/// The tools that the CUDA device uses besides a GPU and its driver.
#[derive(Debug)]
pub struct Tools {
    /// The run-time compiler's version, or the missing part.
    pub compiler: Result<String, Error>,
    /// The version of cuBLASLt, if it can be opened. Prompts are faster with it.
    pub cublaslt: Option<String>,
    /// The folder for compiled kernels.
    pub cache: Option<PathBuf>,
    /// Number of compiled kernels in it.
    pub cached: usize,
}

/// Queries the libraries and the kernel cache.
pub fn tools() -> Tools {
    let cache = compile::cache_folder();
    let entries = cache
        .as_ref()
        .and_then(|folder| std::fs::read_dir(folder).ok());
    let kernels = entries.into_iter().flatten().flatten();
    Tools {
        compiler: compile::version(),
        cublaslt: cublaslt_version(),
        cached: kernels
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "cubin"))
            .count(),
        cache,
    }
}

fn cublaslt_version() -> Option<String> {
    if !crate::libraries::has_cublaslt() {
        return None;
    }
    // SAFETY: the library is open; the call only returns a number.
    let version = unsafe { cublaslt::cublasLtGetVersion() };
    Some(format!(
        "{}.{}.{}",
        version / 10000,
        version / 100 % 100,
        version % 100
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn looking_never_fails() {
        let tools = super::tools();
        if let Err(error) = tools.compiler {
            assert!(error.to_string().contains("compile"), "{error}");
        }
    }
}
