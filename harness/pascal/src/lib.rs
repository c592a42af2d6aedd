//! A model of a Pascal GPU, for the real nouveau driver in a virtual machine.
//!
//! QEMU's `vfio-user-pci` is its only client. An access's path, in file order:
//! [`server`] → [`gpu`] (the BARs) → [`registers`], [`interrupt`], [`vbios`] → [`tlb`],
//! [`mmu`], [`space`] (address translation) → [`host`] (channels), [`channel`],
//! [`runlist`], [`commands`] (the push buffer), [`copy`] (the copy engine), [`inject`]
//! (errors of the copy engine) → [`home`], [`posted`], [`witness`] (the log for the judge).

#![warn(unused_crate_dependencies)]

// Only the program uses clap.
use clap as _;

pub mod channel;
pub mod commands;
pub mod copy;
pub mod gpu;
pub mod home;
pub mod host;
pub mod inject;
pub mod interrupt;
pub mod mmu;
pub mod pci;
pub mod posted;
pub mod registers;
pub mod runlist;
pub mod server;
pub mod space;
pub mod tlb;
pub mod vbios;
pub mod witness;

#[cfg(test)]
mod testing;
