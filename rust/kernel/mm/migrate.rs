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
//!    move.
//!
//! A [`Migration`] can be dropped at any step. Before [`Moved`] this means that nothing has happened.
//!
//! - To move pages into a [`PageMap`], start at [`Migration::to_device`].
//! - To move them back because somebody wants so, start at [`Migration::to_host`].
//! - To move them back because the CPU touched one, start at [`Fault::setup`].
//! - To move them back because the device needs the room, without knowing whose they are, use
//!   [`PageMap::evict`].
//!
//! # Large folios
//!
//! Huge pages move in one piece if a large folio can be had on the other side. If not, they are split
//! and their pages move one by one. On the way to the device it is the driver who decides, see
//! [`Source::split`]; on the way home this module falls back by itself.
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h)

use crate::{
    bindings,
    error::to_result,
    mm::{
        pagemap::{
            DeviceFolio,
            Ops,
            PageMap,
            PMD_ORDER,
            PMD_PAGES, //
        },
        virt::vm_flags_t,
        MmapReadGuard, //
    },
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    },
    types::NotThreadSafe, //
};
use core::{
    marker::PhantomData,
    ops::Range,
    ptr::NonNull, //
};

const PFN_VALID: usize = bindings::MIGRATE_PFN_VALID as usize;
const PFN_MIGRATE: usize = bindings::MIGRATE_PFN_MIGRATE as usize;
const PFN_COMPOUND: usize = bindings::MIGRATE_PFN_COMPOUND as usize;
const PFN_SHIFT: u32 = bindings::MIGRATE_PFN_SHIFT;

/// Releases the lock of a folio and a reference to it.
///
/// # Safety
///
/// The caller must own the lock and a reference of `folio`, and gives both up.
pub(super) unsafe fn unlock_and_put(folio: *mut bindings::folio) {
    // SAFETY: The caller owns the lock.
    unsafe { bindings::folio_unlock(folio) };

    // SAFETY: The caller owns the reference.
    unsafe { bindings::folio_put(folio) };
}

/// Returns the page of an entry of the `src` or `dst` array, if it has one.
fn entry_page(entry: usize) -> Option<NonNull<bindings::page>> {
    if entry & PFN_VALID == 0 {
        return None;
    }

    // SAFETY: Only arithmetic.
    NonNull::new(unsafe { bindings::pfn_to_page(entry >> PFN_SHIFT) })
}

const fn pfn_entry(pfn: usize) -> usize {
    (pfn << PFN_SHIFT) | PFN_VALID
}

/// Runs `f` with the address of the page `nth` of a folio.
///
/// The address is valid while `f` runs, and what is there are initialised bytes.
///
/// # Safety
///
/// The folio must be in host memory and have more than `nth` pages.
unsafe fn with_folio_page<R>(
    folio: NonNull<bindings::folio>,
    nth: usize,
    f: impl FnOnce(*mut [u8; PAGE_SIZE]) -> R,
) -> R {
    // SAFETY: The folio has this page, and it is in host memory.
    let addr = unsafe { bindings::kmap_local_page(bindings::folio_page(folio.as_ptr(), nth)) };

    let ret = f(addr.cast());

    // SAFETY: `addr` came from `kmap_local_page()`. What `f` mapped in between, it has unmapped,
    // because this function is the only way to do that here.
    unsafe { bindings::kunmap_local(addr) };

    ret
}

/// A folio of host memory that is about to receive pages from the device.
///
/// # Invariants
///
/// `folio` is in host memory, of order `order`, and locked. This object owns the lock and the only
/// reference.
pub struct HostFolio {
    folio: NonNull<bindings::folio>,
    order: u32,
}

impl HostFolio {
    /// # Safety
    ///
    /// `folio` must be null or a folio that was just allocated with the given order.
    unsafe fn from_new(folio: *mut bindings::folio, order: u32) -> Option<Self> {
        let folio = NonNull::new(folio)?;

        // SAFETY: The folio is valid. Nobody else has it, so that this does not wait.
        unsafe { bindings::folio_lock(folio.as_ptr()) };

        // INVARIANT: We own the folio by the safety requirements, and locked it.
        Some(Self { folio, order })
    }

