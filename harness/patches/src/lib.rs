//! Tools for the patches of the series: checks, builds and boots after each patch,
//! mutants, coverage, and the export to patches/.

#![warn(unused_crate_dependencies)]
// See host::ui.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod bisect;
pub mod check;
pub mod coverage;
pub mod diff;
pub mod export;
pub mod mutants;
mod recipients;
pub mod recorded;
