//! The tool behind the Makefile: gets the base kernel, applies the series, builds and
//! boots it, and reports whether it works.
//!
//! The crates beside this one are the phases of a run, and README.md lists them in order.
//! This crate has the commands ([`cli`]), which use those crates.

#![warn(unused_crate_dependencies)]
// See host::ui.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

mod cli;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod modules;

fn main() -> ExitCode {
    host::status::exit(cli::run)
}
