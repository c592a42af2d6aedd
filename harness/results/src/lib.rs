//! Test results: reports, the cache, and durations.

#![warn(unused_crate_dependencies)]

pub mod cache;
pub mod durations;
pub mod report;
