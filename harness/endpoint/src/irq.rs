//! Interrupts: event files that QEMU listens to.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

/// The event file of each vector.
#[derive(Default)]
pub struct Irqs {
    vectors: BTreeMap<u32, File>,
}

impl Irqs {
    /// All vectors are off.
    pub fn clear(&mut self) {
        self.vectors.clear();
    }

    /// Where a vector goes; nothing: nowhere.
    pub fn set(&mut self, vector: u32, file: Option<File>) {
        match file {
            Some(file) => self.vectors.insert(vector, file),
            None => self.vectors.remove(&vector),
        };
    }

    /// Interrupts. A vector that nobody listens to is lost, as on the bus.
    pub fn trigger(&self, vector: u32) {
        if let Some(mut file) = self.vectors.get(&vector) {
            // Its counter is full only if nobody has listened 2^64 times.
            let _ = file.write_all(&1u64.to_ne_bytes());
        }
    }
}
