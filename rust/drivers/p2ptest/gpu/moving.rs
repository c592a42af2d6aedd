// SPDX-License-Identifier: GPL-2.0

//! Moving pages of a process to the device and home, and making room.

use super::{
    vram::Vram,
    Gpu,
    CHUNK_PAGES, //
};
use core::ops::Range;
use kernel::{
    mm::{
        migrate::{
            Migration,
            Source, //
        },
        pagemap::PageMap,
        virt::flags,
        MmWithUser, //
    },
    prelude::*, //
};

/// The page map of a GPU.
type Map<'bound> = PageMap<'bound, Vram<'bound>>;

impl<'bound> Gpu<'bound> {
    /// Moves pages of a process to the device. Returns how many.
    ///
    /// If there is not enough room, chunks are evicted, each in its turn, which is about the order
    /// in which they came into use. `go_on` is asked between any two steps.
    pub(crate) fn to_vram(
        &self,
        mm: &MmWithUser,
        mut range: Range<usize>,
        go_on: &dyn Fn() -> Result,
    ) -> Result<usize> {
        let mut next_chunk = self.moving.lock();
        if self.map.nr_in_use() == 0 {
            // Pages are taken from the first chunk on. So that is going to be the oldest.
            *next_chunk = 0;
        }
        let mut moved = 0;
        let mut made_room = false;

        while !range.is_empty() {
            go_on()?;

            let mmap = mm.mmap_read_lock();
            let (migration, next) =
                match Migration::to_device(&self.map, &mmap, range.start, range.end) {
                    Ok(ok) => ok,
                    // Pages of this VMA can not be moved.
                    Err(EINVAL) => {
                        range.start = mmap.vma_lookup(range.start).ok_or(EFAULT)?.end();
                        continue;
                    }
                    Err(err) => return Err(err),
                };

            // Evicting means to take page locks, so it can not be done while some are held.
            let needed = migration.nr_collected();
            if needed > self.nr_free() && !made_room {
                drop(migration);
                drop(mmap);
                self.make_room(&mut next_chunk, needed);
                made_room = true;
                continue;
            }
            made_room = false;

            // Who did not ask for huge pages shall not get one where there is no page yet.
            let huge_holes = migration.vma_flags() & flags::HUGEPAGE != 0;
            let copied = migration.copy(|source| fill(&self.map, source, huge_holes));
            let nr = copied.pages().nr_moved();

            self.map.counters.migrated_in.add(nr);
            moved += nr;
            range.start = next;
        }

        Ok(moved)
    }

    /// Moves pages of a process home. Returns how many.
    pub(crate) fn to_host(
        &self,
        mm: &MmWithUser,
        mut range: Range<usize>,
        go_on: &dyn Fn() -> Result,
    ) -> Result<usize> {
        let mut moved = 0;

        while !range.is_empty() {
            go_on()?;

            let mmap = mm.mmap_read_lock();
            let (migration, next) =
                match Migration::to_host(&self.map, &mmap, range.start, range.end) {
                    Ok(ok) => ok,
                    Err(EINVAL) => {
                        range.start = mmap.vma_lookup(range.start).ok_or(EFAULT)?.end();
                        continue;
                    }
                    Err(err) => return Err(err),
                };
            let nr = migration.copy()?.pages().nr_moved();

            self.map.counters.migrated_out.add(nr);
            moved += nr;
            range.start = next;
        }

        Ok(moved)
    }

    fn nr_free(&self) -> usize {
        self.map.nr_pages() - self.map.nr_in_use()
    }

    /// Evicts chunks, from `next` on, until `nr` pages are free or each chunk was tried.
    fn make_room(&self, next: &mut usize, nr: usize) {
        let chunks = self.map.nr_pages() / CHUNK_PAGES;

        for _ in 0..chunks {
            if self.nr_free() >= nr {
                return;
            }

            // A huge page that there is no large folio for is only split at first.
            for _ in 0..2 {
                let evicted = self.map.evict(Vram::pages(*next));

                self.map.counters.evicted.add(evicted);
                self.map.counters.migrated_out.add(evicted);
            }
            *next = (*next + 1) % chunks;
        }
    }
}

/// Gives a page of host memory a place on the device, if there is one.
fn fill<'a, 'bound>(map: &'a Map<'bound>, source: Source<'_, 'a, Vram<'bound>>, huge_holes: bool) {
    if source.order() > 0 && (huge_holes || !source.is_hole()) {
        if let Some(folio) = map.alloc(map, source.order()) {
            // Errors leave the page where it is.
            if copy(map, &source, folio.first()).is_ok() {
                let _ = source.migrate_to(folio);
            }
            return;
        }
    }

    source.split(|source| {
        if let Some(folio) = map.alloc(map, 0) {
            if copy(map, &source, folio.first()).is_ok() {
                let _ = source.migrate_to(folio);
            }
        }
    });
}

fn copy<'bound>(map: &Map<'bound>, source: &Source<'_, '_, Vram<'bound>>, first: usize) -> Result {
    for i in 0..1 << source.order() {
        source
            .with_page(i, |bytes| map.write_page(first + i, bytes))
            .unwrap_or(Err(EINVAL))?;
    }
    Ok(())
}
