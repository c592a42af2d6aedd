// SPDX-License-Identifier: GPL-2.0

//! Migration between host memory and device private memory.
//!
//! A migration moves the pages that a range of addresses has at the moment, one for one, and the
//! page tables follow. It takes the steps below, in this order, and each step is a type of its own,
//! so that none can be left out or done twice:
//!
//! 1. [`Collected`]: the pages are taken out of the page tables, locked, and checked to have no
//!    other user. Nobody can access them.
//! 2. [`Copied`]: those that are to move have a new folio with the same content.
//! 3. [`Moved`]: the new folios have taken the place of the old ones, as far as the core allowed
//!    that. [`Migration::moved`] tells for which pages.
//! 4. Drop: the page tables get entries for the new pages, or for the old ones where a page did not
//!    move. A hole has its entry since [`Moved`].
//!
//! A [`Migration`] can be dropped at any step. Before [`Moved`] this means that nothing has
//! happened.
//!
//! - To move pages into a [`PageMap`], start at [`Migration::to_device`].
//! - To move them back because somebody wants so, start at [`Migration::to_host`].
//! - To move them back because the CPU touched one, start at [`Fault::setup`].
//! - To move them back because the device needs the room, without knowing whose they are, use
//!   [`PageMap::evict`].
//!
//! # Large folios
//!
//! Huge pages move in one piece if the other side can allocate a large folio. If not, they are
//! split and their pages move one by one. On the way to the device the driver decides, see
//! [`Source::split`]; on the way home this module falls back by itself.
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h)

use crate::{
    bindings,
    mm::{
        pagemap::{
            DeviceFolio,
            Ops,
            PageMap,
            PMD_PAGES, //
        },
        virt::vm_flags_t,
        MmapReadGuard, //
    },
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

mod evict;
mod fault;
mod folio;
mod raw;

pub use self::{
    fault::Fault,
    folio::HostFolio, //
};
pub(super) use self::{
    folio::unlock_and_put,
    raw::Arrays, //
};

use self::{
    folio::with_folio_page,
    raw::{
        entry_page,
        pfn_entry,
        Raw,
        PFN_COMPOUND,
        PFN_VALID, //
    },
};

/// Step of a [`Migration`]: the pages are out of the page tables.
pub enum Collected {}

/// Step of a [`Migration`]: the pages to move have a copy.
pub enum Copied {}

/// Step of a [`Migration`]: the copies took the place of the pages, where possible.
pub enum Moved {}

/// Direction of a [`Migration`]: into device private memory.
pub enum ToDevice {}

/// Direction of a [`Migration`]: into host memory.
pub enum ToHost {}

/// A migration of the pages in a range of addresses.
///
/// `D` is the direction and `S` the [step](self) that was taken last.
///
/// While this exists, an access to one of the pages by the CPU waits. It should not exist for long.
#[must_use = "pages that were not moved before stay where they are"]
pub struct Migration<'a, T: Ops, D, S> {
    raw: Raw<'a>,
    map: &'a PageMap<'a, T>,
    /// For [`ToHost`]: a folio for the first page, allocated in advance.
    first: Option<HostFolio>,
    _step: PhantomData<(D, S)>,
}

impl<'a, T: Ops, D, S> Migration<'a, T, D, S> {
    fn new(raw: Raw<'a>, map: &'a PageMap<'a, T>, first: Option<HostFolio>) -> Self {
        Self {
            raw,
            map,
            first,
            _step: PhantomData,
        }
    }

