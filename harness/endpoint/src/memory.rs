//! The memory that a device can reach by DMA: the mappings that QEMU sends over vfio-user.
//!
//! A mapping names a file and an offset. The model reads and writes the file by system call
//! and never maps it, so a guest's mistake cannot crash the model, and a two-hour run over
//! an IOMMU leaves no mappings behind. Each file is open only once, even if many mappings
//! name it: behind an IOMMU there is one mapping per page.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// The target of a DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Host memory.
    Ram,
    /// The BAR of the peer with this number, as on the command line.
    Peer(usize),
    /// Memory without a file, which QEMU itself accessed for the device.
    Bus,
}

/// Why a DMA failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No mapping holds this address.
    Unmapped(u64),
    /// The mapping is read-only.
    ReadOnly(u64),
    /// QEMU has not shared this memory.
    NotShared(u64),
    /// Bus mastering is off.
    NoBusMaster,
    /// A system call on the host failed.
    Host(String),
}

struct Mapping {
    size: u64,
    /// None for ROM, and for RAM that QEMU does not share.
    file: Option<Arc<File>>,
    offset: u64,
    is_writable: bool,
    target: Target,
}

type Identity = (u64, u64);

fn identity(file: &File) -> io::Result<Identity> {
    let meta = file.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// All mappings, by the address that the device uses.
#[derive(Default)]
pub struct Memory {
    mappings: BTreeMap<u64, Mapping>,
    files: HashMap<Identity, Weak<File>>,
    peers: Vec<PathBuf>,
    /// Bus mastering, as the driver has set it.
    pub is_bus_master: bool,
}

impl Memory {
    /// `peers`: the files that back the BARs of peers. QEMU may create them later.
    pub fn new(peers: Vec<PathBuf>) -> Self {
        Self {
            peers,
            ..Self::default()
        }
    }

    /// Adds a mapping and removes the mappings that it overlaps. A mapping without a file only
    /// records why accesses to it fail.
    pub fn map(
        &mut self,
        address: u64,
        size: u64,
        file: Option<File>,
        offset: u64,
        is_writable: bool,
    ) -> io::Result<()> {
        let ends = |start: u64| size > 0 && start.checked_add(size - 1).is_some();
        if !ends(address) || !ends(offset) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.unmap(address, size);
        let mut target = Target::Ram;
        let file = match file {
            Some(file) => {
                let identity = identity(&file)?;
                target = self.target(identity);
                Some(self.once(identity, file))
            }
            None => None,
        };
        let mapping = Mapping {
            size,
            file,
            offset,
            is_writable,
            target,
        };
        self.mappings.insert(address, mapping);
        Ok(())
    }

    fn target(&self, identity: Identity) -> Target {
        let is_it = |path: &PathBuf| {
            let meta = std::fs::metadata(path);
            meta.is_ok_and(|meta| (meta.dev(), meta.ino()) == identity)
        };
        let peer = self.peers.iter().position(is_it);
        peer.map_or(Target::Ram, Target::Peer)
    }

    fn once(&mut self, identity: Identity, file: File) -> Arc<File> {
        let known = self.files.get(&identity).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let file = Arc::new(file);
            self.files.retain(|_, file| file.strong_count() > 0);
            self.files.insert(identity, Arc::downgrade(&file));
            file
        })
    }

    /// Removes the mappings that overlap the range. QEMU also unmaps ranges that were never
    /// mapped, up to the end of the address space.
    pub fn unmap(&mut self, address: u64, size: u64) {
        if size == 0 {
            return;
        }
        let last = address.saturating_add(size - 1);
        let overlapping: Vec<u64> = self
            .mappings
            .range(..=last)
            .rev()
            // Mappings do not overlap: once one ends before the range, so do all below it.
            .take_while(|(start, mapping)| *start + (mapping.size - 1) >= address)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapping {
            self.mappings.remove(&start);
        }
    }

    fn at(&self, address: u64) -> Result<(&Mapping, u64), Refused> {
        if !self.is_bus_master {
            return Err(Refused::NoBusMaster);
        }
        let found = self.mappings.range(..=address).next_back();
        match found {
            Some((start, mapping)) if address - start < mapping.size => {
                Ok((mapping, address - start))
            }
            _ => Err(Refused::Unmapped(address)),
        }
    }

    /// Calls `each` for each piece that lies in one mapping: the file, the offset in it, and
    /// the piece's range within the `len` bytes.
    fn pieces(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut each: impl FnMut(&File, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> Result<Target, Refused> {
        let mut target = Target::Ram;
        let mut done = 0;
        while done < len {
            let address = address
                .checked_add(done as u64)
                .ok_or(Refused::Unmapped(u64::MAX))?;
            let (mapping, inside) = self.at(address)?;
            let here = usize::try_from(mapping.size - inside)
                .unwrap_or(usize::MAX)
                .min(len - done);
            let file = mapping.file.as_ref().ok_or(Refused::NotShared(address))?;
            if write && !mapping.is_writable {
                return Err(Refused::ReadOnly(address));
            }
            each(file, mapping.offset + inside, done..done + here)
                .map_err(|error| Refused::Host(error.to_string()))?;
            target = mapping.target;
            done += here;
        }
        Ok(target)
    }

    /// Reads, and returns the target.
    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<Target, Refused> {
        self.pieces(address, data.len(), false, |file, offset, part| {
            file.read_exact_at(&mut data[part], offset)
        })
    }

    /// Writes, and returns the target.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<Target, Refused> {
        self.pieces(address, data.len(), true, |file, offset, part| {
            file.write_all_at(&data[part], offset)
        })
    }

    /// Reads a big-endian number of four bytes.
    pub fn read_u32(&self, address: u64) -> Result<u32, Refused> {
        let mut data = [0; 4];
        self.read(address, &mut data)?;
        Ok(u32::from_be_bytes(data))
    }
}