    /// Allocates a large folio if that is easy, or a single page.
    const fn gfp(order: u32) -> bindings::gfp_t {
        if order == 0 {
            bindings::GFP_HIGHUSER_MOVABLE
        } else {
            bindings::GFP_TRANSHUGE | bindings::__GFP_NOWARN
        }
    }

    /// Allocates a folio for an address of a process.
    ///
    /// # Safety
    ///
    /// `vma` must be valid, with the mmap lock held, and contain the folio at `addr`.
    unsafe fn for_vma(
        vma: *mut bindings::vm_area_struct,
        addr: usize,
        order: u32,
    ) -> Option<Self> {
        // SAFETY: By the safety requirements. Orders are small.
        unsafe {
            Self::from_new(
                bindings::vma_alloc_folio(Self::gfp(order), order as c_int, vma, addr),
                order,
            )
        }
    }

    /// Allocates a folio for nobody in particular. A single page always succeeds with `nofail`.
    fn anywhere(order: u32, nofail: bool) -> Option<Self> {
        let mut gfp = Self::gfp(order);
        if nofail && order == 0 {
            gfp |= bindings::__GFP_NOFAIL;
        }

        // SAFETY: A folio can be allocated with these flags in any process context.
        unsafe { Self::from_new(bindings::folio_alloc(gfp, order), order) }
    }

    /// Returns the number of pages.
    #[inline]
    pub fn nr_pages(&self) -> usize {
        1 << self.order
    }

    /// Runs `f` with the content of page `nth` of the folio, for the driver to fill.
    ///
    /// Initially the content is arbitrary. Returns [`None`] if the folio has no such page.
    pub fn with_page<R>(
        &mut self,
        nth: usize,
        f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R,
    ) -> Option<R> {
        if nth >= self.nr_pages() {
            return None;
        }

        // SAFETY: We checked `nth`, and the folio is in host memory by the type invariants.
        Some(unsafe {
            with_folio_page(self.folio, nth, |bytes| {
                // SAFETY: The address is valid. Nobody else has a reference to the folio by the
                // type invariants, and `self` is borrowed mutably.
                f(&mut *bytes)
            })
        })
    }

    fn zero(&mut self) {
        for i in 0..self.nr_pages() {
            self.with_page(i, |bytes| bytes.fill(0));
        }
    }

    /// Gives up the ownership and returns an entry for the `dst` array.
    fn into_entry(self) -> usize {
        // SAFETY: The folio is valid by the type invariants.
        let pfn = unsafe { bindings::page_to_pfn(self.folio.as_ptr().cast()) };
        let compound = if self.order > 0 { PFN_COMPOUND } else { 0 };

        core::mem::forget(self);
        pfn_entry(pfn) | compound
    }
}

impl Drop for HostFolio {
    fn drop(&mut self) {
        // SAFETY: By the type invariants we own the lock and the reference.
        unsafe { unlock_and_put(self.folio.as_ptr()) };
    }
}

/// The arrays that the C side keeps its state in: old and new page of each address.
pub(super) struct Arrays {
    src: KVec<usize>,
    dst: KVec<usize>,
}

impl Arrays {
    pub(super) fn new(nr: usize) -> Result<Self> {
        Ok(Self {
            src: KVec::from_elem(0, nr, GFP_KERNEL)?,
            dst: KVec::from_elem(0, nr, GFP_KERNEL)?,
        })
    }

    /// Releases the new folios from entry `range.start` on.
    ///
    /// # Safety
    ///
    /// The entries must have been made by `into_entry()` or `into_pfn()`, and not been given to the
    /// C side, so that this object owns their locks and references.
    unsafe fn discard_dst(dst: &mut [usize]) {
        for entry in dst.iter_mut() {
            if let Some(page) = entry_page(core::mem::take(entry)) {
                // SAFETY: We own the folio by the safety requirements. An entry is of its first
                // page.
                unsafe { unlock_and_put(page.as_ptr().cast()) };
            }
        }
    }

