//! Products of 16-bit matrices by cuBLASLt, which is optional: it is not part of the driver.
//!
//! Only algorithms are used that give the bits of our own kernels: one chain over k. Those that divide k among blocks are not
//! even candidates. The rest is compared with our kernels when a context is made (`context/library.rs`).
#![allow(unsafe_code)]

use crate::Error;
use crate::gpu::Gpu;
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most algorithms that are compared for a product.
const MOST_CANDIDATES: usize = 8;
/// Bytes of device memory for a product's workspace.
pub(crate) const WORKSPACE: u64 = 32 << 20;

fn check(status: Status, what: &str) -> Result<(), Error> {
    if status == Status::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Library(format!("{what}: {status:?}")))
}

/// The library as one GPU's streams share it. Opening it takes a fifth of a second, so that waits until it is needed.
#[derive(Default)]
pub(crate) struct Library {
    /// `None` inside where it is not installed or refuses the GPU. Our own kernels then compute every product.
    handle: OnceLock<Option<Handle>>,
    /// Layers with the same product share a plan.
    plans: Mutex<HashMap<Product, Arc<Plan>>>,
}

/// The library, opened for a GPU.
struct Handle(sys::cublasLtHandle_t);

// SAFETY: the handle may be used from any thread; the library synchronises its own state.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// The GPU's context must be current.
    fn open() -> Option<Handle> {
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

impl Gpu {
    /// The plan for a product, which all its users share. `None` if the library is known to be missing.
    pub(crate) fn plan(&self, product: Product) -> Option<Arc<Plan>> {
        if let Some(None) = self.library.handle.get() {
            return None;
        }
        let plans = &self.library.plans;
        let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.entry(product);
        Some(plan.or_insert_with(|| Arc::new(Plan::of(product))).clone())
    }

    /// cuBLASLt for this GPU, if there is one.
    fn cublaslt(&self) -> Option<sys::cublasLtHandle_t> {
        let open = || self.current().ok().and_then(|()| Handle::open());
        let handle = self.library.handle.get_or_init(open).as_ref();
        handle.map(|handle| handle.0)
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
struct Described<T>(*mut T, unsafe fn(*mut T) -> Status);

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
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl Candidate {
    /// The library's description. It is the same in every process.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm.data
    }
}

/// A product, and which of the library's algorithms computes it.
pub(crate) struct Plan {
    product: Product,
    /// Made at their first use; `None` inside if the library cannot describe the product.
    descriptors: OnceLock<Option<Descriptors>>,
    /// In the library's order: the one that it expects to be fastest comes first. The library takes long to answer, so it is
    /// asked only if they are to be timed.
    candidates: OnceLock<Vec<Candidate>>,
    /// The candidate in use; `None` inside if no candidate gives the bits of our kernels.
    chosen: OnceLock<Option<Candidate>>,
    /// It was run, so the library has loaded its code.
    has_run: AtomicBool,
}

/// The library's descriptors of a product.
struct Descriptors {
    operation: Described<sys::cublasLtMatmulDescOpaque_t>,
    w: Described<sys::cublasLtMatrixLayoutOpaque_t>,
    x: Described<sys::cublasLtMatrixLayoutOpaque_t>,
    y: Described<sys::cublasLtMatrixLayoutOpaque_t>,
    /// The number of rows in the current descriptions of x and y.
    rows: Mutex<u32>,
}

// SAFETY: plain descriptors. The only part that changes, the number of rows, is accessed under a lock.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// The library must be open.
    fn of(p: &Product) -> Result<Descriptors, Error> {
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
    fn with_rows(&self, live: u32) -> Result<MutexGuard<'_, u32>, Error> {
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
    fn of(product: Product) -> Plan {
        Plan {
            product,
            descriptors: OnceLock::new(),
            candidates: OnceLock::new(),
            chosen: OnceLock::new(),
            has_run: AtomicBool::new(false),
        }
    }

    /// The library and its descriptors of the product; `None` if it is missing or cannot describe it.
    fn described(&self, gpu: &Gpu) -> Option<(sys::cublasLtHandle_t, &Descriptors)> {
        let handle = gpu.cublaslt()?;
        let make = || Descriptors::of(&self.product).ok();
        Some((handle, self.descriptors.get_or_init(make).as_ref()?))
    }

    /// Asks the library for algorithms.
    fn ask(
        &self,
        library: sys::cublasLtHandle_t,
        described: &Descriptors,
    ) -> Result<Vec<Candidate>, Error> {
        let preference = preference(&self.product)?;
        let _rows = described.with_rows(self.product.rows)?;
        // SAFETY: the results are plain data, which the library writes together with their count.
        let found = unsafe {
            let mut found =
                [std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>(); MOST_CANDIDATES];
            let mut count = 0;
            check(
                sys::cublasLtMatmulAlgoGetHeuristic(
                    library,
                    described.operation.0,
                    described.w.0,
                    described.x.0,
                    described.y.0,
                    described.y.0,
                    preference.0,
                    MOST_CANDIDATES as i32,
                    found.as_mut_ptr(),
                    &mut count,
                ),
                "choosing an algorithm",
            )?;
            found.into_iter().take(count.max(0) as usize)
        };
        let usable = found.filter(|one| one.state == Status::CUBLAS_STATUS_SUCCESS);
        let candidates = usable.map(|one| Candidate {
            algorithm: one.algo,
            workspace: one.workspaceSize,
        });
        Ok(candidates.collect())
    }
}

impl Plan {
    /// The library's algorithms; none if it supports none.
    pub(crate) fn candidates(&self, gpu: &Gpu) -> &[Candidate] {
        let ask = || {
            let (library, described) = self.described(gpu)?;
            self.ask(library, described).ok()
        };
        self.candidates.get_or_init(|| ask().unwrap_or_default())
    }

    /// The candidate in use. The outer `None`: it has not been decided.
    pub(crate) fn chosen(&self) -> Option<Option<Candidate>> {
        self.chosen.get().copied()
    }

    /// Whether it was run before.
    pub(crate) fn has_run(&self) -> bool {
        self.has_run.load(Ordering::Relaxed)
    }

    /// What the product computes.
    pub(crate) fn product(&self) -> &Product {
        &self.product
    }

    /// An algorithm as a candidate; `None` if the library does not have it for this product.
    pub(crate) fn candidate_with(&self, gpu: &Gpu, algorithm: &Algorithm) -> Option<Candidate> {
        let (library, described) = self.described(gpu)?;
        let _rows = described.with_rows(self.product.rows).ok()?;
        let algorithm = sys::cublasLtMatmulAlgo_t { data: *algorithm };
        // SAFETY: the library writes a result, which is plain data. It refuses numbers that it does not know.
        let (status, result) = unsafe {
            let mut result = std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>();
            let status = sys::cublasLtMatmulAlgoCheck(
                library,
                described.operation.0,
                described.w.0,
                described.x.0,
                described.y.0,
                described.y.0,
                &algorithm,
                &mut result,
            );
            (status, result)
        };
        let fits = check(status, "").is_ok() && result.workspaceSize as u64 <= WORKSPACE;
        fits.then_some(Candidate {
            algorithm,
            workspace: result.workspaceSize,
        })
    }

    /// Decides for a candidate, or for none. The first decision stays.
    pub(crate) fn choose(&self, candidate: Option<Candidate>) {
        let _ = self.chosen.set(candidate);
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
fn preference(p: &Product) -> Result<Described<sys::cublasLtMatmulPreferenceOpaque_t>, Error> {
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

impl Gemm {
    /// Enqueues the product for `live` rows, at most as many as it was planned for.
    pub(crate) fn run(&self, gpu: &Gpu, live: u32) -> Result<(), Error> {
        let chosen = self.plan.chosen().flatten();
        let chosen = chosen.ok_or_else(|| Error::Library("no algorithm chosen".to_string()))?;
        self.run_by(gpu, live, chosen)
    }

    /// The same by a given candidate.
    pub(crate) fn run_by(&self, gpu: &Gpu, live: u32, by: Candidate) -> Result<(), Error> {
        let plan = &*self.plan;
        let gone = || Error::Library("it is gone".to_string());
        let (library, described) = plan.described(gpu).ok_or_else(gone)?;
        let _rows = described.with_rows(live)?;
        let beta = if plan.product.add { 1.0f32 } else { 0.0 };
        // SAFETY: lowering passed addresses of matrices with the planned sizes. The scalars are read before the call returns.
        let status = unsafe {
            sys::cublasLtMatmul(
                library,
                described.operation.0,
                std::ptr::from_ref(&self.scale).cast(),
                self.w as *const c_void,
                described.w.0,
                self.x as *const c_void,
                described.x.0,
                std::ptr::from_ref(&beta).cast(),
                self.y as *const c_void,
                described.y.0,
                self.y as *mut c_void,
                described.y.0,
                &by.algorithm,
                self.workspace as *mut c_void,
                by.workspace,
                gpu.stream().cast(),
            )
        };
        plan.has_run.store(true, Ordering::Relaxed);
        check(status, "a product")
    }
}