    fn into_step<S2>(self) -> Migration<'a, T, D, S2> {
        Migration::new(self.raw, self.map, self.first)
    }

    /// Sets up a migration of what is between `start` and `end`, up to the next boundary of a VMA
    /// or of a huge page, and returns also where that is.
    fn setup(
        map: &'a PageMap<'_, T>,
        mmap: &'a MmapReadGuard<'_>,
        start: usize,
        end: usize,
        flags: bindings::migrate_vma_direction,
    ) -> Result<(Self, usize)> {
        let start = start & PAGE_MASK;
        let vma = mmap.vma_lookup(start).ok_or(EFAULT)?;
        let huge = PMD_PAGES * PAGE_SIZE;
        let end = (end & PAGE_MASK)
            .min(vma.end())
            .min((start & !(huge - 1)).saturating_add(huge));
        if start >= end {
            return Err(EINVAL);
        }

        // SAFETY:
        // - `vma` was just found, and the mmap lock is held for `'a`.
        // - There is no fault page.
        // - The owner is that of a pagemap.
        let raw = unsafe {
            Raw::setup(
                vma.as_ptr(),
                start..end,
                map.owner(),
                flags | bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND,
                core::ptr::null_mut(),
            )
        }?;

        Ok((Self::new(raw, map, None), end))
    }

    /// Returns the flags of the VMA that the pages are in.
    pub fn vma_flags(&self) -> vm_flags_t {
        // SAFETY: By the type invariants of `Raw` the VMA is valid. The mmap lock is held, so that
        // only flags change that the lock of the VMA is enough for, atomically.
        unsafe { (&raw const (*self.raw.args.vma).__bindgen_anon_2.vm_flags).read_volatile() }
    }

    /// Returns the number of pages, and of holes that can be populated, that can be moved.
    pub fn nr_collected(&self) -> usize {
        (0..self.raw.args.npages)
            .filter_map(|i| self.raw.order(i))
            .map(|order| 1 << order)
            .sum()
    }
}

impl<'a, T: Ops> Migration<'a, T, ToDevice, Collected> {
    /// Begins to move pages of a process to the device.
    ///
    /// Takes what is between `start` and `end` up to the next boundary of a VMA or a huge page,
    /// whichever comes first, and also returns the address where it ended: callers go on from
    /// there.
    ///
    /// Pages that are not anonymous memory, or that somebody else uses, stay where they are. This
    /// is no error. It fails with [`EFAULT`] if nothing is mapped at `start`, and with [`EINVAL`]
    /// for a VMA whose pages can not be migrated at all.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::{
    ///     mm::{
    ///         migrate::Migration,
    ///         pagemap::{
    ///             Ops,
    ///             PageMap, //
    ///         },
    ///         MmWithUser, //
    ///     },
    ///     page::PAGE_SIZE,
    ///     prelude::*, //
    /// };
    ///
    /// trait Vram: Ops {
    ///     fn write(&self, index: usize, bytes: Option<&[u8; PAGE_SIZE]>);
    /// }
    ///
    /// /// Moves as much as there is room for, page by page.
    /// fn to_device<T: Vram>(
    ///     map: &PageMap<'_, T>,
    ///     mm: &MmWithUser,
    ///     mut start: usize,
    ///     end: usize,
    /// ) -> Result<usize> {
    ///     let mmap = mm.mmap_read_lock();
    ///     let mut pages = 0;
    ///
    ///     while start < end {
    ///         let (migration, next) = Migration::to_device(map, &mmap, start, end)?;
    ///
    ///         let copied = migration.copy(|source| {
    ///             source.split(|source| {
    ///                 let Some(folio) = map.alloc_in(0..map.nr_pages(), 0) else {
    ///                     return;
    ///                 };
    ///                 source.with_page(0, |bytes| map.write(folio.first(), bytes));
    ///                 let _ = source.migrate_to(folio);
    ///             })
    ///         });
    ///         pages += copied.pages().nr_moved();
    ///         start = next;
    ///     }
    ///     Ok(pages)
    /// }
    /// ```
    pub fn to_device(
        map: &'a PageMap<'_, T>,
        mmap: &'a MmapReadGuard<'_>,
        start: usize,
        end: usize,
    ) -> Result<(Self, usize)> {
        Self::setup(
            map,
            mmap,
            start,
            end,
            bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_SYSTEM,
        )
    }

