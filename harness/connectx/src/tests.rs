//! The device as its driver sees it: what comes of commands, requests and doorbells.

mod commands;
mod faults;
mod keys;
mod queues;
mod random;
mod transfers;
