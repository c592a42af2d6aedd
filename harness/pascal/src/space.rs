//! Physical addresses: video memory, and host memory, which the GPU reaches by DMA.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use endpoint::memory::Memory;
use serde::Serialize;

/// The memory of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aperture {
    /// Video memory.
    Vram,
    /// Host memory, by bus address.
    System,
}

/// A physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Place {
    /// The memory.
    pub aperture: Aperture,
    /// The address in that memory.
    pub address: u64,
}

impl Place {
    /// In video memory.
    pub fn vram(address: u64) -> Self {
        Self {
            aperture: Aperture::Vram,
            address,
        }
    }

    /// The place `bytes` further on. The address may wrap around; no memory is there.
    pub fn after(self, bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(bytes),
            ..self
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.aperture {
            Aperture::Vram => "vram",
            Aperture::System => "system",
        };
        write!(f, "{name} {:#x}", self.address)
    }
}

/// Why an access failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A page directory has no entry for this address.
    NoTable(u64),
    /// A page table has no valid entry for this address.
    NoPage(u64),
    /// The address is above the instance block's limit.
    Limit(u64),
    /// A write to a read-only page.
    ReadOnly(u64),
    /// The entry names the memory of another GPU.
    Peer(u64),
    /// The instance block does not select version 2 of the page tables.
    Version(u64),
    /// The command line requested the failure.
    Injected,
    /// No memory is at the physical address.
    Nothing(Place, String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTable(va) => write!(f, "no page table for {va:#x}"),
            Self::NoPage(va) => write!(f, "no page at {va:#x}"),
            Self::Limit(va) => write!(f, "{va:#x} is above the limit"),
            Self::ReadOnly(va) => write!(f, "the page at {va:#x} is read-only"),
            Self::Peer(va) => write!(f, "the page at {va:#x} is in a peer's memory"),
            Self::Version(inst) => write!(f, "page tables of instance {inst:#x} are of version 1"),
            Self::Injected => write!(f, "as was asked for"),
            Self::Nothing(place, why) => write!(f, "{place}: {why}"),
        }
    }
}

const BLOCK: u64 = 4096;
/// Limit of cached blocks: more than the page tables that nouveau uses at a time.
const CACHED_BLOCKS: usize = 256;

/// A cache of file blocks for small reads. An access through a BAR reads up to eight page
/// table entries, and a system call for each would take too long.
#[derive(Default)]
struct Cache(Mutex<HashMap<u64, Box<[u8; BLOCK as usize]>>>);

impl Cache {
    /// Reads bytes within one block.
    fn read(&self, file: &File, address: u64, data: &mut [u8]) -> io::Result<()> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (block, at) = (address / BLOCK, (address % BLOCK) as usize);
        if !blocks.contains_key(&block) {
            let mut read = Box::new([0; BLOCK as usize]);
            file.read_exact_at(&mut read[..], block * BLOCK)?;
            if blocks.len() >= CACHED_BLOCKS {
                blocks.clear();
            }
            blocks.insert(block, read);
        }
        data.copy_from_slice(&blocks[&block][at..at + data.len()]);
        Ok(())
    }

    /// Drops the blocks of these bytes, which have changed.
    fn forget(&self, address: u64, len: usize) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = address + len as u64;
        if len as u64 <= BLOCK {
            for block in address / BLOCK..end.div_ceil(BLOCK) {
                blocks.remove(&block);
            }
        } else {
            blocks.retain(|block, _| (block + 1) * BLOCK <= address || block * BLOCK >= end);
        }
    }
}

/// Video memory: a sparse file.
pub struct Vram {
    file: File,
    size: u64,
    /// None if another process writes the file.
    cache: Option<Cache>,
}

