//! Shared code of the PCI device models. Each model is a process that serves one device
//! to one QEMU over vfio-user.
//!
//! [`server`] listens and handles the requests that do not depend on the device. [`config`]
//! is configuration space, [`memory`] is the memory that the device reaches by DMA, [`irq`]
//! is its interrupts, [`proxy`] sends requests to QEMU, and [`log`] writes the log.

#![warn(unused_crate_dependencies)]

pub mod config;
pub mod irq;
pub mod log;
pub mod memory;
pub mod proxy;
pub mod server;
