//! How a virtual machine runs: QEMU's arguments, the models of its devices, its console,
//! and how it ended.

pub mod logscan;
pub mod vm;
pub mod witness;