impl Vram {
    /// Video memory in the file at `path`, or in an unnamed file.
    pub fn new(path: Option<&Path>, size: u64) -> Result<Self> {
        let file = match path {
            Some(path) => OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)
                .with_context(|| path.display().to_string())?,
            None => tempfile::tempfile_in("/dev/shm")
                .or_else(|_| tempfile::tempfile())
                .context("video memory")?,
        };
        file.set_len(size).context("video memory")?;
        Ok(Self {
            file,
            size,
            cache: Some(Cache::default()),
        })
    }

    /// Opens the video memory of a running model, to inspect it from outside.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            file,
            size,
            cache: None,
        })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Clears the memory.
    pub fn clear(&mut self) -> io::Result<()> {
        self.cache = Some(Cache::default());
        self.file.set_len(0)?;
        self.file.set_len(self.size)
    }

    fn check(&self, address: u64, len: usize) -> io::Result<()> {
        let end = address.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.size) {
            Ok(())
        } else {
            Err(io::Error::other("beyond the end"))
        }
    }

    /// Reads.
    pub fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.check(address, data.len())?;
        let is_small = data.len() <= 8 && address % BLOCK + data.len() as u64 <= BLOCK;
        match &self.cache {
            Some(cache) if is_small => cache.read(&self.file, address, data),
            _ => self.file.read_exact_at(data, address),
        }
    }

    /// Writes.
    pub fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.check(address, data.len())?;
        // A failed write may have written a part.
        let written = self.file.write_all_at(data, address);
        if let Some(cache) = &self.cache {
            cache.forget(address, data.len());
        }
        written
    }
}

/// The physical address space.
#[derive(Clone, Copy)]
pub struct Space<'a> {
    /// Video memory.
    pub vram: &'a Vram,
    /// Host memory.
    pub memory: &'a Memory,
}

impl Space<'_> {
    /// Reads.
    pub fn read(&self, place: Place, data: &mut [u8]) -> Result<(), Fault> {
        let done = match place.aperture {
            Aperture::Vram => {
                let read = self.vram.read(place.address, data);
                read.map_err(|error| error.to_string())
            }
            Aperture::System => {
                let read = self.memory.read(place.address, data);
                read.map(drop).map_err(|refused| format!("{refused:?}"))
            }
        };
        done.map_err(|why| Fault::Nothing(place, why))
    }

    /// Writes.
    pub fn write(&self, place: Place, data: &[u8]) -> Result<(), Fault> {
        let done = match place.aperture {
            Aperture::Vram => {
                let written = self.vram.write(place.address, data);
                written.map_err(|error| error.to_string())
            }
            Aperture::System => {
                let written = self.memory.write(place.address, data);
                written.map(drop).map_err(|refused| format!("{refused:?}"))
            }
        };
        done.map_err(|why| Fault::Nothing(place, why))
    }

    /// Reads a number of eight bytes.
    pub fn read_u64(&self, place: Place) -> Result<u64, Fault> {
        let mut data = [0; 8];
        self.read(place, &mut data)?;
        Ok(u64::from_le_bytes(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Accesses to 64 KiB of video memory: address, the byte to write or none to read, length.
    fn accesses() -> impl Strategy<Value = Vec<(u64, Option<u8>, usize)>> {
        let len = prop_oneof![1..=8_usize, 1..=20_000_usize];
        let access = (0..0x1_0000_u64, proptest::option::of(any::<u8>()), len);
        proptest::collection::vec(access, 1..60)
    }

    proptest! {
        #[test]
        fn a_read_returns_what_was_written_last(accesses in accesses()) {
            let mut vram = Vram::new(None, 0x1_0000).unwrap();
            let mut bytes = vec![0; 0x1_0000];
            for (address, byte, len) in accesses {
                let at = address as usize;
                let is_inside = at + len <= bytes.len();
                match byte {
                    Some(0) => {
                        vram.clear().unwrap();
                        bytes.fill(0);
                    }
                    Some(byte) => {
                        let written = vram.write(address, &vec![byte; len]);
                        prop_assert_eq!(written.is_ok(), is_inside);
                        if is_inside {
                            bytes[at..at + len].fill(byte);
                        }
                    }
                    None => {
                        let mut data = vec![0; len];
                        let read = vram.read(address, &mut data);
                        prop_assert_eq!(read.is_ok(), is_inside);
                        if is_inside {
                            prop_assert_eq!(&data[..], &bytes[at..at + len]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn whoever_looks_from_outside_sees_each_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vram");
        let vram = Vram::new(Some(&path), 0x1000).unwrap();
        let outside = Vram::open(&path).unwrap();
        for byte in [1, 2] {
            vram.write(8, &[byte]).unwrap();
            let mut data = [0];
            outside.read(8, &mut data).unwrap();
            assert_eq!(data, [byte]);
        }
    }
}