    /// Removes new folios that the C side can not use.
    ///
    /// A huge page that is not moved in one piece is split when its first page gets a new one, and
    /// not looked at otherwise. An unpopulated one needs a new page for each of its pages.
    ///
    /// # Safety
    ///
    /// As for [`Self::discard_dst`].
    unsafe fn discard_unusable(&mut self) {
        let mut i = 0;

        while i < self.src.len() {
            let src = self.src[i];

            if src & PFN_COMPOUND == 0 || self.dst[i] & PFN_COMPOUND != 0 {
                i += if src & PFN_COMPOUND != 0 { PMD_PAGES } else { 1 };
                continue;
            }

            let end = (i + PMD_PAGES).min(self.src.len());
            let dst = &mut self.dst[i..end];
            let usable = if src & PFN_VALID != 0 {
                dst[0] != 0
            } else {
                dst.iter().all(|entry| *entry != 0)
            };
            if !usable {
                // SAFETY: The requirements are the same.
                unsafe { Self::discard_dst(dst) };
            }
            i = end;
        }
    }

    /// Calls `f` with the entry number and the number of pages of each folio that moved.
    fn for_each_moved(&self, nr: usize, mut f: impl FnMut(usize, usize)) {
        let mut i = 0;

        while i < nr {
            let n = if self.dst[i] & PFN_COMPOUND != 0 {
                PMD_PAGES
            } else {
                1
            };
            if self.src[i] & PFN_MIGRATE != 0 && self.dst[i] & PFN_VALID != 0 {
                f(i, n);
            }
            i += n;
        }
    }
}

/// What all migrations of a range of addresses have in common.
///
/// # Invariants
///
/// - `migrate_vma_setup()` succeeded for `args` and `migrate_vma_finalize()` was not called.
/// - `args.src` and `args.dst` point to `arrays`, which are long enough.
/// - The mmap lock is held while this exists, so that `args.vma` is valid.
/// - If `moved` is false, `migrate_vma_pages()` was not called, and this object owns the folios in
///   `arrays.dst`.
struct Raw<'a> {
    args: bindings::migrate_vma,
    arrays: Arrays,
    moved: bool,
    // The mmap lock and the page locks have to be released by the thread that took them.
    _nts: NotThreadSafe,
    _mmap: PhantomData<&'a ()>,
}

