//! Products of 16-bit matrices by cuBLASLt, which is optional: it is not part of the driver.
//!
//! Only algorithms are used that give the bits of our own kernels: one chain over k. Those that divide k among blocks are not
//! even candidates. The rest is compared with our kernels when a context is made (`context/library.rs`).
#![allow(unsafe_code)]

use crate::Error;
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most algorithms that are compared for a product.
pub(crate) const MOST_CANDIDATES: usize = 8;
/// Bytes of device memory for a product's workspace.
pub(crate) const WORKSPACE: u64 = 32 << 20;

pub(crate) fn check(status: Status, what: &str) -> Result<(), Error> {
    if status == Status::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Library(format!("{what}: {status:?}")))
}

/// The library as one GPU's streams share it. Opening it takes a fifth of a second, so that waits until it is needed.
#[derive(Default)]
pub(crate) struct Library {
    /// `None` inside where it is not installed or refuses the GPU. Our own kernels then compute every product.
    pub(crate) handle: OnceLock<Option<Handle>>,
    /// Layers with the same product share a plan.
    pub(crate) plans: Mutex<HashMap<Product, Arc<Plan>>>,
}

/// The library, opened for a GPU.
pub(crate) struct Handle(pub(crate) sys::cublasLtHandle_t);

// SAFETY: the handle may be used from any thread; the library synchronises its own state.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// The GPU's context must be current.
    pub(crate) fn open() -> Option<Handle> {
        let mut handle = std::ptr::null_mut();
        if !crate::libraries::has_cublaslt() {
            return None;
        }
        // SAFETY: the library is open; it writes a handle.
        let opened = check(unsafe { sys::cublasLtCreate(&mut handle) }, "").is_ok();
        opened.then_some(Handle(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created in `open`. The GPU drops it before its context, after its stream is idle. The call synchronises the
        // whole context.
        unsafe { sys::cublasLtDestroy(self.0) };
    }
}

/// A product without its addresses: `y[rows][n] (+)= x[rows][k] * w[n][k]`, for up to `rows` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(crate) bfloat: bool,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) rows: u32,
    /// Elements from one row to the next.
    pub(crate) w_stride: u32,
    pub(crate) x_stride: u32,
    pub(crate) y_stride: u32,
    pub(crate) add: bool,
    /// Alignment of the addresses of w, x and y, in bytes.
    pub(crate) aligned: [u32; 3],
}

/// The alignment of an address, up to the largest that matters to the library.
pub(crate) fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// One of the library's descriptors, with the function that frees it.
pub(crate) struct Described<T>(pub(crate) *mut T, unsafe fn(*mut T) -> Status);

impl<T> Drop for Described<T> {
    fn drop(&mut self) {
        // SAFETY: the library created it, and nothing uses it any more.
        unsafe { (self.1)(self.0) };
    }
}

/// What the library calls an algorithm: opaque numbers.
pub(crate) type Algorithm = [u64; 8];

/// The library's version; 0 if there is none.
pub(crate) fn version() -> u64 {
    // SAFETY: the library is open.
    let ask = || unsafe { sys::cublasLtGetVersion() } as u64;
    crate::libraries::has_cublaslt().then(ask).unwrap_or(0)
}

/// An algorithm, with the bytes of its workspace.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) algorithm: sys::cublasLtMatmulAlgo_t,
    pub(crate) workspace: usize,
}

impl Candidate {
    /// The library's description. It is the same in every process.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm.data
    }
}

/// A product, and which of the library's algorithms computes it.
pub(crate) struct Plan {
    pub(crate) product: Product,
    /// Made at their first use; `None` inside if the library cannot describe the product.
    pub(crate) descriptors: OnceLock<Option<Descriptors>>,
    /// In the library's order: the one that it expects to be fastest comes first. The library takes long to answer, so it is
    /// asked only if they are to be timed.
    pub(crate) candidates: OnceLock<Vec<Candidate>>,
    /// The candidate in use; `None` inside if no candidate gives the bits of our kernels.
    pub(crate) chosen: OnceLock<Option<Candidate>>,
    /// It was run, so the library has loaded its code.
    pub(crate) has_run: AtomicBool,
}

/// The library's descriptors of a product.
pub(crate) struct Descriptors {
    pub(crate) operation: Described<sys::cublasLtMatmulDescOpaque_t>,
    pub(crate) w: Described<sys::cublasLtMatrixLayoutOpaque_t>,
    pub(crate) x: Described<sys::cublasLtMatrixLayoutOpaque_t>,
    pub(crate) y: Described<sys::cublasLtMatrixLayoutOpaque_t>,
    /// The number of rows in the current descriptions of x and y.
    pub(crate) rows: Mutex<u32>,
}

