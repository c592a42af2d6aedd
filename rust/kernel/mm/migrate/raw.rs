// SPDX-License-Identifier: GPL-2.0

//! What the C side keeps of a migration.

use super::unlock_and_put;
use crate::{
    bindings,
    error::to_result,
    mm::pagemap::{
        PMD_ORDER,
        PMD_PAGES, //
    },
    page::PAGE_SIZE,
    prelude::*,
    types::NotThreadSafe, //
};
use core::{
    marker::PhantomData,
    ops::Range,
    ptr::NonNull, //
};

pub(super) const PFN_VALID: usize = bindings::MIGRATE_PFN_VALID as usize;
pub(super) const PFN_MIGRATE: usize = bindings::MIGRATE_PFN_MIGRATE as usize;
pub(super) const PFN_COMPOUND: usize = bindings::MIGRATE_PFN_COMPOUND as usize;
pub(super) const PFN_SHIFT: u32 = bindings::MIGRATE_PFN_SHIFT;

/// Returns the page of an entry of the `src` or `dst` array, if it has one.
pub(super) fn entry_page(entry: usize) -> Option<NonNull<bindings::page>> {
    if entry & PFN_VALID == 0 {
        return None;
    }

    // SAFETY: Only arithmetic.
    NonNull::new(unsafe { bindings::pfn_to_page(entry >> PFN_SHIFT) })
}

pub(super) const fn pfn_entry(pfn: usize) -> usize {
    (pfn << PFN_SHIFT) | PFN_VALID
}

/// The arrays that the C side keeps its state in: old and new page of each address.
pub(in crate::mm) struct Arrays {
    pub(super) src: KVec<usize>,
    pub(super) dst: KVec<usize>,
}

impl Arrays {
    pub(in crate::mm) fn new(nr: usize) -> Result<Self> {
        Ok(Self {
            src: KVec::from_elem(0, nr, GFP_KERNEL)?,
            dst: KVec::from_elem(0, nr, GFP_KERNEL)?,
        })
    }

    /// Releases the new folios of `dst`, and clears their entries.
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
                i += if src & PFN_COMPOUND != 0 {
                    PMD_PAGES
                } else {
                    1
                };
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
    pub(super) fn for_each_moved(&self, nr: usize, mut f: impl FnMut(usize, usize)) {
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
pub(super) struct Raw<'a> {
    pub(super) args: bindings::migrate_vma,
    pub(super) arrays: Arrays,
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
    pub(super) unsafe fn setup(
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

        for src in &mut arrays.src {
            let Some(page) = entry_page(*src).filter(|_| *src & PFN_MIGRATE != 0) else {
                continue;
            };

            // The C side does not move pages of files, but notices late. Nobody may copy such a
            // page before: the CPU can not access pages of `memfd_secret()`.
            // SAFETY: The page is locked, so it stays what it is.
            if !unsafe { bindings::folio_test_anon(bindings::page_folio(page.as_ptr())) } {
                *src &= !PFN_MIGRATE;
            }
        }

        // INVARIANT: The call succeeded. Moving a vector does not move its elements.
        Ok(Self {
            args,
            arrays,
            moved: false,
            _nts: NotThreadSafe,
            _mmap: PhantomData,
        })
    }

    pub(super) fn move_pages(&mut self) {
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

    pub(super) fn address(&self, i: usize) -> usize {
        self.args.start + i * PAGE_SIZE
    }

    /// The order of the page or hole at entry `i`, if it is to be migrated.
    pub(super) fn order(&self, i: usize) -> Option<u32> {
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
