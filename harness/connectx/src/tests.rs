//! Tests of the device from its driver's side: commands, requests and doorbells.

mod bus;
mod commands;
mod faults;
mod keys;
mod queues;
mod random;
mod transfers;
mod wire;
