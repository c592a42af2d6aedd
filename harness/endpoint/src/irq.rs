//! Interrupts: eventfds that QEMU listens to.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

/// The eventfd of each vector.
#[derive(Default)]
pub struct Irqs {
    vectors: BTreeMap<u32, File>,
}

impl Irqs {
    /// Turns all vectors off.
    pub fn clear(&mut self) {
        self.vectors.clear();
    }

    /// Sets the eventfd of a vector. None turns the vector off.
    pub fn set(&mut self, vector: u32, file: Option<File>) {
        match file {
            Some(file) => self.vectors.insert(vector, file),
            None => self.vectors.remove(&vector),
        };
    }

    /// Raises an interrupt. If the vector is off, the interrupt is lost, as on the bus.
    pub fn trigger(&self, vector: u32) {
        if let Some(mut file) = self.vectors.get(&vector) {
            // The write fails only if the counter is full, after 2^64 unread interrupts.
            let _ = file.write_all(&1u64.to_ne_bytes());
        }
    }
}
