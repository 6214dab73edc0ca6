//! Graphs: work that is captured once and launched as a whole, or over and over by the device itself.
#![allow(unsafe_code)]

use crate::Error;
use crate::gpu::{Gpu, check};
use cudarc::driver::sys;
use std::sync::Arc;

/// Captured work, ready to be launched.
pub(crate) struct Graph {
    gpu: Arc<Gpu>,
    graph: sys::CUgraph,
    instance: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Graph {}

/// Captures of this thread do not see what other threads do.
const MODE: sys::CUstreamCaptureMode =
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

impl Graph {
    fn empty(gpu: &Arc<Gpu>) -> Result<Graph, Error> {
        gpu.current()?;
        Ok(Graph {
            gpu: gpu.clone(),
            graph: std::ptr::null_mut(),
            instance: std::ptr::null_mut(),
        })
    }

    /// Captures what `enqueue` enqueues on the stream, without running it.
    pub(crate) fn capture(
        gpu: &Arc<Gpu>,
        enqueue: &dyn Fn() -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        let mut graph = Graph::empty(gpu)?;
        // SAFETY: the stream is ours; the graph's handle is written to the place given and given back on drop.
        unsafe {
            let begun = sys::cuStreamBeginCapture_v2(gpu.stream(), MODE);
            check(begun, "starting a capture")?;
            let enqueued = enqueue();
            let ended = sys::cuStreamEndCapture(gpu.stream(), &mut graph.graph);
            enqueued?;
            check(ended, "ending a capture")?;
        }
        graph.instantiate()?;
        Ok(graph)
    }

    /// A graph that repeats what `enqueue` enqueues until a kernel of it sets the condition, whose handle `enqueue`
    /// gets, to 0.
    pub(crate) fn capture_loop(
        gpu: &Arc<Gpu>,
        enqueue: &dyn Fn(u64) -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        let mut graph = Graph::empty(gpu)?;
        let mut handle = 0;
        // SAFETY: handles are written to the places given; the node's parameters are those of a condition, and its
        // body belongs to the graph, which is given back on drop.
        unsafe {
            check(sys::cuGraphCreate(&mut graph.graph, 0), "making a graph")?;
            let made = sys::cuGraphConditionalHandleCreate(
                &mut handle,
                graph.graph,
                gpu.context(),
                1,
                sys::CU_GRAPH_COND_ASSIGN_DEFAULT,
            );
            check(made, "making a graph's condition")?;
            let mut parameters: sys::CUgraphNodeParams = std::mem::zeroed();
            parameters.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
            parameters.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
                handle,
                type_: sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
                size: 1,
                phGraph_out: std::ptr::null_mut(),
                ctx: gpu.context(),
            };
            let mut node = std::ptr::null_mut();
            let none = std::ptr::null();
            let added = sys::cuGraphAddNode_v2(
                &mut node,
                graph.graph,
                none,
                std::ptr::null(),
                0,
                &mut parameters,
            );
            check(added, "adding a loop to a graph")?;
            let mut body = *parameters.__bindgen_anon_1.conditional.phGraph_out;
            let begun = sys::cuStreamBeginCaptureToGraph(
                gpu.stream(),
                body,
                std::ptr::null(),
                std::ptr::null(),
                0,
                MODE,
            );
            check(begun, "starting a loop's capture")?;
            let enqueued = enqueue(handle);
            let ended = sys::cuStreamEndCapture(gpu.stream(), &mut body);
            enqueued?;
            check(ended, "ending a loop's capture")?;
        }
        graph.instantiate()?;
        Ok(graph)
    }

    fn instantiate(&mut self) -> Result<(), Error> {
        // SAFETY: the graph was captured or built; its instance is given back on drop.
        unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut self.instance, self.graph, 0);
            check(made, "instantiating a graph")?;
            let uploaded = sys::cuGraphUpload(self.instance, self.gpu.stream());
            check(uploaded, "uploading a graph")
        }
    }

    /// Enqueues it.
    pub(crate) fn launch(&self) -> Result<(), Error> {
        // SAFETY: instantiated; everything that its nodes use is held by the session.
        let result = unsafe { sys::cuGraphLaunch(self.instance, self.gpu.stream()) };
        check(result, "launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made here, or null; the session has waited for what ran.
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
