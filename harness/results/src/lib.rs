//! Results of tests: reported, cached, and how long they took.

#![warn(unused_crate_dependencies)]

pub mod cache;
pub mod durations;
pub mod report;
