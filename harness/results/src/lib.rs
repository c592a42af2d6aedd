//! Test results: reports, the cache, and durations.

#![warn(unused_crate_dependencies)]
// See host::ui.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod cache;
pub mod durations;
pub mod report;
