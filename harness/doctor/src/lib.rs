//! Says why peer-to-peer DMA is off between the devices of a host.
//!
//! [`capture`] takes a [`picture`], the one thing that anything is said from; [`host`] makes
//! devices and bridges of it, reading [`config`] spaces; [`rules`] are the kernel's, with its
//! list of host bridges in [`known`]; [`gpu`] and [`mlx5`] are those of drivers; [`diagnose`]
//! goes through the pairs and makes a [`report`], which is `--json`; [`text`] is the same for
//! people.

// Not of unit tests: those in tests/ use more.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod address;
pub mod capture;
pub mod cli;
pub mod config;
pub mod diagnose;
pub mod gpu;
pub mod host;
pub mod known;
pub mod mlx5;
mod obstacle;
pub mod picture;
pub mod report;
pub mod rules;
pub mod text;
mod words;

pub use host::Host;
pub use known::Known;
pub use picture::Picture;
