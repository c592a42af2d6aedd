// SPDX-License-Identifier: GPL-2.0

//! The parts of the test GPU.

use kernel::{
    device::{
        Bound,
        Core, //
    },
    mm::pagemap::{
        PageMap,
        PMD_PAGES, //
    },
    new_mutex,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sizes::SZ_1M,
    sync::Mutex, //
};

pub(crate) mod access;
pub(crate) mod file;
pub(crate) mod moving;
pub(crate) mod vram;
pub(crate) mod windows;

use vram::Vram;

pub(crate) const VENDOR: pci::Vendor = pci::Vendor::REDHAT_QUMRANET;
/// Inter-VM shared memory.
pub(crate) const DEVICE: u32 = 0x1110;

/// The BAR with the registers, which are not used.
const REGS_BAR: u32 = 0;

/// The BAR with the shared memory, which is the video memory.
const VRAM_BAR: u32 = 2;

/// The number of pages in a chunk.
const CHUNK_PAGES: usize = PMD_PAGES;

/// The size of a chunk in bytes.
const CHUNK_SIZE: usize = CHUNK_PAGES * PAGE_SIZE;

/// A GPU, as long as its device is bound.
#[pin_data]
pub(crate) struct Gpu<'bound> {
    /// Held by whoever takes pages or changes the windows. Has the chunk to evict next.
    #[pin]
    moving: Mutex<usize>,
    #[pin]
    map: PageMap<'bound, Vram<'bound>>,
    pdev: &'bound pci::Device<Bound>,
}

impl<'bound> Gpu<'bound> {
    /// Creates the GPU. Peers may reach the first `window` MiB of its memory, or all of it.
    pub(crate) fn new(
        pdev: &'bound pci::Device<Core<'_>>,
        window: Option<u64>,
    ) -> Result<impl PinInit<Self, Error> + 'bound> {
        let size = usize::try_from(pdev.resource_len(VRAM_BAR)?)?;
        if size == 0 || size % CHUNK_SIZE != 0 {
            dev_err!(
                pdev,
                "the memory is no multiple of {:#x} bytes\n",
                CHUNK_SIZE
            );
            return Err(EINVAL);
        }

        let window = window
            .map_or(size as u64, |mib| mib.saturating_mul(SZ_1M as u64))
            .min(size as u64)
            / CHUNK_SIZE as u64
            * CHUNK_SIZE as u64;
        let vram = Vram::new(pdev, size, window);
        let pdev: &'bound pci::Device<Bound> = pdev;

        Ok(try_pin_init!(Self {
            moving <- new_mutex!(0, "p2ptest_gpu::moving"),
            // SAFETY: This is the data behind the gate, which is dropped before `'bound` ends.
            map <- unsafe { PageMap::new(pdev.as_ref(), c"p2ptest_gpu", size, vram) },
            pdev,
        }? Error))
    }
}