impl Raw<'_> {
    /// # Safety
    ///
    /// - `vma` must be valid, with the mmap lock held, for the lifetime of the returned value.
    /// - `fault_page` must be null, or the page that a `migrate_to_ram()` callback is called for,
    ///   and this call must be made within it.
    /// - `owner` must be the owner of a pagemap.
    unsafe fn setup(
        vma: *mut bindings::vm_area_struct,
        range: Range<usize>,
        owner: *mut c_void,
        flags: bindings::migrate_vma_direction,
        fault_page: *mut bindings::page,
    ) -> Result<Self> {
        let mut arrays = Arrays::new(range.len().div_ceil(PAGE_SIZE))?;
        let mut args = bindings::migrate_vma {
            vma,
            dst: arrays.dst.as_mut_ptr(),
            src: arrays.src.as_mut_ptr(),
            cpages: 0,
            npages: 0,
            start: range.start,
            end: range.end,
            pgmap_owner: owner,
            // CAST: The type of the flags is an enumeration, the field is a long.
            flags: flags as usize,
            fault_page,
        };

        // SAFETY: `vma` and `fault_page` are as required by the safety requirements, and the arrays
        // have an element per page.
        to_result(unsafe { bindings::migrate_vma_setup(&mut args) })?;

        // INVARIANT: The call succeeded. Moving a vector does not move its elements.
        Ok(Self {
            args,
            arrays,
            moved: false,
            _nts: NotThreadSafe,
            _mmap: PhantomData,
        })
    }

    fn move_pages(&mut self) {
        if self.moved {
            return;
        }

        // SAFETY: By the type invariants we own the folios in `dst`.
        unsafe { self.arrays.discard_unusable() };

        // SAFETY: By the type invariants the migration was set up and is not finished. The new
        // folios are locked and fit in number and order, as far as the C side does not check that.
        unsafe { bindings::migrate_vma_pages(&mut self.args) };

        // INVARIANT: The C side may have used the new folios.
        self.moved = true;
    }

    fn address(&self, i: usize) -> usize {
        self.args.start + i * PAGE_SIZE
    }

    /// The order of the page or hole at entry `i`, if it is to be migrated.
    fn order(&self, i: usize) -> Option<u32> {
        match self.arrays.src[i] {
            src if src & PFN_MIGRATE == 0 => None,
            src if src & PFN_COMPOUND != 0 => Some(PMD_ORDER),
            _ => Some(0),
        }
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        if !self.moved {
            // Otherwise the page tables would get entries for pages that have not taken the place
            // of the old ones.
            //
            // SAFETY: By the type invariants we own these folios.
            unsafe { Arrays::discard_dst(&mut self.arrays.dst) };
        }

        // SAFETY: By the type invariants the migration was set up, and only this finishes it. The
        // entries of `dst` are empty if `migrate_vma_pages()` was not called.
        unsafe { bindings::migrate_vma_finalize(&mut self.args) };
    }
}

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
        // SAFETY: By the type invariants of `Raw` the VMA is valid and the mmap lock is held, so
        // that the flags do not change.
        unsafe { (*self.raw.args.vma).__bindgen_anon_2.vm_flags }
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
    /// whichever comes first, and also returns the address where it ended: callers go on from there.
    ///
    /// Pages that are not anonymous memory, or that somebody else uses, stay where they are. This is
    /// no error. It fails with [`EFAULT`] if nothing is mapped at `start`, and with [`EINVAL`] for a
    /// VMA whose pages can not be migrated at all.
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

    /// Moves the page to `folio`, which has the content now.
    ///
    /// Fails with [`EINVAL`] if the order or the pagemap is not the right one. `folio` is free again
    /// then.
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
            .filter(|folio| folio.order == order)
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
            let mut folio = unsafe { HostFolio::for_vma(vma, self.raw.address(i), 0) }
                .ok_or(ENOMEM)?;

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

/// An access of the CPU to a page that is on the device.
///
/// Given to [`Ops::migrate_to_ram`].
///
/// # Invariants
///
/// `vmf` is valid for `'a`, describes a fault on a page of device private memory, and this exists
/// only within the `migrate_to_ram()` callback for it.
pub struct Fault<'a> {
    vmf: NonNull<bindings::vm_fault>,
    _nts: NotThreadSafe,
    _callback: PhantomData<&'a ()>,
}

