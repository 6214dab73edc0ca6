//! Graphs: kernels that are added once and then launched as a whole, or repeated by the GPU itself.
//!
//! Kernels are added as nodes. Stream capture would be shorter, but every capture in a context becomes invalid when any
//! thread synchronises that context, in every capture mode. All users of a GPU in a process share its primary context, and
//! libraries synchronise it: destroying a cuBLASLt handle does. Adding nodes depends on no other thread.
#![allow(unsafe_code)]

use crate::Error;
use crate::gpu::{Gpu, Kernel};
use crate::info::check;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// A graph that is ready to be launched.
pub(crate) struct Graph {
    gpu: Arc<Gpu>,
    graph: sys::CUgraph,
    instance: sys::CUgraphExec,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Graph {}

/// The nodes of a graph under construction. Each kernel runs after the one before it.
pub(crate) struct Nodes<'a> {
    gpu: &'a Gpu,
    graph: sys::CUgraph,
    /// Null before the first kernel.
    last: sys::CUgraphNode,
}

impl Graph {
    /// A graph that runs the kernels added by `fill` once.
    pub(crate) fn once(
        gpu: &Arc<Gpu>,
        fill: impl FnOnce(&mut Nodes<'_>) -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        let mut graph = Graph::empty(gpu)?;
        fill(&mut Nodes::of(gpu, graph.graph))?;
        graph.instantiate()?;
        Ok(graph)
    }

    /// A graph that repeats the kernels added by `fill` until one of them sets the condition to 0. `fill` gets the
    /// condition's handle.
    pub(crate) fn repeated(
        gpu: &Arc<Gpu>,
        fill: impl FnOnce(&mut Nodes<'_>, u64) -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        let mut graph = Graph::empty(gpu)?;
        let mut condition = 0;
        // SAFETY: the graph exists; the driver writes a handle.
        let made = unsafe {
            sys::cuGraphConditionalHandleCreate(
                &mut condition,
                graph.graph,
                gpu.context(),
                1,
                sys::CU_GRAPH_COND_ASSIGN_DEFAULT,
            )
        };
        check(made, "creating a graph's condition")?;
        let mut parameters = node_parameters();
        parameters.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        parameters.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
            handle: condition,
            type_: sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
            size: 1,
            phGraph_out: std::ptr::null_mut(),
            ctx: gpu.context(),
        };
        Nodes::of(gpu, graph.graph).add_node(&mut parameters, "adding a loop to a graph")?;
        // SAFETY: the driver has set `phGraph_out` to an array of `size` graphs, which belong to the graph.
        let body = unsafe { *parameters.__bindgen_anon_1.conditional.phGraph_out };
        fill(&mut Nodes::of(gpu, body), condition)?;
        graph.instantiate()?;
        Ok(graph)
    }

    fn empty(gpu: &Arc<Gpu>) -> Result<Graph, Error> {
        gpu.current()?;
        let mut graph = Graph {
            gpu: gpu.clone(),
            graph: std::ptr::null_mut(),
            instance: std::ptr::null_mut(),
        };
        // SAFETY: the driver writes a handle; drop destroys it.
        let made = unsafe { sys::cuGraphCreate(&mut graph.graph, 0) };
        check(made, "creating a graph")?;
        Ok(graph)
    }

    fn instantiate(&mut self) -> Result<(), Error> {
        // SAFETY: the graph exists; drop destroys the instance.
        unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut self.instance, self.graph, 0);
            check(made, "instantiating a graph")?;
            let uploaded = sys::cuGraphUpload(self.instance, self.gpu.stream());
            check(uploaded, "uploading a graph")
        }
    }

    /// Enqueues it.
    pub(crate) fn launch(&self) -> Result<(), Error> {
        // SAFETY: instantiated; the context holds everything that its nodes use.
        let result = unsafe { sys::cuGraphLaunch(self.instance, self.gpu.stream()) };
        check(result, "launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: each handle was created here or is null. The context has waited for the launches.
        unsafe {
            if self.gpu.current().is_err() {
                return;
            }
            if !self.instance.is_null() {
                let _ = sys::cuGraphExecDestroy(self.instance);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
    }
}

impl<'a> Nodes<'a> {
    fn of(gpu: &'a Gpu, graph: sys::CUgraph) -> Nodes<'a> {
        Nodes {
            gpu,
            graph,
            last: std::ptr::null_mut(),
        }
    }

    /// Adds a kernel with one parameter, the struct in `args`.
    ///
    /// # Safety
    /// As for [`Gpu::launch`], for every launch of the graph.
    pub(crate) unsafe fn add(
        &mut self,
        kernel: &Kernel,
        grid: [u32; 3],
        args: &[u8],
    ) -> Result<(), Error> {
        let mut pointers = [args.as_ptr().cast_mut().cast::<c_void>()];
        let mut parameters = node_parameters();
        parameters.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;
        // The driver copies what `kernelParams` points to before `cuGraphAddNode` returns.
        parameters.__bindgen_anon_1.kernel = sys::CUDA_KERNEL_NODE_PARAMS_v3 {
            func: kernel.function(),
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: kernel.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.shared,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: self.gpu.context(),
        };
        self.add_node(&mut parameters, kernel.name)
    }

    /// Adds a node after the last one. `what` names it in the error.
    fn add_node(
        &mut self,
        parameters: &mut sys::CUgraphNodeParams,
        what: &str,
    ) -> Result<(), Error> {
        // Where kernels may overlap, the edge is the one that a launch on a stream makes: see `Gpu::launch`.
        let edge = sys::CUgraphEdgeData {
            from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
            to_port: 0,
            type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
            reserved: [0; 5],
        };
        let before = self.last;
        let count = usize::from(!before.is_null());
        let overlaps = count > 0 && self.gpu.overlaps_kernels();
        // SAFETY: the graph exists, `before` is its node or is not counted, and the parameters are complete.
        let added = unsafe {
            sys::cuGraphAddNode_v2(
                &mut self.last,
                self.graph,
                &before,
                if overlaps { &edge } else { std::ptr::null() },
                count,
                parameters,
            )
        };
        if added == sys::CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        check(added, &format!("adding {what} to a graph"))
    }
}

/// Parameters of no type yet.
fn node_parameters() -> sys::CUgraphNodeParams {
    // SAFETY: plain numbers and pointers, for which zeros are valid; the driver wants unused ones to be zero.
    unsafe { std::mem::zeroed() }
}