    /// Calls `fill` for each page that can be moved, huge page, or hole that can be populated.
    ///
    /// It should take a folio of the same order from the pagemap, copy the content to it by means
    /// of the device, and call [`Source::migrate_to`]. If it does not, the page stays.
    pub fn copy(
        mut self,
        mut fill: impl FnMut(Source<'_, 'a, T>),
    ) -> Migration<'a, T, ToDevice, Copied> {
        let mut i = 0;

        while i < self.raw.args.npages {
            let order = self.raw.order(i);

            if let Some(order) = order {
                fill(Source {
                    arrays: &mut self.raw.arrays,
                    entry: i,
                    within: 0,
                    address: self.raw.args.start + i * PAGE_SIZE,
                    order,
                    map: self.map,
                });
            }
            i += 1 << order.unwrap_or(0);
        }

        self.into_step()
    }
}

/// A page of host memory, a huge page, or a hole, that can be moved to the device.
///
/// # Invariants
///
/// - Entry `entry` of `arrays.src` is to be migrated. If it has a folio, the folio is locked, in no
///   page table, and has no other user.
/// - This stands for the whole entry if `within` is 0 and `order` is that of the entry, or for the
///   page `within` of it if `order` is 0.
pub struct Source<'m, 'a, T: Ops> {
    arrays: &'m mut Arrays,
    entry: usize,
    within: usize,
    address: usize,
    order: u32,
    map: &'a PageMap<'a, T>,
}

impl<'a, T: Ops> Source<'_, 'a, T> {
    /// Returns the address in the process.
    #[inline]
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the order: `1 << order` pages.
    #[inline]
    pub fn order(&self) -> u32 {
        self.order
    }

    /// Returns whether there is no page yet. The process expects zeroes then.
    #[inline]
    pub fn is_hole(&self) -> bool {
        self.arrays.src[self.entry] & PFN_VALID == 0
    }

    /// Runs `f` with the content of page `nth`, or [`None`] for a hole.
    ///
    /// Does nothing and returns [`None`] if there is no such page.
    pub fn with_page<R>(
        &self,
        nth: usize,
        f: impl FnOnce(Option<&[u8; PAGE_SIZE]>) -> R,
    ) -> Option<R> {
        if nth >= 1 << self.order {
            return None;
        }

        let Some(page) = entry_page(self.arrays.src[self.entry]) else {
            return Some(f(None));
        };

        // SAFETY: The entry is of the first page of a folio in host memory, because migrations to
        // the device select only these, and `within + nth` is less than its number of pages.
        Some(unsafe {
            with_folio_page(page.cast(), self.within + nth, |bytes| {
                // SAFETY: The address is valid. By the type invariants nobody writes to the page:
                // the folio is locked, in no page table, and has no other user.
                f(Some(&*bytes))
            })
        })
    }

    /// Moves the page to `folio`, which has the content now: a copy by the device is complete, and
    /// not only begun. Peers that do DMA to the device may reach the page with the next step.
    ///
    /// Fails with [`EINVAL`] if the order or the pagemap is not the right one. `folio` is free
    /// again then.
    pub fn migrate_to(self, folio: DeviceFolio<'a, T>) -> Result {
        if folio.order() != self.order || !core::ptr::eq(folio.map(), self.map) {
            return Err(EINVAL);
        }

        let compound = if self.order > 0 { PFN_COMPOUND } else { 0 };
        self.arrays.dst[self.entry + self.within] = pfn_entry(folio.into_pfn()) | compound;
        Ok(())
    }

    /// Calls `f` for each single page.
    ///
    /// This is for a huge page when there is no large folio for it. If `f` moves only some of the
    /// pages, the first must be among them; a hole is populated as a whole or not at all. Otherwise
    /// nothing of the huge page moves.
    pub fn split(self, mut f: impl FnMut(Source<'_, 'a, T>)) {
        for i in 0..1 << self.order {
            f(Source {
                arrays: &mut *self.arrays,
                entry: self.entry,
                within: self.within + i,
                address: self.address + i * PAGE_SIZE,
                order: 0,
                map: self.map,
            });
        }
    }
}