impl<'a> Fault<'a> {
    /// # Safety
    ///
    /// `vmf` must be what the C side calls a `migrate_to_ram()` callback with, and `'a` must not
    /// last longer than that callback.
    pub(super) unsafe fn from_raw(vmf: *mut bindings::vm_fault) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            // SAFETY: `vmf` is valid.
            vmf: unsafe { NonNull::new_unchecked(vmf) },
            _nts: NotThreadSafe,
            _callback: PhantomData,
        }
    }

    fn vma(&self) -> *mut bindings::vm_area_struct {
        // SAFETY: `vmf` is valid by the type invariants.
        unsafe { self.vmf.as_ref().__bindgen_anon_1.vma }
    }

    /// Returns the address that the CPU accessed.
    pub fn address(&self) -> usize {
        // SAFETY: `vmf` is valid by the type invariants.
        unsafe { self.vmf.as_ref().__bindgen_anon_1.address }
    }

    /// Begins to bring the page home, or the whole huge page if it is mapped as one.
    ///
    /// `map` is the pagemap that [`Ops::migrate_to_ram`] was called with.
    ///
    /// The page need not be among those collected. Somebody else may just be moving it. Then nothing
    /// is left to do, and the access is repeated.
    pub fn setup<T: Ops>(
        self,
        map: &'a PageMap<'_, T>,
    ) -> Result<Migration<'a, T, ToHost, Collected>> {
        let mut start = self.address() & PAGE_MASK;
        let mut pages = 1;
        let mut flags = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_PRIVATE;
        let first = self.host_folio_for_pmd();

        if first.is_some() {
            start &= !(PMD_PAGES * PAGE_SIZE - 1);
            pages = PMD_PAGES;
            flags |= bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND;
        }

        // SAFETY:
        // - Faults on device private memory are handled with the mmap lock held. It is held until
        //   the callback returns, and `'a` does not last longer.
        // - The page is the one that the callback is called for.
        // - The owner is that of a pagemap.
        let raw = unsafe {
            Raw::setup(
                self.vma(),
                start..start + pages * PAGE_SIZE,
                map.owner(),
                flags,
                self.vmf.as_ref().page,
            )
        }?;

        Ok(Migration::new(raw, map, first))
    }

    /// If the fault is for a huge page, returns where it can move to in one piece, or splits it.
    ///
    /// The decision is made before the migration is set up. Later, the core could not split the
    /// huge page, because it does not expect the reference that the fault handler has.
    fn host_folio_for_pmd(&self) -> Option<HostFolio> {
        // SAFETY: `vmf` is valid by the type invariants.
        let vmf = unsafe { self.vmf.as_ref() };

        // A fault handler of page table entries leaves a pointer to the entry.
        if !vmf.pte.is_null() {
            return None;
        }

        // SAFETY: The fault handler holds a reference to the page and the lock of its folio, so that
        // the order does not change.
        let order = unsafe { bindings::folio_order(bindings::page_folio(vmf.page)) };
        if order != PMD_ORDER {
            return None;
        }

        let address = self.address();

        // SAFETY: The VMA is valid, and the mmap lock is held. The huge page is mapped at the huge
        // page boundary below the address.
        let folio = unsafe {
            HostFolio::for_vma(
                self.vma(),
                address & !(PMD_PAGES * PAGE_SIZE - 1),
                PMD_ORDER,
            )
        };

        if folio.is_none() {
            split_pmd(self.vma(), address);
        }
        folio
    }
}

// These two are not generic and never inlined: the C functions are not available to modules.

/// Splits the mapping of a huge page. `vma` must be valid, with the mmap lock held.
#[inline(never)]
fn split_pmd(vma: *mut bindings::vm_area_struct, address: usize) {
    // SAFETY: Callers, all in this module, hold the mmap lock, so that `vma` is valid.
    unsafe { bindings::split_huge_pmd_address(vma, address & PAGE_MASK, false) };
}

/// Splits a large folio of device private memory, if nobody else is using it right now.
#[inline(never)]
fn split_device_folio(page: *mut bindings::page) {
    // SAFETY: `page` is the first page of a folio of device private memory, or was a moment ago.
    // Callers have a reference to the pagemap, so that there is a `struct page` to look at.
    let folio = unsafe { bindings::page_folio(page) };

    // SAFETY: As above. This fails if the page is free.
    if !unsafe { bindings::folio_try_get(folio) } {
        return;
    }

    // SAFETY: We have a reference.
    if unsafe { bindings::folio_trylock(folio) } {
        // SAFETY: The folio is locked, and we have a reference. It is checked to be large first; by
        // now it may have been split or become another folio.
        if unsafe { bindings::folio_order(folio) } > 0 {
            // Failure means that somebody else is using it. The caller tries again.
            //
            // SAFETY: As above.
            let _ = unsafe { bindings::split_folio(folio) };
        }
        // SAFETY: We took the lock. After a split, it is that of the folio which has the first page
        // and which our reference is for.
        unsafe { bindings::folio_unlock(folio) };
    }

    // SAFETY: We took the reference.
    unsafe { bindings::folio_put(folio) };
}

