//! Results of tests: reported, cached, and how long they took.

pub mod cache;
pub mod durations;
pub mod report;