impl<'a, T: Ops> Migration<'a, T, ToHost, Collected> {
    /// Begins to move pages of a process from the device to host memory.
    ///
    /// Takes only pages in `map`. Otherwise like [`Migration::to_device`].
    pub fn to_host(
        map: &'a PageMap<'_, T>,
        mmap: &'a MmapReadGuard<'_>,
        start: usize,
        end: usize,
    ) -> Result<(Self, usize)> {
        Self::setup(
            map,
            mmap,
            start,
            end,
            bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
        )
    }

    /// Allocates host memory and copies the pages to it with [`Ops::copy_to_host`].
    ///
    /// If that fails for one page, all pages stay on the device.
    pub fn copy(mut self) -> Result<Migration<'a, T, ToHost, Copied>> {
        let mut prepared = self.first.take();
        let mut i = 0;

        while i < self.raw.args.npages {
            let order = self.raw.order(i).unwrap_or(0);

            if self.raw.order(i).is_some() {
                // Holes are collected as well, but there is nothing to bring home.
                if let Some(page) = entry_page(self.raw.arrays.src[i]) {
                    self.copy_folio(i, page, order, prepared.take())?;
                }
            }
            i += 1 << order;
        }

        Ok(self.into_step())
    }

    fn copy_folio(
        &mut self,
        entry: usize,
        page: NonNull<bindings::page>,
        order: u32,
        prepared: Option<HostFolio>,
    ) -> Result {
        // SAFETY: The page is valid, the entry has a reference to it.
        let pfn = unsafe { bindings::page_to_pfn(page.as_ptr()) };
        let index = self.map.index(pfn).ok_or(EIO)?;
        let vma = self.raw.args.vma;
        let large = prepared
            .filter(|folio| folio.order() == order)
            // SAFETY: The VMA is valid and locked by the type invariants of `Raw`, and a migration
            // stays within it.
            .or_else(|| unsafe { HostFolio::for_vma(vma, self.raw.address(entry), order) });

        if let Some(mut folio) = large {
            self.map.copy_to_host(index, &mut folio)?;
            self.raw.arrays.dst[entry] = folio.into_entry();
            return Ok(());
        }
        if order == 0 {
            return Err(ENOMEM);
        }

        // The core splits the huge page when it finds single pages as its destination.
        for i in entry..entry + (1 << order) {
            // SAFETY: As above.
            let mut folio =
                unsafe { HostFolio::for_vma(vma, self.raw.address(i), 0) }.ok_or(ENOMEM)?;

            self.map.copy_to_host(index + i - entry, &mut folio)?;
            self.raw.arrays.dst[i] = folio.into_entry();
        }
        Ok(())
    }
}

impl<'a, T: Ops, D> Migration<'a, T, D, Copied> {
    /// Lets the copies take the place of the pages.
    ///
    /// The core may still refuse that for some, see [`Migration::moved`].
    pub fn pages(mut self) -> Migration<'a, T, D, Moved> {
        self.raw.move_pages();
        self.into_step()
    }
}

impl<T: Ops, D> Migration<'_, T, D, Moved> {
    /// Calls `f` with the address of each folio that moved, and its number of pages.
    ///
    /// It can not be accessed before the migration is dropped, so this is when a driver updates the
    /// page tables of its device.
    pub fn moved(&self, mut f: impl FnMut(usize, usize)) {
        self.raw
            .arrays
            .for_each_moved(self.raw.args.npages, |i, nr| f(self.raw.address(i), nr));
    }

    /// Returns how many pages moved.
    pub fn nr_moved(&self) -> usize {
        let mut sum = 0;
        self.moved(|_, nr| sum += nr);
        sum
    }
}
