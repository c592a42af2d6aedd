//! Reports why peer-to-peer DMA is off between the devices of a host.
//!
//! [`capture`] takes a [`picture`], the only source of the report. [`host`] builds devices
//! and bridges from it and parses [`config`] spaces. [`rules`] implements the kernel's
//! rules, with its list of host bridges in [`known`]. [`gpu`] and [`mlx5`] implement the
//! rules of drivers. [`diagnose`] examines the pairs and makes a [`report`], which is
//! `--json`. [`text`] prints the same for people.

// Not in unit tests, because the tests in tests/ use more crates.
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
mod parameter;
pub mod picture;
pub mod report;
pub mod rules;
pub mod text;
mod words;

pub use host::Host;
pub use known::Known;
pub use picture::Picture;
