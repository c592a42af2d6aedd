//! What is tested: jobs, topologies and kernels, which are files in qemu/, and which of
//! them a user picks.

#![warn(unused_crate_dependencies)]

pub mod filter;
pub mod job;
pub mod kernels;
pub mod shard;
pub mod topology;