/// A queue's buffer: pages that need not be contiguous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Addresses of the pages.
    pub pages: Vec<u64>,
    /// log2 of the page size.
    pub page_shift: u32,
    /// Offset of the queue in the first page.
    pub offset: u64,
}

impl Buffer {
    fn pieces(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let size = 1u64 << self.page_shift;
        let mut done = 0;
        while done < len {
            let at = self.offset + at + done as u64;
            let inside = at & (size - 1);
            // The driver chooses the pages' addresses, so they can be any number.
            let address = usize::try_from(at >> self.page_shift)
                .ok()
                .and_then(|page| self.pages.get(page))
                .and_then(|page| page.checked_add(inside))
                .ok_or(Refused::Unmapped(at))?;
            let here = usize::try_from(size - inside)
                .unwrap_or(usize::MAX)
                .min(len - done);
            each(address, done..done + here)?;
            done += here;
        }
        Ok(())
    }

    /// Reads from the queue.
    pub fn read(&self, memory: &Memory, at: u64, data: &mut [u8]) -> Result<(), Refused> {
        self.pieces(at, data.len(), |address, part| {
            memory.read(address, &mut data[part]).map(drop)
        })
    }

    /// Writes to the queue.
    pub fn write(&self, memory: &Memory, at: u64, data: &[u8]) -> Result<(), Refused> {
        self.pieces(at, data.len(), |address, part| {
            memory.write(address, &data[part]).map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file
    }

    fn memory() -> Memory {
        Memory {
            is_bus_master: true,
            ..Memory::default()
        }
    }

    #[test]
    fn dma_goes_where_the_mappings_say() {
        let mut memory = memory();
        let ram = file(0x3000);
        memory
            .map(0x1000, 0x1000, Some(ram.try_clone().unwrap()), 0x2000, true)
            .unwrap();
        memory
            .map(0x2000, 0x1000, Some(ram.try_clone().unwrap()), 0, true)
            .unwrap();
        assert_eq!(memory.write(0x1ffe, &[1, 2, 3, 4]), Ok(Target::Ram));
        let mut seen = [0; 2];
        ram.read_exact_at(&mut seen, 0x2ffe).unwrap();
        assert_eq!(seen, [1, 2]);
        ram.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [3, 4]);
        assert_eq!(memory.files.len(), 1);
        let mut back = [0; 4];
        assert_eq!(memory.read(0x1ffe, &mut back), Ok(Target::Ram));
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn outside_of_the_mappings_nothing_is_reached() {
        let mut memory = memory();
        memory
            .map(0x1000, 0x1000, Some(file(0x1000)), 0, false)
            .unwrap();
        assert_eq!(
            memory.read(0xfff, &mut [0; 2]),
            Err(Refused::Unmapped(0xfff))
        );
        assert_eq!(
            memory.read(0x1fff, &mut [0; 2]),
            Err(Refused::Unmapped(0x2000))
        );
        assert_eq!(memory.write(0x1000, &[0]), Err(Refused::ReadOnly(0x1000)));
        assert_eq!(
            memory.read(u64::MAX, &mut [0; 2]),
            Err(Refused::Unmapped(u64::MAX))
        );
        memory.unmap(0xfef0_0000, 0xffff_ffff_0110_0000);
        memory.unmap(0, u64::MAX);
        assert_eq!(memory.mappings.len(), 0);
        memory.is_bus_master = false;
        assert_eq!(memory.read(0x1000, &mut [0]), Err(Refused::NoBusMaster));
    }

    #[test]
    fn what_overlaps_is_replaced() {
        let mut memory = memory();
        memory
            .map(0x0000, 0x1000, Some(file(0x1000)), 0, true)
            .unwrap();
        memory
            .map(0x1000, 0x1000, Some(file(0x1000)), 0, true)
            .unwrap();
        memory
            .map(0x2000, 0x1000, Some(file(0x1000)), 0, true)
            .unwrap();
        memory.unmap(0x1800, 0x10);
        assert_eq!(memory.mappings.len(), 2);
        memory.unmap(0x2800, 0);
        assert_eq!(memory.mappings.len(), 2);
        memory
            .map(0x0800, 0x3000, Some(file(0x3000)), 0, true)
            .unwrap();
        assert_eq!(memory.mappings.len(), 1);
    }

    #[test]
    fn bytes_of_a_peer_are_told_apart() {
        let bar = tempfile::NamedTempFile::new().unwrap();
        bar.as_file().set_len(0x1000).unwrap();
        let mut memory = Memory::new(vec![bar.path().to_owned()]);
        memory.is_bus_master = true;
        memory
            .map(0, 0x1000, Some(bar.reopen().unwrap()), 0, true)
            .unwrap();
        assert_eq!(memory.write(0, &[1]), Ok(Target::Peer(0)));
    }

    #[test]
    fn a_buffer_crosses_its_pages() {
        let mut memory = memory();
        memory.map(0, 0x4000, Some(file(0x4000)), 0, true).unwrap();
        let buffer = Buffer {
            pages: vec![0x3000, 0x1000],
            page_shift: 12,
            offset: 0xff0,
        };
        buffer.write(&memory, 14, &[1, 2, 3, 4]).unwrap();
        let mut seen = [0; 4];
        buffer.read(&memory, 14, &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 3, 4]);
        memory.read(0x1000, &mut seen[..2]).unwrap();
        assert_eq!(seen[..2], [3, 4]);
        assert!(buffer.read(&memory, 0x2000, &mut seen).is_err());
    }
}
