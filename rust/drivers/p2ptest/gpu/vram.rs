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
        Active,
        Window,
        WindowPool, //
    },
    io::{
        io_project,
        Io,
        Mmio,
        PhysAddr, //
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
    new_spinlock,
    page::PAGE_SIZE,
    pci::{
        self,
        p2pdma::Provider, //
    },
    prelude::*,
    ptr::Alignment,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SpinLock, //
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

/// The state of a chunk.
#[derive(Default)]
struct Chunk {
    /// Pages in use.
    used: usize,
    /// The window, if the chunk got one when the first page was taken.
    window: Option<Active<u64>>,
    /// When the first page was taken, in terms of `Chunks::now`.
    since: u64,
}

struct Chunks {
    all: KVec<Chunk>,
    now: u64,
}

/// The memory of the device.
///
/// The fields are dropped from top to bottom: the users of windows go before the pool, and that
/// before the BAR. The pagemap that this belongs to is gone before that.
#[pin_data]
pub(crate) struct Vram<'bound> {
    #[pin]
    chunks: SpinLock<Chunks>,
    windows: KVec<Arc<Window<u64>>>,
    pool: Pin<KBox<WindowPool<Bar<'bound>>>>,
    pub(crate) counters: Counters,
    /// Added to all aliases, to see that HMM refuses what is outside of the windows.
    skew: Atomic<u64>,
    bar_start: PhysAddr,
    bar: pci::Bar<'bound>,
}

impl<'bound> Vram<'bound> {
    /// Takes possession of the BAR, whose first `window` bytes peers may reach.
    pub(crate) fn new(
        pdev: &'bound pci::Device<Core<'_>>,
        size: usize,
        window: u64,
    ) -> Result<impl PinInit<Self, Error> + 'bound> {
        let bar = pdev.iomap_region(VRAM_BAR, c"p2ptest_gpu")?;
        let bar_start = pdev.resource_start(VRAM_BAR)?;
        let provider = match Provider::new(pdev) {
            Err(e) if e == EOPNOTSUPP => None,
            provider => Some(provider?),
        };
        let pool = KBox::pin_init(
            WindowPool::new(
                Bar::new(provider),
                0..window,
                Alignment::new::<CHUNK_SIZE>(),
            ),
            GFP_KERNEL,
        )?;

        let nr = size / CHUNK_SIZE;
        let mut windows = KVec::with_capacity(nr, GFP_KERNEL)?;
        let mut chunks = KVec::with_capacity(nr, GFP_KERNEL)?;
        for i in 0..nr {
            let offset = (i * CHUNK_SIZE) as u64;

            windows.push(pool.window(offset, CHUNK_SIZE as u64)?, GFP_KERNEL)?;
            chunks.push(Chunk::default(), GFP_KERNEL)?;
        }

        Ok(try_pin_init!(Self {
            chunks <- new_spinlock!(
                Chunks {
                    all: chunks,
                    now: 0,
                },
                "p2ptest_gpu::chunks"
            ),
            windows,
            pool,
            counters: Counters {
                migrated_in: Counter::new(),
                migrated_out: Counter::new(),
                cpu_faults: Counter::new(),
                evicted: Counter::new(),
            },
            skew: Atomic::new(0),
            bar_start,
            bar,
        }? Error))
    }

    /// Returns the window pool.
    pub(crate) fn pool(&self) -> &WindowPool<Bar<'bound>> {
        &self.pool
    }

    /// Makes all aliases wrong, or right again.
    ///
    /// They are moved to where no device can be, as the BAR of another test GPU may be next to
    /// ours.
    pub(crate) fn set_bad_alias(&self, bad: bool) {
        self.skew.store(if bad { 1 << 45 } else { 0 }, Relaxed);
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

    /// Chooses the chunk to take `nr` pages from: the first that is used already and has the room,
    /// or else the first that is not used, so that whole chunks stay free for huge pages.
    fn choose(&self, nr: usize, not: usize) -> Option<usize> {
        let chunks = self.chunks.lock();
        let all = || chunks.all.iter().enumerate().skip(not);

        all()
            .find(|(_, chunk)| chunk.used > 0 && chunk.used + nr <= CHUNK_PAGES)
            .or_else(|| all().find(|(_, chunk)| chunk.used == 0))
            .map(|(i, _)| i)
    }

    /// Takes a folio. `map` is the pagemap that this is the data of.
    ///
    /// Callers hold [`Gpu::moving`](super::Gpu::moving), so that nobody else takes pages.
    pub(crate) fn alloc<'a>(
        &self,
        map: &'a PageMap<'_, Self>,
        order: u32,
    ) -> Option<DeviceFolio<'a, Self>> {
        let nr = 1 << order;
        let mut from = 0;

        loop {
            let chunk = self.choose(nr, from)?;

            self.get(chunk, nr);
            if let Some(folio) = map.alloc_in(Self::pages(chunk), order) {
                return Some(folio);
            }

            // The pages were freed just now, and the pagemap has not heard of it yet.
            self.put(chunk, nr);
            from = chunk + 1;
        }
    }

    /// Accounts for `nr` pages of a chunk, and gets a window for the first ones.
    fn get(&self, chunk: usize, nr: usize) {
        {
            let state = &mut self.chunks.lock().all[chunk];
            if state.used > 0 {
                state.used += nr;
                return;
            }
        }

        // It stays unused, because nobody else takes pages. An error here means that there is no
        // memory to keep track of the range. The chunk can be used all the same.
        let window = self.pool.acquire(&self.windows[chunk]).unwrap_or(None);

        let mut chunks = self.chunks.lock();
        chunks.now += 1;
        let now = chunks.now;
        let state = &mut chunks.all[chunk];
        state.window = window;
        state.since = now;
        state.used += nr;
    }

    /// Undoes [`Self::get`]. The last pages of a chunk give up the window, which stays mapped until
    /// another chunk needs the room.
    fn put(&self, chunk: usize, nr: usize) {
        let mut chunks = self.chunks.lock();
        let state = &mut chunks.all[chunk];

        state.used -= nr;
        if state.used == 0 {
            state.window = None;
        }
    }

    /// Returns the chunk that has been in use for the longest time, of those that are in use since
    /// after `after`, and since when.
    pub(crate) fn oldest(&self, after: u64) -> Option<(usize, u64)> {
        self.chunks
            .lock()
            .all
            .iter()
            .enumerate()
            .filter(|(_, chunk)| chunk.used > 0 && chunk.since > after)
            .map(|(i, chunk)| (i, chunk.since))
            .min_by_key(|(_, since)| *since)
    }
}

#[vtable]
// SAFETY: Windows are registered ranges of the GPU's own BAR. What `skew` adds on request leads out
// of all of them.
unsafe impl pagemap::Ops for Vram<'_> {
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
        self.put(first / CHUNK_PAGES, pages.len());
    }

    fn migrate_to_ram(map: &PageMap<'_, Self>, fault: Fault<'_>) -> Result {
        map.counters.cpu_faults.add(1);

        let moved = fault.setup(map)?.copy()?.pages().nr_moved();
        map.counters.migrated_out.add(moved);
        Ok(())
    }

    fn device_private_dma_phys(&self, index: usize) -> Option<Alias> {
        let position = self.windows.get(index / CHUNK_PAGES)?.position()?;
        let within = index % CHUNK_PAGES;
        let first = index - within;

        Some(Alias {
            phys: self.bar_start
                + position
                + (within * PAGE_SIZE) as PhysAddr
                + self.skew.load(Relaxed),
            // The window stays where it is while any page behind it is in use.
            pages: first..first + CHUNK_PAGES,
        })
    }
}
