//! Runs jobs of the plan in machines, and judges the results.

#![warn(unused_crate_dependencies)]

mod claims;
pub mod demo;
mod inputs;
mod nic;
mod run;
pub mod schedule;
mod shell;
pub mod soak;
pub mod speed;
mod vram;

pub use inputs::inputs;
pub use run::{compare, play, run};
pub use shell::shell;
