//! Test support: memory, and functions that write page tables and commands as a driver does.

use std::fs::File;
use std::os::unix::fs::FileExt;

use endpoint::memory::Memory;

use crate::space::{Aperture, Place, Space, Vram};

/// Bytes of video memory.
pub const VRAM: u64 = 64 << 20;
/// Bus address of host memory.
pub const RAM_AT: u64 = 0x1000_0000;
/// Size of host memory.
pub const RAM: u64 = 4 << 20;

/// Bits of page table entries, as in `vmmgp100.c`.
pub const VALID: u64 = 1 << 0;
pub const VOLATILE: u64 = 1 << 3;
pub const PRIVILEGED: u64 = 1 << 5;
pub const READ_ONLY: u64 = 1 << 6;

/// A place in host memory.
pub fn ram(offset: u64) -> Place {
    Place {
        aperture: Aperture::System,
        address: RAM_AT + offset,
    }
}

/// Video memory and host memory.
pub struct Board {
    pub vram: Vram,
    pub memory: Memory,
    pub ram: File,
    next: u64,
}

impl Board {
    pub fn new() -> Self {
        let ram = tempfile::tempfile().unwrap();
        ram.set_len(RAM).unwrap();
        let mut memory = Memory::default();
        memory.is_bus_master = true;
        let file = ram.try_clone().unwrap();
        memory.map(RAM_AT, RAM, Some(file), 0, true).unwrap();
        Self {
            vram: Vram::new(None, VRAM).unwrap(),
            memory,
            ram,
            next: 0x1_0000,
        }
    }

    pub fn space(&self) -> Space<'_> {
        Space {
            vram: &self.vram,
            memory: &self.memory,
        }
    }

    /// Allocates zeroed memory for tables, aligned to 4 KiB.
    pub fn alloc(&mut self) -> Place {
        let place = Place::vram(self.next);
        self.next += 0x1000;
        place
    }

    pub fn set(&self, place: Place, value: u64) {
        self.space().write(place, &value.to_le_bytes()).unwrap();
    }

    pub fn get(&self, place: Place) -> u64 {
        self.space().read_u64(place).unwrap()
    }

    pub fn ram_at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.ram.read_exact_at(&mut data, offset).unwrap();
        data
    }

    /// An instance block with empty tables. Returns the block and the first directory.
    pub fn instance(&mut self, limit: u64) -> (Place, Place) {
        let (instance, root) = (self.alloc(), self.alloc());
        // 64 KiB is the larger page size.
        self.set(instance.after(0x200), root.address | 1 << 10 | 1 << 11);
        self.set(instance.after(0x208), limit);
        (instance, root)
    }

    /// The table that an entry points to. Creates one if the entry is empty.
    fn below(&mut self, entry: Place) -> Place {
        let old = self.get(entry);
        if old & 6 != 0 {
            return Place::vram((old & !0xf) << 4);
        }
        let table = self.alloc();
        self.set(entry, table.address >> 4 | 1 << 1);
        table
    }

    /// The place of the PTE for a page of this size.
    pub fn entry(&mut self, root: Place, va: u64, shift: u32) -> Place {
        let mut table = root;
        for (level, bits) in [(47, 2), (38, 9), (29, 9)] {
            let index = (va >> level) & ((1 << bits) - 1);
            table = self.below(table.after(index * 8));
        }
        let entry = table.after(((va >> 21) & 0xff) * 16);
        match shift {
            21 => entry,
            16 => self.below(entry).after(((va >> 16) & 0x1f) * 8),
            _ => self.below(entry.after(8)).after(((va >> 12) & 0x1ff) * 8),
        }
    }

    /// Maps a page of 4 KiB, 64 KiB or 2 MiB.
    pub fn map(&mut self, root: Place, va: u64, shift: u32, to: Place, bits: u64) {
        let aperture = match to.aperture {
            Aperture::Vram => 0,
            Aperture::System => 2 << 1,
        };
        let entry = self.entry(root, va, shift);
        self.set(entry, to.address >> 4 | aperture | VALID | bits);
    }
}
