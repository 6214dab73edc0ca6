//! Welte as a worker of NVIDIA Dynamo: its tokens, its prefix cache and its load, told to Dynamo's routers.

use std::sync::Arc;
use welte_dynamo::Worker;

fn main() -> anyhow::Result<()> {
    let (worker, config) = Worker::from_args(std::env::args())?;
    dynamo_backend_common::run(Arc::new(worker), config)
}
