//! Prints the CUDA source of the persistent kernel for a made-up model, as one text that compiles on its own:
//! `persistent_source qwen3-4b:q4_0 [rows]`. With `rows` it is the kernel for steps of several rows. Needs no GPU: the kernel is
//! the one for an H200.

use std::error::Error;
use std::sync::Arc;
use welte_cuda::{CudaDevice, h200};
use welte_device::DeviceOptions;
use welte_formats::synthetic::Synthetic;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments
        .next()
        .ok_or("usage: persistent_source MODEL:FORMAT [rows]")?;
    let several_rows = arguments.next().is_some_and(|a| a == "rows");
    let checkpoint = Synthetic::parse(&model)?;
    let spec = welte_models::spec(&checkpoint)?;
    let program = welte_table::fuse(
        welte_models::compile(&spec, &checkpoint, &Default::default())?,
        welte_table::PATTERNS,
    );
    let device = CudaDevice::assumed(h200(), &DeviceOptions::default());
    print!(
        "{}",
        device.persistent_source(Arc::new(program), several_rows)?
    );
    Ok(())
}
