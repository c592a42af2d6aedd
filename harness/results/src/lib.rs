//! Results of tests: reported, cached, and how long they took.

pub mod durations;
pub mod kept;
pub mod report;
