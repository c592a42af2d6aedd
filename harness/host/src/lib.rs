//! What every step of a run needs of its host: paths, programs, git, progress, and the
//! exit status.

#![warn(unused_crate_dependencies)]
// See host::ui.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod git;
pub mod paths;
pub mod proc;
pub mod settings;
pub mod status;
pub mod ui;
