//! What `doctor` asks besides the GPU itself: the libraries that are opened at load, and the cache of kernels.
#![allow(unsafe_code)]

use crate::{Error, compile};
use cudarc::cublaslt::sys as cublaslt;
use std::path::PathBuf;

/// What the CUDA device needs besides a GPU and its driver.
#[derive(Debug)]
pub struct Tools {
    /// Version of the run-time compiler, or what is missing.
    pub compiler: Result<String, Error>,
    /// Version of cuBLASLt, where it can be opened: prompts are faster with it.
    pub cublaslt: Option<String>,
    /// Where compiled kernels are kept.
    pub cache: Option<PathBuf>,
    /// How many of them are there.
    pub cached: usize,
}

/// Looks at the libraries and the cache.
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
    // SAFETY: the library is there; a number is returned.
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
