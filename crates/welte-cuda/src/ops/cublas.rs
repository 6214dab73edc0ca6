//! Calls of cuBLASLt for a GPU: which algorithms there are, and products.
#![allow(unsafe_code)]

use crate::Error;
use crate::cublas::{
    Algorithm, Candidate, Descriptors, Gemm, Handle, MOST_CANDIDATES, Plan, Product, WORKSPACE,
    check, preference,
};
use crate::gpu::Gpu;
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

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

impl Plan {
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
