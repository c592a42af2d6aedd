//! The MMU: page tables of version 2, as `nvkm/subdev/mmu/vmmgp100.c` writes them.
//!
//! There is no translation cache: each access walks the tables. [`Tlb`] is a witness
//! that knows what a cache might still have.

use std::collections::HashMap;
use std::ops::Range;

use crate::space::{Aperture, Fault, Place, Space};

/// Where an instance block has the address of the first directory (`gf100_vmm_join_`).
const PAGE_DIRECTORY: u64 = 0x200;
/// And the last address that may be used.
const LIMIT: u64 = 0x208;
/// The tables are of version 2.
const VERSION_2: u64 = 1 << 10;

/// Entries: bit 0 of a page's.
const VALID: u64 = 1 << 0;
/// A page that is not valid and has this one is sparse: reads give zeros.
const VOLATILE: u64 = 1 << 3;
/// A large page that is not valid and has this one hides the small pages behind it.
const PRIVILEGED: u64 = 1 << 5;
const READ_ONLY: u64 = 1 << 6;

/// Address bits that each directory looks at, from the last to the first one.
const DIRECTORIES: [(u32, u32); 3] = [(47, 2), (38, 9), (29, 9)];
/// The last directory, with entries of 16 bytes, for 2 MiB each.
const PD0: (u32, u32) = (21, 8);
const LARGE_SHIFT: u32 = 16;
const SMALL_SHIFT: u32 = 12;

/// Page tables in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The first directory.
    pub root: Place,
    /// The last address.
    pub limit: u64,
}

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The physical address of the byte; none if the page is sparse.
    pub place: Option<Place>,
    /// Bytes from there to the end of the page.
    pub left: u64,
    /// Whether it can be written.
    pub is_writable: bool,
}

fn index(va: u64, (shift, bits): (u32, u32)) -> u64 {
    (va >> shift) & ((1 << bits) - 1)
}

/// The memory that a directory's entry names; none: the entry is empty.
fn aperture_of_table(entry: u64) -> Option<Aperture> {
    match (entry >> 1) & 3 {
        0 => None,
        1 => Some(Aperture::Vram),
        _ => Some(Aperture::System),
    }
}

/// `low`: the entry's lowest bit that is of the address, which is shifted by four.
fn table(entry: u64, low: u32) -> Option<Place> {
    let aperture = aperture_of_table(entry)?;
    // Bits from 54 on are not of the address.
    let bits = entry & ((1 << 54) - 1);
    Some(Place {
        aperture,
        address: (bits >> low << low) << 4,
    })
}

impl Tables {
    /// Of an instance block.
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
                return Ok(sparse(va, level.0));
            }
            directory = next.ok_or(Fault::NoTable(va))?;
        }
        let entry = directory.after(index(va, PD0) * 16);
        let large = space.read_u64(entry)?;
        if large & VALID != 0 {
            return page(large, va, PD0.0);
        }
        let small = space.read_u64(entry.after(8))?;
        // A table of 32 large pages takes 256 bytes.
        if let Some(table) = table(large, 4) {
            let at = index(va, (LARGE_SHIFT, PD0.0 - LARGE_SHIFT)) * 8;
            let entry = space.read_u64(table.after(at))?;
            if entry & VALID != 0 {
                return page(entry, va, LARGE_SHIFT);
            }
            if entry & VOLATILE != 0 {
                return Ok(sparse(va, LARGE_SHIFT));
            }
            if entry & PRIVILEGED != 0 {
                return Err(Fault::NoPage(va));
            }
        } else if large & VOLATILE != 0 {
            return Ok(sparse(va, PD0.0));
        }
        let table = table(small, 8).ok_or(Fault::NoTable(va))?;
        let at = index(va, (SMALL_SHIFT, PD0.0 - SMALL_SHIFT)) * 8;
        let entry = space.read_u64(table.after(at))?;
        if entry & VALID != 0 {
            return page(entry, va, SMALL_SHIFT);
        }
        if entry & VOLATILE != 0 {
            return Ok(sparse(va, SMALL_SHIFT));
        }
        Err(Fault::NoPage(va))
    }

    /// Calls `each` for what is in one page: where it is, and the part of `len` bytes.
    pub fn pieces(
        &self,
        space: Space<'_>,
        va: u64,
        len: u64,
        write: bool,
        mut each: impl FnMut(Option<Place>, Range<u64>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let va = va.checked_add(done).ok_or(Fault::Limit(u64::MAX))?;
            let page = self.translate(space, va)?;
            if write && !page.is_writable {
                return Err(Fault::ReadOnly(va));
            }
            let here = page.left.min(len - done);
            each(page.place, done..done + here)?;
            done += here;
        }
        Ok(())
    }

    /// Reads.
    pub fn read(&self, space: Space<'_>, va: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.pieces(space, va, data.len() as u64, false, |place, part| {
            let data = &mut data[part.start as usize..part.end as usize];
            match place {
                Some(place) => space.read(place, data),
                None => {
                    data.fill(0);
                    Ok(())
                }
            }
        })
    }

    /// Writes.
    pub fn write(&self, space: Space<'_>, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.pieces(space, va, data.len() as u64, true, |place, part| {
            let data = &data[part.start as usize..part.end as usize];
            place.map_or(Ok(()), |place| space.write(place, data))
        })
    }
}

fn left(va: u64, shift: u32) -> u64 {
    (1 << shift) - (va & ((1 << shift) - 1))
}

fn sparse(va: u64, shift: u32) -> Page {
    Page {
        place: None,
        left: left(va, shift),
        is_writable: true,
    }
}

fn page(entry: u64, va: u64, shift: u32) -> Result<Page, Fault> {
    // Above an address in video memory is the number of a compression tag.
    let (aperture, bits) = match (entry >> 1) & 3 {
        0 => (Aperture::Vram, 33),
        1 => return Err(Fault::Peer(va)),
        _ => (Aperture::System, 54),
    };
    let base = ((entry & ((1 << bits) - 1)) >> 8) << 12;
    let inside = va & ((1 << shift) - 1);
    Ok(Page {
        place: Some(Place {
            aperture,
            // An entry for a page of 2 MiB has no bits for what is inside of it.
            address: (base & !((1 << shift) - 1)) + inside,
        }),
        left: left(va, shift),
        is_writable: entry & READ_ONLY == 0,
    })
}

/// What a translation cache would have of some tables since it was last invalidated.
#[derive(Default)]
pub struct Tlb {
    entries: HashMap<u64, Place>,
}

/// What is new about a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was used before.
    Again,
    /// It was not used since the last invalidation.
    First,
    /// A cache might have led to this place instead.
    Stale(Place),
}

impl Tlb {
    /// A page was used. Pages count as those of the smallest size.
    pub fn seen(&mut self, va: u64, place: Place) -> Seen {
        let inside = va & ((1 << SMALL_SHIFT) - 1);
        let start = Place {
            address: place.address - inside,
            ..place
        };
        match self.entries.insert(va >> SMALL_SHIFT, start) {
            None => Seen::First,
            Some(before) if before == start => Seen::Again,
            Some(before) => Seen::Stale(before),
        }
    }

    /// A page was found not to be there: what a cache might have led to.
    pub fn missed(&mut self, va: u64) -> Option<Place> {
        self.entries.remove(&(va >> SMALL_SHIFT))
    }

    /// The driver has invalidated all.
    pub fn invalidate(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests;