// SAFETY: plain descriptors. The only part that changes, the number of rows, is accessed under a lock.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// The library must be open.
    pub(crate) fn of(p: &Product) -> Result<Descriptors, Error> {
        let half = if p.bfloat {
            sys::cudaDataType::CUDA_R_16BF
        } else {
            sys::cudaDataType::CUDA_R_16F
        };
        let float = sys::cudaDataType::CUDA_R_32F;
        // The library's matrices are column-major, so ours appear transposed.
        Ok(Descriptors {
            operation: operation()?,
            w: layout(half, p.k, p.n, p.w_stride)?,
            x: layout(half, p.k, p.rows, p.x_stride)?,
            y: layout(float, p.n, p.rows, p.y_stride)?,
            rows: Mutex::new(p.rows),
        })
    }

    /// The lock on the descriptions of x and y, which have `live` rows then.
    pub(crate) fn with_rows(&self, live: u32) -> Result<MutexGuard<'_, u32>, Error> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if *rows != live {
            self.describe(live)?;
            *rows = live;
        }
        Ok(rows)
    }

    /// Changes the descriptions of x and y to `rows` rows.
    fn describe(&self, rows: u32) -> Result<(), Error> {
        let columns = u64::from(rows);
        for matrix in [&self.x, &self.y] {
            // SAFETY: the attribute has 8 bytes; the caller holds the lock.
            let status = unsafe {
                sys::cublasLtMatrixLayoutSetAttribute(
                    matrix.0,
                    sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS,
                    std::ptr::from_ref(&columns).cast(),
                    size_of::<u64>(),
                )
            };
            check(status, "the number of rows")?;
        }
        Ok(())
    }
}

impl Plan {
    pub(crate) fn of(product: Product) -> Plan {
        Plan {
            product,
            descriptors: OnceLock::new(),
            candidates: OnceLock::new(),
            chosen: OnceLock::new(),
            has_run: AtomicBool::new(false),
        }
    }
}

fn layout(
    of: sys::cudaDataType,
    rows: u32,
    columns: u32,
    stride: u32,
) -> Result<Described<sys::cublasLtMatrixLayoutOpaque_t>, Error> {
    let mut made = std::ptr::null_mut();
    // SAFETY: the library writes a descriptor.
    let status = unsafe {
        sys::cublasLtMatrixLayoutCreate(&mut made, of, rows.into(), columns.into(), stride.into())
    };
    check(status, "a matrix")?;
    Ok(Described(made, sys::cublasLtMatrixLayoutDestroy))
}

/// Limits for the choice of an algorithm: workspace, alignment, and k may not be divided among blocks.
pub(crate) fn preference(
    p: &Product,
) -> Result<Described<sys::cublasLtMatmulPreferenceOpaque_t>, Error> {
    use sys::cublasLtMatmulPreferenceAttributes_t as A;
    let mut made = std::ptr::null_mut();
    // SAFETY: the library writes a descriptor.
    let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut made) };
    check(status, "a preference")?;
    let made = Described(made, sys::cublasLtMatmulPreferenceDestroy);
    let set = |name: A, bytes: &[u8]| {
        // SAFETY: the library reads `bytes.len()` bytes.
        let status = unsafe {
            let from = bytes.as_ptr().cast();
            sys::cublasLtMatmulPreferenceSetAttribute(made.0, name, from, bytes.len())
        };
        check(status, "a preference")
    };
    let room = WORKSPACE as usize;
    set(
        A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        &room.to_ne_bytes(),
    )?;
    let schemes = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;
    set(
        A::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        &schemes.to_ne_bytes(),
    )?;
    let [w, x, y] = p.aligned.map(u32::to_ne_bytes);
    set(A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w)?;
    set(A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x)?;
    set(A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y)?;
    set(A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y)?;
    Ok(made)
}

fn operation() -> Result<Described<sys::cublasLtMatmulDescOpaque_t>, Error> {
    let mut made = std::ptr::null_mut();
    // CUBLAS_OP_T.
    let transposed = 1i32;
    // SAFETY: the library writes a descriptor and reads one attribute of the given size.
    unsafe {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let scale = sys::cudaDataType::CUDA_R_32F;
        check(
            sys::cublasLtMatmulDescCreate(&mut made, compute, scale),
            "an operation",
        )?;
        let made = Described(made, sys::cublasLtMatmulDescDestroy);
        check(
            sys::cublasLtMatmulDescSetAttribute(
                made.0,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                std::ptr::from_ref(&transposed).cast(),
                size_of_val(&transposed),
            ),
            "an operation",
        )?;
        Ok(made)
    }
}

/// A product with its addresses.
pub(crate) struct Gemm {
    pub(crate) plan: Arc<Plan>,
    pub(crate) w: u64,
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) workspace: u64,
    /// The factor on the product, before it is stored or added.
    pub(crate) scale: f32,
}
