//! The tool behind the Makefile: gets the base kernel, applies the series,
//! builds and boots it, and says whether it does what it should.
//!
//! The crates beside this one are the phases of a run; README.md names them in order. Here
//! are the commands ([`cli`]), made of what those crates can do.

#![warn(unused_crate_dependencies)]

use std::process::ExitCode;

mod cli;
#[cfg(test)]
mod modules;

fn main() -> ExitCode {
    host::status::exit(cli::run)
}
