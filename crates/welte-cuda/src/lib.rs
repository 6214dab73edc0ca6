//! The CUDA device: the same table, replayed as a graph on an NVIDIA GPU.
//!
//! Nothing of CUDA is linked: the driver, the run-time compiler and cuBLASLt are opened when they are there.

mod launch;