impl<T: Ops> PageMap<'_, T> {
    /// Moves pages to host memory, whatever process they belong to.
    ///
    /// Returns the number of pages that moved. Pages that are just being used otherwise are left
    /// out. To have all pages gone is only possible by dropping the pagemap.
    ///
    /// May be called while pages are being moved to the pagemap, but not within
    /// [`Migration::copy`].
    pub fn evict(&self, range: Range<usize>) -> usize {
        self.evict_steps(range, false)
    }

    /// Moves all pages to host memory, and waits for those that others are using.
    pub(super) fn evict_all(&self) {
        loop {
            self.evict_steps(0..self.nr_pages(), true);

            // What is left belongs to a fault, a migration, or a process that is being forked or
            // is exiting. It will be done.
            if self.nr_in_use() == 0 {
                return;
            }
            fsleep(Delta::from_millis(1));
        }
    }

    fn evict_steps(&self, range: Range<usize>, last: bool) -> usize {
        let end = range.end.min(self.nr_pages());
        let mut start = range.start;
        let mut moved = 0;

        // A step is a huge page, so that no folio is in two steps.
        while start < end {
            let next = (start + 1).next_multiple_of(PMD_PAGES).min(end);

            moved += self.evict_step(start..next, last);
            start = next;
        }
        moved
    }

    fn evict_step(&self, range: Range<usize>, last: bool) -> usize {
        let mut arrays = self.evict_arrays.lock();
        let arrays = &mut *arrays;
        let nr = self.in_use.lock().list(range, &mut arrays.src);
        if nr == 0 {
            return 0;
        }

        for entry in &mut arrays.src[..nr] {
            *entry = self.pfn(*entry);
        }
        arrays.dst[..nr].fill(0);

        // SAFETY: The array has `nr` page frame numbers, all of device private memory whose pagemap
        // exists. Pages that are free by now are recognised by the function.
        unsafe { bindings::migrate_device_pfns(arrays.src.as_mut_ptr(), nr) };

        let mut too_large = None;
        let mut i = 0;
        while i < nr {
            let src = arrays.src[i];
            let Some(page) = entry_page(src).filter(|_| src & PFN_MIGRATE != 0) else {
                i += 1;
                continue;
            };
            let order = if src & PFN_COMPOUND != 0 { PMD_ORDER } else { 0 };

            match self.evict_copy(page, order, last) {
                Some(folio) => arrays.dst[i] = folio.into_entry(),
                None if order > 0 => too_large = Some(page),
                None => (),
            }
            i += 1 << order;
        }

        // SAFETY: The arrays have `nr` entries, which are as `migrate_device_pfns()` left them, with
        // locked folios of the same order as destination.
        unsafe {
            bindings::migrate_device_pages(arrays.src.as_mut_ptr(), arrays.dst.as_mut_ptr(), nr)
        };

        let mut moved = 0;
        arrays.for_each_moved(nr, |_, pages| moved += pages);

        // SAFETY: As above.
        unsafe {
            bindings::migrate_device_finalize(arrays.src.as_mut_ptr(), arrays.dst.as_mut_ptr(), nr)
        };

        // There was no huge page to be had. The next attempt finds single pages.
        if let Some(page) = too_large {
            split_device_folio(page.as_ptr());
        }
        moved
    }

    fn evict_copy(
        &self,
        page: NonNull<bindings::page>,
        order: u32,
        last: bool,
    ) -> Option<HostFolio> {
        // SAFETY: The page is valid, the migration holds a reference to it.
        let pfn = unsafe { bindings::page_to_pfn(page.as_ptr()) };
        let index = self.index(pfn)?;
        let mut folio = HostFolio::anywhere(order, last)?;

        match self.copy_to_host(index, &mut folio) {
            Ok(()) => Some(folio),
            Err(_) if last => {
                pr_err!("device private memory: content of page {} lost\n", index);
                folio.zero();
                Some(folio)
            }
            Err(_) => None,
        }
    }
}
