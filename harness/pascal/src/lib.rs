//! A model of a Pascal GPU, for the real nouveau driver in a virtual machine.
//!
//! QEMU's `vfio-user-pci` is its only client. An access's path, in file order:
//! [`server`] → [`gpu`] (what each BAR is) → [`registers`], [`interrupt`], [`vbios`] →
//! [`tlb`], [`mmu`], [`space`] (where an address leads) → [`host`] (channels), [`channel`],
//! [`runlist`], [`commands`] (what they are to do), [`copy`] (the copy engine), [`inject`] (what it
//! does wrong) → [`home`], [`witness`] (what the judge reads).

#![warn(unused_crate_dependencies)]

// The program's.
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
pub mod registers;
pub mod runlist;
pub mod server;
pub mod space;
pub mod tlb;
pub mod vbios;
pub mod witness;

#[cfg(test)]
mod testing;
