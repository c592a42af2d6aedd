// SPDX-License-Identifier: GPL-2.0

//! Video memory: access to it, which of it is free, and the aliases.

use super::{
    windows::Bar,
    CHUNK_PAGES,
    CHUNK_SIZE,
    VRAM_BAR, //
};
use core::ops::Range;
use kernel::{
    device::Core,
    gpu::window::{
        Window,
        WindowPool, //
    },
    io::{
        io_project,
        Io,
        Mmio, //
    },
    mm::{
        migrate::{
            Fault,
            HostFolio, //
        },
        pagemap::{
            self,
            Alias,
            DeviceFolio,
            PageMap, //
        },
    },
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    uapi, //
};

/// What a page looks like after it was freed.
static POISON: [u8; PAGE_SIZE] = [uapi::P2PTEST_GPU_POISON as u8; PAGE_SIZE];

/// What a page looks like that the process has not written to yet.
static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// A counter of events.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    const fn new() -> Self {
        Self(Atomic::new(0))
    }

    pub(crate) fn add(&self, nr: usize) {
        self.0.add(nr as u64, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What has happened so far. `struct p2ptest_gpu_info` describes the fields.
pub(crate) struct Counters {
    pub(crate) migrated_in: Counter,
    pub(crate) migrated_out: Counter,
    pub(crate) cpu_faults: Counter,
    pub(crate) evicted: Counter,
}

/// The memory of the device.
///
/// The fields are dropped from top to bottom: the windows go before the pool, and that before the
/// BAR. The pagemap that this belongs to is gone before that.
pub(crate) struct Vram<'bound> {
    /// The window of each chunk. Its users are the pages of the chunk that are in use.
    windows: KVec<Window<Bar<'bound>>>,
    pool: Arc<WindowPool<Bar<'bound>>>,
    pub(crate) counters: Counters,
    bar: pci::Bar<'bound>,
}

impl<'bound> Vram<'bound> {
    /// Takes possession of the BAR, whose first `visible` bytes peers may reach.
    pub(crate) fn new(
        pdev: &'bound pci::Device<Core<'_>>,
        size: usize,
        visible: u64,
    ) -> Result<Self> {
        let bar = pdev.iomap_region(VRAM_BAR, c"p2ptest_gpu")?;
        let nr = size / CHUNK_SIZE;
        let pool = WindowPool::new(Bar::new(pdev, 0..visible)?, nr)?;
        let mut windows = KVec::with_capacity(nr, GFP_KERNEL)?;

        for i in 0..nr {
            windows.push(Window::new(&pool, (i * CHUNK_SIZE) as u64)?, GFP_KERNEL)?;
        }

        Ok(Self {
            windows,
            pool,
            counters: Counters {
                migrated_in: Counter::new(),
                migrated_out: Counter::new(),
                cpu_faults: Counter::new(),
                evicted: Counter::new(),
            },
            bar,
        })
    }

    /// Returns the window pool.
    pub(crate) fn pool(&self) -> &WindowPool<Bar<'bound>> {
        &self.pool
    }

    /// Returns a part of a page of the device.
    fn bytes(&self, index: usize, within: Range<usize>) -> Result<Mmio<'_, [u8]>> {
        let bytes: Mmio<'_, [u8]> = (&self.bar).try_cast_slice()?;
        let start = index * PAGE_SIZE;

        Ok(io_project!(bytes, [try: start + within.start..start + within.end]))
    }

    /// Reads from a page, from `offset` on.
    pub(crate) fn read(&self, index: usize, offset: usize, dst: &mut [u8]) -> Result {
        self.bytes(index, offset..offset + dst.len())?
            .copy_to_slice(dst);
        Ok(())
    }

    /// Writes to a page, from `offset` on.
    pub(crate) fn write(&self, index: usize, offset: usize, src: &[u8]) -> Result {
        self.bytes(index, offset..offset + src.len())?
            .copy_from_slice(src);
        Ok(())
    }

    /// Writes a page of a process, or zeroes if it has none.
    pub(crate) fn write_page(&self, index: usize, src: Option<&[u8; PAGE_SIZE]>) -> Result {
        self.write(index, 0, src.unwrap_or(&ZEROES))
    }

    /// Returns the pages of a chunk.
    pub(crate) fn pages(chunk: usize) -> Range<usize> {
        chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES
    }

    /// Takes a folio. `map` is the pagemap that this is the data of.
    ///
    /// Callers hold [`Gpu::moving`](super::Gpu::moving), so that the windows do not change.
    pub(crate) fn alloc<'a>(
        &self,
        map: &'a PageMap<'_, Self>,
        order: u32,
    ) -> Option<DeviceFolio<'a, Self>> {
        let folio = map.alloc_in(0..map.nr_pages(), order)?;

        // No process has the folio yet, so that nobody has asked for its alias.
        self.windows
            .get(folio.first() / CHUNK_PAGES)?
            .acquire(folio.pages().len());
        Some(folio)
    }
}

#[vtable]
impl pagemap::Ops for Vram<'_> {
    fn copy_to_host(&self, first: usize, dst: &mut HostFolio) -> Result {
        for i in 0..dst.nr_pages() {
            dst.with_page(i, |bytes| self.read(first + i, 0, bytes))
                .unwrap_or(Err(EINVAL))?;
        }
        Ok(())
    }

    fn folio_free(&self, first: usize, order: u32) {
        let pages = first..first + (1 << order);

        for index in pages.clone() {
            // The page is in the BAR: this can not fail.
            let _ = self.write(index, 0, &POISON);
        }
        if let Some(window) = self.windows.get(first / CHUNK_PAGES) {
            kernel::warn_on!(!window.release(pages.len()));
        }
    }

    fn migrate_to_ram(map: &PageMap<'_, Self>, fault: Fault<'_>) -> Result {
        map.counters.cpu_faults.add(1);

        let moved = fault.setup(map)?.copy()?.pages().nr_moved();
        map.counters.migrated_out.add(moved);
        Ok(())
    }

    fn device_private_dma_phys(&self, index: usize) -> Option<Alias<'_>> {
        let position = self.windows.get(index / CHUNK_PAGES)?.position()?;
        let within = index % CHUNK_PAGES;
        let first = index - within;

        // The window stays where it is while any page behind it is in use.
        self.pool.hardware().alias(
            position + (within * PAGE_SIZE) as u64,
            first..first + CHUNK_PAGES,
        )
    }
}
