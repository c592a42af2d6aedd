//! What every step of a run needs of its host: paths, programs, git, progress, and the
//! exit status.

#![warn(unused_crate_dependencies)]

pub mod git;
pub mod paths;
pub mod proc;
pub mod settings;
pub mod status;
pub mod ui;
