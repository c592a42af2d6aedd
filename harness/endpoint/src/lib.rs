//! What models of PCI devices share, each of which is a process that serves one
//! device to one QEMU over vfio-user.
//!
//! [`server`] listens, and does for a device what does not depend on the device;
//! [`config`] is configuration space, [`memory`] what the device reaches by DMA,
//! [`irq`] its interrupts, [`proxy`] the way to ask QEMU, [`log`] what it
//! writes down.

#![warn(unused_crate_dependencies)]

pub mod config;
pub mod irq;
pub mod log;
pub mod memory;
pub mod proxy;
pub mod server;
