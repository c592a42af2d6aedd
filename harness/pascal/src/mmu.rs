//! The MMU: page tables of version 2, as `nvkm/subdev/mmu/vmmgp100.c` writes them.
//!
//! This module walks the tables. [`crate::tlb`] holds the cached translations.

use crate::space::{Aperture, Fault, Place, Space};

/// Offset of the root directory's address in an instance block (`gf100_vmm_join_`).
const PAGE_DIRECTORY: u64 = 0x200;
/// Offset of the last valid address in an instance block.
const LIMIT: u64 = 0x208;
/// The tables are of version 2.
const VERSION_2: u64 = 1 << 10;

/// In a PTE: the page is valid.
const VALID: u64 = 1 << 0;
/// An invalid page with this bit is sparse: it reads as zeros.
const VOLATILE: u64 = 1 << 3;
/// An invalid large page with this bit hides the small pages behind it.
const PRIVILEGED: u64 = 1 << 5;
const READ_ONLY: u64 = 1 << 6;

/// Address bits that index each directory: the lowest bit and the number of bits, from the
/// root down.
const DIRECTORIES: [(u32, u32); 3] = [(47, 2), (38, 9), (29, 9)];
/// The last directory. Its entries have 16 bytes and cover 2 MiB each.
const PD0: (u32, u32) = (21, 8);
const LARGE_SHIFT: u32 = 16;
const SMALL_SHIFT: u32 = 12;

/// The page tables of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The root directory.
    pub root: Place,
    /// The last valid address.
    pub limit: u64,
}

/// The translation of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The physical address of the first byte, or none if the page is sparse.
    pub start: Option<Place>,
    /// log2 of the size.
    pub shift: u32,
    /// Whether the page is writable.
    pub is_writable: bool,
    /// The data layout. Zero is linear.
    pub kind: u8,
}

impl Page {
    fn inside(self, va: u64) -> u64 {
        va & ((1 << self.shift) - 1)
    }

    /// The physical address of a byte in the page.
    pub fn at(self, va: u64) -> Option<Place> {
        self.start.map(|start| start.after(self.inside(va)))
    }

    /// Bytes from `va` to the end of the page.
    pub fn left(self, va: u64) -> u64 {
        (1 << self.shift) - self.inside(va)
    }
}

fn index(va: u64, (shift, bits): (u32, u32)) -> u64 {
    (va >> shift) & ((1 << bits) - 1)
}

/// The memory that a PDE points to, or none if the entry is empty.
fn aperture_of_table(entry: u64) -> Option<Aperture> {
    match (entry >> 1) & 3 {
        0 => None,
        1 => Some(Aperture::Vram),
        _ => Some(Aperture::System),
    }
}

/// The table that a PDE points to. `low`: the entry's lowest address bit. The entry stores
/// the address shifted right by four.
fn table(entry: u64, low: u32) -> Option<Place> {
    let aperture = aperture_of_table(entry)?;
    // Bits from 54 on are not part of the address.
    let bits = entry & ((1 << 54) - 1);
    Some(Place {
        aperture,
        address: (bits >> low << low) << 4,
    })
}

impl Tables {
    /// The page tables of an instance block.
    pub fn of(space: Space<'_>, instance: u64) -> Result<Self, Fault> {
        let base = space.read_u64(Place::vram(instance).after(PAGE_DIRECTORY))?;
        let limit = space.read_u64(Place::vram(instance).after(LIMIT))?;
        if base & VERSION_2 == 0 {
            return Err(Fault::Version(instance));
        }
        let aperture = match base & 3 {
            0 => Aperture::Vram,
            1 => return Err(Fault::Peer(0)),
            _ => Aperture::System,
        };
        let root = Place {
            aperture,
            address: base & !0xfff,
        };
        Ok(Self { root, limit })
    }

    /// Walks the tables.
    pub fn translate(&self, space: Space<'_>, va: u64) -> Result<Page, Fault> {
        if va > self.limit || va >> 49 != 0 {
            return Err(Fault::Limit(va));
        }
        let mut directory = self.root;
        for level in DIRECTORIES {
            let entry = space.read_u64(directory.after(index(va, level) * 8))?;
            let next = table(entry, 8);
            if next.is_none() && entry & VOLATILE != 0 {
                return Ok(sparse(level.0));
            }
            directory = next.ok_or(Fault::NoTable(va))?;
        }
        let entry = directory.after(index(va, PD0) * 16);
        let large = space.read_u64(entry)?;
        if large & VALID != 0 {
            return page(large, va, PD0.0);
        }
        let small = space.read_u64(entry.after(8))?;
        // A table of 32 large pages takes 256 bytes, so its address begins at bit 4.
        if let Some(table) = table(large, 4) {
            let at = index(va, (LARGE_SHIFT, PD0.0 - LARGE_SHIFT)) * 8;
            let entry = space.read_u64(table.after(at))?;
            if entry & VALID != 0 {
                return page(entry, va, LARGE_SHIFT);
            }
            if entry & VOLATILE != 0 {
                return Ok(sparse(LARGE_SHIFT));
            }
            if entry & PRIVILEGED != 0 {
                return Err(Fault::NoPage(va));
            }
        } else if large & VOLATILE != 0 {
            return Ok(sparse(PD0.0));
        }
        let table = table(small, 8).ok_or(Fault::NoTable(va))?;
        let at = index(va, (SMALL_SHIFT, PD0.0 - SMALL_SHIFT)) * 8;
        let entry = space.read_u64(table.after(at))?;
        if entry & VALID != 0 {
            return page(entry, va, SMALL_SHIFT);
        }
        if entry & VOLATILE != 0 {
            return Ok(sparse(SMALL_SHIFT));
        }
        Err(Fault::NoPage(va))
    }
}

fn sparse(shift: u32) -> Page {
    Page {
        start: None,
        shift,
        is_writable: true,
        kind: 0,
    }
}

fn page(entry: u64, va: u64, shift: u32) -> Result<Page, Fault> {
    // In video memory, the bits above the address are a compression tag number.
    let (aperture, bits) = match (entry >> 1) & 3 {
        0 => (Aperture::Vram, 33),
        1 => return Err(Fault::Peer(va)),
        _ => (Aperture::System, 54),
    };
    let base = ((entry & ((1 << bits) - 1)) >> 8) << 12;
    Ok(Page {
        start: Some(Place {
            aperture,
            // The address is aligned to the page size: a 2 MiB page ignores the lower bits.
            address: base & !((1 << shift) - 1),
        }),
        shift,
        is_writable: entry & READ_ONLY == 0,
        kind: (entry >> 56) as u8,
    })
}

#[cfg(test)]
mod tests;
