//! What is tested: the jobs, topologies and kernels that files in qemu/ describe, and the
//! user's choice of them.

#![warn(unused_crate_dependencies)]

pub mod arch;
pub mod filter;
pub mod job;
pub mod kernels;
pub mod shard;
pub mod topology;
