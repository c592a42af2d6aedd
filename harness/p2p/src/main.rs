//! The tool behind the Makefile: gets the base kernel, applies the series,
//! builds and boots it, and says whether it does what it should.
//!
//! A command's path, in file order: [`cli`] → [`setup`] → [`tree`] →
//! [`kernel`] → [`vm`] → [`demo`] or [`plan`] → [`report`]. [`mutants`] turns
//! the last steps on the tests themselves, [`coverage`] says what they reach,
//! [`bench`] counts instructions, [`soak`] takes its time, [`check`] and [`bisect`] look at the patches;
//! [`hw`] needs none of them.

use std::process::ExitCode;

mod added;
mod bench;
mod bisect;
mod check;
mod cli;
mod coverage;
mod demo;
mod durations;
mod export;
mod git;
mod hw;
mod kept;
mod kernel;
mod logscan;
mod mutants;
mod outcome;
mod paths;
mod plan;
mod proc;
mod recipients;
mod recorded;
mod report;
mod series;
mod setup;
mod shell;
mod soak;
mod topology;
mod tree;
mod ui;
mod vm;
mod witness;

fn main() -> ExitCode {
    outcome::exit(cli::run)
}
