//! Steps by the persistent kernel: one launch for as many rows as there is room for.
#![allow(unsafe_code)]

use super::persistent_kernel::upload;
use super::{CudaContext, DECODE};
use crate::Error;
use crate::persistent::FAULT_BYTES;
use welte_device::Replay;
use welte_table::Row;

/// Why the kernels are not used where logits were found to be wrong.
const DISAGREES: &str = "its logits are not those of the launched kernels, which is a bug in Welte";

impl CudaContext {
    /// Loads the kernel for steps and uploads its program and shares. The error says why chains are not replayed by persistent
    /// kernels either: both give the same bits.
    pub(super) fn prepare_rows(&mut self) -> Result<(), Error> {
        let loaded = &self.loaded;
        let (Ok(recording), Some(rows)) = (&loaded.rows, &mut self.rows) else {
            return Ok(());
        };
        if rows.kernel.is_none() {
            let unit = recording.unit();
            loaded.add_modules(std::slice::from_ref(&unit))?;
            upload(&self.gpu, recording, &rows.block)?;
            rows.kernel = Some(loaded.persistent_kernel(&unit, recording)?);
        }
        Ok(())
    }

    /// Why the kernels may not be used although they could be.
    pub(super) fn rows_refused(&self) -> Option<String> {
        (!self.loaded.rows_agree()).then(|| format!("not the persistent kernel: {DISAGREES}"))
    }

    /// The most rows that a launch of the persistent kernel computes; the error says why it computes none.
    pub fn rows_together(&self) -> Result<u32, String> {
        let recorded = self.loaded.rows.as_ref();
        let refused = recorded.err().filter(|_| self.persistent.is_none());
        if let Some(why) = self.note.as_ref().or(refused) {
            return Err(why.clone());
        }
        match (&self.rows, &self.persistent) {
            (Some(rows), _) if rows.kernel.is_some() => Ok(rows.most),
            (None, Some(chains)) if chains.is_ready() => Ok(1),
            _ => Err("the persistent kernel was not asked for".to_string()),
        }
    }

    /// Enqueues a step by the persistent kernel, if that computes the pass. The step state is enqueued already. The kernel knows one
    /// coordinate of a row, and attends backwards only.
    pub(super) fn launch_rows(&mut self, pass: usize, rows: &[Row]) -> Result<bool, Error> {
        let few = self.loaded.few.map_or(usize::MAX, |few| few as usize);
        if self.mode() != Replay::Persistent || pass != DECODE || rows.len() > few {
            return Ok(false);
        }
        if !rows.iter().all(Row::is_linear) {
            return Ok(false);
        }
        let count = rows.len() as u32;
        match (&mut self.rows, &mut self.persistent) {
            (Some(kernel), _) => kernel.launch(&self.gpu, count)?,
            (None, Some(chains)) => chains.launch_rows(&self.gpu, count)?,
            (None, None) => return Ok(false),
        }
        Ok(true)
    }

    /// Enqueues what leaves hidden states for the draft pass, after the persistent kernel.
    pub(super) fn launch_tap(&self, rows: usize) -> Result<(), Error> {
        let recordings = [&self.loaded.rows, &self.loaded.recording];
        let recorded = recordings.into_iter().find_map(|one| one.as_ref().ok());
        let Some(tap) = recorded.and_then(|recording| recording.tap.as_ref()) else {
            return Ok(());
        };
        let commands = &self.passes[DECODE].commands(rows)[tap.commands.clone()];
        let mut nodes = commands.iter().flatten();
        nodes.try_for_each(|node| self.enqueue(node, rows as u32))
    }

    /// Enqueues the removal of an earlier fault, if the kernel is in use.
    pub(super) fn clear_rows_fault(&self) -> Result<(), Error> {
        match self.rows_fault() {
            0 => Ok(()),
            // SAFETY: a fault is there.
            fault => unsafe { self.gpu.clear(fault, FAULT_BYTES as u64) },
        }
    }

    /// Where the kernel reports a fault, if it is in use; else 0.
    pub(super) fn rows_fault(&self) -> u64 {
        if self.mode() != Replay::Persistent {
            return 0;
        }
        match (&self.rows, &self.persistent) {
            (Some(rows), _) => rows.arguments.fault,
            (None, Some(chains)) => chains.fault(),
            (None, None) => 0,
        }
    }

    /// Enqueues a copy of the kernel's fault to the host, after `at` bytes of outputs.
    pub(super) fn fetch_rows_fault(&mut self, at: usize) -> Result<(), Error> {
        let fault = self.rows_fault();
        if fault == 0 {
            return Ok(());
        }
        let out = &mut self.outputs.as_mut_slice()[at..at + FAULT_BYTES];
        // SAFETY: a fault has these bytes; the reader waits for the copy.
        unsafe { self.gpu.download(fault, out) }
    }

    /// Whether the kernel gave up, once its fault is on the host. Steps and chains are then computed by launched kernels.
    pub(super) fn rows_gave_up(&mut self, at: usize) -> Result<bool, Error> {
        let mut fault = [0; FAULT_BYTES];
        fault.copy_from_slice(&self.outputs.as_slice()[at..at + FAULT_BYTES]);
        let recordings = [&self.loaded.rows, &self.loaded.recording];
        let recording = recordings.into_iter().find_map(|one| one.as_ref().ok());
        let fault = recording.and_then(|recording| self.describe_fault(recording, &fault));
        let Some((what, _)) = fault else {
            return Ok(false);
        };
        let why = format!("{what}, in a step; going on with the graph");
        self.fall_back(why.clone())?;
        if self.seated.is_some() {
            return Err(Error::Kernel(why));
        }
        // Some blocks may have changed their states.
        if let Some(persistent) = &self.persistent {
            persistent.states().restore(&self.gpu)?;
        }
        Ok(true)
    }
}
