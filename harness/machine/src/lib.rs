//! Runs a virtual machine: QEMU's arguments, the models of its devices, its console, and
//! how it ended.

#![warn(unused_crate_dependencies)]

pub mod logscan;
pub mod vm;
pub mod witness;
